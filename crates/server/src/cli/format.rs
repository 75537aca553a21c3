//! `steadfast format`.

use clap::Args;
use serde_json::json;
use steadfast_disk::cache_warnings;
use steadfast_flow::Env;

use super::{DataArgs, Failure};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::make;
use crate::disks::making::{self, Begun};
use crate::disks::open::{Disks, Taking};
use crate::disks::plan::{Plan, Scope};
use crate::serve::many;

/// Arguments of `format`.
#[derive(Args, Debug)]
#[command(
    after_help = "Format block devices and stripes once, before the first start; `serve` itself creates pools and fast legs in \
files. A disk that holds data is refused without --force. --dry-run shows the pool that would be created, and exits with 3 if a \
disk cannot be used.\n\n\
Examples:\n  steadfast format --data /var/lib/steadfast --set data.pool=/dev/nvme1n1\n  \
steadfast format --data /var/lib/steadfast --set data.disks=/dev/sdb,/dev/sdc\n  \
steadfast format --config steadfast.toml --dry-run"
)]
pub struct FormatArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Maximum size of a pool file, such as "500 GiB" [default: the size of the file system]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,

    /// Size of an extent, a power of two, such as "256 MiB" [default: by pool size]
    #[arg(long, value_name = "SIZE")]
    extent_size: Option<String>,

    /// Show the pool that would be created and the present content of its disks; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Format the fast disks of an existing pool; leave the pool alone
    #[arg(long)]
    fast_only: bool,

    /// Overwrite disks that hold data: ALL OF IT IS LOST
    #[arg(long)]
    force: bool,

    /// Print the pool as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: FormatArgs) -> Result<(), Failure> {
    let flags = [("--size", "data.pool_size", args.size), ("--extent-size", "data.extent_size", args.extent_size)];
    let config = args.data.load(&flags)?;
    if args.fast_only && config.disk_sets().iter().all(|set| set.fast.is_empty()) {
        return Err("--fast-only: the configuration names no fast disk".into());
    }
    DataDir::refuse_restoring(&config.data.dir)?;
    let begun = match making::begun(&config)? {
        Begun::Forced if !args.force => {
            return Err("a `steadfast format --force` of these disks was interrupted: some of them may still hold old data. --force \
                        overwrites them all"
                .into());
        }
        begun => begun == Begun::Yes && !args.fast_only,
    };
    let scope = Scope { pool: !args.fast_only, force: args.force, begun };
    if args.dry_run {
        let plan = Plan::make(&config, scope)?;
        show(&plan, args.json)?;
        if !args.json {
            print_line!("nothing was changed (--dry-run)");
        }
        return if plan.refusals().is_empty() { Ok(()) } else { Err(Failure::Found) };
    }
    let data = DataDir::create(&config.data.dir)?;
    let plan = Plan::make(&config, scope)?;
    let refusals = plan.refusals();
    if !refusals.is_empty() {
        return Err(refusals.join("\n").into());
    }
    super::block_on(format(&config, &data, &plan, scope))?;
    show(&plan, args.json)?;
    for disk in &plan.disks {
        for warning in cache_warnings(&disk.path) {
            eprintln!("steadfast: warning: {}: {warning}", disk.path.display());
        }
    }
    if !args.json {
        let disks = config.disk_sets().len();
        print_line!(
            "{}",
            match (args.fast_only, disks) {
                (true, _) => "new fast legs; the next start fills them".to_owned(),
                (false, 1) => "a new pool".to_owned(),
                (false, _) => format!("a new pool of {disks} disks"),
            }
        );
    }
    Ok(())
}

fn show(plan: &Plan, as_json: bool) -> Result<(), Failure> {
    if as_json {
        print_line!("{}", serde_json::to_string_pretty(&json!(plan))?);
    } else {
        put!("{}", plan.table());
    }
    Ok(())
}

async fn format(config: &Config, data: &DataDir, plan: &Plan, scope: Scope) -> Result<(), String> {
    let env = Env::tokio();
    if scope.pool {
        if config.is_many() {
            making::begin(config, data, scope.force)?;
        }
        // They belong to old pools.
        for index in data.indexes()? {
            std::fs::remove_dir_all(&index).map_err(|e| format!("{}: {e}", index.display()))?;
        }
    }
    make::format(config, plan, scope, &env).await?;
    if !config.is_many() {
        return pair(config, &env).await;
    }
    if !scope.pool {
        return many::pair(config, &env).await;
    }
    many::found(config, &env).await?;
    making::end(data)
}

/// Pairs the legs of each super-disk.
async fn pair(config: &Config, env: &Env) -> Result<(), String> {
    for set in config.disk_sets().into_iter().filter(|set| !set.fast.is_empty()) {
        let disks = Disks::open(config, &set, env, Taking::All).await?;
        let made = disks.superdisk();
        disks.close().await;
        if let Some(why) = made.as_ref().and_then(|fast| fast.why()) {
            return Err(format!("the fast leg could not be made: {why}"));
        }
    }
    Ok(())
}
