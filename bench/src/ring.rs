//! Look-ups in the hash ring: the home nodes of the channels of many sessions, as after a mass
//! reconnect.

use std::sync::Arc;
use std::time::Instant;

use steadfast_flow::Ring;

/// Options of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct RingArgs {
    /// Number of sessions.
    #[arg(long, default_value_t = 500_000)]
    sessions: usize,
    /// Channels of each session.
    #[arg(long, default_value_t = 5)]
    channels: usize,
    /// Number of nodes in the ring.
    #[arg(long, default_value_t = 64)]
    nodes: usize,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Looks up every channel of every session in the shared table, and in a copy made for each
/// session. Returns a JSON object of seconds.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run(args: &RingArgs) -> serde_json::Value {
    let ring = Ring::new((0..args.nodes).map(|node| (Arc::<str>::from(format!("node-{node}")), 1)));
    // Sessions share many of their rooms.
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
    // The sum of the results keeps the compiler from removing look-ups.
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
