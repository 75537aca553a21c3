//! A super-disk: a durable leg that is authoritative, and a fast leg that serves reads.
//!
//! The durable leg alone is always a complete pool, with the same offsets. A write is complete when
//! the durable leg has it. The fast leg gets the write concurrently, within a limit, and is read
//! where it is known to hold the same. Only the caller's checksums can tell whether bytes are
//! right: see [`Disk::read_copy`] (0: the durable leg, 1: the fast one) and [`Disk::heal`].
//!
//! `map` decides what may be read from the fast leg. `write`, `read` and `heal` implement the
//! trait. `rebuild` copies in the background. `intents` maintains the bits of regions that may
//! differ after a crash. `attach`, `revive`, `leg_labels` and `pair` determine whether legs belong
//! together.

mod attach;
mod compare;
mod core;
mod heal;
mod inspect;
mod intents;
mod late;
mod leg_labels;
mod map;
mod options;
pub(crate) mod pair;
mod read;
mod rebuild;
mod revive;
mod spans;
mod status;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, Env, has_fault};

use self::core::SuperdiskShared;
use self::heal::Heals;
use self::intents::Rounds;
use self::read::Reads;
use self::rebuild::Copier;
use self::write::Writes;
use crate::label::Found;
use crate::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, SuperdiskStatus, Zone};
pub use compare::{Comparison, DIFFERENCES_MAX};
pub use inspect::Labels;
pub use options::{SuperdiskOptions, SuperdiskSabotage};
pub use pair::FAST_DISKS_MAX;

/// One disk over a durable and a fast one.
pub struct Superdisk {
    shared: Arc<SuperdiskShared>,
}

impl Superdisk {
    /// Opens a pair, or creates one of the durable leg and a blank fast one. Flushes the durable
    /// leg first. A fast leg that is missing, slow, broken, of another pair or of an earlier time
    /// only costs speed: see [`Superdisk::status`].
    ///
    /// # Errors
    /// Those of the durable leg, and `InvalidData` when it holds foreign data in place of the
    /// labels, or is itself a fast leg.
    pub async fn open(
        durable: Arc<dyn Disk>,
        fast: Option<Arc<dyn Disk>>,
        env: Env,
        options: SuperdiskOptions,
    ) -> io::Result<Arc<Superdisk>> {
        let shared = attach::open(durable, fast, env, options).await?;
        let superdisk = Self { shared };
        superdisk.start();
        Ok(Arc::new(superdisk))
    }

    /// Whether `durable` is the durable leg of a pair. Such a disk must be opened as a super-disk,
    /// if necessary without its fast leg. A fast leg that returns later is then detected as stale.
    ///
    /// # Errors
    /// Those of reading it.
    pub async fn is_paired(durable: &Arc<dyn Disk>) -> io::Result<bool> {
        Ok(matches!(pair::find_durable(durable).await?, Found::Label(_)))
    }

    /// The current status.
    pub fn status(&self) -> SuperdiskStatus {
        status::of(&self.shared)
    }

    /// Ends the background tasks and clears the intent bits of regions that are the same on both
    /// legs, for at most some seconds. Call it after the last write.
    pub async fn close(&self) {
        let shared = &self.shared;
        self.end_tasks();
        let quiet = async {
            loop {
                let notified = shared.quiet.notified();
                tokio::pin!(notified);
                // Registers before the check, so that an end in between is not missed.
                notified.as_mut().enable();
                if shared.running.load(SeqCst) == 0 && shared.pending.load(SeqCst) == 0 {
                    return;
                }
                notified.await;
            }
        };
        let limit = shared.options.fast_write_limit + shared.options.fast_read_limit;
        if shared.env.timeout(limit, quiet).await.is_none() {
            tracing::warn!("the fast leg still has requests in flight");
        }
        // This ends their operations in the map.
        let waiting = std::mem::take(&mut shared.state.lock().heals);
        drop(waiting);
        Rounds(shared).clear_settled(true).await;
        // Makes the cleared bits durable. If it fails, the next opening finds them set.
        let _ = shared.env.timeout(shared.options.fast_write_limit, Writes(shared).flush_durable()).await;
    }

    /// Starts the background tasks.
    fn start(&self) {
        let shared = &self.shared;
        if !shared.state.lock().follows() {
            return;
        }
        shared.running.store(3, SeqCst);
        let ended = |shared: &SuperdiskShared| {
            shared.running.fetch_sub(1, SeqCst);
            shared.quiet.notify_waiters();
        };
        let shared = self.shared.clone();
        self.shared.env.spawn("superdisk-copier", async move {
            Copier(&shared).copy_in_background().await;
            ended(&shared);
        });
        let shared = self.shared.clone();
        self.shared.env.spawn("superdisk-late", async move {
            late::run(shared.clone()).await;
            ended(&shared);
        });
        let shared = self.shared.clone();
        self.shared.env.spawn("superdisk-intent", async move {
            Rounds(&shared).keep_intent().await;
            ended(&shared);
        });
    }

    fn end_tasks(&self) {
        let shared = &self.shared;
        shared.closing.store(true, SeqCst);
        shared.copier_wake.notify_one();
        shared.intent_wake.notify_one();
        shared.late.end();
    }
}

impl Drop for Superdisk {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

impl Disk for Superdisk {
    fn geometry(&self) -> Geometry {
        self.shared.durable.geometry()
    }

    fn len(&self) -> u64 {
        self.shared.durable.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let shared = self.shared.clone();
        Box::pin(async move { Reads(&shared).read(offset, len, false).await })
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let shared = self.shared.clone();
        Box::pin(async move { Reads(&shared).read(offset, len, true).await })
    }

    fn copies(&self) -> u32 {
        2
    }

    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        let shared = self.shared.clone();
        Box::pin(async move {
            match copy {
                0 if has_fault(shared.options.sabotage, SuperdiskSabotage::TrustStale) => {
                    Reads(&shared).read(offset, len, false).await
                }
                0 => Reads(&shared).read_durable(offset, len, false).await,
                1 => Reads(&shared).read_copy_fast(offset, len).await,
                _ => Err(io::Error::new(io::ErrorKind::NotFound, format!("a super-disk has no copy {copy}"))),
            }
        })
    }

    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let shared = self.shared.clone();
        Box::pin(async move { Heals(&shared).heal(offset, good).await })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { Writes(&shared).write(offset, data, false).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { Writes(&shared).flush().await })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { Writes(&shared).write(offset, data, true).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { Writes(&shared).discard(offset, len).await })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { Writes(&shared).reserve(end).await })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.shared.durable.buffer(capacity)
    }

    /// The counters of the durable leg.
    fn stats(&self) -> DiskStats {
        self.shared.durable.stats()
    }

    fn zone(&self, offset: u64) -> Option<Zone> {
        self.shared.durable.zone(offset)
    }

    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        self.shared.durable.reset_zone(offset)
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        self.shared.durable.finish_zone(offset)
    }

    fn superdisk(&self) -> Option<SuperdiskStatus> {
        Some(self.status())
    }

    fn describe(&self) -> String {
        let fast = self.shared.fast.as_ref().map_or_else(|| "none".into(), |fast| fast.describe());
        format!("super-disk (durable: {}; fast: {fast})", self.shared.durable.describe())
    }
}
