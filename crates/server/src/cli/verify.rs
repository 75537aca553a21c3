//! `steadfast verify`.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;
use serde_json::json;
use steadfast_flow::Env;
use steadfast_store::{Names, named_chunks};

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
    let (report, names) = super::block_on(async {
        let env = Env::tokio();
        let disk = engine::open_disk(&path, &config, &env, false).await?;
        let mut progress = Progress::new(env);
        let mut names = Names::default();
        let named = |head: &[u8], body: &[u8]| {
            names.learn(head);
            named_chunks(head, body)
        };
        let report = steadfast_log::verify_named(&disk, named, |done, total| {
            progress.show("verifying", done as f64 / total.max(1) as f64);
        })
        .await;
        progress.clear();
        report.map(|report| (report, names)).map_err(|e| format!("{}: {e}", path.display()))
    })?;
    drop(data);
    if args.json {
        let mut shown = serde_json::to_value(&report)?;
        for (damage, found) in shown["damage"].as_array_mut().into_iter().flatten().zip(&report.damage) {
            damage["concerns"] = json!(subjects(found, &names));
        }
        println!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        print(&path, &report, &names);
    }
    if report.is_clean() { Ok(()) } else { Err(Failure::Found) }
}

/// What damage concerns, as far as it is known.
fn subjects(damage: &steadfast_log::check::Damage, names: &Names) -> BTreeSet<String> {
    damage.heads.iter().map(|head| names.describe(head)).collect()
}

fn print(path: &Path, report: &steadfast_log::VerifyReport, names: &Names) {
    for damage in report.damage.iter().take(SHOWN_MAX) {
        let lsns = damage.lsns.map(|(first, last)| format!(", LSN {first} to {last}")).unwrap_or_default();
        println!("damage: extent {} at {}, {}{lsns}: {}", damage.extent, damage.offset, size(damage.len), damage.what);
        for subject in subjects(damage, names) {
            println!("  concerns {subject}");
        }
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
            "{} pieces of large bodies at the ends of open extents do not verify: what uploads leave behind that were cut off. Those that \
             an object needs are counted as damage above",
            report.doubtful_total
        );
    }
}
