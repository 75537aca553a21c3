//! Measures a disk: bandwidth, IOPS and the cost of a flush, with the device's claims and an
//! explanation.

mod load;
mod meaning;
mod report;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;

pub use crate::claim::DeviceClaim;
pub use report::{Bandwidth, CommitRates, DepthRate, FlushCost, ProbeReport, RandomLoad, Subject};

use crate::{BLOCK, Disk, DiskOptions, FileDisk, IoMode, claim};
use load::{Load, MIB, Pattern};

/// Measured queue depths, one after the other.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Number of measurements per depth.
const ROUNDS: usize = 3;
/// Queue depth of the IOPS measurement.
const RANDOM_DEPTH: usize = 32;
/// Maximum size of the temporary file in bytes. It also uses at most a quarter of the free space.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Smallest size in bytes that can be measured sensibly.
const BYTES_MIN: u64 = 8 * MIB;
/// Approximate bytes of a 4 KiB object in the log.
const COMMIT_BYTES: usize = 4500;
/// Number of clients in the group commit estimate.
const CLIENTS: usize = 64;

/// Options of a probe.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// Approximate total duration.
    pub duration: Duration,
    /// How requests reach the kernel.
    pub io: IoMode,
    /// Whether an existing file or device may be overwritten. Without it, the probe only reads.
    pub destroy: bool,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { duration: Duration::from_secs(20), io: IoMode::Auto, destroy: false }
    }
}

/// Measures the disk at `path`. For a folder that is its file system, with a temporary file that
/// leaves no trace; else the existing file or device. `progress` gets the current measurement and
/// the completed fraction (0 to 1).
///
/// # Errors
/// Those of [`FileDisk::open`]; `StorageFull` where the space is too small to measure; the device's
/// error.
pub async fn probe(
    path: &Path,
    options: &ProbeOptions,
    env: &Env,
    mut progress: impl FnMut(&str, f64) + Send,
) -> io::Result<ProbeReport> {
    let (disk, subject) = open(path, options).await?;
    let claim = claim::device_claim(path);
    let mut load = Load::new(disk.clone(), env.clone(), disk.len() / MIB * MIB);
    let writes = subject != Subject::ExistingReadOnly;
    // Share of the time of each measurement.
    let part = |part: f64| options.duration.mul_f64(if writes { part } else { part * 2.5 });
    if writes {
        progress("filling", 0.0);
        load.fill(part(0.15)).await?;
    }
    let mut report_progress = |behind: f64| progress("sequential reads", 0.15 + 0.2 * behind);
    let read = bandwidth(&mut load, Pattern::SequentialRead, part(0.2), &mut report_progress).await?;
    let mut report_progress = |behind: f64| progress("sequential writes", 0.35 + 0.2 * behind);
    let write = match writes {
        true => Some(bandwidth(&mut load, Pattern::SequentialWrite, part(0.2), &mut report_progress).await?),
        false => None,
    };
    progress("random reads", 0.55);
    let random_read = random(&mut load, Pattern::RandomRead, part(0.1)).await?;
    let (mut random_write, mut flush, mut commits) = (None, None, None);
    if writes {
        progress("random writes", 0.65);
        random_write = Some(random(&mut load, Pattern::RandomWrite, part(0.1)).await?);
        progress("flushes", 0.75);
        let alone = load.run(Pattern::Commit(2 * BLOCK), 1, part(0.15)).await?;
        progress("flushes of groups", 0.9);
        let group = load.run(Pattern::Commit((CLIENTS * COMMIT_BYTES).next_multiple_of(BLOCK)), 1, part(0.1)).await?;
        let best = write.as_ref().map_or(0.0, |write| write.best_mib_per_s);
        commits = Some(CommitRates {
            clients: CLIENTS,
            one_by_one_per_s: alone.per_s().round(),
            grouped_per_s: (group.per_s() * CLIENTS as f64).round(),
            asynchronous_per_s_max: (best * MIB as f64 / COMMIT_BYTES as f64).round(),
        });
        flush = Some(FlushCost { write_and_flush: alone.latency.summary(), group_of_clients: group.latency.summary() });
    }
    progress("done", 1.0);
    let mut report = ProbeReport {
        path: path.display().to_string(),
        subject,
        driver: disk.describe(),
        measured_bytes: load.bytes(),
        align_bytes: disk.geometry().align_bytes,
        zones: disk.geometry().zones,
        claim,
        read,
        write,
        random_read,
        random_write,
        flush,
        commits,
        queue_depth: 0,
        warnings: Vec::new(),
        meaning: Vec::new(),
    };
    report.queue_depth = report.read.saturation_depth.max(report.write.as_ref().map_or(0, |w| w.saturation_depth));
    meaning::explain(&mut report);
    Ok(report)
}

/// Measures all depths several times. Other load on the machine only slows a measurement down, so
/// the best of each depth counts.
async fn bandwidth(
    load: &mut Load,
    pattern: Pattern,
    time: Duration,
    mut progress: impl FnMut(f64),
) -> io::Result<Bandwidth> {
    let mut depths = DEPTHS.map(|depth| DepthRate { depth, mib_per_s: 0.0 }).to_vec();
    let each = time / (ROUNDS * depths.len()) as u32;
    for round in 0..ROUNDS {
        for i in 0..depths.len() {
            progress((round * depths.len() + i) as f64 / (ROUNDS * depths.len()) as f64);
            let done = load.run(pattern, depths[i].depth, each).await?;
            depths[i].mib_per_s = depths[i].mib_per_s.max(done.mib_per_s());
        }
    }
    Ok(Bandwidth::new(depths).unwrap_or_default())
}

async fn random(load: &mut Load, pattern: Pattern, time: Duration) -> io::Result<RandomLoad> {
    let alone = load.run(pattern, 1, time / 2).await?;
    let deep = load.run(pattern, RANDOM_DEPTH, time / 2).await?;
    Ok(RandomLoad {
        depth: RANDOM_DEPTH,
        iops_alone: alone.per_s().round(),
        latency_alone: alone.latency.summary(),
        iops: deep.per_s().round(),
        latency: deep.latency.summary(),
    })
}

async fn open(path: &Path, options: &ProbeOptions) -> io::Result<(Arc<dyn Disk>, Subject)> {
    let how = DiskOptions { io: options.io, queue_depth: 64, pool_bytes: 16 << 20, ..DiskOptions::default() };
    let too_small = |what: &str| {
        let text = format!("{}: {what} less than {} MiB, too little to measure", path.display(), BYTES_MIN / MIB);
        io::Error::new(io::ErrorKind::StorageFull, text)
    };
    if path.is_dir() {
        let fs = rustix::fs::statvfs(path)?;
        let bytes = (fs.f_bavail.saturating_mul(fs.f_frsize) / 4).min(FILE_BYTES_MAX) / MIB * MIB;
        if bytes < BYTES_MIN {
            return Err(too_small("a quarter of the free space is"));
        }
        let name = path.join(format!(".steadfast-probe-{}", std::process::id()));
        let disk = FileDisk::open(&name, &DiskOptions { create: true, ..how })?;
        // The open file stays usable, and the kernel removes it even if this process is killed.
        std::fs::remove_file(&name)?;
        disk.reserve(bytes).await?;
        return Ok((disk, Subject::TemporaryFile));
    }
    let disk = FileDisk::open(path, &DiskOptions { read_only: !options.destroy, ..how })?;
    if options.destroy && disk.geometry().zones.is_some() {
        let text = format!("{}: a zoned device is only probed by reads: leave --destroy out", path.display());
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    if disk.len() < BYTES_MIN {
        return Err(too_small("it holds"));
    }
    Ok((disk, if options.destroy { Subject::ExistingOverwritten } else { Subject::ExistingReadOnly }))
}
