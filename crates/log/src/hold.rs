//! Holds: what snapshots keep from being recycled.
//!
//! A hold keeps every extent that was in use when it was made, without listing them: each use of an extent has a higher epoch than
//! any before, and what is held is not recycled. So what was in use then is, at any later time, what is in use with an epoch
//! up to that of the hold. Left out are extents that had been emptied already and were there only for older holds: else snapshots
//! that overlap would hand dead extents on to each other for ever.
//!
//! Holds are in memory only. The layer above keeps a record of each, and says after a replay which there are, before anything can be
//! recycled.

use std::collections::VecDeque;
use std::time::Duration;

use steadfast_flow::Pace;

use crate::compact::Halt;
use crate::compact::source::Items;
use crate::extents::{ExtentInfo, ExtentState, Extents, Table};
use crate::format::ExtentKind;
use crate::log::Log;
use crate::{Applied, LogError, Lsn, Sabotage};

/// What a snapshot keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Whose it is.
    pub id: [u8; 16],
    /// Records up to this one can be read.
    pub lsn: Lsn,
    /// Extents are kept that were in use with an epoch up to this,
    pub epoch: u64,
    /// but not these: extent `n` has bit `n % 8` of byte `n / 8`.
    pub except: Vec<u8>,
}

impl Hold {
    /// Whether an extent that is in use with this epoch is kept.
    pub fn keeps(&self, extent: u32, epoch: u64) -> bool {
        let excepted = self.except.get(extent as usize / 8).is_some_and(|byte| byte >> (extent % 8) & 1 == 1);
        epoch <= self.epoch && !excepted
    }
}

impl Table {
    /// Keeps what this holds, too.
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

    /// Says anew of all that `hold` keeps whether it is held.
    fn mark(&mut self, hold: &Hold, held: impl Fn(&ExtentInfo) -> bool) {
        for extent in 0..self.len() as u32 {
            let Some(slot) = self.get(extent).filter(|slot| hold.keeps(extent, slot.epoch)) else { continue };
            let now = held(slot);
            // A change takes the extent out of all sums and puts it back, with the table locked: only where there is one.
            if slot.held != now {
                self.change(extent, |slot| slot.held = now);
            }
        }
    }
}

impl Extents {
    /// Keeps what these hold, too.
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

    /// Compaction has emptied the extent: nothing in it is live, and what was has been copied, durably.
    pub(crate) fn emptied(&self, extent: u32, epoch: u64) {
        self.slot(extent, epoch, |slot| slot.emptied = true);
    }
}

/// A hold in the making: while this is there, nothing at all is recycled.
pub struct Holding {
    extents: Extents,
    except: Vec<u8>,
}

impl Holding {
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

impl Drop for Holding {
    fn drop(&mut self) {
        self.extents.with(|table| table.holding -= 1);
    }
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Holding")
    }
}

/// Keeps what a hold keeps, also when that is released, until this is dropped.
pub struct HoldPin {
    extents: Extents,
    id: [u8; 16],
}

impl Drop for HoldPin {
    fn drop(&mut self) {
        self.extents.release(&self.id);
    }
}

impl std::fmt::Debug for HoldPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HoldPin")
    }
}

impl Log {
    /// The first step of a hold: from here on nothing is recycled while the result is there.
    pub fn begin_hold(&self) -> Holding {
        Holding::new(&self.shared.extents)
    }

    /// The last LSN that each of the logs has accepted, all at one moment: a batch that was submitted to one of them because another
    /// one's commit had been answered is counted only if that other is.
    pub fn cut(logs: &[&Log]) -> Vec<Lsn> {
        // In the order in which they are given, which is the same for all callers; nobody else locks two.
        let queues: Vec<_> = logs.iter().map(|log| log.shared.queue.hold_still()).collect();
        queues.iter().map(|queue| queue.last_lsn()).collect()
    }

    /// The second step: waits until everything up to `lsn` (see [`Log::cut`]) is durable and applied, and holds it. It stays held until
    /// [`Log::release`], or until the log is opened again, when [`crate::Applier::holds`] must name it.
    ///
    /// # Errors
    /// [`LogError::Failed`] when the log cannot.
    pub async fn hold(&self, holding: &Holding, id: [u8; 16], lsn: Lsn) -> Result<Hold, LogError> {
        let shared = &self.shared;
        let mut applied = shared.applied.subscribe();
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
            let hold = Hold { id, lsn, epoch: table.next_epoch - 1, except: holding.except.clone() };
            if shared.options.sabotage != Sabotage::HoldsIgnored {
                table.hold(hold.clone());
            }
            hold
        });
        Ok(hold)
    }

    /// Ends a hold: compaction may recycle what only it kept.
    pub fn release(&self, id: &[u8; 16]) {
        self.shared.extents.release(id);
    }

    /// Keeps what `hold` keeps under another identity, for a reader. The hold must be there now.
    pub fn pin_hold(&self, hold: &Hold, reader: [u8; 16]) -> HoldPin {
        self.shared.extents.keep(vec![Hold { id: reader, ..hold.clone() }]);
        HoldPin { extents: self.shared.extents.clone(), id: reader }
    }

    /// The records up to `lsn`, which have been applied, as a recovery that knows of nothing else would find them. `_holding` must last as long.
    pub fn records_up_to(&self, _holding: &Holding, lsn: Lsn) -> HeldRecords {
        self.held_records(&Hold { id: [0; 16], lsn, epoch: u64::MAX, except: Vec::new() }, 0)
    }

    /// The records that had been committed up to the hold's LSN, as a recovery that knows of nothing else would find them.
    /// Reads `bytes_s` a second at most; 0 for no bound. The hold must last as long.
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

/// How many records are given at a time.
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
    /// What could not be read so far: records that were there may be missing.
    pub fn faults(&self) -> &[LogError] {
        &self.faults
    }

    /// The next records in LSN order; none at the end. Where an extent cannot be read whole, the rest of it is left out, and [`Self::faults`] says so.
    ///
    /// # Errors
    /// [`LogError::Moved`] when the hold has not lasted.
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
                    // As far as it has been written by now.
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
                // Whatever follows was committed later.
                Some(item) if item.lsn > self.lsn => self.ended = true,
                // A copy that a recovery made of what is still in its first place.
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
