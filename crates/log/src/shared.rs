//! State shared by all parts of an open log.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use steadfast_disk::Disk;
use steadfast_flow::{Env, Throttle};
use tokio::sync::watch;

use crate::background::Background;
use crate::bodies::Bodies;
use crate::commit::Queue;
use crate::copies::{Copies, Healed};
use crate::extents::Extents;
use crate::format::Superblock;
use crate::guard::Guard;
use crate::heal_queue::HealQueue;
use crate::io::Io;
use crate::latch::Latch;
use crate::moved::Compaction;
use crate::options::LogOptions;
use crate::progress::ApplyProgress;
use crate::reserve::Room;
use crate::scrub_state::Scrub;
use crate::seal::Seal;
use crate::status::Metrics;
use crate::{Applier, LogError, Lsn};

/// State shared by all parts of an open log.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) env: Env,
    pub(crate) options: LogOptions,
    pub(crate) pool: Superblock,
    pub(crate) applier: Arc<dyn Applier>,
    pub(crate) extents: Extents,
    pub(crate) latch: Arc<Latch>,
    pub(crate) io: Arc<Io>,
    pub(crate) queue: Queue,
    pub(crate) room: Room,
    pub(crate) bodies: Bodies,
    pub(crate) metrics: Metrics,
    pub(crate) compaction: Compaction,
    pub(crate) scrub: Scrub,
    /// Heals bad copies of the disk while the log runs.
    pub(crate) copies: Copies,
    pub(crate) healed: Arc<Healed>,
    pub(crate) heal_queue: HealQueue,
    pub(crate) background: Background,
    pub(crate) progress: ApplyProgress,
    pub(crate) durable: watch::Sender<Lsn>,
    /// Number of chunks that have been written.
    pub(crate) chunks_written: AtomicU64,
    pub(crate) read_failure_reports: Throttle,
    /// Whether committer and applier have ended.
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) frame_bytes_max: usize,
    pub(crate) footer_bytes_max: u64,
    pub(crate) chunk_bytes_max: usize,
}

impl Shared {
    /// Seals an extent.
    pub(crate) async fn seal(&self, seal: Seal) -> Result<(), LogError> {
        let id = seal.id;
        let sealed = match seal.write(&self.io, self.extents.placement()).await? {
            Ok(sealed) => sealed,
            Err(no_footer) => {
                let (without, place) = no_footer.do_without(id.extent);
                self.metrics.writes_elsewhere.fetch_add(1, Relaxed);
                self.extents.suspect(id.extent, id.epoch, place);
                without
            }
        };
        self.extents.sealed(id.extent, id.epoch, sealed);
        Ok(())
    }
}

impl Shared {
    /// Starts a task of the log; if it panics, the log takes no more writes.
    pub(crate) fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard::new(name, &self.latch);
        self.env.spawn(name, async move {
            let _guard = guard;
            task.await;
        });
    }
}
