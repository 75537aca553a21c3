//! The log's accounts: live bytes by extent.

use std::collections::BTreeMap;

use crate::extents::Extents;
use crate::history::committed_by;
use crate::{ExtentUsage, Lsn};

/// Live bytes by extent: the log's accounts. The [`crate::Applier`] changes them as it applies
/// records, and saves them with its checkpoint.
#[derive(Default)]
pub struct Usage {
    /// Epoch and live bytes by extent.
    live: BTreeMap<u32, (u64, u64)>,
    /// The table of extents, which follows each change. `None` while recovery runs, and for records
    /// that are applied once more beside the log.
    table: Option<Extents>,
}

impl std::fmt::Debug for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Usage({:?})", self.live)
    }
}

impl Usage {
    /// Starts from the usage of a checkpoint.
    pub(crate) fn load(saved: &[ExtentUsage]) -> Self {
        let live = saved.iter().map(|u| (u.extent, (u.epoch, u.live_bytes))).collect();
        Self { live, table: None }
    }

    /// Brings the table up to date after recovery, and keeps it so.
    pub(crate) fn follow_with(&mut self, table: &Extents) {
        for (&extent, &(epoch, live)) in &self.live {
            table.account(extent, epoch, |bytes| *bytes = live as i64);
        }
        self.table = Some(table.clone());
    }

    /// Counts bytes of an extent as live.
    pub fn credit(&mut self, extent: u32, epoch: u64, bytes: u64) {
        let entry = self.live.entry(extent).or_insert((epoch, 0));
        if entry.0 < epoch {
            *entry = (epoch, 0);
        }
        if entry.0 == epoch {
            entry.1 += bytes;
        }
        if let Some(table) = &self.table {
            table.account(extent, epoch, |live| *live += bytes as i64);
        }
    }

    /// Counts bytes of an extent as dead.
    pub fn retire(&mut self, extent: u32, epoch: u64, bytes: u64) {
        if let Some(entry) = self.live.get_mut(&extent)
            && entry.0 == epoch
        {
            debug_assert!(entry.1 >= bytes, "{bytes} bytes are removed of {} in extent {extent}", entry.1);
            entry.1 = entry.1.saturating_sub(bytes);
        }
        if let Some(table) = &self.table {
            table.account(extent, epoch, |live| *live -= bytes as i64);
        }
    }

    /// Replaces the accounts by those of `others`, which the same records made.
    pub fn replace_by(&mut self, others: &Self) {
        let mine = std::mem::replace(&mut self.live, others.live.clone());
        let Some(table) = &self.table else { return };
        for (extent, (epoch, live)) in mine {
            table.account(extent, epoch, |bytes| *bytes -= live as i64);
        }
        for (&extent, &(epoch, live)) in &self.live {
            table.account(extent, epoch, |bytes| *bytes += live as i64);
        }
    }

    /// The number of the opening that committed the record `lsn`, as [`crate::History`] knows it; 0
    /// if unknown, and while recovery runs.
    pub fn committed_by(&self, lsn: Lsn) -> u64 {
        self.table.as_ref().map_or(0, |table| committed_by(&table.with(|table| table.lineage), lsn))
    }

    /// The usage to save with a checkpoint.
    pub fn saved(&self) -> Vec<ExtentUsage> {
        let used = self.live.iter().filter(|(_, (_, live))| *live > 0);
        used.map(|(&extent, &(epoch, live_bytes))| ExtentUsage { extent, epoch, live_bytes }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(extent: u32, epoch: u64, live_bytes: u64) -> ExtentUsage {
        ExtentUsage { extent, epoch, live_bytes }
    }

    #[test]
    fn counts_of_an_earlier_epoch_are_over() {
        let mut accounts = Usage::load(&[usage(1, 5, 100), usage(2, 6, 10)]);
        accounts.credit(1, 7, 30);
        accounts.credit(1, 5, 1000);
        accounts.retire(1, 5, 100);
        accounts.retire(2, 6, 10);
        assert_eq!(accounts.saved(), [usage(1, 7, 30)]);
        let mut others = Usage::default();
        others.credit(3, 8, 1);
        accounts.replace_by(&others);
        assert_eq!(accounts.saved(), [usage(3, 8, 1)]);
        assert_eq!(accounts.committed_by(1), 0, "recovery runs");
    }
}
