//! Load for the live port and other endpoints of Centrifugo's client protocol: many sessions on one
//! channel.

mod fanout;
pub mod floor;
mod http;
pub mod nats;
mod publish;
mod slow;
mod storm;
mod swarm;
pub mod watch;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use steadfast_live::protocol::Encoding;

use swarm::{Happening, Options, Swarm};
use wire::bad;

/// The measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Measure {
    /// Publishes one after another, each until the last session has it: time, and CPU for each
    /// delivery.
    Fanout,
    /// Opens sessions: the rate, and the memory of the server for each idle session.
    Connect,
    /// Drops all sessions, publishes, and reconnects all at once with recovery.
    Storm,
    /// Runs publishers, each waiting for its answer before the next publication.
    Publish,
    /// Stops reading on one session of many.
    Slow,
}

/// Encoding of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON in text frames.
    Json,
    /// Protobuf in binary frames.
    Protobuf,
}

/// Transport of publishers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PublishTransport {
    /// `POST /api/publish`.
    Http,
    /// The publish command of a session.
    Websocket,
}

/// Options of the load.
#[derive(Debug, Clone, clap::Args)]
pub struct LiveArgs {
    /// Addresses of the endpoint, or of several nodes: the sessions take turns, and publishers use
    /// the first.
    #[arg(long, required = true, value_delimiter = ',')]
    pub endpoint: Vec<SocketAddr>,
    /// Measurement to run.
    #[arg(long, value_enum)]
    pub measure: Measure,
    /// Path of the WebSocket.
    #[arg(long, default_value = "/connection/websocket")]
    pub path: String,
    /// Encoding of sessions.
    #[arg(long, value_enum, default_value = "json")]
    pub format: Format,
    /// Connection token, if the server requires one.
    #[arg(long, default_value = "")]
    pub token: String,
    /// Key of the HTTP API.
    #[arg(long, default_value = "")]
    pub api_key: String,
    /// Channel.
    #[arg(long, default_value = "bench")]
    pub channel: String,
    /// Number of sessions.
    #[arg(long, default_value_t = 1000)]
    pub sessions: usize,
    /// Sessions opened at a time.
    #[arg(long, default_value_t = 1024)]
    pub window: usize,
    /// Number of publications (fanout), or of missed ones (storm).
    #[arg(long, default_value_t = 20)]
    pub publications: u64,
    /// Bytes of a publication's data.
    #[arg(long, default_value_t = 256)]
    pub size: usize,
    /// Number of publishers (publish).
    #[arg(long, default_value_t = 1)]
    pub publishers: usize,
    /// Transport of the publishers.
    #[arg(long, value_enum, default_value = "http")]
    pub way: PublishTransport,
    /// Publications a second (slow).
    #[arg(long, default_value_t = 50.0)]
    pub rate: f64,
    /// Duration, seconds (publish, slow).
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Set if the endpoint is the floor program.
    #[arg(long)]
    pub bare: bool,
    /// Shell command that is run when all sessions have ended, before they connect again (storm).
    #[arg(long)]
    pub between: Option<String>,
    /// Process id of the server; adds its CPU time and memory to the report.
    #[arg(long)]
    pub pid: Option<u32>,
}

impl LiveArgs {
    fn options(&self) -> Options {
        Options {
            addresses: self.endpoint.clone(),
            path: self.path.clone(),
            encoding: self.encoding(),
            token: self.token.clone(),
            channel: self.channel.clone(),
            bare: self.bare,
        }
    }

    /// The endpoint of publishers.
    fn first(&self) -> SocketAddr {
        // The option is required.
        self.endpoint.first().copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8000)))
    }

    fn encoding(&self) -> Encoding {
        encoding_of(self.format)
    }
}

fn encoding_of(format: Format) -> Encoding {
    match format {
        Format::Json => Encoding::Json,
        Format::Protobuf => Encoding::Protobuf,
    }
}

/// Runs the measurement. Returns a JSON report.
///
/// # Errors
/// When the endpoint cannot be reached or misbehaves.
pub fn run(args: &LiveArgs) -> io::Result<serde_json::Value> {
    match args.measure {
        Measure::Fanout => fanout::run(args),
        Measure::Connect => storm::connect(args),
        Measure::Storm => storm::run(args),
        Measure::Publish => publish::run(args),
        Measure::Slow => slow::run(args),
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// CPU time of a process, user and system, microseconds; of this process without a number.
fn cpu_us(pid: Option<u32>) -> Option<f64> {
    let name = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // The kernel reports in USER_HZ, which is 100 on every Linux that Rust runs on.
    Some(ticks * 10_000.0)
}

/// CPU time used by server and client since a point in time.
struct Used {
    pid: Option<u32>,
    server: Option<f64>,
    client: Option<f64>,
}

impl Used {
    fn begin(pid: Option<u32>) -> Self {
        Self { pid, server: pid.and_then(|pid| cpu_us(Some(pid))), client: cpu_us(None) }
    }

    /// CPU time for each of `count` operations, microseconds: of the server and of the client.
    fn each(&self, operations: u64) -> (Option<f64>, Option<f64>) {
        let each = |before: Option<f64>, after: Option<f64>| Some((after? - before?) / operations.max(1) as f64);
        (each(self.server, self.pid.and_then(|pid| cpu_us(Some(pid)))), each(self.client, cpu_us(None)))
    }
}

/// The value at a share of sorted values; 0 without values.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> u64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Time limit for all sessions to become ready, and for a publication to reach all of them.
const PATIENCE: Duration = Duration::from_secs(120);

/// Opens all sessions, `window` at a time, and retries refused ones. `handler` gets every event.
///
/// # Errors
/// When not all sessions become ready.
fn open_all(swarm: &mut Swarm, window: usize, handler: &mut dyn FnMut(usize, Happening)) -> io::Result<()> {
    let all = swarm.len();
    let begin = now();
    let mut waiting: std::collections::VecDeque<usize> = (0..all).collect();
    let (mut opening, mut ready) = (0, 0);
    while ready < all {
        while opening < window
            && let Some(number) = waiting.pop_front()
        {
            swarm.open(number, None)?;
            opening += 1;
        }
        let mut again = Vec::new();
        swarm.poll(Duration::from_millis(100), &mut |number, happening| {
            match happening {
                Happening::Ready(_) => {
                    ready += 1;
                    opening -= 1;
                }
                Happening::Closed(_) => again.push(number),
                Happening::Got(_) => {}
            }
            handler(number, happening);
        })?;
        opening -= again.len();
        waiting.extend(again);
        if begin.elapsed() > PATIENCE {
            return Err(bad(format!("{ready} of {all} sessions are ready after {PATIENCE:?}")));
        }
    }
    Ok(())
}
