//! `steadfast verify`.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use steadfast_disk::{Comparison, Disk, Superdisk};
use steadfast_flow::Env;
use steadfast_log::VerifyReport;
use steadfast_store::{Names, named_chunks};

use super::progress::Progress;
use super::{DataArgs, Failure};
use crate::config::human_size;
use crate::config::{Config, DiskSet};
use crate::datadir::DataDir;
use crate::disks::fast::open_fast_alone;
use crate::disks::open::open_durable;

/// Arguments of `verify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Reads the whole pool and verifies every checksum. The server must be stopped. The command changes nothing, so a \
read-only mount or image is enough. Exit code 3 if damage was found.\n\n\
Of a super-disk it checks the durable leg, which is the complete pool. --fast also compares the fast leg with it: regions whose \
write-intent bit is clear must be equal, also after a crash. Regions whose bit is set are skipped; the next start copies them from \
the durable leg.\n\n\
Example:\n  steadfast verify --data /var/lib/steadfast"
)]
pub struct VerifyArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Also compare the fast leg of a super-disk with its durable leg
    #[arg(long)]
    fast: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Maximum number of damages that are printed one by one.
const SHOWN_MAX: usize = 50;

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let data = DataDir::open_to_read(&config.data.dir)?;
    let sets = config.disk_sets();
    if args.fast && sets.iter().all(|set| set.fast.is_empty()) {
        return Err("--fast: the configuration names no fast disk".into());
    }
    let checked = super::block_on(async {
        let env = Env::tokio();
        let mut checked = Vec::new();
        for set in &sets {
            checked.push((set.name(), check(&config, set, args.fast, &env).await));
        }
        Ok::<_, String>(checked)
    })?;
    drop(data);
    let clean = checked.iter().all(|(_, one)| one.as_ref().is_ok_and(Checked::is_clean));
    if config.is_many() {
        show_many(&checked, args.json)?;
    } else if let Some((name, one)) = checked.into_iter().next() {
        let one = one?;
        if args.json {
            print_line!("{}", serde_json::to_string_pretty(&one.as_value()?)?);
        } else {
            one.print(&name);
        }
    }
    if clean { Ok(()) } else { Err(Failure::Found) }
}

/// The result for the disks of one log.
struct Checked {
    report: VerifyReport,
    names: Names,
    fast: Option<Comparison>,
}

impl Checked {
    fn is_clean(&self) -> bool {
        self.report.is_clean() && self.fast.as_ref().is_none_or(|fast| fast.differing_blocks == 0)
    }

    fn as_value(&self) -> Result<Value, Failure> {
        let mut shown = as_value(&self.report, &self.names)?;
        if let Some(fast) = &self.fast {
            shown["fast"] = json!(fast);
        }
        Ok(shown)
    }

    fn print(&self, name: &str) {
        print(name, &self.report, &self.names);
        if let Some(fast) = &self.fast {
            print_fast(fast);
        }
    }
}

fn show_many(checked: &[(String, Result<Checked, String>)], as_json: bool) -> Result<(), Failure> {
    let mut shown = Vec::new();
    for (name, one) in checked {
        match one {
            Ok(one) if as_json => {
                let value = one.as_value()?;
                shown.push(json!({"path": name, "report": value, "fast": value["fast"]}));
            }
            Err(why) if as_json => shown.push(json!({"path": name, "error": why})),
            Ok(one) => one.print(name),
            Err(why) => print_line!("{name}: {why}: NOT VERIFIED"),
        }
    }
    if as_json {
        print_line!("{}", serde_json::to_string_pretty(&json!({"disks": shown}))?);
    }
    Ok(())
}

/// Verifies the disks of one log.
async fn check(config: &Config, set: &DiskSet, fast: bool, env: &Env) -> Result<Checked, String> {
    // The durable leg alone: it holds all acknowledged data.
    let disk = open_durable(config, set, env).await?;
    let (report, names) = verify(&disk, &set.name(), env.clone()).await?;
    let fast = if fast && !set.fast.is_empty() { Some(compare(&disk, config, set, env).await?) } else { None };
    Ok(Checked { report, names, fast })
}

/// Compares the fast leg with the durable one.
async fn compare(durable: &Arc<dyn Disk>, config: &Config, set: &DiskSet, env: &Env) -> Result<Comparison, String> {
    let fast = open_fast_alone(config, set, env).await?;
    let mut progress = Progress::new(env.clone());
    let show = |done: u64, total: u64| progress.show("comparing", done as f64 / total.max(1) as f64);
    let found = Superdisk::compare(durable, &fast, show).await;
    progress.clear();
    found.map_err(|e| format!("{}: {e}", fast.describe()))
}

fn print_fast(fast: &Comparison) {
    if let Some(why) = &fast.nothing {
        print_line!("fast leg: its content is not used: {why}; the next start rebuilds it");
        return;
    }
    for offset in fast.differing.iter().take(SHOWN_MAX) {
        print_line!("fast leg: the block of the pool at {offset} differs, or cannot be read");
    }
    let found = match fast.differing_blocks {
        0 => "no differences".to_owned(),
        blocks => format!("{blocks} blocks DIFFER (they are repaired from the pool when they are read)"),
    };
    print_line!("fast leg: {} valid, {found}", human_size(fast.compared_bytes));
}

/// Verifies a disk.
async fn verify(disk: &Arc<dyn Disk>, name: &str, env: Env) -> Result<(VerifyReport, Names), String> {
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
    report.map(|report| (report, names)).map_err(|e| format!("{name}: {e}"))
}

fn as_value(report: &VerifyReport, names: &Names) -> Result<Value, Failure> {
    let mut shown = serde_json::to_value(report)?;
    for (damage, found) in shown["damage"].as_array_mut().into_iter().flatten().zip(&report.damage) {
        damage["concerns"] = json!(subjects(found, names));
    }
    Ok(shown)
}

/// The objects and other entities that damage concerns, as far as known.
fn subjects(damage: &steadfast_log::check::Damage, names: &Names) -> BTreeSet<String> {
    damage.heads.iter().map(|head| names.describe(head)).collect()
}

fn print(name: &str, report: &steadfast_log::VerifyReport, names: &Names) {
    for damage in report.damage.iter().take(SHOWN_MAX) {
        let lsns = damage.lsns.map(|(first, last)| format!(", LSN {first} to {last}")).unwrap_or_default();
        let place = match damage.extent {
            // The superblocks precede all extents.
            u32::MAX => "superblock".to_owned(),
            extent => format!("extent {extent}"),
        };
        print_line!("damage: {place} at {}, {}{lsns}: {}", damage.offset, human_size(damage.len), damage.what);
        for subject in subjects(damage, names) {
            print_line!("  concerns {subject}");
        }
    }
    let more = report.damage_total.saturating_sub(report.damage.len().min(SHOWN_MAX) as u64);
    if more > 0 {
        print_line!("... and {more} more; --json lists them");
    }
    let found = if report.is_clean() { "no damage".to_owned() } else { format!("{} DAMAGED", report.damage_total) };
    print_line!(
        "{name}: {found}; {} records in {} frames, {} read, LSN {} the last",
        report.counts.records,
        report.counts.frames,
        human_size(report.counts.read_bytes),
        report.last_lsn
    );
    if report.doubtful_total > report.doubtful_needed {
        print_line!(
            "{} chunks of interrupted uploads, as a crash leaves them: no object needs them, and their space is reused",
            report.doubtful_total - report.doubtful_needed.min(report.doubtful_total)
        );
    }
}
