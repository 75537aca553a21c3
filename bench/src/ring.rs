//! Look-ups in the ring: who is home to the channels of many sessions, as when all of them come back at once.

use std::sync::Arc;
use std::time::Instant;

use steadfast_flow::Ring;

/// How to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct RingArgs {
    /// Sessions.
    #[arg(long, default_value_t = 500_000)]
    sessions: usize,
    /// Channels of each.
    #[arg(long, default_value_t = 5)]
    channels: usize,
    /// Nodes in the ring.
    #[arg(long, default_value_t = 64)]
    nodes: usize,
    /// Threads that look up.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Looks up every channel of every session: in the shared table, and, as the story did at first, in a copy made for each session.
/// A JSON object of seconds.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run(args: &RingArgs) -> serde_json::Value {
    let ring = Ring::new((0..args.nodes).map(|node| (Arc::<str>::from(format!("node-{node}")), 1)));
    // Of several rooms that a session is in, many are others' too.
    let rooms: Vec<String> = (0..args.sessions.max(1)).map(|n| format!("room:{}", n * 7919 % 100_000)).collect();
    let channels = args.channels.max(1);
    let all = |one: &(dyn Fn(&[String]) -> usize + Sync)| {
        let begun = Instant::now();
        let found: usize = std::thread::scope(|scope| {
            let sessions: Vec<usize> = (0..args.sessions).collect();
            let part = sessions.len().div_ceil(args.threads.max(1)).max(1);
            let threads: Vec<_> = sessions
                .chunks(part)
                .map(|sessions| {
                    let (first, count, rooms) = (sessions[0], sessions.len(), &rooms);
                    scope.spawn(move || {
                        let of = |session: usize| session..(session + channels).min(rooms.len());
                        (first..first + count).map(|session| one(&rooms[of(session)])).sum::<usize>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        });
        (begun.elapsed().as_secs_f64(), found)
    };
    // What is found is summed up, so that nothing of it can be left out.
    let (shared, found) =
        all(&|rooms| rooms.iter().map(|room| ring.load().home(room.as_bytes()).map_or(0, |node| node.len())).sum());
    let (copied, same) = all(&|rooms| {
        let table = (**ring.load()).clone();
        rooms.iter().map(|room| table.home(room.as_bytes()).map_or(0, |node| node.len())).sum()
    });
    assert_eq!(found, same, "both find the same");
    serde_json::json!({
        "lookups": args.sessions * channels,
        "threads": args.threads,
        "nodes": args.nodes,
        "shared_s": shared,
        "copied_s": copied,
    })
}
