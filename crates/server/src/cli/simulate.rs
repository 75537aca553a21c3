//! `steadfast simulate`.

use std::io::{IsTerminal, Write};

use clap::Args;
use steadfast_sim::{SimOptions, Variant};

use super::Failure;

/// Arguments of `simulate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Runs the log and the store over simulated disks that lose power, tear writes, rot bits and fail, one \
seed after another; half of the seeds over a super-disk, whose fast leg also vanishes, hangs, and comes back stale; a third over pools of two to four disks, of which some are missing at a start and back at a later one, fill up, or fail while they are in use. In a third of these, disks are added, drained and replaced while clients work, through power cuts; in a sixth of all seeds snapshots are made, read and deleted; in about a fifth publishers and subscribers use channels, and in as many events of objects are listened to. In some, indexes are old, of another history of the pool, torn or unreadable for a while, and in others clients never pause. A failing seed is printed and replays exactly. Exit code 3 when a promise was broken.\n\n\
Examples:\n  steadfast simulate --seed 1 --runs 2000\n  steadfast simulate --seed 1 --runs 200 --variant skip-flush"
)]
pub struct SimulateArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// How many seeds, from the first on
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// A deliberately broken build, which must be caught
    #[arg(long, value_name = "NAME", value_parser = Variant::ALL.map(|v| v.name()))]
    variant: Option<String>,

    /// Every seed over zones that are only written in order; otherwise one in twelve is
    #[arg(long)]
    zoned: bool,

    /// Threads; 0: as many as cores
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Print every event as it happens; for one seed
    #[arg(long)]
    trace: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
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
            // Nothing to be done when the terminal has gone.
            let _ = std::io::stderr().flush();
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        for failure in &report.failures {
            for event in &failure.tail {
                say!("  {event}");
            }
            say!("seed {}: {}", failure.seed, failure.violation.as_deref().unwrap_or("failed"));
            let variant = args.variant.as_ref().map(|v| format!(" --variant {v}")).unwrap_or_default();
            let zoned = if args.zoned { " --zoned" } else { "" };
            say!("replay: steadfast simulate --seed {} --runs 1{variant}{zoned} --trace", failure.seed);
        }
        say!(
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
        say!(
            "{} requests, {} writes done, {} refused as full; {} extents recycled, {} records and {} chunks moved, {} scrubs",
            counts.requests,
            counts.writes,
            counts.full,
            counts.recycled,
            counts.records_moved,
            counts.chunks_moved,
            counts.scrubs
        );
        say!(
            "{} of the runs over zones; {} over a super-disk: {} reads from the fast leg, {} KiB rebuilt; {} structures healed on durable legs, {} on fast ones",
            report.zoned,
            report.pairs,
            counts.reads_fast,
            counts.rebuilt_bytes >> 10,
            counts.healed_durable,
            counts.healed_fast
        );
        say!(
            "{} over pools of several disks: {} starts with disks missing, {} disks died in use; {} requests and {} listings refused as unavailable",
            report.pools,
            counts.starts_incomplete,
            report.faults.deaths,
            counts.unavailable,
            counts.listings_refused
        );
        say!(
            "{} in which disks came and went: {} changes begun, {} resumed, {} done, {} refused for want of room or a fault; {} keys copied. {} snapshots made, {} read",
            report.moves,
            counts.moves_begun,
            counts.moves_resumed,
            counts.moves_done,
            counts.moves_refused,
            counts.keys_moved,
            counts.snapshots_made,
            counts.snapshots_read
        );
        say!(
            "{} with channels: {} publications answered, {} delivered; subscribers recovered {} times, {} times they were told that they could not",
            report.channels,
            counts.publications,
            counts.delivered,
            counts.recoveries,
            counts.recoveries_refused
        );
        say!(
            "{} in which indexes were put back, torn or not to be read: {} requests refused for it, {} indexes rebuilt in use; pools went back in time {} times. {} with clients that never pause, {} with keys that are used once",
            report.indexes,
            counts.index_failed,
            counts.index_rebuilt,
            counts.gone_back,
            report.tireless,
            report.once
        );
        say!("{} with events of objects: {} told, {} of them again", report.listened, counts.told, counts.told_again);
    }
    if report.passed() { Ok(()) } else { Err(Failure::Found) }
}
