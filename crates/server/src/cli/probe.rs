//! `steadfast probe`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use steadfast_disk::IoMode;
use steadfast_disk::probe::{ProbeOptions, probe};
use steadfast_flow::Env;

use super::progress::Progress;
use super::{Failure, block_on};

/// Arguments of `probe`.
#[derive(Args, Debug)]
#[command(
    after_help = "Measures bandwidth, IOPS and the cost of a flush, and compares them with what the device reports. In a \
directory it uses a temporary file, which it removes. An existing file or device is only read, unless --destroy is given.\n\n\
Example:\n  steadfast probe /var/lib --seconds 20"
)]
pub struct ProbeArgs {
    /// A directory, a file or a block device
    path: PathBuf,

    /// Approximate duration in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// I/O method: uring, threads or auto
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: IoMode,

    /// Overwrite the existing file or device: ALL ITS DATA IS LOST
    #[arg(long)]
    destroy: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let options = ProbeOptions { duration: Duration::from_secs(args.seconds), io: args.io, destroy: args.destroy };
    let report = block_on(async {
        let env = Env::tokio();
        let mut progress = Progress::new(env.clone());
        let report = probe(&args.path, &options, &env, |what, part| progress.show(what, part)).await;
        progress.clear();
        report.map_err(|e| e.to_string())
    })?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        put!("{report}");
    }
    Ok(())
}
