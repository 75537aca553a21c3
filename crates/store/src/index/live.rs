//! The index in use by a shard. It notices failed reads, and it can be replaced while in use.
//!
//! A failed read affects more than its caller: where a record is applied, unknown must not be taken
//! for absent. So the first error marks the index as *failed*. Nothing is applied, changed or saved
//! until it was read again or rebuilt (`shard/heal.rs`). Reads continue, since every value that can
//! be read is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_log::Lsn;
use tokio::sync::watch;

use super::{Entry, Index, IndexError, IndexStatus};
use crate::{IndexKind, StoreError};

/// Why an index is unusable.
#[derive(Debug, Clone)]
pub(crate) struct IndexFailure {
    pub(crate) why: String,
    /// Whether it must be rebuilt; otherwise it may become readable again.
    pub(crate) damaged: bool,
    /// First key of the range that could not be read.
    from: Bytes,
    to: Option<Bytes>,
}

/// Health of an index.
#[derive(Debug, Clone)]
pub(crate) enum Health {
    Well,
    Failed(IndexFailure),
    /// The index failed while the store closed: nothing more is applied.
    Closed,
}

/// An index with its place and generation.
pub(crate) struct LiveGeneration {
    pub(crate) index: Arc<dyn Index>,
    pub(crate) kind: IndexKind,
    pub(crate) generation: u64,
}

/// State that readers share.
struct Watch {
    health: watch::Sender<Health>,
    /// Generation of the current index.
    generation: AtomicU64,
    damaged: AtomicU64,
    /// Whether healing has ended.
    closing: AtomicBool,
}

impl Watch {
    fn fault(&self, generation: u64, e: &IndexError, from: &[u8], to: Option<&[u8]>) {
        if generation != self.generation.load(Ordering::Acquire) {
            // The index was replaced meanwhile.
            return;
        }
        self.health.send_if_modified(|health| {
            let changed = match health {
                Health::Well => true,
                Health::Failed(known) => e.damaged && !known.damaged,
                Health::Closed => false,
            };
            if changed {
                tracing::error!(error = %e, "the index cannot be read");
                if e.damaged {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                }
                let (from, to) = (Bytes::copy_from_slice(from), to.map(Bytes::copy_from_slice));
                *health = match self.closing.load(Ordering::SeqCst) {
                    false => Health::Failed(IndexFailure { why: e.to_string(), damaged: e.damaged, from, to }),
                    true => Health::Closed,
                };
            }
            changed
        });
    }
}

/// The index in use, and why its reads fail.
pub(crate) struct LiveIndex {
    held: ArcSwap<LiveGeneration>,
    /// The previous index, while a reader still holds it.
    before: Mutex<std::sync::Weak<LiveGeneration>>,
    watch: Arc<Watch>,
    rebuilt: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
}

impl LiveIndex {
    pub(crate) fn new(index: Arc<dyn Index>, kind: IndexKind) -> Self {
        let watch = Watch {
            health: watch::Sender::new(Health::Well),
            generation: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        };
        Self {
            held: ArcSwap::from_pointee(LiveGeneration { index, kind, generation: 0 }),
            before: Mutex::default(),
            watch: Arc::new(watch),
            rebuilt: AtomicU64::new(0),
            verified_bytes: AtomicU64::new(0),
        }
    }

    /// The current index.
    pub(crate) fn held(&self) -> Arc<LiveGeneration> {
        self.held.load_full()
    }

    /// Its health, with changes.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.watch.health.subscribe()
    }

    pub(crate) fn is_well(&self) -> bool {
        matches!(*self.watch.health.borrow(), Health::Well)
    }

    /// Why it is unusable, if it is.
    pub(crate) fn failure(&self) -> Option<IndexFailure> {
        match &*self.watch.health.borrow() {
            Health::Failed(failure) => Some(failure.clone()),
            _ => None,
        }
    }

    /// Refuses a change that would only wait for the index to be healed.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) fn refuse_failed(&self) -> Result<(), StoreError> {
        match self.failure() {
            Some(failure) => Err(StoreError::Unavailable(failure.describe())),
            None => Ok(()),
        }
    }

    /// Records that its content is inconsistent.
    pub(crate) fn fault(&self, e: &IndexError) {
        self.watch.fault(self.held.load().generation, e, &[], None);
    }

    /// [`LiveIndex::fault`] for this generation only: ignored after a replacement.
    pub(crate) fn fault_of(&self, generation: u64, e: &IndexError) {
        self.watch.fault(generation, e, &[], None);
    }

    /// Whether the keys that failed can be read now. Blocks.
    pub(crate) fn is_readable_again(&self, failure: &IndexFailure) -> bool {
        self.held().index.range(&failure.from, failure.to.as_deref()).all(|pair| pair.is_ok())
    }

    /// Marks the index as usable again.
    pub(crate) fn recovered(&self) {
        self.watch.health.send_if_modified(|health| {
            let failed = matches!(health, Health::Failed(_));
            if failed {
                *health = Health::Well;
            }
            failed
        });
    }

    /// Waits until the index has been healed. Returns whether it had failed.
    pub(crate) async fn healed(&self) -> bool {
        let failed = self.failure().is_some();
        if failed {
            let mut health = self.health();
            let _ = health.wait_for(|health| !matches!(health, Health::Failed(_))).await;
        }
        failed
    }

    /// Ends healing.
    pub(crate) fn close(&self) {
        self.watch.closing.store(true, Ordering::SeqCst);
        self.watch.health.send_if_modified(|health| {
            let failed = matches!(health, Health::Failed(_));
            if failed {
                *health = Health::Closed;
            }
            failed
        });
    }

    /// The place for a rebuilt index; `None` while a reader still holds a replaced one there.
    pub(crate) fn rebuild_place(&self) -> Option<IndexKind> {
        (self.before.lock().strong_count() == 0).then(|| self.held.load().kind.rebuild_kind())
    }

    /// Puts a rebuilt index in its place. Neither index changes meanwhile.
    pub(crate) fn replace(&self, index: Arc<dyn Index>, kind: IndexKind) {
        let generation = self.watch.generation.fetch_add(1, Ordering::AcqRel) + 1;
        let before = self.held.swap(Arc::new(LiveGeneration { index, kind, generation }));
        *self.before.lock() = Arc::downgrade(&before);
        self.rebuilt.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        let held = self.held.load();
        held.index.get(key).inspect_err(|e| {
            let past = [key, &[0]].concat();
            self.watch.fault(held.generation, e, key, Some(&past));
        })
    }

    pub(crate) fn insert(&self, key: Bytes, value: Bytes, lsn: Lsn) {
        self.held.load().index.insert(key, value, lsn);
    }

    pub(crate) fn remove(&self, key: Bytes, lsn: Lsn) {
        self.held.load().index.remove(key, lsn);
    }

    pub(crate) fn range(&self, from: &[u8], to: Option<&[u8]>) -> LiveRange {
        let held = self.held();
        LiveRange {
            entries: held.index.range(from, to),
            from: Bytes::copy_from_slice(from),
            to: to.map(Bytes::copy_from_slice),
            watch: self.watch.clone(),
            held,
        }
    }

    pub(crate) fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>, IndexError> {
        let held = self.held.load();
        held.index.last(from, to).inspect_err(|e| self.watch.fault(held.generation, e, from, Some(to)))
    }

    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.held.load().index.memtable_bytes()
    }

    pub(crate) fn seal(&self) {
        self.held.load().index.seal();
    }

    /// Persists and compacts at once, without the maintenance task. Blocks.
    pub(crate) fn persist(&self) -> Result<(), IndexError> {
        let held = self.held();
        held.index.persist()?;
        held.index.compact()
    }

    pub(crate) fn condemn(&self) {
        self.held.load().index.condemn();
    }

    pub(crate) fn status(&self) -> IndexStatus {
        IndexStatus {
            verified_bytes: self.verified_bytes.load(Ordering::Relaxed),
            damaged: self.watch.damaged.load(Ordering::Relaxed),
            rebuilt: self.rebuilt.load(Ordering::Relaxed),
            rebuilding: u64::from(self.failure().is_some()),
            ..self.held.load().index.status()
        }
    }
}

impl IndexFailure {
    /// A description for operators.
    pub(crate) fn describe(&self) -> String {
        let what = if self.damaged { "is damaged and is being rebuilt from the log" } else { "cannot be read now" };
        format!("the index of the disk {what} ({}): the disk refuses changes until then, and no data is lost", self.why)
    }
}

/// Pairs of the index. The iterator keeps the files that it reads.
pub(crate) struct LiveRange {
    entries: Box<dyn Iterator<Item = Entry> + Send>,
    from: Bytes,
    to: Option<Bytes>,
    watch: Arc<Watch>,
    held: Arc<LiveGeneration>,
}

impl Iterator for LiveRange {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = self.entries.next();
        if let Some(Err(e)) = &entry {
            self.watch.fault(self.held.generation, e, &self.from, self.to.as_deref());
        }
        entry
    }
}
