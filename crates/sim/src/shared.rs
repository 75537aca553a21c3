//! State that all clients of a run share, and the faults that excuse errors of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use steadfast_log::{Durability, LogError};
use steadfast_store::StoreError;

use crate::counts::Counts;
use crate::disk::Device;
use crate::members::{Members, disk_name};
use crate::model::{Key, Model};
use crate::outcome::Outcome;
use crate::platter::FaultCounts;
use crate::run_state::{PublishedHistory, ReceivedEvents, Unflushed, Upload};
use crate::trace::Trace;

/// A value that counts how often it is locked. As long as the count stays, the value has not
/// changed.
#[derive(Default)]
pub(crate) struct Noted<T> {
    value: Mutex<T>,
    locks: AtomicU64,
}

impl<T> Noted<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), locks: AtomicU64::new(0) }
    }

    /// Locks it, to change it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        self.value.lock()
    }

    /// Locks it, to read it.
    pub(crate) fn read(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    fn locks(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }
}

/// What may make requests fail, beside the disks.
pub(crate) struct Excuses {
    /// Whether reads of the index may fail in this life.
    pub(crate) index_fails: AtomicBool,
    /// Whether writes wait for an archive, which may be away for too long.
    pub(crate) waits_for_archive: bool,
}

/// State that all clients of a run share, over all lives.
pub(crate) struct Shared {
    pub(crate) model: Noted<Model>,
    pub(crate) uploads: Noted<Vec<Upload>>,
    pub(crate) counts: Mutex<Counts>,
    /// Faults that had struck when this life began.
    pub(crate) at_start: Mutex<FaultCounts>,
    /// Buckets whose creation was acknowledged.
    pub(crate) made: Noted<BTreeSet<Arc<str>>>,
    /// The device of each disk. For a super-disk, the durable leg's device.
    pub(crate) devices: Vec<Device>,
    /// Whether [`crate::Variant::ListWithoutMissing`] is active.
    pub(crate) lists_without_missing: bool,
    /// The disks that are missing in this life.
    pub(crate) missing: Mutex<BTreeSet<usize>>,
    /// Keys that could not be read in this life, each with the disk that the error named.
    pub(crate) unseen: Mutex<BTreeMap<Key, usize>>,
    /// The home disk of each key, as far as errors of unavailable disks have shown it.
    pub(crate) homes: Noted<BTreeMap<Key, usize>>,
    /// The operator's knowledge of the pool's disks.
    pub(crate) members: Mutex<Members>,
    /// Publications, and the position of each subscriber.
    pub(crate) channels: Noted<PublishedHistory>,
    /// Whether the simulator receives the events of the first bucket's objects.
    pub(crate) listened: bool,
    /// Events received so far.
    pub(crate) received: Noted<ReceivedEvents>,
    /// Asynchronous writes of saturating clients in this life.
    pub(crate) unflushed: Mutex<Unflushed>,
    /// What may make requests fail, beside the disks.
    pub(crate) excuses: Excuses,
    pub(crate) trace: Trace,
    pub(crate) buckets: Vec<(Arc<str>, Durability)>,
    pub(crate) keys: Vec<Arc<str>>,
    /// Number of keys that seldom change: the first of `keys`.
    pub(crate) cold_keys: usize,
    pub(crate) small_max: u64,
    pub(crate) large_max: u64,
    pub(crate) large_per_mille: u64,
}

impl Shared {
    /// A count that changes with each change of what the clients know.
    pub(crate) fn changes(&self) -> u64 {
        let all = [self.model.locks(), self.uploads.locks(), self.made.locks(), self.homes.locks()];
        let more = [self.channels.locks(), self.received.locks()];
        all.iter().chain(&more).sum()
    }

    /// Faults that have struck all disks together.
    pub(crate) fn faults(&self) -> FaultCounts {
        let mut sum = FaultCounts::default();
        self.devices.iter().for_each(|device| sum.add(&device.lock().counts));
        sum
    }

    /// Whether a medium may hold data that differs from what the disk acknowledged.
    pub(crate) fn damage(&self) -> bool {
        self.devices.iter().any(|device| device.lock().counts.damage())
    }

    /// Whether a disk is missing in this life.
    pub(crate) fn is_missing(&self, disk: usize) -> bool {
        self.missing.lock().contains(&disk)
    }

    /// The disk that an `Unavailable` error names. With `writes`, write errors excuse it too.
    ///
    /// # Errors
    /// If no disk is named, or if no fault excuses the named disk.
    pub(crate) fn unavailable(&self, why: &str, writes: bool) -> Outcome<usize> {
        let named = (0..self.devices.len()).find(|disk| why.contains(&format!("the disk {} of", disk_name(*disk))));
        let Some(disk) = named else { return Err(format!("an unavailability names no disk: {why}")) };
        let faults = self.devices[disk].lock().counts;
        let excused = self.missing.lock().contains(&disk) || faults.damage() || writes && faults.write_errors();
        if excused { Ok(disk) } else { Err(format!("no fault of {} explains this: {why}", disk_name(disk))) }
    }

    /// Filters a finding of the model. On a medium that damages acknowledged data, only wrong bytes
    /// count.
    pub(crate) fn judge(&self, found: Outcome) -> Outcome {
        match found {
            Err(what) if !what.starts_with("WRONG") && self.damage() => Ok(()),
            other => other,
        }
    }

    /// Whether a planned read failure of the index explains this error.
    pub(crate) fn index_excuses(&self, error: &StoreError) -> bool {
        let excused = self.excuses.index_fails.load(Ordering::Relaxed) && is_of_index(error);
        self.counts.lock().index_failed += u64::from(excused);
        excused
    }

    /// Whether a write or flush has failed since the start of this life. Data acknowledged before
    /// the failure may then be lost.
    fn dropped(&self) -> bool {
        let (now, then) = (self.faults(), *self.at_start.lock());
        now.write_eio + now.flush_eio > then.write_eio + then.flush_eio
    }

    /// Accepts `error` as the outcome of a read if a fault explains it.
    pub(crate) fn read_may_fail(&self, error: &StoreError) -> Outcome {
        if self.index_excuses(error) {
            return Ok(());
        }
        if let StoreError::Unavailable(why) = error {
            self.unavailable(why, false)?;
            self.counts.lock().unavailable += 1;
            return Ok(());
        }
        let (counts, dropped) = (self.faults(), self.dropped());
        let excused = match error {
            StoreError::Log(LogError::Read { .. }) => counts.read_eio > 0 || counts.damage(),
            StoreError::Log(LogError::Damaged { .. }) => counts.damage() || dropped,
            StoreError::Log(LogError::Moved) | StoreError::Doubtful(_) => counts.damage(),
            _ => false,
        };
        if excused {
            self.counts.lock().failed += 1;
            return Ok(());
        }
        Err(format!("a read failed without reason: {error:?}"))
    }

    /// Accepts `error` as the outcome of a write if a fault explains it. Returns true if the write
    /// is known not to have taken effect.
    pub(crate) fn write_may_fail(&self, error: &StoreError) -> Outcome<bool> {
        if self.index_excuses(error) {
            return Ok(!matches!(error, StoreError::Log(LogError::Unknown { .. })));
        }
        if let StoreError::Unavailable(why) = error {
            self.unavailable(why, true)?;
            self.counts.lock().unavailable += 1;
            return Ok(true);
        }
        let faults = self.faults();
        let broken = faults.write_errors() || faults.damage();
        let mut counts = self.counts.lock();
        match error {
            StoreError::Busy(_) | StoreError::Log(LogError::Busy { .. }) => {
                counts.busy += 1;
                Ok(true)
            }
            StoreError::Log(LogError::Full) => {
                counts.full += 1;
                Ok(true)
            }
            // It may have been accepted.
            StoreError::Hangs if self.excuses.waits_for_archive => {
                counts.unarchived += 1;
                Ok(false)
            }
            StoreError::Log(LogError::Failed { .. }) if broken => {
                counts.failed += 1;
                Ok(true)
            }
            StoreError::Log(LogError::Unknown { .. }) if broken => {
                counts.failed += 1;
                Ok(false)
            }
            StoreError::Log(LogError::Read { .. }) if faults.read_eio > 0 || faults.damage() => Ok(true),
            // Lost data can be neither appended to nor copied.
            StoreError::Log(LogError::Damaged { .. }) if self.dropped() => Ok(true),
            StoreError::Log(LogError::Damaged { .. } | LogError::Moved)
            | StoreError::NoSuchBucket
            | StoreError::NoSuchUpload
            | StoreError::InvalidPart(_)
            | StoreError::Doubtful(_)
                if faults.damage() =>
            {
                Ok(true)
            }
            other => Err(format!("a write failed without reason: {other:?}")),
        }
    }
}

/// Whether a read failure of an index caused this error.
fn is_of_index(error: &StoreError) -> bool {
    match error {
        StoreError::Index(_) => true,
        StoreError::Unavailable(why) => why.starts_with("the index of the disk"),
        StoreError::Log(LogError::Unknown { cause, .. }) => cause.contains("index") || cause.contains("not confirmed"),
        _ => false,
    }
}
