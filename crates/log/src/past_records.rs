//! The records of the past, once more: for an index that is built anew while the log runs.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_flow::Pace;

use crate::compact::Halt;
use crate::compact::source::Items;
use crate::extents::{ExtentInfo, ExtentState, Extents};
use crate::format::ExtentKind;
use crate::log::Log;
use crate::{Applied, LogError, Lsn};

/// Most records returned at a time.
const BATCH: usize = 1024;

/// While this exists, no extent is recycled.
pub struct RecyclingStopped(Extents);

impl RecyclingStopped {
    fn new(extents: &Extents) -> Self {
        extents.with(|table| table.recycling_stopped += 1);
        Self(extents.clone())
    }
}

impl Drop for RecyclingStopped {
    fn drop(&mut self) {
        self.0.with(|table| {
            assert!(table.recycling_stopped > 0, "recycling continues twice");
            table.recycling_stopped -= 1;
        });
    }
}

impl std::fmt::Debug for RecyclingStopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecyclingStopped")
    }
}

impl Log {
    /// Stops the recycling of extents until the result is dropped.
    pub fn stop_recycling(&self) -> RecyclingStopped {
        RecyclingStopped::new(&self.shared.extents)
    }

    /// The applied records up to `lsn`, as a recovery without a checkpoint would find them.
    /// `_stopped` must outlive the result.
    pub fn records_up_to(&self, _stopped: &RecyclingStopped, lsn: Lsn) -> PastRecords {
        let mut extents: Vec<ExtentInfo> = self.shared.extents.all();
        let lost = extents.iter().filter(|slot| slot.state == ExtentState::Lost && slot.kind != ExtentKind::Body);
        let faults = lost.map(|slot| LogError::Damaged {
            extent: slot.extent,
            offset: 0,
            what: "the extent is lost: records in it are not found".into(),
        });
        let faults: Vec<LogError> = faults.collect();
        extents.retain(|slot| slot.in_use() && slot.kind == ExtentKind::Commit);
        extents.sort_by_key(|slot| slot.epoch);
        let pace = Pace::new(0, Duration::from_millis(250), self.shared.env.clone());
        PastRecords {
            log: self.clone(),
            lsn,
            extents: extents.into(),
            items: None,
            last: 0,
            pace,
            ended: false,
            faults,
        }
    }
}

/// See [`Log::records_up_to`].
pub struct PastRecords {
    log: Log,
    lsn: Lsn,
    extents: VecDeque<ExtentInfo>,
    items: Option<(ExtentInfo, Items)>,
    last: Lsn,
    pace: Pace,
    ended: bool,
    faults: Vec<LogError>,
}

impl PastRecords {
    /// Read errors so far: committed records may be missing from the result.
    pub fn faults(&self) -> &[LogError] {
        &self.faults
    }

    /// The next records in LSN order; none at the end. The rest of an extent that cannot be read is
    /// skipped and listed in [`Self::faults`].
    ///
    /// # Errors
    /// [`LogError::Moved`] if an extent was recycled nevertheless.
    pub async fn next(&mut self) -> Result<Vec<Applied>, LogError> {
        let mut records = Vec::new();
        while !self.ended && records.len() < BATCH {
            let (info, items) = match &mut self.items {
                Some(items) => items,
                None => {
                    let Some(slot) = self.extents.pop_front() else {
                        self.ended = true;
                        break;
                    };
                    // Up to what has been written by now.
                    let shared = &self.log.shared;
                    let Some(info) = shared.extents.get(slot.extent, slot.epoch) else {
                        return Err(LogError::Moved);
                    };
                    let items = Items::open(shared, &info, &self.pace).await;
                    self.items.insert((info, items))
                }
            };
            let extent = info.extent;
            let item = match items.next(info, self.log.shared.pool.pool).await {
                Ok(item) => item,
                Err(halt) => {
                    let fault = match halt {
                        Halt::Unread { offset, cause } => LogError::Read { extent, offset, cause },
                        halt => LogError::Damaged { extent, offset: 0, what: halt.to_string() },
                    };
                    tracing::error!(error = %fault, "records of the past cannot be read");
                    self.faults.push(fault);
                    None
                }
            };
            match item {
                None => self.items = None,
                // Everything that follows was committed later.
                Some(item) if item.lsn > self.lsn => self.ended = true,
                // A copy by recovery of a record that is still in its first place.
                Some(item) if item.lsn <= self.last => {}
                Some(item) => {
                    self.last = item.lsn;
                    records.push(Applied {
                        lsn: item.lsn,
                        version: item.version,
                        moved: item.version != item.lsn,
                        head: item.head,
                        location: item.location,
                    });
                }
            }
        }
        Ok(records)
    }
}

impl std::fmt::Debug for PastRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PastRecords(up to {})", self.lsn)
    }
}
