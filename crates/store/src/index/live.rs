//! The index of a shard as everybody there sees it: it notices what cannot be read, and it can be replaced while it is in use.
//!
//! An error of a read is more than its caller's: where a record is applied, what is not known must not be taken for absent. So the first
//! one makes the index *ail*: nothing more is applied, changed or saved until it has been read again or was rebuilt
//! (`shard/heal.rs`). Reads go on: what can be read of it is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_log::Lsn;
use tokio::sync::watch;

use super::{Entry, Index, IndexError, IndexStatus};
use crate::{IndexKind, StoreError};

/// What is wrong with an index.
#[derive(Debug, Clone)]
pub(crate) struct Ailment {
    pub(crate) why: String,
    /// It has to be rebuilt; else it may be readable again.
    pub(crate) damaged: bool,
    /// What could not be read.
    from: Bytes,
    to: Option<Bytes>,
}

/// How an index is.
#[derive(Debug, Clone)]
pub(crate) enum Health {
    Well,
    Ailing(Ailment),
    /// It ailed when the store closed: nothing more is taken in.
    Closed,
}

/// An index, and where it is kept.
pub(crate) struct Held {
    pub(crate) index: Arc<dyn Index>,
    pub(crate) kind: IndexKind,
    pub(crate) generation: u64,
}

/// What readers know of it.
struct Watch {
    health: watch::Sender<Health>,
    /// Of the one that counts.
    generation: AtomicU64,
    damaged: AtomicU64,
    /// Nobody heals any more.
    closing: AtomicBool,
}

impl Watch {
    fn fault(&self, generation: u64, e: &IndexError, from: &[u8], to: Option<&[u8]>) {
        if generation != self.generation.load(Ordering::Acquire) {
            // One that was replaced.
            return;
        }
        self.health.send_if_modified(|health| {
            let news = match health {
                Health::Well => true,
                Health::Ailing(known) => e.damaged && !known.damaged,
                Health::Closed => false,
            };
            if news {
                tracing::error!(error = %e, "the index cannot be read");
                if e.damaged {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                }
                let (from, to) = (Bytes::copy_from_slice(from), to.map(Bytes::copy_from_slice));
                *health = match self.closing.load(Ordering::SeqCst) {
                    false => Health::Ailing(Ailment { why: e.to_string(), damaged: e.damaged, from, to }),
                    true => Health::Closed,
                };
            }
            news
        });
    }
}

/// See the module.
pub(crate) struct LiveIndex {
    held: ArcSwap<Held>,
    /// The one before, while anybody still reads it.
    before: Mutex<std::sync::Weak<Held>>,
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
            held: ArcSwap::from_pointee(Held { index, kind, generation: 0 }),
            before: Mutex::default(),
            watch: Arc::new(watch),
            rebuilt: AtomicU64::new(0),
            verified_bytes: AtomicU64::new(0),
        }
    }

    /// The one that counts now.
    pub(crate) fn held(&self) -> Arc<Held> {
        self.held.load_full()
    }

    /// How it is, and when that changes.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.watch.health.subscribe()
    }

    pub(crate) fn is_well(&self) -> bool {
        matches!(*self.watch.health.borrow(), Health::Well)
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn ailment(&self) -> Option<Ailment> {
        match &*self.watch.health.borrow() {
            Health::Ailing(ailment) => Some(ailment.clone()),
            _ => None,
        }
    }

    /// Refuses what would only wait for it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) fn refuse_ailing(&self) -> Result<(), StoreError> {
        match self.ailment() {
            Some(ailment) => Err(StoreError::Unavailable(ailment.told())),
            None => Ok(()),
        }
    }

    /// What it says does not make sense.
    pub(crate) fn fault(&self, e: &IndexError) {
        self.watch.fault(self.held.load().generation, e, &[], None);
    }

    /// As [`LiveIndex::fault`], of the one with this generation: nothing when that has been replaced.
    pub(crate) fn fault_of(&self, generation: u64, e: &IndexError) {
        self.watch.fault(generation, e, &[], None);
    }

    /// Whether what could not be read can be read now. Blocks.
    pub(crate) fn reads_again(&self, ailment: &Ailment) -> bool {
        self.held().index.range(&ailment.from, ailment.to.as_deref()).all(|pair| pair.is_ok())
    }

    /// It can be relied on again.
    pub(crate) fn recovered(&self) {
        self.watch.health.send_if_modified(|health| {
            let ailed = matches!(health, Health::Ailing(_));
            if ailed {
                *health = Health::Well;
            }
            ailed
        });
    }

    /// Waits until it does not ail any more; whether it did.
    pub(crate) async fn healed(&self) -> bool {
        let ails = self.ailment().is_some();
        if ails {
            let mut health = self.health();
            let _ = health.wait_for(|health| !matches!(health, Health::Ailing(_))).await;
        }
        ails
    }

    /// Nothing is healed any more.
    pub(crate) fn close(&self) {
        self.watch.closing.store(true, Ordering::SeqCst);
        self.watch.health.send_if_modified(|health| {
            let ailed = matches!(health, Health::Ailing(_));
            if ailed {
                *health = Health::Closed;
            }
            ailed
        });
    }

    /// Where a rebuilt one may be made beside it; `None` while one that was there is still being read.
    pub(crate) fn place_beside(&self) -> Option<IndexKind> {
        (self.before.lock().strong_count() == 0).then(|| self.held.load().kind.beside())
    }

    /// Puts a rebuilt one in its place. Nobody changes either.
    pub(crate) fn replace(&self, index: Arc<dyn Index>, kind: IndexKind) {
        let generation = self.watch.generation.fetch_add(1, Ordering::AcqRel) + 1;
        let before = self.held.swap(Arc::new(Held { index, kind, generation }));
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

    pub(crate) fn range(&self, from: &[u8], to: Option<&[u8]>) -> Range {
        let held = self.held();
        Range {
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

    /// Persists and tidies up at once, where nobody else does it. Blocks.
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
            rebuilding: u64::from(self.ailment().is_some()),
            ..self.held.load().index.status()
        }
    }
}

impl Ailment {
    /// For people.
    pub(crate) fn told(&self) -> String {
        let what = if self.damaged { "is damaged and is being rebuilt from the log" } else { "cannot be read now" };
        format!("the index of the disk {what} ({}): nothing on it is changed until then, and nothing is lost", self.why)
    }
}

/// Pairs of the index. While it is there, the files that it reads are.
pub(crate) struct Range {
    entries: Box<dyn Iterator<Item = Entry> + Send>,
    from: Bytes,
    to: Option<Bytes>,
    watch: Arc<Watch>,
    held: Arc<Held>,
}

impl Iterator for Range {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = self.entries.next();
        if let Some(Err(e)) = &entry {
            self.watch.fault(self.held.generation, e, &self.from, self.to.as_deref());
        }
        entry
    }
}
