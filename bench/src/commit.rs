//! Commits on the log itself at an emulated flush time: grouped, and one by one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{Disk, DiskOptions, FileDisk, Slow, Slowness};
use steadfast_flow::{BoxFuture, Env};
use steadfast_log::{
    Applied, Applier, ChunkMove, ChunkOwners, Durability, ExtentUsage, FormatOptions, Location, Log, LogError,
    LogOptions, Lsn, Priority, Record, Usage,
};

/// Options of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct CommitArgs {
    /// Directory on the disk to measure.
    #[arg(long)]
    dir: PathBuf,
    /// Time added to each flush, microseconds.
    #[arg(long, default_value_t = 500)]
    flush_us: u64,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Bytes of a record.
    #[arg(long, default_value_t = 4096)]
    size: usize,
}

/// Discards records: only the log is measured.
struct Forget;

impl Applier for Forget {
    fn apply(&self, records: &[Applied], _: &mut Usage) -> usize {
        records.len()
    }
    fn checkpoint(&self) -> Lsn {
        0
    }
    fn usage(&self) -> Vec<ExtentUsage> {
        Vec::new()
    }
    fn record_is_live(&self, _: &[u8], _: Lsn, _: &Location, _: Lsn) -> Option<bool> {
        Some(false)
    }
}

impl ChunkOwners for Forget {
    fn chunk_is_live<'a>(&'a self, _: &'a Log, _: &'a [u8], _: &'a Location) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }
    fn repoint<'a>(&'a self, _: &'a Log, _: BTreeMap<Bytes, Vec<ChunkMove>>) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Runs all measurements. Returns a JSON object of commits a second by number of clients.
///
/// # Errors
/// When the disk or the log fails.
pub fn run(args: &CommitArgs) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut out = serde_json::Map::new();
        for (name, gather, one_by_one) in
            [("one_by_one", false, true), ("grouped_no_gather", false, false), ("grouped", true, false)]
        {
            let mut by_clients = serde_json::Map::new();
            for clients in [1usize, 16, 64] {
                let rate = measure(args, clients, gather, one_by_one).await?;
                by_clients.insert(clients.to_string(), rate.into());
            }
            out.insert(name.into(), by_clients.into());
        }
        Ok(out.into())
    })
}

async fn measure(
    args: &CommitArgs,
    clients: usize,
    gather: bool,
    one_by_one: bool,
) -> Result<f64, Box<dyn std::error::Error>> {
    let env = Env::tokio();
    let path = args.dir.join("commit.pool");
    let _ = std::fs::remove_file(&path);
    let disk = FileDisk::open(&path, &DiskOptions { create: true, ..DiskOptions::default() })?;
    Log::format(&disk, &env, &FormatOptions::default()).await?;
    let slowness = Slowness { flush: Duration::from_micros(args.flush_us), precise: true, ..Slowness::default() };
    let slow: Arc<dyn Disk> = Arc::new(Slow::new(disk, env.clone(), slowness));
    let options = LogOptions { gather, ..LogOptions::default() };
    let (log, _) = Log::open(slow, env.clone(), options, Arc::new(Forget)).await?;
    let done = Arc::new(AtomicU64::new(0));
    // One flush for each commit: the next commit is submitted after the answer to the last one.
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let begin = env.now();
    let end = begin + Duration::from_secs_f64(args.seconds);
    let body = Bytes::from(vec![7u8; args.size]);
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let (log, env, done, turn, body) = (log.clone(), env.clone(), done.clone(), turn.clone(), body.clone());
        tasks.spawn(async move {
            while env.now() < end {
                let alone = if one_by_one { Some(turn.lock().await) } else { None };
                let head = Bytes::copy_from_slice(&(client as u64).to_le_bytes());
                let room = log.reserve((8 + body.len()) as u64, Priority::Write, Duration::from_secs(10)).await?;
                let record = Record { head, body: vec![body.clone()], version: None };
                log.submit(room, vec![record], Durability::Sync)?.await?;
                drop(alone);
                done.fetch_add(1, Relaxed);
            }
            Ok::<(), LogError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let rate = done.load(Relaxed) as f64 / (env.now() - begin).as_secs_f64();
    log.close().await?;
    drop(log);
    let _ = std::fs::remove_file(&path);
    Ok(rate)
}
