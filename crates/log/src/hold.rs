//! Holds: they keep the extents of snapshots from being recycled.
//!
//! A hold keeps every extent in use at its creation, without a list. Each use of an extent has a
//! higher epoch than any before, and held extents are not recycled. So at any later time those
//! extents are the ones in use with an epoch up to the hold's. Extents that had been emptied
//! already and existed only for older holds are excluded. Otherwise overlapping snapshots would
//! pass dead extents on to each other forever.
//!
//! Holds exist in memory only. The layer above keeps a record of each, and lists them after a
//! replay, before anything can be recycled.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_flow::{Pace, has_fault};

use crate::compact::Halt;
use crate::compact::source::Items;
use crate::extents::{ExtentInfo, ExtentState, Extents, Table};
use crate::format::ExtentKind;
use crate::log::Log;
use crate::{Applied, Hold, LogError, Lsn, Sabotage};

impl Table {
    /// Adds a hold.
    fn hold(&mut self, hold: Hold) {
        self.release(&hold.id);
        self.mark(&hold, |_| true);
        self.holds.push(hold);
    }

    fn release(&mut self, id: &[u8; 16]) {
        while let Some(at) = self.holds.iter().position(|hold| hold.id == *id) {
            let gone = self.holds.remove(at);
            let left = std::mem::take(&mut self.holds);
            self.mark(&gone, |slot| left.iter().any(|hold| hold.keeps(slot.extent, slot.epoch)));
            self.holds = left;
        }
    }

    /// Recomputes whether each extent that `hold` keeps is held.
    fn mark(&mut self, hold: &Hold, held: impl Fn(&ExtentInfo) -> bool) {
        for extent in 0..self.len() as u32 {
            let Some(slot) = self.get(extent).filter(|slot| hold.keeps(extent, slot.epoch)) else { continue };
            let now = held(slot);
            // A change moves the extent out of and back into all sums under the table lock, so only
            // real changes are made.
            if slot.held != now {
                self.change(extent, |slot| slot.held = now);
            }
        }
    }
}

impl Extents {
    /// Adds these holds.
    pub(crate) fn keep(&self, holds: Vec<Hold>) {
        self.with(|table| {
            for hold in holds {
                table.hold(hold);
            }
        });
    }

    fn release(&self, id: &[u8; 16]) {
        self.with(|table| table.release(id));
    }

    /// Records that compaction has emptied the extent: it has no live data, and the copies are
    /// durable.
    pub(crate) fn emptied(&self, extent: u32, epoch: u64) {
        self.slot(extent, epoch, |slot| slot.emptied = true);
    }
}

/// A hold in preparation. While this exists, nothing is recycled.
pub struct PendingHold {
    extents: Extents,
    except: Vec<u8>,
}

impl PendingHold {
    fn new(extents: &Extents) -> Self {
        let except = extents.with(|table| {
            table.holding += 1;
            let emptied = table.slots().iter().filter(|slot| slot.emptied).map(|slot| slot.extent as usize);
            let mut except = Vec::new();
            for extent in emptied {
                except.resize(except.len().max(extent / 8 + 1), 0u8);
                except[extent / 8] |= 1 << (extent % 8);
            }
            except
        });
        Self { extents: extents.clone(), except }
    }
}

impl Drop for PendingHold {
    fn drop(&mut self) {
        self.extents.with(|table| {
            assert!(table.holding > 0, "a hold in preparation ended twice");
            table.holding -= 1;
        });
    }
}

impl std::fmt::Debug for PendingHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingHold")
    }
}

/// Keeps the extents of a hold, even after its release, until this is dropped.
pub struct HoldGuard {
    extents: Extents,
    id: [u8; 16],
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.extents.release(&self.id);
    }
}

impl std::fmt::Debug for HoldGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HoldGuard")
    }
}

impl Log {
    /// First step of a hold. Nothing is recycled while the result exists.
    pub fn begin_hold(&self) -> PendingHold {
        PendingHold::new(&self.shared.extents)
    }

    /// The last LSN that each of the logs has accepted, at one moment. If a client submitted a
    /// batch to one log after the answer of another, the cut includes it only together with the
    /// earlier one.
    pub fn cut(logs: &[&Log]) -> Vec<Lsn> {
        // In the given order, which is the same for all callers. No other code locks two queues.
        let queues: Vec<_> = logs.iter().map(|log| log.shared.queue.freeze()).collect();
        queues.iter().map(|queue| queue.last_lsn()).collect()
    }

    /// Second step of a hold: waits until everything up to `lsn` (see [`Log::cut`]) is durable and
    /// applied, and holds it. The hold lasts until [`Log::release`], or until the log is opened
    /// again. Then [`crate::Applier::holds`] must name it.
    ///
    /// # Errors
    /// [`LogError::Failed`] if the log has failed.
    pub async fn hold(&self, holding: &PendingHold, id: [u8; 16], lsn: Lsn) -> Result<Hold, LogError> {
        let shared = &self.shared;
        let mut applied = shared.progress.applied.subscribe();
        let mut latch = shared.latch.watch();
        while *applied.borrow_and_update() < lsn {
            shared.latch.check()?;
            tokio::select! {
                biased;
                _ = applied.changed() => {}
                _ = latch.changed() => {}
            }
        }
        self.flush().await?;
        let hold = shared.extents.with(|table| {
            assert!(table.holding > 0, "nothing is recycled while a hold is made");
            let hold = Hold { id, lsn, epoch: table.next_epoch - 1, except: holding.except.clone() };
            if !has_fault(shared.options.sabotage, Sabotage::HoldsIgnored) {
                table.hold(hold.clone());
            }
            hold
        });
        Ok(hold)
    }

    /// Ends a hold. Compaction may recycle what only this hold kept.
    pub fn release(&self, id: &[u8; 16]) {
        self.shared.extents.release(id);
    }

    /// Keeps the extents of `hold` under another identity, for a reader. The hold must exist.
    pub fn pin_hold(&self, hold: &Hold, reader: [u8; 16]) -> HoldGuard {
        self.shared.extents.keep(vec![Hold { id: reader, ..hold.clone() }]);
        HoldGuard { extents: self.shared.extents.clone(), id: reader }
    }

    /// The applied records up to `lsn`, as a recovery without a checkpoint would find them.
    /// `_holding` must outlive the result.
    pub fn records_up_to(&self, _holding: &PendingHold, lsn: Lsn) -> HeldRecords {
        self.held_records(&Hold { id: [0; 16], lsn, epoch: u64::MAX, except: Vec::new() }, 0)
    }

    /// The records committed up to the hold's LSN, as a recovery without a checkpoint would find
    /// them. Reads at most `bytes_s` bytes a second; 0 for no bound. The hold must outlive the
    /// result.
    pub fn held_records(&self, hold: &Hold, bytes_s: u64) -> HeldRecords {
        let mut extents: Vec<ExtentInfo> = self.shared.extents.all();
        let lost = extents.iter().filter(|slot| slot.state == ExtentState::Lost && slot.kind != ExtentKind::Body);
        let lost = lost.filter(|slot| hold.keeps(slot.extent, slot.epoch));
        let faults = lost.map(|slot| LogError::Damaged {
            extent: slot.extent,
            offset: 0,
            what: "the extent is lost: records in it are not found".into(),
        });
        let faults: Vec<LogError> = faults.collect();
        extents.retain(|slot| {
            let in_use = matches!(slot.state, ExtentState::Open | ExtentState::Sealed);
            in_use && slot.kind == ExtentKind::Commit && hold.keeps(slot.extent, slot.epoch)
        });
        extents.sort_by_key(|slot| slot.epoch);
        let pace = Pace::new(bytes_s, Duration::from_millis(250), self.shared.env.clone());
        let lsn = hold.lsn;
        HeldRecords {
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

/// Most records returned at a time.
const BATCH: usize = 1024;

/// See [`Log::held_records`].
pub struct HeldRecords {
    log: Log,
    lsn: Lsn,
    extents: VecDeque<ExtentInfo>,
    items: Option<(ExtentInfo, Items)>,
    last: Lsn,
    pace: Pace,
    ended: bool,
    faults: Vec<LogError>,
}

impl HeldRecords {
    /// Read errors so far: committed records may be missing from the result.
    pub fn faults(&self) -> &[LogError] {
        &self.faults
    }

    /// The next records in LSN order; none at the end. The rest of an extent that cannot be read is
    /// skipped and listed in [`Self::faults`].
    ///
    /// # Errors
    /// [`LogError::Moved`] if the hold has been released.
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
                    tracing::error!(error = %fault, "records of a snapshot cannot be read");
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

impl std::fmt::Debug for HeldRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldRecords(up to {})", self.lsn)
    }
}
