//! `steadfast simulate`.

use std::io::{IsTerminal, Write};

use clap::Args;
use steadfast_sim::{SimOptions, SimReport, Variant};

use super::Failure;

/// Arguments of `simulate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Runs the log and the store on simulated disks that lose power, tear writes, flip bits and fail, one seed after \
another. A failing seed is printed and replays exactly. Exit code 3 if a guarantee was broken.\n\n\
Half of the seeds use a super-disk, whose fast leg also disappears, hangs and returns stale. A third use pools of two to four disks: \
disks are missing at a start, return, fill up and fail in use. In a third of those, disks are added, drained and replaced while \
clients work, through power cuts. A sixth of all seeds create, read and delete snapshots. About a fifth use channels, and as many \
use events of objects. In some seeds indexes are old, of another history of the pool, torn or unreadable for a while. In others \
clients never pause.\n\n\
Examples:\n  steadfast simulate --seed 1 --runs 2000\n  steadfast simulate --seed 1 --runs 200 --variant skip-flush"
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

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let options = SimOptions {
        seed: args.seed,
        runs: args.runs,
        variant: args.variant.as_deref().and_then(Variant::parse),
        zoned: args.zoned,
        threads: args.threads,
        trace: args.trace,
        ..SimOptions::default()
    };
    let terminal = std::io::stderr().is_terminal() && !args.trace;
    let report = steadfast_sim::run(&options, &|done, total| {
        if terminal {
            eprint!("\r\x1b[Ksimulating: {done} of {total}");
            // The terminal may have closed; the command continues.
            let _ = std::io::stderr().flush();
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_failures(args, &report);
        print_totals(&report);
        print_disks(&report);
        print_features(&report);
    }
    if report.passed() { Ok(()) } else { Err(Failure::Found) }
}

/// Prints each failing seed: its last events, the violation, and the command that replays it.
fn print_failures(args: &SimulateArgs, report: &SimReport) {
    for failure in &report.failures {
        for event in &failure.tail {
            print_line!("  {event}");
        }
        print_line!("seed {}: {}", failure.seed, failure.violation.as_deref().unwrap_or("failed"));
        let variant = args.variant.as_ref().map(|v| format!(" --variant {v}")).unwrap_or_default();
        let zoned = if args.zoned { " --zoned" } else { "" };
        print_line!("replay: steadfast simulate --seed {} --runs 1{variant}{zoned} --trace", failure.seed);
    }
}

/// Prints the result of all runs, and the totals of their requests.
fn print_totals(report: &SimReport) {
    print_line!(
        "{}: {} runs from seed {}, {} starts, {} power cuts, {} events, {:.0} s of virtual time",
        if report.passed() { "passed" } else { "FAILED" },
        report.runs,
        report.seed,
        report.lives,
        report.cuts,
        report.events,
        report.virtual_s
    );
    let counts = &report.requests;
    print_line!(
        "{} requests, {} writes done, {} refused as full; {} extents recycled, {} records and {} chunks moved, {} scrubs",
        counts.requests,
        counts.writes,
        counts.full,
        counts.recycled,
        counts.records_moved,
        counts.chunks_moved,
        counts.scrubs
    );
}

/// Prints the runs on zoned disks, super-disks and pools of several disks, the changes of disks,
/// and the snapshots.
fn print_disks(report: &SimReport) {
    let counts = &report.requests;
    print_line!(
        "{} of the runs on zoned disks; {} on a super-disk: {} reads from the fast leg, {} KiB rebuilt; {} structures healed on durable legs, {} on fast ones",
        report.zoned,
        report.pairs,
        counts.reads_fast,
        counts.rebuilt_bytes >> 10,
        counts.healed_durable,
        counts.healed_fast
    );
    print_line!(
        "{} on pools of several disks: {} starts with disks missing, {} disks died in use; {} requests and {} listings refused as unavailable",
        report.pools,
        counts.starts_incomplete,
        report.faults.deaths,
        counts.unavailable,
        counts.listings_refused
    );
    print_line!(
        "{} with changes of disks: {} begun, {} resumed, {} done, {} refused for lack of space or a fault; {} keys copied. {} snapshots created, {} read",
        report.moves,
        counts.moves_begun,
        counts.moves_resumed,
        counts.moves_done,
        counts.moves_refused,
        counts.keys_moved,
        counts.snapshots_made,
        counts.snapshots_read
    );
}

/// Prints the runs with channels, faults of indexes, unusual clients and events of objects.
fn print_features(report: &SimReport) {
    let counts = &report.requests;
    print_line!(
        "{} with channels: {} publications answered, {} delivered; subscribers recovered {} times, {} recoveries were refused",
        report.channels,
        counts.publications,
        counts.delivered,
        counts.recoveries,
        counts.recoveries_refused
    );
    print_line!(
        "{} with old, torn or unreadable indexes: {} requests refused, {} indexes rebuilt in use; pools rolled back {} times. {} with clients that never pause, {} with keys that are used once",
        report.indexes,
        counts.index_failed,
        counts.index_rebuilt,
        counts.gone_back,
        report.saturating,
        report.once
    );
    print_line!(
        "{} with events of objects: {} delivered, {} of them redelivered",
        report.listened,
        counts.events_received,
        counts.events_redelivered
    );
}
