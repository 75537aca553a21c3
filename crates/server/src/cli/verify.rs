//! `steadfast verify`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::VerifyReport;
use steadfast_store::{Names, named_chunks};

use super::progress::Progress;
use super::{DataArgs, Failure};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::report::size;
use crate::serve::{self, engine};

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
    if !config.data.disks.0.is_empty() {
        return many(&config, args.json);
    }
    let path = config.pool_path();
    let (report, names) = super::block_on(async {
        let env = Env::tokio();
        let disk = engine::open_disk(&path, &config, &env, false).await?;
        verify(&disk, &path, env).await
    })?;
    drop(data);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&as_value(&report, &names)?)?);
    } else {
        print(&path, &report, &names);
    }
    if report.is_clean() { Ok(()) } else { Err(Failure::Found) }
}

/// Reads all that is on a disk.
async fn verify(disk: &Arc<dyn Disk>, path: &Path, env: Env) -> Result<(VerifyReport, Names), String> {
    let mut progress = Progress::new(env);
    let mut names = Names::default();
    let named = |head: &[u8], body: &[u8]| {
        names.learn(head);
        named_chunks(head, body)
    };
    let report = steadfast_log::verify_named(disk, named, |done, total| {
        progress.show("verifying", done as f64 / total.max(1) as f64);
    })
    .await;
    progress.clear();
    report.map(|report| (report, names)).map_err(|e| format!("{}: {e}", path.display()))
}

/// Verifies each disk of a pool of several.
fn many(config: &Config, as_json: bool) -> Result<(), Failure> {
    let reports = super::block_on(async {
        let env = Env::tokio();
        let mut reports = Vec::new();
        for (path, disk) in serve::many::Disks::open(config, &env).await.iter() {
            let report = match disk {
                Ok(disk) => verify(disk, path, env.clone()).await,
                Err(why) => Err(format!("{}: {why}", path.display())),
            };
            reports.push((path.clone(), report));
        }
        Ok::<_, String>(reports)
    })?;
    let mut shown = Vec::new();
    for (path, report) in &reports {
        match report {
            Ok((report, names)) if as_json => {
                shown.push(json!({"path": path, "report": as_value(report, names)?}));
            }
            Err(why) if as_json => shown.push(json!({"path": path, "error": why})),
            Ok((report, names)) => print(path, report, names),
            Err(why) => println!("{why}: NOT VERIFIED"),
        }
    }
    if as_json {
        println!("{}", serde_json::to_string_pretty(&json!({"disks": shown}))?);
    }
    let clean = reports.iter().all(|(_, report)| report.as_ref().is_ok_and(|(report, _)| report.is_clean()));
    if clean { Ok(()) } else { Err(Failure::Found) }
}

fn as_value(report: &VerifyReport, names: &Names) -> Result<Value, Failure> {
    let mut shown = serde_json::to_value(report)?;
    for (damage, found) in shown["damage"].as_array_mut().into_iter().flatten().zip(&report.damage) {
        damage["concerns"] = json!(subjects(found, names));
    }
    Ok(shown)
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
