//! Choice of the next extent to empty.

use steadfast_disk::BLOCK;

use super::Compactor;
use crate::Sabotage;
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::{ExtentId, ExtentKind};

/// The least dead part of an extent in a full pool, in percent. A lower value would copy the
/// padding of record batches repeatedly.
const FULL_DEAD_PERCENT_MIN: u64 = 5;

/// Need for space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pressure {
    Normal,
    Low,
    /// Writers are refused; only the reserve is left.
    Full,
    /// Like `Full`, and the open commit extent is partly dead, as when deletes arrive singly and
    /// each is padded to a block. No sealed extent may be worth copying, but copying one rolls the
    /// open extent, which is worth it then.
    Packed,
}

/// Bytes that an extent's frames take.
pub(super) fn used_bytes(info: &ExtentInfo) -> u64 {
    info.data_end.saturating_sub(BLOCK as u64)
}

/// Benefit by cost, as in Rosenblum and Ousterhout's log-structured file system: space gained times
/// the age of the data, divided by the bytes to read and write.
pub(super) fn score(live: u64, used: u64, age: u64) -> u128 {
    let dead = u128::from(used.saturating_sub(live));
    dead * u128::from(age + 1) * 1024 / u128::from(used.saturating_add(live).max(1))
}

impl Compactor {
    pub(super) async fn pressure(&self) -> Pressure {
        let shared = self.shared().clone();
        let mut counts = shared.extents.counts();
        let used = counts.open_commit + counts.open_body + counts.sealed_commit + counts.sealed_body;
        // An empty pool needs no reserve: its first write makes one.
        let is_empty = used <= 1 && self.open_commit(|_, live| live == 0);
        if !is_empty && counts.free <= u64::from(shared.options.reserve_extents) && counts.growable > 0 {
            // Growth may fail, because the file system may be full.
            if shared
                .extents
                .grow(|| shared.extents.spare().free <= u64::from(shared.options.reserve_extents))
                .await
                .is_err()
            {
                counts.growable = 0;
            }
        }
        let available = counts.free + counts.growable;
        let low = (used + available) * u64::from(shared.options.compaction.low_percent) / 100;
        let reserve = u64::from(shared.options.reserve_extents);
        let low = available <= low.max(reserve + 1);
        self.note(|status| status.space_low = low);
        match low {
            _ if available <= reserve && self.open_is_worth() => Pressure::Packed,
            _ if available <= reserve => Pressure::Full,
            true => Pressure::Low,
            false => Pressure::Normal,
        }
    }

    /// Whether the open commit extent has enough dead data to be worth copying, if it were sealed.
    fn open_is_worth(&self) -> bool {
        let least = self.shared().pool.extent_bytes * FULL_DEAD_PERCENT_MIN / 100;
        self.open_commit(|used, live| used.saturating_sub(self.log.limits().copied_bytes(live)) >= least)
    }

    /// Whether the open commit extent has too little space for writers, or for records that name
    /// moved chunks. It must also free much space if sealed. In a full pool of mostly chunks, no
    /// other extent may.
    pub(super) fn open_is_spent(&self) -> bool {
        let eighth = self.shared().pool.extent_bytes / 8;
        !self.shared().room.open_holds(3 * eighth)
            && self.open_commit(|used, live| used >= 2 * eighth && live <= used / 2)
    }

    /// Whether an open body extent with `room` more bytes would be worth emptying if it were
    /// sealed. The sealing must free more than it leaves unused.
    pub(super) fn is_worth_sealing(&self, id: &ExtentId, room: u64, pressure: Pressure) -> bool {
        let slot = self.shared().extents.get(id.extent, id.epoch);
        slot.is_some_and(|slot| {
            let (live, used) = (slot.live_bytes.max(0) as u64, used_bytes(&slot));
            live + room < used && self.worth(&slot, live, used, pressure)
        })
    }

    /// Whether `is` holds for the used and live bytes of the open commit extent.
    fn open_commit(&self, is: impl Fn(u64, u64) -> bool) -> bool {
        let is = |slot: &ExtentInfo| is(used_bytes(slot), slot.live_bytes.max(0) as u64);
        self.shared().extents.with(|table| table.open_commits().any(is))
    }

    fn dead_percent_min(&self, kind: ExtentKind, pressure: Pressure) -> u64 {
        let options = self.shared().options.compaction;
        let low = u64::from(options.dead_percent_min_low);
        match pressure {
            Pressure::Normal => u64::from(options.dead_percent_min),
            Pressure::Low => low,
            Pressure::Packed if kind == ExtentKind::Commit => 0,
            Pressure::Full | Pressure::Packed => low.min(FULL_DEAD_PERCENT_MIN),
        }
    }

    /// Whether emptying an extent is worth it if `live` of `used` bytes must be copied.
    pub(super) fn worth(&self, info: &ExtentInfo, live: u64, used: u64, pressure: Pressure) -> bool {
        let dead_percent_min = self.dead_percent_min(info.kind, pressure);
        // Otherwise a full pool would copy its own padding for ever.
        let copied = match info.kind {
            ExtentKind::Commit if dead_percent_min > 0 => self.log.limits().copied_bytes(live),
            _ => live,
        };
        let dead = used.saturating_sub(copied);
        live == 0 || dead * 100 >= used * dead_percent_min && dead > 0
    }

    /// The fewest bytes of this kind without space in this round. Records may find space where
    /// chunks do not, because they need one extent less.
    fn no_room_from(&self, kind: ExtentKind) -> u64 {
        let live = self.postponed.values().filter(|one| one.kind == kind).map(|one| one.live);
        live.min().unwrap_or(u64::MAX)
    }

    /// The best extent to empty, if any is worth it.
    pub(super) fn choose(&mut self, pressure: Pressure) -> Option<ExtentInfo> {
        let shared = self.shared().clone();
        let checkpoint = shared.applier.checkpoint();
        let next_epoch = shared.extents.with(|table| table.next_epoch);
        let no_room = [self.no_room_from(ExtentKind::Commit), self.no_room_from(ExtentKind::Body)];
        let no_room =
            |kind: ExtentKind, live: u64| live > 0 && no_room[usize::from(kind != ExtentKind::Commit)] <= live;
        let pins_count = !self.sabotaged(Sabotage::PinsIgnored);
        let mut candidates = Vec::new();
        shared.extents.each(|info| {
            let (live, used) = (info.live_bytes.max(0) as u64, used_bytes(info));
            let there = info.state == ExtentState::Sealed && (info.pins == 0 || !pins_count);
            if there && self.worth(info, live.min(used), used, pressure) && !no_room(info.kind, live) {
                candidates.push(*info);
            }
        });
        let mut waiting = 0;
        let mut best: Option<(u128, ExtentInfo)> = None;
        for info in candidates {
            let known = |epoch: u64| epoch == info.epoch;
            if self.emptied.get(&info.extent).copied().is_some_and(known)
                || self.stuck.get(&info.extent).is_some_and(|stuck| known(stuck.epoch))
                || self.postponed.get(&info.extent).is_some_and(|one| known(one.epoch))
            {
                continue;
            }
            let (live, used) = (info.live_bytes.max(0) as u64, used_bytes(&info));
            // The bytes that must have died since the last examination to justify another one.
            let slack = if pressure >= Pressure::Full { used / 64 } else { used / 16 };
            if let Some(look) = self.not_worth.get(&info.extent)
                && known(look.epoch)
                && pressure <= look.pressure
                && info.live_bytes + slack as i64 >= look.live_bytes
                && self.freed(&look.kept) <= slack
            {
                continue;
            }
            if info.kind == ExtentKind::Commit && info.last_lsn > checkpoint && !self.sabotaged(Sabotage::EarlyRecycle)
            {
                waiting += 1;
                continue;
            }
            // In a full pool the extent that frees the most comes first, whatever its age: its
            // copies are also the smallest.
            let age = if pressure >= Pressure::Full { 0 } else { next_epoch.saturating_sub(info.epoch) };
            let score = score(live.min(used), used, age);
            if best.as_ref().is_none_or(|(most, _)| score > *most) {
                best = Some((score, info));
            }
        }
        self.note(|status| status.waiting_for_checkpoint = waiting);
        if waiting > 0 && (pressure > Pressure::Normal || best.is_none()) {
            shared.applier.checkpoint_wanted();
        }
        best.map(|(_, info)| info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptier_and_the_older_extent_scores_higher() {
        assert!(score(0, 100, 1) > score(50, 100, 1));
        assert!(score(50, 100, 9) > score(50, 100, 1));
        assert_eq!(score(100, 100, 9), 0);
        assert_eq!(score(0, 0, 9), 0);
        assert!(score(u64::MAX, u64::MAX, u64::MAX - 1) == 0);
    }
}
