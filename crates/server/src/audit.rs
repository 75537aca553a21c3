//! The audit log: a line of JSON for each request to the S3 port, in a file.
//!
//! The threads that serve requests put lines into a bounded queue and never wait. One thread writes
//! them. When the queue is full or the file cannot be written, lines are dropped and counted; the
//! next line says how many.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use steadfast_flow::{Env, FlowStatus, Throttle};
use steadfast_s3::{AuditEntry, AuditSink};

use crate::notify::rfc3339;

/// The most lines written at once.
const BATCH_LINES: usize = 256;

/// Time that the last lines get when the log is closed.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// Minimum interval between log messages about a file that cannot be written.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The audit log. Cloning shares it; the last copy writes what is queued and closes it.
#[derive(Clone)]
pub struct AuditLog(Arc<AuditQueue>);

struct AuditQueue {
    /// `None` once it is being closed.
    entries: Option<SyncSender<AuditEntry>>,
    counts: Arc<AuditCounts>,
    lines_max: usize,
    /// Fails once the last line has been written.
    ended: Mutex<Receiver<()>>,
}

#[derive(Default)]
struct AuditCounts {
    queued: AtomicU64,
    /// The most that were queued at one time.
    peak: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
}

impl AuditLog {
    /// Opens the file, and starts the thread that writes it. At most `lines_max` lines wait.
    ///
    /// # Errors
    /// The file cannot be opened, or there is no thread, as a message.
    pub fn open(path: &Path, lines_max: usize, env: &Env) -> Result<Self, String> {
        let wrong = |e: io::Error| format!("audit.file: {}: {e}", path.display());
        let file = open(path).map_err(wrong)?;
        let (entries, queued) = sync_channel(lines_max);
        let counts = Arc::<AuditCounts>::default();
        let writer = AuditWriter {
            path: path.to_owned(),
            file,
            counts: counts.clone(),
            reported: 0,
            is_broken: false,
            env: env.clone(),
            failure_log: Throttle::new(FAILURE_LOG_INTERVAL),
        };
        let (ends, ended) = sync_channel::<()>(0);
        let work = move || {
            writer.run(&queued);
            drop(ends);
        };
        std::thread::Builder::new().name("audit".to_owned()).spawn(work).map_err(wrong)?;
        Ok(Self(Arc::new(AuditQueue { entries: Some(entries), counts, lines_max, ended: Mutex::new(ended) })))
    }

    /// The lines that wait, and those that were dropped.
    pub fn status(&self) -> FlowStatus {
        let AuditQueue { counts, lines_max, .. } = &*self.0;
        FlowStatus {
            name: "audit",
            limit: *lines_max as u64,
            used: counts.queued.load(Relaxed),
            peak: counts.peak.load(Relaxed),
            waiting: 0,
            granted: counts.written.load(Relaxed),
            refused: counts.dropped.load(Relaxed),
            waited_us: 0,
        }
    }
}

impl AuditSink for AuditLog {
    fn ended(&self, entry: AuditEntry) {
        let AuditQueue { entries: Some(entries), counts, .. } = &*self.0 else { return };
        counts.peak.fetch_max(counts.queued.fetch_add(1, Relaxed) + 1, Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = entries.try_send(entry) {
            counts.queued.fetch_sub(1, Relaxed);
            counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for AuditQueue {
    fn drop(&mut self) {
        self.entries = None;
        // The thread ends with the last line, unless the file does not take it.
        let _ = self.ended.lock().recv_timeout(CLOSE_DEADLINE);
    }
}

/// Writes the lines.
struct AuditWriter {
    path: PathBuf,
    file: File,
    counts: Arc<AuditCounts>,
    /// The dropped lines that the file tells of.
    reported: u64,
    /// The last line may be cut.
    is_broken: bool,
    env: Env,
    failure_log: Throttle,
}

impl AuditWriter {
    fn run(mut self, queued: &Receiver<AuditEntry>) {
        while let Ok(first) = queued.recv() {
            let entries: Vec<AuditEntry> =
                std::iter::once(first).chain(queued.try_iter().take(BATCH_LINES - 1)).collect();
            let count = entries.len() as u64;
            self.counts.queued.fetch_sub(count, Relaxed);
            let dropped = self.counts.dropped.load(Relaxed);
            let mut text = if self.is_broken { "\n".to_owned() } else { String::new() };
            if dropped > self.reported {
                let line = json!({ "time": rfc3339(self.env.wall_ms()), "dropped": dropped - self.reported });
                text.push_str(&format!("{line}\n"));
            }
            for entry in &entries {
                text.push_str(&format!("{}\n", line_of(entry)));
            }
            match self.write(text.as_bytes()) {
                Ok(()) => {
                    (self.reported, self.is_broken) = (dropped, false);
                    self.counts.written.fetch_add(count, Relaxed);
                }
                Err(error) => {
                    self.is_broken = true;
                    self.counts.dropped.fetch_add(count, Relaxed);
                    if let Some(more) = self.failure_log.pass(&self.env) {
                        tracing::error!(path = %self.path.display(), %error, more, "the audit log cannot be written: \
                            lines are dropped (and `more` since the last such line)");
                    }
                }
            }
        }
    }

    /// Appends to the file, or to a new one if that was moved away, as `logrotate` does.
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let ours = self.file.metadata()?;
        let is_ours = |there: std::fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        if !std::fs::metadata(&self.path).is_ok_and(is_ours) {
            self.file = open(&self.path)?;
            // It begins with a whole line.
            self.is_broken = false;
        }
        self.file.write_all(text)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// A line of the file.
#[derive(Serialize)]
struct AuditLine<'a> {
    time: String,
    request: &'a str,
    user: Option<&'a str>,
    access_key: Option<&'a str>,
    address: Option<IpAddr>,
    operation: &'a str,
    bucket: &'a str,
    key: &'a str,
    status: u16,
    complete: bool,
    bytes_in: u64,
    bytes_out: u64,
    ms: f64,
}

fn line_of(entry: &AuditEntry) -> String {
    let line = AuditLine {
        time: rfc3339(entry.time_ms),
        request: &entry.request,
        user: entry.user.as_deref(),
        access_key: entry.access_key.as_deref(),
        address: entry.address,
        operation: entry.operation,
        bucket: &entry.bucket,
        key: &entry.key,
        status: entry.status,
        complete: entry.complete,
        bytes_in: entry.bytes_in,
        bytes_out: entry.bytes_out,
        ms: entry.duration.as_micros() as f64 / 1000.0,
    };
    serde_json::to_string(&line).expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn entry(key: &str) -> AuditEntry {
        AuditEntry { bucket: "media".into(), key: key.into(), status: 200, ..AuditEntry::default() }
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).expect("a file");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[tokio::test]
    async fn every_line_is_written_before_it_is_closed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("audit.log");
        let log = AuditLog::open(&path, 1000, &Env::tokio()).expect("open");
        for n in 0..600 {
            log.ended(entry(&format!("line\n{n}")));
        }
        drop(log);
        let written = lines(&path);
        assert_eq!((written.len(), &written[7]["key"]), (600, &json!("line\n7")));
        assert_eq!(std::fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        // It is continued, and a file that was moved away is replaced.
        let log = AuditLog::open(&path, 1000, &Env::tokio()).expect("open");
        std::fs::rename(&path, dir.path().join("old")).expect("moved");
        log.ended(entry("new"));
        drop(log);
        assert_eq!((lines(&dir.path().join("old")).len(), lines(&path).len()), (600, 1));
        assert!(AuditLog::open(dir.path(), 10, &Env::tokio()).is_err());
    }

    #[tokio::test]
    async fn lines_beyond_the_bound_are_dropped_and_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        // The first write waits for a reader of the pipe.
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let reader = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let log = AuditLog::open(&path, 4, &Env::tokio()).expect("open");
        let mut sent = 0;
        while log.status().refused == 0 {
            log.ended(entry(&"k".repeat(1000)));
            sent += 1;
            assert!(sent < 100_000, "nothing is dropped");
        }
        assert!(log.status().used <= 5);
        drop(reader);
        drop(log);
    }
}
