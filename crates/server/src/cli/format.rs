//! `steadfast format`.

use clap::Args;
use steadfast_flow::Env;
use steadfast_log::Log;

use super::{DataArgs, Failure};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::serve::{engine, many};

/// Arguments of `format`.
#[derive(Args, Debug)]
#[command(
    after_help = "A pool in a file is also made by the first `serve`. A block device must be formatted here, once.\n\n\
Examples:\n  steadfast format --data /var/lib/steadfast --set data.pool=/dev/nvme1n1\n  \
steadfast format --data /var/lib/steadfast --set data.disks=/dev/sdb,/dev/sdc"
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

    /// Format even if there is something: ALL OF IT IS LOST
    #[arg(long)]
    force: bool,
}

/// Runs it.
pub fn run(args: FormatArgs) -> Result<(), Failure> {
    let flags = [("--size", "data.pool_size", args.size), ("--extent-size", "data.extent_size", args.extent_size)];
    let config = args.data.load(&flags)?;
    let data = DataDir::create(&config.data.dir)?;
    if !config.data.disks.0.is_empty() {
        super::block_on(format_many(&config, &data, args.force))?;
        println!("a new pool of {} disks", config.data.disks.0.len());
        return Ok(());
    }
    let path = config.pool_path();
    super::block_on(format(&config, &data, args.force))?;
    println!("{}: a new pool", path.display());
    Ok(())
}

async fn format_many(config: &Config, data: &DataDir, force: bool) -> Result<(), String> {
    // What they said was of the old pools.
    for index in many::indexes(data)? {
        std::fs::remove_dir_all(&index).map_err(|e| format!("{}: {e}", index.display()))?;
    }
    many::make(config, &Env::tokio(), &config.disk_paths(), force).await
}

async fn format(config: &Config, data: &DataDir, force: bool) -> Result<(), String> {
    let env = Env::tokio();
    let path = config.pool_path();
    if engine::is_block_device(&path) {
        let disk = engine::open_disk(&path, config, &env, false).await?;
        Log::format(&disk, &env, &engine::format_options(config, force))
            .await
            .map_err(|e| format!("{}: {e}", path.display()))?;
    } else {
        if path.exists() && !force {
            return Err(format!("{} exists; --force replaces it, and ALL THAT IS IN IT IS LOST", path.display()));
        }
        engine::create(&path, config, &env).await?;
    }
    // What it said was of the old pool.
    match std::fs::remove_dir_all(data.index()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", data.index().display())),
        _ => Ok(()),
    }
}
