//! State shared by compaction and the committer: the status, and the records moved into open
//! extents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::ExtentId;
use crate::status::CompactionStatus;
use crate::{Applied, Applier, Lsn, Subject};

/// The most keys noted for an open extent.
const MOVED_MAX: usize = 256 << 10;

/// State of compaction that other tasks read.
#[derive(Default)]
pub(crate) struct Compaction {
    pub(crate) status: Mutex<CompactionStatus>,
    pub(crate) moved: MovedRecords,
}

impl Compaction {
    /// The status. `written_bytes` are all bytes that the log has written.
    pub(crate) fn status(&self, written_bytes: u64) -> CompactionStatus {
        let mut status = self.status.lock().clone();
        let external = written_bytes.saturating_sub(status.moved_bytes).max(1);
        status.write_amplification_percent = if written_bytes == 0 { 100 } else { written_bytes * 100 / external };
        status
    }
}

/// Records moved into an open extent.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) keys: BTreeSet<u64>,
    /// The lowest version of a record that was not moved.
    pub(crate) own_from: Lsn,
    /// The extent may hold any key: there were too many keys, or a record has no subject.
    pub(crate) any: bool,
}

impl Moved {
    pub(crate) fn may_hold(&self, key: u64, version: Lsn) -> bool {
        self.any || self.own_from <= version || self.keys.contains(&key)
    }
}

/// Compaction reads it while the committer writes the extent.
pub(crate) type MovedInto = Arc<Mutex<Moved>>;

/// Records moved into open extents, by extent and epoch: one or two. Only extents whose every frame
/// was noted are listed.
#[derive(Debug, Default)]
pub(crate) struct MovedRecords(Mutex<BTreeMap<(u32, u64), MovedInto>>);

impl MovedRecords {
    /// Starts noting an extent before its first frame.
    pub(crate) fn begun(&self, id: &ExtentId) {
        let none = Moved { keys: BTreeSet::new(), own_from: Lsn::MAX, any: false };
        self.0.lock().insert((id.extent, id.epoch), Arc::new(Mutex::new(none)));
    }

    /// Notes records of this extent. Called before its lowest version changes.
    pub(crate) fn wrote(&self, id: &ExtentId, records: &[Applied], applier: &dyn Applier) {
        let Some(moved) = self.get(id.extent, id.epoch) else { return };
        let mut moved = moved.lock();
        for record in records {
            if !record.moved {
                moved.own_from = moved.own_from.min(record.version);
                continue;
            }
            match applier.subject(&record.head) {
                Subject::Put(key) => {
                    moved.keys.insert(key);
                }
                Subject::Delete(_) => {}
                Subject::Unknown => moved.any = true,
            }
        }
        if moved.any || moved.keys.len() > MOVED_MAX {
            moved.any = true;
            moved.keys.clear();
        }
    }

    pub(crate) fn get(&self, extent: u32, epoch: u64) -> Option<MovedInto> {
        self.0.lock().get(&(extent, epoch)).cloned()
    }

    /// Forgets extents that are no longer open.
    pub(crate) fn retain(&self, is_open: impl Fn(u32, u64) -> bool) {
        self.0.lock().retain(|(extent, epoch), _| is_open(*extent, *epoch));
    }
}
