//! `steadfast verify`.

use std::path::Path;

use clap::Args;
use steadfast_flow::Env;

use super::progress::Progress;
use super::{DataArgs, Failure};
use crate::datadir::DataDir;
use crate::report::size;
use crate::serve::engine;

/// Arguments of `verify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Reads the whole pool and compares everything with its checksums. The server must not run. Nothing is \
changed. Exit code 3 when something is damaged.\n\n\
Example:\n  steadfast verify --data /var/lib/steadfast"
)]
pub struct VerifyArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Damages that are printed one by one.
const SHOWN_MAX: usize = 50;

/// Runs it.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let data = DataDir::open(&config.data.dir)?;
    let path = config.pool_path();
    let report = super::block_on(async {
        let env = Env::tokio();
        let disk = engine::open_disk(&path, &config, &env, false).await?;
        let mut progress = Progress::new(env);
        let report = steadfast_log::verify(&disk, |done, total| {
            progress.show("verifying", done as f64 / total.max(1) as f64);
        })
        .await;
        progress.clear();
        report.map_err(|e| format!("{}: {e}", path.display()))
    })?;
    drop(data);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&path, &report);
    }
    if report.is_clean() { Ok(()) } else { Err(Failure::Found) }
}

fn print(path: &Path, report: &steadfast_log::VerifyReport) {
    for damage in report.damage.iter().take(SHOWN_MAX) {
        let lsns = damage.lsns.map(|(first, last)| format!(", LSN {first} to {last}")).unwrap_or_default();
        println!("damage: extent {} at {}, {}{lsns}: {}", damage.extent, damage.offset, size(damage.len), damage.what);
    }
    let more = report.damage_total.saturating_sub(report.damage.len().min(SHOWN_MAX) as u64);
    if more > 0 {
        println!("... and {more} more; --json lists them");
    }
    let found = if report.is_clean() { "no damage".to_owned() } else { format!("{} DAMAGED", report.damage_total) };
    println!(
        "{}: {found}; {} records in {} frames, {} read, LSN {} the last",
        path.display(),
        report.counts.records,
        report.counts.frames,
        size(report.counts.read_bytes),
        report.last_lsn
    );
    if report.doubtful_total > 0 {
        println!(
            "{} pieces of large bodies at the ends of open extents do not verify: what uploads leave behind that were cut off, \
             unless an object needs one; then reading that object gives an error",
            report.doubtful_total
        );
    }
}
