//! `steadfast format`.

use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use serde_json::json;
use steadfast_disk::{Disk, Stripe, StripeOptions};
use steadfast_flow::Env;
use steadfast_log::Log;

use super::{DataArgs, Failure};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::open::{Disks, Taking, open_file};
use crate::disks::plan::{Plan, Planned, Role, Scope};
use crate::serve::{engine, many};

/// Arguments of `format`.
#[derive(Args, Debug)]
#[command(
    after_help = "A pool in a file is also made by the first `serve`, and so are the files of a fast leg. Block devices and stripes are \
made here, once. Nothing that holds something is used without --force; --dry-run shows what would be made, and ends with 3 if something \
stands in its way.\n\n\
Examples:\n  steadfast format --data /var/lib/steadfast --set data.pool=/dev/nvme1n1\n  \
steadfast format --data /var/lib/steadfast --set data.disks=/dev/sdb,/dev/sdc\n  \
steadfast format --config steadfast.toml --dry-run"
)]
pub struct FormatArgs {
    #[command(flatten)]
    data: DataArgs,

    /// The largest size that a pool file may grow to, such as "500 GiB"
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,

    /// Size of an extent, a power of two, such as "256 MiB"
    #[arg(long, value_name = "SIZE")]
    extent_size: Option<String>,

    /// Show the pool that would be made, and what is on its disks now; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Only the fast disks of a super-disk, for a pool that is there: the pool is not touched
    #[arg(long)]
    fast_only: bool,

    /// Format even if there is something: ALL OF IT IS LOST
    #[arg(long)]
    force: bool,

    /// Print what is made as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: FormatArgs) -> Result<(), Failure> {
    let flags = [("--size", "data.pool_size", args.size), ("--extent-size", "data.extent_size", args.extent_size)];
    let config = args.data.load(&flags)?;
    let scope = Scope { pool: !args.fast_only, force: args.force };
    if args.fast_only && config.superdisk.fast.0.is_empty() {
        return Err("--fast-only: superdisk.fast names no disk".into());
    }
    if !config.data.disks.0.is_empty() {
        if args.dry_run || args.json {
            return Err("--dry-run and --json do not know data.disks yet".into());
        }
        let data = DataDir::create(&config.data.dir)?;
        super::block_on(format_many(&config, &data, args.force))?;
        println!("a new pool of {} disks", config.data.disks.0.len());
        return Ok(());
    }
    if args.dry_run {
        let plan = Plan::make(&config, scope)?;
        show(&plan, args.json)?;
        if !args.json {
            println!("nothing was changed (--dry-run)");
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
    if !args.json {
        println!("{}", if args.fast_only { "a new fast leg; the next start fills it" } else { "a new pool" });
    }
    Ok(())
}

async fn format_many(config: &Config, data: &DataDir, force: bool) -> Result<(), String> {
    // What they said was of the old pools.
    for index in many::indexes(data)? {
        std::fs::remove_dir_all(&index).map_err(|e| format!("{}: {e}", index.display()))?;
    }
    many::make(config, &Env::tokio(), &config.disk_paths(), force).await
}

fn show(plan: &Plan, as_json: bool) -> Result<(), Failure> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(&json!(plan))?);
    } else {
        print!("{}", plan.table());
    }
    Ok(())
}

async fn format(config: &Config, data: &DataDir, plan: &Plan, scope: Scope) -> Result<(), String> {
    let env = Env::tokio();
    let of = |role: Role| plan.disks.iter().filter(|disk| disk.role == role).collect::<Vec<_>>();
    let fast = of(Role::Fast);
    for disk in fast.iter().filter(|disk| !disk.found.device && !disk.found.contents.is_empty()) {
        remove_file(disk)?;
    }
    if scope.pool {
        make_durable(config, data, &of(Role::Durable), scope, &env).await?;
    }
    if fast.is_empty() {
        return Ok(());
    }
    // Makes the two legs a pair.
    let disks = Disks::open(config, &env, Taking::All).await?;
    let made = disks.superdisk();
    disks.close().await;
    match made.as_ref().and_then(|fast| fast.why()) {
        Some(why) => Err(format!("the fast leg could not be made: {why}")),
        None => Ok(()),
    }
}

async fn make_durable(
    config: &Config,
    data: &DataDir,
    disks: &[&Planned],
    scope: Scope,
    env: &Env,
) -> Result<(), String> {
    match disks {
        [one] if !one.found.device => engine::create(&one.path, config, env).await?,
        disks => {
            let limit = config.data.pool_size.map(|size| size.0);
            let mut opened = Vec::new();
            for disk in disks {
                opened.push(open_file(&disk.path, config, env, limit, !disk.found.device).await?);
            }
            let pool = match &opened[..] {
                [one] => one.clone(),
                all => {
                    Stripe::format(all, env, &StripeOptions::default(), scope.force)
                        .await
                        .map_err(|e| e.to_string())?;
                    Stripe::open(opened).await.map_err(|e| e.to_string())?
                }
            };
            make_pool(&pool, config, env, scope.force).await?;
        }
    }
    // What it said was of the old pool.
    match std::fs::remove_dir_all(data.index()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", data.index().display())),
        _ => Ok(()),
    }
}

async fn make_pool(pool: &Arc<dyn Disk>, config: &Config, env: &Env, force: bool) -> Result<(), String> {
    if force && pool.len() >= HEAD_BYTES {
        // The mark of an older pair would stay beside the new superblock.
        wipe(pool, HEAD_BYTES).await?;
    }
    Log::format(pool, env, &engine::format_options(config, force))
        .await
        .map(|_| ())
        .map_err(|e| format!("{}: {e}", pool.describe()))
}

/// Where the pool's own head ends.
const HEAD_BYTES: u64 = 1 << 20;

/// Takes away the fast leg's files, which are made anew.
fn remove_file(disk: &Planned) -> Result<(), String> {
    match std::fs::remove_file(&disk.path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", disk.path.display())),
        _ => Ok(()),
    }
}

async fn wipe(disk: &Arc<dyn Disk>, bytes: u64) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", disk.describe());
    let zeros = Bytes::from(vec![0u8; 1 << 20]);
    let end = bytes.min(disk.len());
    let mut at = 0;
    while at < end {
        let len = (end - at).min(zeros.len() as u64);
        disk.write(at, zeros.slice(..len as usize)).await.map_err(fail)?;
        at += len;
    }
    disk.flush().await.map_err(fail)
}
