//! Live bytes by extent: kept here so that they are saved with the checkpoint they belong to, and told to the log.

use std::collections::BTreeMap;

use steadfast_log::{ExtentUsage, Location, Lsn};

use crate::record::manifest::Share;
use steadfast_log::Log;

/// See the module.
#[derive(Default)]
pub(crate) struct Accounts {
    /// By extent: its epoch and live bytes.
    live: BTreeMap<u32, (u64, u64)>,
    log: Option<Log>,
    /// Changes of a replay, when the log cannot be told yet: credits and retirements by extent and epoch.
    untold: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Accounts {
    /// Starts from what a checkpoint saved.
    pub(crate) fn load(usage: &[ExtentUsage]) -> Self {
        let live = usage.iter().map(|u| (u.extent, (u.epoch, u.live_bytes))).collect();
        Self { live, ..Self::default() }
    }

    /// From now on the log is told. It has begun with the usage of the checkpoint, so it gets what changed since.
    pub(crate) fn attach(&mut self, log: Log) {
        for ((extent, epoch), (credit, retire)) in std::mem::take(&mut self.untold) {
            log.credit(extent, epoch, credit);
            log.retire(extent, epoch, retire);
        }
        self.log = Some(log);
    }

    /// Lets go of the log.
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
            None => self.untold.entry((extent, epoch)).or_default().0 += bytes,
        }
    }

    fn retire(&mut self, extent: u32, epoch: u64, bytes: u64) {
        if let Some(entry) = self.live.get_mut(&extent)
            && entry.0 == epoch
        {
            entry.1 = entry.1.saturating_sub(bytes);
        }
        match &self.log {
            Some(log) => log.retire(extent, epoch, bytes),
            None => self.untold.entry((extent, epoch)).or_default().1 += bytes,
        }
    }

    /// A record and the chunks it names are referred to from now on.
    pub(crate) fn add(&mut self, at: &Location, shares: &[Share]) {
        self.credit(at.extent, at.epoch, Log::footprint(at));
        for share in shares {
            self.credit(share.extent, share.epoch, share.bytes);
        }
    }

    /// They no longer are.
    pub(crate) fn retract(&mut self, at: &Location, shares: &[Share]) {
        self.retire(at.extent, at.epoch, Log::footprint(at));
        for share in shares {
            self.retire(share.extent, share.epoch, share.bytes);
        }
    }

    /// The opening of the log that has committed a record; 0 when that is not known.
    pub(crate) fn committed_by(&self, lsn: Lsn) -> u64 {
        self.log.as_ref().map_or(0, |log| log.committed_by(lsn))
    }

    /// Has what the others have: the log is told of the difference.
    pub(crate) fn become_those_of(&mut self, others: &Self) {
        let (mine, theirs) = (std::mem::replace(&mut self.live, others.live.clone()), &others.live);
        let Some(log) = &self.log else { return };
        for (&extent, &(epoch, live)) in &mine {
            log.retire(extent, epoch, live);
        }
        for (&extent, &(epoch, live)) in theirs {
            log.credit(extent, epoch, live);
        }
    }

    /// What to save.
    pub(crate) fn usage(&self) -> Vec<ExtentUsage> {
        let used = self.live.iter().filter(|(_, (_, live))| *live > 0);
        used.map(|(&extent, &(epoch, live_bytes))| ExtentUsage { extent, epoch, live_bytes }).collect()
    }
}
