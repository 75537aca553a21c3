//! Sessions that stay on a channel through crashes of the server, and a publisher, for tests that
//! kill it.
//!
//! It prints its state as lines of JSON; a line on standard input ends the publishing. At the end
//! every session must have the same publications without a gap, including all acknowledged ones.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use super::http::Publisher;
use super::swarm::{Happening, Options, Swarm};
use super::wire::{self, Got, Marks, bad};
use super::{Format, now};

/// Pause between two attempts to reconnect a session.
const RETRY: Duration = Duration::from_millis(100);
/// Sessions opened at a time.
const WINDOW: usize = 512;
/// Interval between two lines of output.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// Options of the watch.
#[derive(Debug, Clone, clap::Args)]
pub struct WatchArgs {
    /// Addresses of the endpoint, or of several nodes: the sessions take turns.
    #[arg(long, required = true, value_delimiter = ',')]
    endpoint: Vec<SocketAddr>,
    /// Address of the publisher's endpoint. Without it: the first of the others.
    #[arg(long)]
    publish_endpoint: Option<SocketAddr>,
    /// Encoding of sessions.
    #[arg(long, value_enum, default_value = "json")]
    format: Format,
    /// Connection token.
    #[arg(long, default_value = "")]
    token: String,
    /// Key of the HTTP API.
    #[arg(long, default_value = "")]
    api_key: String,
    /// Channel, with a history that holds all publications of a session's absence.
    #[arg(long, default_value = "watched")]
    channel: String,
    /// Number of sessions.
    #[arg(long, default_value_t = 500)]
    sessions: usize,
    /// Bytes of a publication's data.
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Maximum publications a second.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// Time limit for the sessions to get all publications at the end, seconds.
    #[arg(long, default_value_t = 120.0)]
    patience: f64,
}

/// The state of the publisher.
#[derive(Default)]
struct Published {
    /// Numbers of acknowledged publications, by offset.
    acknowledged: Mutex<HashMap<u64, u64>>,
    count: AtomicU64,
    /// Publications of unknown outcome.
    unknown: AtomicU64,
    top: AtomicU64,
    stop: AtomicBool,
}

/// Publishes until `stop` is set. A publication without an answer has an unknown outcome and is not
/// retried.
fn publish(args: &WatchArgs, published: &Published) {
    let Some(endpoint) = args.publish_endpoint.or_else(|| args.endpoint.first().copied()) else { return };
    let (mut connection, mut n) = (None, 0u64);
    let every = Duration::from_secs_f64(1.0 / args.rate);
    let pause = |time: Duration| {
        #[allow(clippy::disallowed_methods, reason = "a thread of its own, which keeps a beat")]
        std::thread::sleep(time);
    };
    while !published.stop.load(SeqCst) {
        let Some(publisher) = &mut connection else {
            connection = Publisher::connect(endpoint, &args.api_key, &args.channel).ok();
            if connection.is_none() {
                pause(RETRY);
            }
            continue;
        };
        let begin = now();
        let data = wire::data(Marks { n, t: 0 }, args.size);
        match publisher.send(&data).and_then(|()| publisher.answer()) {
            Ok(place) => {
                published.acknowledged.lock().insert(place.offset, n);
                published.top.fetch_max(place.offset, SeqCst);
                published.count.fetch_add(1, SeqCst);
            }
            Err(_) => {
                published.unknown.fetch_add(1, SeqCst);
                connection = None;
            }
        }
        n += 1;
        pause(every.saturating_sub(begin.elapsed()));
    }
}

/// The publications that the sessions have received.
struct Seen {
    /// The numbers by offset from 1 on, as the first session received them.
    numbers: Vec<u64>,
    /// Offset of each session.
    at: Vec<u64>,
    wrong: Option<String>,
}

impl Seen {
    fn got(&mut self, session: usize, got: Got) {
        let at = &mut self.at[session];
        let index = *at as usize;
        let fits = got.offset == *at + 1;
        if fits && index == self.numbers.len() {
            self.numbers.push(got.marks.n);
        }
        if !fits || self.numbers[index] != got.marks.n {
            let expected = self.numbers.get(index);
            self.wrong.get_or_insert(format!("session {session}, at {at}, got {got:?}; others have {expected:?}"));
        }
        *at = got.offset;
    }
}

fn print_report(what: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()
}

/// Runs until it is stopped and all sessions have all publications.
///
/// # Errors
/// When the publications of sessions differ, or an acknowledged one is missing.
pub fn run(args: &WatchArgs) -> io::Result<serde_json::Value> {
    let encoding = super::encoding_of(args.format);
    let options = Options {
        addresses: args.endpoint.clone(),
        path: "/connection/websocket".into(),
        encoding,
        token: args.token.clone(),
        channel: args.channel.clone(),
        bare: false,
    };
    let mut swarm = Swarm::new(options, args.sessions)?;
    let published = Arc::new(Published::default());
    let (stop, publisher) = (published.clone(), published.clone());
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_line(&mut String::new());
        stop.stop.store(true, SeqCst);
    });
    let mut seen = Seen { numbers: Vec::new(), at: vec![0; args.sessions], wrong: None };
    let mut waiting: VecDeque<usize> = (0..args.sessions).collect();
    let (mut opening, mut ready, mut reconnects) = (0usize, 0usize, 0u64);
    let mut is_ready = vec![false; args.sessions];
    let (mut publishing, mut stopped_at) = (None, None);
    let mut reported_at = now();
    let mut retry_at = now();
    loop {
        if now() >= retry_at {
            while opening < WINDOW
                && let Some(number) = waiting.pop_front()
            {
                swarm.open(number, None)?;
                opening += 1;
            }
        }
        let mut lost = Vec::new();
        let mut unrecovered = None;
        swarm.poll(Duration::from_millis(20), &mut |number, happening| match happening {
            Happening::Got(got) => seen.got(number, got),
            Happening::Ready(recovered) => {
                if recovered == Some(false) {
                    unrecovered = Some(number);
                }
                is_ready[number] = true;
                ready += 1;
                opening -= 1;
            }
            Happening::Closed(_) => lost.push(number),
        })?;
        if let Some(number) = unrecovered {
            return Err(bad(format!("session {number} could not recover from {}", seen.at[number])));
        }
        if let Some(wrong) = seen.wrong.take() {
            return Err(bad(wrong));
        }
        for number in lost {
            if std::mem::take(&mut is_ready[number]) {
                ready -= 1;
                reconnects += 1;
            } else {
                opening -= 1;
            }
            retry_at = now() + RETRY;
            waiting.push_back(number);
        }
        if publishing.is_none() && ready == args.sessions {
            // Start publishing now, so that every session gets the first publication.
            let (args, published) = (args.clone(), publisher.clone());
            publishing = Some(std::thread::spawn(move || publish(&args, &published)));
        }
        if reported_at.elapsed() >= REPORT_INTERVAL {
            reported_at = now();
            let acknowledged = published.count.load(SeqCst);
            print_report(&json!({"ready": ready, "acknowledged": acknowledged, "reconnects": reconnects}))?;
        }
        if !published.stop.load(SeqCst) || publishing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            continue;
        }
        let stopped = *stopped_at.get_or_insert_with(now);
        let top = published.top.load(SeqCst);
        let behind = seen.at.iter().filter(|at| **at < top).count();
        if ready == args.sessions && behind == 0 {
            break;
        }
        if stopped.elapsed() > Duration::from_secs_f64(args.patience) {
            let first = seen.at.iter().position(|at| *at < top);
            let first = first.map(|number| (number, seen.at[number], swarm.offset(number)));
            return Err(bad(format!(
                "{ready} sessions are ready, {behind} do not have all {top} publications; the first one, its offset, and its offset by the server: {first:?}"
            )));
        }
    }
    let acknowledged = published.acknowledged.lock();
    for (offset, n) in &*acknowledged {
        let found = seen.numbers.get(*offset as usize - 1);
        if found != Some(n) {
            return Err(bad(format!("publication {n} was acknowledged at {offset}, where sessions have {found:?}")));
        }
    }
    Ok(json!({
        "sessions": args.sessions, "acknowledged": acknowledged.len(), "unknown": published.unknown.load(SeqCst),
        "delivered_to_each": seen.numbers.len(), "reconnects": reconnects,
    }))
}
