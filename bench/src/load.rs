//! Closed-loop load: each client sends its next request after the answer to the last one.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use serde::Serialize;

use crate::client::Client;
use crate::sign::{Signer, sha256_hex};

/// The operation of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Creates new objects, each with its own key.
    Put,
    /// Reads random objects that `fill` created.
    Get,
    /// Creates `--objects` objects and stops.
    Fill,
    /// Overwrites random objects that `fill` created; deletes one in ten first. The latencies are
    /// those of the PUTs.
    Churn,
    /// Lists the whole bucket, page by page.
    List,
}

/// Options of a load.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// `host:port` of the S3 endpoint.
    #[arg(long)]
    pub endpoint: String,
    /// Access key.
    #[arg(long)]
    pub access_key: String,
    /// Secret key.
    #[arg(long)]
    pub secret_key: String,
    /// Bucket; created if it does not exist.
    #[arg(long, default_value = "bench")]
    pub bucket: String,
    /// Operation to send.
    #[arg(long, value_enum)]
    pub op: Operation,
    /// Bytes of an object.
    #[arg(long, default_value_t = 4096)]
    pub size: usize,
    /// Number of clients, each with its own connection.
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// Duration of put, get and churn, seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Number of objects to create (fill) or to choose from (get, churn).
    #[arg(long, default_value_t = 1000)]
    pub objects: usize,
    /// First part of the keys.
    #[arg(long, default_value = "o")]
    pub prefix: String,
    /// Leave the body unsigned (UNSIGNED-PAYLOAD), which saves the server its SHA-256.
    #[arg(long)]
    pub unsigned: bool,
    /// Process id of the server; adds its CPU time and memory to the report.
    #[arg(long)]
    pub pid: Option<u32>,
}

/// The report of a load.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// Completed requests (for a listing: keys).
    pub operations: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// Operations a second.
    pub rate: f64,
    /// MiB of object data a second.
    pub mib_per_s: f64,
    /// Median latency, microseconds.
    pub p50_us: u64,
    /// 99th percentile of the latency, microseconds.
    pub p99_us: u64,
    /// Largest latency, microseconds.
    pub max_us: u64,
    /// CPU time of the server for each operation, user and system, microseconds.
    pub server_cpu_us: Option<f64>,
    /// Peak resident memory of the server, MiB.
    pub server_peak_mib: Option<f64>,
}

/// CPU time in microseconds (user and system) and peak memory in MiB of a process.
fn usage(pid: u32) -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find(|l| l.starts_with("VmHWM"))?.split_whitespace().nth(1)?.parse::<f64>().ok()?;
    // The kernel reports in USER_HZ, which is 100 on every Linux that Rust runs on.
    Some((ticks * 10_000.0, peak / 1024.0))
}

struct Shared {
    args: LoadArgs,
    /// A few different bodies with their hashes: enough to defeat deduplication, few enough to stay
    /// in the CPU's cache.
    bodies: Vec<(Vec<u8>, String)>,
    next: AtomicU64,
    errors: AtomicU64,
    stop_at: Instant,
}

impl Shared {
    async fn client(&self) -> std::io::Result<Client> {
        let args = &self.args;
        Client::connect(&args.endpoint, Signer::new(&args.access_key, &args.secret_key, &args.endpoint)).await
    }

    fn path(&self, n: u64) -> String {
        format!("/{}/{}/{:03}/{n:08}", self.args.bucket, self.args.prefix, n % 1000)
    }
}

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

async fn one(shared: Rc<Shared>, seed: u64) -> std::io::Result<Vec<u32>> {
    let mut client = shared.client().await?;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut latencies = Vec::new();
    let args = &shared.args;
    loop {
        let n = shared.next.fetch_add(1, Ordering::Relaxed);
        let mut begin = now();
        let done = match args.op {
            Operation::Fill => n >= args.objects as u64,
            _ => begin >= shared.stop_at,
        };
        if done {
            return Ok(latencies);
        }
        let answer = if args.op == Operation::Get {
            let n = random.random_range(0..args.objects as u64);
            client.call("GET", &shared.path(n), "", EMPTY, &[], false).await?
        } else {
            let churn = args.op == Operation::Churn;
            let n = if churn { random.random_range(0..args.objects as u64) } else { n };
            if churn && random.random_range(0..10) == 0 {
                let answer = client.call("DELETE", &shared.path(n), "", EMPTY, &[], false).await?;
                shared.errors.fetch_add(u64::from(answer.status != 204), Ordering::Relaxed);
                begin = now();
            }
            let (body, hash) = &shared.bodies[random.random_range(0..shared.bodies.len())];
            client.call("PUT", &shared.path(n), "", hash, body, false).await?
        };
        if answer.status != 200 || (args.op == Operation::Get && answer.body_bytes != args.size) {
            shared.errors.fetch_add(1, Ordering::Relaxed);
        } else {
            latencies.push(begin.elapsed().as_micros() as u32);
        }
    }
}

async fn list(shared: Rc<Shared>) -> std::io::Result<(u64, Vec<u32>)> {
    let mut client = shared.client().await?;
    let (mut keys, mut latencies, mut token) = (0, Vec::new(), String::new());
    loop {
        let begin = now();
        let query = if token.is_empty() {
            "list-type=2&max-keys=1000".to_owned()
        } else {
            format!("continuation-token={token}&list-type=2&max-keys=1000")
        };
        let answer = client.call("GET", &format!("/{}", shared.args.bucket), &query, EMPTY, &[], true).await?;
        latencies.push(begin.elapsed().as_micros() as u32);
        let text = String::from_utf8_lossy(&answer.body);
        if answer.status != 200 {
            return Err(std::io::Error::other(format!("listing: {} {text}", answer.status)));
        }
        keys += text.matches("<Key>").count() as u64;
        let Some((_, rest)) = text.split_once("<NextContinuationToken>") else { return Ok((keys, latencies)) };
        let raw = rest.split('<').next().unwrap_or_default();
        token = raw.bytes().fold(String::new(), |mut out, b| {
            match b {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(b as char),
                _ => out.push_str(&format!("%{b:02X}")),
            }
            out
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// Runs the load on the calling thread.
///
/// # Errors
/// When the endpoint cannot be reached or a connection breaks.
pub fn run(args: LoadArgs) -> std::io::Result<LoadReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async move {
        let mut random = SmallRng::seed_from_u64(1);
        let bodies = (0..if args.size > 1 << 20 { 2 } else { 16 })
            .map(|_| {
                let mut body = vec![0; args.size];
                random.fill_bytes(&mut body);
                let hash = if args.unsigned { "UNSIGNED-PAYLOAD".to_owned() } else { sha256_hex(&body) };
                (body, hash)
            })
            .collect();
        let seconds = Duration::from_secs_f64(args.seconds);
        let shared = Rc::new(Shared {
            args,
            bodies,
            next: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            stop_at: now() + seconds,
        });
        let args = &shared.args;
        shared.client().await?.call("PUT", &format!("/{}", args.bucket), "", EMPTY, &[], false).await?;
        let before = args.pid.and_then(usage);
        let begin = now();
        let (mut operations, mut latencies) = (0, Vec::new());
        if args.op == Operation::List {
            (operations, latencies) = list(shared.clone()).await?;
        } else {
            let clients: Vec<_> =
                (0..args.clients).map(|i| tokio::task::spawn_local(one(shared.clone(), i as u64))).collect();
            for client in clients {
                latencies.extend(client.await.map_err(std::io::Error::other)??);
            }
            operations += latencies.len() as u64;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let after = args.pid.and_then(usage);
        latencies.sort_unstable();
        let at = |q: f64| latencies.get(((latencies.len() as f64 * q) as usize).min(latencies.len().saturating_sub(1)));
        Ok(LoadReport {
            operations,
            errors: shared.errors.load(Ordering::Relaxed),
            seconds,
            rate: operations as f64 / seconds,
            mib_per_s: if args.op == Operation::List {
                0.0
            } else {
                operations as f64 * args.size as f64 / seconds / (1 << 20) as f64
            },
            p50_us: at(0.5).copied().unwrap_or_default().into(),
            p99_us: at(0.99).copied().unwrap_or_default().into(),
            max_us: latencies.last().copied().unwrap_or_default().into(),
            server_cpu_us: before.zip(after).map(|(b, a)| (a.0 - b.0) / operations.max(1) as f64),
            server_peak_mib: after.map(|a| a.1),
        })
    })
}
