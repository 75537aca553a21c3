//! Live bytes by extent. The shard keeps them so that they are saved with their checkpoint, and
//! reports them to the log.

use std::collections::BTreeMap;

use steadfast_log::{ExtentUsage, Location, Lsn};

use crate::record::manifest::Share;
use steadfast_log::Log;

/// See the module.
#[derive(Default)]
pub(crate) struct Accounts {
    /// Epoch and live bytes by extent.
    live: BTreeMap<u32, (u64, u64)>,
    log: Option<Log>,
    /// Changes of a replay before the log accepts them: credits and retirements by extent and
    /// epoch.
    unreported: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Accounts {
    /// Starts from the usage of a checkpoint.
    pub(crate) fn load(usage: &[ExtentUsage]) -> Self {
        let live = usage.iter().map(|u| (u.extent, (u.epoch, u.live_bytes))).collect();
        Self { live, ..Self::default() }
    }

    /// Reports to the log from now on. The log began with the checkpoint's usage, so it gets only
    /// later changes.
    pub(crate) fn attach(&mut self, log: Log) {
        for ((extent, epoch), (credit, retire)) in std::mem::take(&mut self.unreported) {
            log.credit(extent, epoch, credit);
            log.retire(extent, epoch, retire);
        }
        self.log = Some(log);
    }

    /// Releases the log.
    pub(crate) fn detach(&mut self) {
        self.log = None;
    }

    fn credit(&mut self, extent: u32, epoch: u64, bytes: u64) {
        let entry = self.live.entry(extent).or_insert((epoch, 0));
        if entry.0 < epoch {
            *entry = (epoch, 0);
        }
        if entry.0 == epoch {
            entry.1 += bytes;
        }
        match &self.log {
            Some(log) => log.credit(extent, epoch, bytes),
            None => self.unreported.entry((extent, epoch)).or_default().0 += bytes,
        }
    }

    fn retire(&mut self, extent: u32, epoch: u64, bytes: u64) {
        if let Some(entry) = self.live.get_mut(&extent)
            && entry.0 == epoch
        {
            debug_assert!(entry.1 >= bytes, "{bytes} bytes are removed of {} in extent {extent}", entry.1);
            entry.1 = entry.1.saturating_sub(bytes);
        }
        match &self.log {
            Some(log) => log.retire(extent, epoch, bytes),
            None => self.unreported.entry((extent, epoch)).or_default().1 += bytes,
        }
    }

    /// Adds a record and the chunks that it names as live.
    pub(crate) fn add(&mut self, at: &Location, shares: &[Share]) {
        self.credit(at.extent, at.epoch, Log::footprint(at));
        for share in shares {
            self.credit(share.extent, share.epoch, share.bytes);
        }
    }

    /// Removes a record and its chunks from the live bytes.
    pub(crate) fn retract(&mut self, at: &Location, shares: &[Share]) {
        self.retire(at.extent, at.epoch, Log::footprint(at));
        for share in shares {
            self.retire(share.extent, share.epoch, share.bytes);
        }
    }

    /// The opening of the log that committed a record; 0 when unknown.
    pub(crate) fn committed_by(&self, lsn: Lsn) -> u64 {
        self.log.as_ref().map_or(0, |log| log.committed_by(lsn))
    }

    /// Takes over the accounts of `others` and reports the difference to the log.
    pub(crate) fn replace_by(&mut self, others: &Self) {
        let (mine, theirs) = (std::mem::replace(&mut self.live, others.live.clone()), &others.live);
        let Some(log) = &self.log else { return };
        for (&extent, &(epoch, live)) in &mine {
            log.retire(extent, epoch, live);
        }
        for (&extent, &(epoch, live)) in theirs {
            log.credit(extent, epoch, live);
        }
    }

    /// The usage to save in a checkpoint.
    pub(crate) fn usage(&self) -> Vec<ExtentUsage> {
        let used = self.live.iter().filter(|(_, (_, live))| *live > 0);
        used.map(|(&extent, &(epoch, live_bytes))| ExtentUsage { extent, epoch, live_bytes }).collect()
    }
}
