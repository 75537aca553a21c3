//! Lost extents: they were in use, but read as zeros or as older data, or the disk ends before
//! them.

use crate::extents::{ExtentInfo, ExtentState};
use crate::format::{ExtentKind, RosterEntry, RosterUse};
use crate::roster::RosterRead;
use crate::{ExtentUsage, Lsn};

use super::replay::Replay;
use super::report::{Doubt, LostExtent, RecoveryReport};
use super::survey::Found;

/// The known facts about a lost extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) used: RosterUse,
    /// Epoch; 0 if unknown.
    pub(super) epoch: u64,
    /// Lower bound of its LSNs.
    pub(super) base_lsn: Lsn,
}

/// Marks lost extents of a pool that may be written anywhere. Every extent that was ever used has a
/// header: of that use, of a later one, or one that marks it free. A pool of an older build has no
/// roster. There, extents below the last used one have been used too, because extents are taken in
/// that order; and the index knows those to which it refers.
pub(super) fn mark(found: &mut Vec<Found>, roster: &RosterRead, usage: &[ExtentUsage]) {
    let referred = usage.iter().filter(|u| u.live_bytes > 0 && roster.get(u.extent).is_none());
    let end = referred.clone().map(|u| u.extent + 1).max().unwrap_or(0).max(roster.extents());
    for extent in found.len() as u32..end {
        found.push(Found::nothing(extent));
    }
    let used_end = found.iter().rposition(|f| f.epoch > 0).unwrap_or(0);
    for (at, f) in found.iter_mut().enumerate() {
        let lost = match roster.get(f.extent) {
            Some(entry) => is_missing(&entry, f.epoch).then_some(Lost {
                used: entry.used,
                epoch: entry.epoch,
                base_lsn: entry.base_lsn,
            }),
            None if f.epoch == 0 && at < used_end => Some(Lost { used: RosterUse::Unknown, epoch: 0, base_lsn: 0 }),
            None => None,
        };
        if let Some(lost) = lost {
            f.is_lost(lost);
        }
    }
    for u in referred {
        let Some(f) = found.get_mut(u.extent as usize) else { continue };
        if f.epoch < u.epoch {
            f.is_lost(Lost { used: RosterUse::Unknown, epoch: u.epoch, base_lsn: 0 });
        }
    }
}

/// Whether the roster records a later use of an extent than `epoch`, its newest visible one (0:
/// none).
pub(super) fn is_missing(entry: &RosterEntry, epoch: u64) -> bool {
    entry.used != RosterUse::Free && (entry.epoch > epoch || epoch == 0)
}

/// The roster entries for the extents as found.
pub(super) fn roster(found: &[Found], slots: &[ExtentInfo]) -> Vec<RosterEntry> {
    let entry = |(f, slot): (&Found, &ExtentInfo)| match &f.lost {
        Some(lost) => RosterEntry { used: lost.used, epoch: lost.epoch, base_lsn: lost.base_lsn },
        None if slot.state == ExtentState::Sealed => {
            RosterEntry { used: f.kind.into(), epoch: f.epoch, base_lsn: f.base_lsn }
        }
        None => RosterEntry::default(),
    };
    found.iter().zip(slots).map(entry).collect()
}

/// Reports lost extents. Returns a reason if nothing may be written because records may be gone
/// without a trace.
pub(super) fn judge(found: &[Found], slots: &[ExtentInfo], seen: Lsn, report: &mut RecoveryReport) -> Option<String> {
    let checkpoint = report.checkpoint;
    let mut read_only = None;
    for f in found {
        let Some(lost) = f.lost else { continue };
        let live_bytes = slots.get(f.extent as usize).map_or(0, |slot| slot.live_bytes.max(0) as u64);
        let what = match lost.used {
            RosterUse::Commit => "records",
            RosterUse::Body => "bodies",
            RosterUse::Unknown | RosterUse::Free => "data",
        };
        let text = format!(
            "the extent is lost: it was in use for {what}, and its data is gone; {live_bytes} bytes of it were live"
        );
        report.damage(f.extent, 0, text);
        report.lost.push(LostExtent { extent: f.extent, epoch: lost.epoch, live_bytes });
        let below = missing_below(found, &lost, seen, checkpoint);
        if below > checkpoint {
            let why = format!(
                "extent {} is lost, and with it records that had been acknowledged; lookups of what it may have held fail",
                f.extent
            );
            report.doubt(Doubt { below });
            read_only.get_or_insert(why);
        }
    }
    read_only
}

/// Marks commit extents whose end is gone: they were never sealed or lost their trailers, and the
/// next extent records that more came before it. Records that an index has, or that were recycled,
/// leave no hole in the order, so no other check finds this. Returns a reason if nothing may be
/// written.
pub(super) fn broken_off(found: &[Found], replay: &mut Replay<'_>, report: &mut RecoveryReport) -> Option<String> {
    let mut commits: Vec<&Found> = found.iter().filter(|f| f.kind == ExtentKind::Commit).collect();
    commits.sort_by_key(|f| f.epoch);
    let mut read_only = None;
    for pair in commits.windows(2) {
        let [f, next] = pair else { continue };
        let Some(trailer) = next.trailer.filter(|trailer| f.trailer.is_none() && trailer.record_count > 0) else {
            continue;
        };
        let last = replay.last_of(f.extent).max(f.base_lsn.saturating_sub(1));
        let Some(unsealed) = replay.unsealed.get_mut(&f.extent).filter(|_| trailer.prev_lsn > last) else { continue };
        unsealed.broken_off = true;
        let at = unsealed.scan_end.max(unsealed.data_end);
        report.damage(f.extent, at, format!("records with LSNs {} to {} are missing here", last + 1, trailer.prev_lsn));
        if trailer.prev_lsn > report.checkpoint {
            report.doubt(Doubt { below: trailer.prev_lsn + 1 });
            read_only.get_or_insert(format!(
                "extent {} at {at}: records up to LSN {} had been acknowledged and are missing",
                f.extent, trailer.prev_lsn
            ));
        }
    }
    read_only
}

/// Exclusive upper bound of the LSNs that may have been in the extent; 0 if it had none.
fn missing_below(found: &[Found], lost: &Lost, seen: Lsn, checkpoint: Lsn) -> Lsn {
    match lost.used {
        RosterUse::Body => 0,
        // Known only by the index that refers to it, or by the order of use. A complete index
        // suffices then.
        RosterUse::Unknown | RosterUse::Free => {
            if checkpoint > 0 {
                0
            } else {
                Lsn::MAX
            }
        }
        RosterUse::Commit => {
            let later = found.iter().filter(|f| f.kind == ExtentKind::Commit && f.epoch > lost.epoch);
            match later.min_by_key(|f| f.epoch).map(|f| f.trailer) {
                // Its last LSN is unknown.
                None => Lsn::MAX,
                Some(Some(trailer)) if trailer.record_count > 0 => trailer.prev_lsn + 1,
                Some(_) => seen + 1,
            }
        }
    }
}
