//! What all clients of a run share, and which errors of the store the faults excuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use steadfast_log::{Durability, LogError};
use steadfast_store::StoreError;

use crate::channels::Aired;
use crate::client::Outcome;
use crate::counts::Counts;
use crate::disk::Device;
use crate::events::Heard;
use crate::indexes::is_of_index;
use crate::keeper::Kept;
use crate::members::Members;
use crate::model::{Key, Model};
use crate::platter::FaultCounts;
use crate::tireless::Unflushed;
use crate::trace::Trace;
use crate::upload::Upload;

/// What all clients of a run share, over all lives.
pub(crate) struct Shared {
    pub(crate) model: Mutex<Model>,
    pub(crate) uploads: Mutex<Vec<Upload>>,
    pub(crate) counts: Mutex<Counts>,
    /// What had struck when this life began.
    pub(crate) at_start: Mutex<FaultCounts>,
    /// Buckets whose creation was answered.
    pub(crate) made: Mutex<BTreeSet<Arc<str>>>,
    /// By disk: the device that is believed.
    pub(crate) devices: Vec<Device>,
    /// See [`crate::Variant::ListWithoutMissing`].
    pub(crate) lists_without_missing: bool,
    /// The disks that are missing in this life.
    pub(crate) missing: Mutex<BTreeSet<usize>>,
    /// Keys that could not be looked at in this life, each with the disk that was named.
    pub(crate) unseen: Mutex<BTreeMap<Key, usize>>,
    /// The home of each key, as far as what was unavailable has told.
    pub(crate) homes: Mutex<BTreeMap<Key, usize>>,
    /// What an operator knows of the pool's disks.
    pub(crate) members: Mutex<Members>,
    /// The snapshots that were made.
    pub(crate) snapshots: Mutex<Vec<Kept>>,
    /// What was published, and who has seen what of it.
    pub(crate) channels: Mutex<Aired>,
    /// Whether the events of the first bucket's objects are listened to.
    pub(crate) listened: bool,
    /// What was heard.
    pub(crate) heard: Mutex<Heard>,
    /// What was written asynchronously in this life by clients that never pause.
    pub(crate) unflushed: Mutex<Unflushed>,
    /// Reads of the index may fail in this life.
    pub(crate) index_fails: AtomicBool,
    pub(crate) trace: Trace,
    pub(crate) buckets: Vec<(Arc<str>, Durability)>,
    pub(crate) keys: Vec<Arc<str>>,
    /// So many of them, the first, seldom change.
    pub(crate) cold_keys: usize,
    pub(crate) small_max: u64,
    pub(crate) large_max: u64,
    pub(crate) large_per_mille: u64,
}

/// What the disk of that number is called.
pub(crate) fn disk_name(disk: usize) -> String {
    format!("disk-{disk}")
}

impl Shared {
    /// What has struck all disks.
    pub(crate) fn faults(&self) -> FaultCounts {
        let mut sum = FaultCounts::default();
        self.devices.iter().for_each(|device| sum.add(&device.lock().counts));
        sum
    }

    /// Whether a medium may hold something else than what was acknowledged.
    pub(crate) fn damage(&self) -> bool {
        self.devices.iter().any(|device| device.lock().counts.damage())
    }

    /// Whether a disk is missing in this life.
    pub(crate) fn is_missing(&self, disk: usize) -> bool {
        self.missing.lock().contains(&disk)
    }

    /// The disk that is said not to take part. An error when it is none that may be missing, or refuse writes where `writes`.
    pub(crate) fn unavailable(&self, why: &str, writes: bool) -> Outcome<usize> {
        let named = (0..self.devices.len()).find(|disk| why.contains(&format!("the disk {} of", disk_name(*disk))));
        let Some(disk) = named else { return Err(format!("unavailable, without a disk's name: {why}")) };
        let faults = self.devices[disk].lock().counts;
        let excused = self.missing.lock().contains(&disk) || faults.damage() || writes && faults.write_errors();
        if excused { Ok(disk) } else { Err(format!("nothing is wrong with {}: {why}", disk_name(disk))) }
    }

    /// A finding of the model. On a medium that damages what it acknowledged, only wrong bytes count.
    pub(crate) fn judge(&self, found: Outcome) -> Outcome {
        match found {
            Err(what) if !what.starts_with("WRONG") && self.damage() => Ok(()),
            other => other,
        }
    }

    /// Whether it is since the index cannot be read that the store answers so, and that is planned.
    pub(crate) fn index_excuses(&self, error: &StoreError) -> bool {
        let excused = self.index_fails.load(Ordering::Relaxed) && is_of_index(error);
        self.counts.lock().index_failed += u64::from(excused);
        excused
    }

    /// Whether a flush has failed since the start: what was answered before it may be gone.
    fn dropped(&self) -> bool {
        let (now, then) = (self.faults(), *self.at_start.lock());
        now.write_eio + now.flush_eio > then.write_eio + then.flush_eio
    }

    /// Whether `error` may come of a read.
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

    /// Whether `error` may come of a write; for one that was submitted, whether it is known not to have taken place.
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
            StoreError::Log(LogError::Failed { .. }) if broken => {
                counts.failed += 1;
                Ok(true)
            }
            StoreError::Log(LogError::Unknown { .. }) if broken => {
                counts.failed += 1;
                Ok(false)
            }
            StoreError::Log(LogError::Read { .. }) if faults.read_eio > 0 || faults.damage() => Ok(true),
            // What was lost cannot be written to, nor copied.
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
