//! A super-disk: a durable leg that decides, and a fast leg that answers.
//!
//! The durable leg alone is always a complete pool, with the same offsets. A write is complete when the durable leg has it; the
//! fast leg gets it beside that, within a bound, and is read where it is known to hold the same. Whether bytes are
//! right only the caller's checksums can tell: see [`Disk::read_copy`] (0: the durable leg, 1: the fast one) and [`Disk::heal`].

mod options;
#[allow(dead_code, reason = "the fast leg is not used yet")]
mod pair;
mod status;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, Env};

use crate::label::{Found, new_uuid, uuid_text};
use crate::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture};
pub use options::{SuperdiskOptions, SuperdiskSabotage};
use pair::Identity;
pub use status::{FastState, SuperdiskStatus};

/// One disk over a durable and a fast one. See the module's documentation.
pub struct Superdisk {
    durable: Arc<dyn Disk>,
    fast: Option<Arc<dyn Disk>>,
    identity: Identity,
    options: SuperdiskOptions,
}

impl Superdisk {
    /// Opens a pair, or makes one of the durable leg and a blank fast one. Raises the generation on the durable leg before anything else is written.
    /// A fast leg that is missing, slow, broken, of another pair or of an earlier time only costs speed: see [`Superdisk::status`].
    ///
    /// # Errors
    /// Those of the durable leg, and `InvalidData` when it holds something in the pair's place, or is itself a fast leg.
    pub async fn open(
        durable: Arc<dyn Disk>,
        fast: Option<Arc<dyn Disk>>,
        env: Env,
        options: SuperdiskOptions,
    ) -> io::Result<Arc<Superdisk>> {
        durable.reserve(pair::DURABLE_RESERVED).await?;
        let identity = match pair::find_durable(&durable).await? {
            Found::Label(identity) => identity,
            _ => Identity { pair: new_uuid(&env), fast: [0; 16], generation: 0 },
        };
        let identity = Identity { generation: identity.generation + 1, ..identity };
        identity.write_durable(&durable).await?;
        Ok(Arc::new(Self { durable, fast, identity, options }))
    }

    /// Whether `durable` is the durable leg of a pair. Such a disk is opened as a super-disk, without its fast leg if need be, so that a
    /// fast leg that comes back later is known to be stale.
    ///
    /// # Errors
    /// Those of reading it.
    pub async fn is_paired(durable: &Arc<dyn Disk>) -> io::Result<bool> {
        Ok(matches!(pair::find_durable(durable).await?, Found::Label(_)))
    }

    /// How it is.
    pub fn status(&self) -> SuperdiskStatus {
        SuperdiskStatus {
            fast: FastState::Missing,
            durable_disk: self.durable.describe(),
            fast_disk: self.fast.as_ref().map(|disk| disk.describe()),
            pair: uuid_text(&self.identity.pair),
            generation: self.identity.generation,
            region_bytes: self.options.region_bytes,
            regions_clean: 0,
            regions_total: 0,
            regions_to_rebuild: 0,
            regions_quarantined: 0,
            rebuilt_bytes: 0,
            rebuild_bytes_s: 0,
            rebuild_bytes_s_max: self.options.rebuild_bytes_s,
            reads_fast: 0,
            reads_durable: 0,
            reads_hedged: 0,
            hedges_won: 0,
            hedge_us: 0,
            fast_overdue: 0,
            fast_errors: 0,
            durable_errors: 0,
            healed_fast: 0,
            healed_durable: 0,
            heal_failures: 0,
            fast_writes: 0,
            skipped_fast_writes: 0,
            pending_bytes: 0,
            pending_bytes_max: self.options.fast_pending_bytes_max,
        }
    }

    /// Ends the tasks in the background and saves the map of the fast leg. Call it after the last flush.
    pub async fn close(&self) {}
}

impl Disk for Superdisk {
    fn geometry(&self) -> Geometry {
        self.durable.geometry()
    }

    fn len(&self) -> u64 {
        self.durable.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let read = self.durable.read(offset, len);
        Box::pin(async move { Ok(pair::masked(offset, read.await?)) })
    }

    fn copies(&self) -> u32 {
        2
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.durable.write(offset, data)
    }

    fn flush(&self) -> IoFuture<()> {
        self.durable.flush()
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.durable.write_flush(offset, data)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.durable.discard(offset, len)
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.durable.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.durable.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.durable.stats()
    }

    fn superdisk(&self) -> Option<SuperdiskStatus> {
        Some(self.status())
    }

    fn describe(&self) -> String {
        format!("super-disk of {}", self.durable.describe())
    }
}
