//! The kind of entity that a key stands for, and what is counted of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::object::Account;
use crate::record::wire::Malformed;
use crate::shard::checkpoint::Checkpoint;

/// The kind of entity that a key stands for, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Bucket,
    Object,
    Upload,
    Part,
    Layout,
    EpochBreak,
    /// What only earlier versions wrote.
    Retired,
    Publication,
}

impl Account {
    pub(crate) fn of(class: Class, payload: &[u8]) -> Result<Self, Malformed> {
        match class {
            Class::Object | Class::Part => Self::decode(payload),
            Class::Bucket | Class::Upload | Class::Layout | Class::EpochBreak | Class::Retired | Class::Publication => {
                Ok(Self { size: 0, revision: 0, shares: Vec::new() })
            }
        }
    }
}

/// Numbers of objects and unfinished uploads.
pub(crate) struct Counts {
    objects: AtomicU64,
    bytes: AtomicU64,
    uploads: AtomicU64,
}

impl Counts {
    /// Begins with those of a checkpoint. The uploads are counted at the end of the replay.
    pub(crate) fn load(checkpoint: &Checkpoint) -> Self {
        Self {
            objects: AtomicU64::new(checkpoint.objects),
            bytes: AtomicU64::new(checkpoint.bytes),
            uploads: AtomicU64::new(0),
        }
    }

    /// Number of objects.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes of all objects.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of unfinished uploads.
    pub(crate) fn uploads(&self) -> u64 {
        self.uploads.load(Ordering::Relaxed)
    }

    /// Sets the number of unfinished uploads.
    pub(crate) fn set_uploads(&self, uploads: u64) {
        self.uploads.store(uploads, Ordering::Relaxed);
    }

    /// Takes over the numbers of `others`.
    pub(crate) fn replace_by(&self, others: &Self) {
        for (mine, new) in
            [(&self.objects, &others.objects), (&self.bytes, &others.bytes), (&self.uploads, &others.uploads)]
        {
            mine.store(new.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts an entity of `size` bytes: one more if `by` is above zero, otherwise one less.
    pub(crate) fn change(&self, class: Class, by: i64, size: u64) {
        let add = |counter: &AtomicU64, amount: u64| {
            if by > 0 {
                counter.fetch_add(amount, Ordering::Relaxed)
            } else {
                counter.fetch_sub(amount, Ordering::Relaxed)
            }
        };
        match class {
            Class::Object => {
                let (objects, bytes) = (add(&self.objects, 1), add(&self.bytes, size));
                debug_assert!(by > 0 || objects >= 1 && bytes >= size, "{size} bytes leave {objects} of {bytes}");
            }
            // A replay begins without a count, and counts at its end.
            Class::Upload => {
                add(&self.uploads, 1);
            }
            Class::Bucket | Class::Part | Class::Layout | Class::EpochBreak | Class::Retired | Class::Publication => {}
        }
    }
}
