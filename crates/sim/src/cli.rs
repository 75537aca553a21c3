//! The command that simulates a pool: `steadfast-sim pool` and `steadfast simulate`.

use std::fmt::Write;
use std::io::IsTerminal;

use clap::Args;

use crate::{SimOptions, SimReport, Variant, run};

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(
    after_help = "Runs the log and the store on simulated disks that lose power, tear writes, flip bits and fail, one seed after \
another. A failing seed is printed and replays exactly. Exit code 3 if a guarantee was broken.\n\n\
Half of the seeds use a super-disk, whose fast leg also disappears, hangs and returns stale. A third use pools of two to four disks: \
disks are missing at a start, return, fill up and fail in use. In a third of those, disks are added, drained and replaced while \
clients work, through power cuts. About a fifth use channels, and as many \
use events of objects. In some seeds indexes are old, of another history of the pool, torn or unreadable for a while. In others \
clients never pause.\n\n\
Examples:\n  steadfast-sim pool --seed 1 --runs 2000\n  steadfast simulate --seed 1 --runs 200 --variant skip-flush"
)]
pub struct SimulateArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Number of seeds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// Deliberate fault in the code, which the checks must detect
    #[arg(long, value_name = "NAME", value_parser = Variant::ALL.map(|v| v.name()))]
    variant: Option<String>,

    /// Use zoned disks for every seed; otherwise one seed in twelve does
    #[arg(long)]
    zoned: bool,

    /// Threads; 0: one for each core
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Print every event of the run; for one seed
    #[arg(long)]
    trace: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl SimulateArgs {
    /// Runs the seeds. Shows the progress on standard error if that is a terminal.
    pub fn run(&self) -> SimReport {
        let options = SimOptions {
            seed: self.seed,
            runs: self.runs,
            variant: self.variant.as_deref().and_then(Variant::parse),
            zoned: self.zoned,
            threads: self.threads,
            trace: self.trace,
            ..SimOptions::default()
        };
        let terminal = std::io::stderr().is_terminal() && !self.trace;
        let report = run(&options, &|done, total| {
            if terminal {
                eprint!("\r\x1b[Ksimulating: {done} of {total}");
            }
        });
        if terminal {
            eprint!("\r\x1b[K");
        }
        report
    }

    /// The report as text or JSON, as the arguments say. `command` is what replays a seed.
    ///
    /// # Errors
    /// If the report cannot be JSON.
    pub fn describe(&self, command: &str, report: &SimReport) -> Result<String, serde_json::Error> {
        if self.json {
            return Ok(serde_json::to_string_pretty(report)? + "\n");
        }
        let mut text = String::new();
        // Text in memory takes every write.
        let written = self
            .put_failures(&mut text, command, report)
            .and_then(|()| put_totals(&mut text, report))
            .and_then(|()| put_disks(&mut text, report))
            .and_then(|()| put_features(&mut text, report));
        assert!(written.is_ok(), "a report cannot be written as text");
        Ok(text)
    }

    /// Writes each failing seed: its last events, the violation, and the command that replays it.
    fn put_failures(&self, text: &mut String, command: &str, report: &SimReport) -> std::fmt::Result {
        for failure in &report.failures {
            for event in &failure.tail {
                writeln!(text, "  {event}")?;
            }
            writeln!(text, "seed {}: {}", failure.seed, failure.violation.as_deref().unwrap_or("failed"))?;
            let variant = self.variant.as_ref().map(|v| format!(" --variant {v}")).unwrap_or_default();
            let zoned = if self.zoned { " --zoned" } else { "" };
            writeln!(text, "replay: {command} --seed {} --runs 1{variant}{zoned} --trace", failure.seed)?;
        }
        Ok(())
    }
}

/// Writes the result of all runs, and the totals of their requests.
fn put_totals(text: &mut String, report: &SimReport) -> std::fmt::Result {
    writeln!(
        text,
        "{}: {} runs from seed {}, {} starts, {} power cuts, {} events, {:.0} s of virtual time",
        if report.passed() { "passed" } else { "FAILED" },
        report.runs,
        report.seed,
        report.lives,
        report.cuts,
        report.events,
        report.virtual_s
    )?;
    let counts = &report.requests;
    writeln!(
        text,
        "{} requests, {} writes done, {} refused as full; {} extents recycled, {} records and {} chunks moved, {} scrubs",
        counts.requests,
        counts.writes,
        counts.full,
        counts.recycled,
        counts.records_moved,
        counts.chunks_moved,
        counts.scrubs
    )
}

/// Writes the runs on zoned disks, super-disks and pools of several disks, and changes of disks.
fn put_disks(text: &mut String, report: &SimReport) -> std::fmt::Result {
    let counts = &report.requests;
    writeln!(
        text,
        "{} of the runs on zoned disks; {} on a super-disk: {} reads from the fast leg, {} KiB rebuilt; {} structures healed on durable legs, {} on fast ones",
        report.zoned,
        report.pairs,
        counts.reads_fast,
        counts.rebuilt_bytes >> 10,
        counts.healed_durable,
        counts.healed_fast
    )?;
    writeln!(
        text,
        "{} on pools of several disks: {} starts with disks missing, {} disks died in use; {} requests and {} listings refused as unavailable",
        report.pools, counts.starts_incomplete, report.faults.deaths, counts.unavailable, counts.listings_refused
    )?;
    writeln!(
        text,
        "{} with changes of disks: {} begun, {} resumed, {} done, {} refused for lack of space or a fault; {} keys copied",
        report.moves,
        counts.moves_begun,
        counts.moves_resumed,
        counts.moves_done,
        counts.moves_refused,
        counts.keys_moved
    )
}

/// Writes the runs with channels, faults of indexes, unusual clients and events of objects.
fn put_features(text: &mut String, report: &SimReport) -> std::fmt::Result {
    let counts = &report.requests;
    writeln!(
        text,
        "{} with channels: {} publications answered, {} delivered; subscribers recovered {} times, {} recoveries were refused",
        report.channels, counts.publications, counts.delivered, counts.recoveries, counts.recoveries_refused
    )?;
    writeln!(
        text,
        "{} with old, torn or unreadable indexes: {} requests refused, {} indexes rebuilt in use; pools rolled back {} times. {} with clients that never pause, {} with keys that are used once",
        report.indexes, counts.index_failed, counts.index_rebuilt, counts.gone_back, report.saturating, report.once
    )?;
    writeln!(
        text,
        "{} with events of objects: {} delivered, {} of them redelivered",
        report.listened, counts.events_received, counts.events_redelivered
    )?;
    writeln!(
        text,
        "pools restored from their archives {} times, {} of them with all that was answered; {} writes did not reach one in time",
        counts.from_archive, counts.complete_restores, counts.unarchived
    )
}
