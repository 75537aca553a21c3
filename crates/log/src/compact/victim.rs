//! Which extent to empty next.

use steadfast_disk::BLOCK;

use super::Compactor;
use crate::Sabotage;
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::ExtentKind;

/// How much of an extent that a snapshot keeps must be dead for the rest to be copied, in percent.
const HELD_DEAD_PERCENT_MIN: u64 = 75;
/// How much of an extent must be dead when nobody else gets room any more, in percent. Not less: what batches of records are padded
/// with is dead too, and would be copied round and round.
const FULL_DEAD_PERCENT_MIN: u64 = 5;

/// How badly space is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pressure {
    Normal,
    Low,
    /// Writers are refused: only what is kept in reserve is left.
    Full,
    /// And the open extent of records has much dead in it, as when deletes come one by one and each is padded to a block. No sealed one
    /// may be worth copying, but copying one takes the rest of the open extent, which is worth it then.
    Packed,
}

/// Bytes that an extent's frames take.
pub(super) fn used_bytes(info: &ExtentInfo) -> u64 {
    info.data_end.saturating_sub(BLOCK as u64)
}

/// Benefit by cost, as in Rosenblum and Ousterhout's log-structured file system: space gained times the age of the data, by
/// what has to be read and written.
pub(super) fn score(live: u64, used: u64, age: u64) -> u128 {
    let dead = u128::from(used.saturating_sub(live));
    dead * u128::from(age + 1) * 1024 / u128::from(used.saturating_add(live).max(1))
}

impl Compactor {
    pub(super) async fn pressure(&self) -> Pressure {
        let shared = self.shared().clone();
        let mut counts = shared.extents.counts();
        if counts.free <= u64::from(shared.options.reserve_extents) && counts.growable > 0 {
            // What could grow in principle may not in fact: its file system may be full.
            if shared.extents.grow(|| shared.extents.free() <= shared.options.reserve_extents).await.is_err() {
                counts.growable = 0;
            }
        }
        let used = counts.open_commit + counts.open_body + counts.sealed_commit + counts.sealed_body;
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

    /// Whether the open extent of records has so much dead in it that it would be worth copying, were it sealed.
    fn open_is_worth(&self) -> bool {
        let least = self.shared().pool.extent_bytes * FULL_DEAD_PERCENT_MIN / 100;
        self.open_commit(|used, live| used.saturating_sub(live) >= least)
    }

    /// Whether the open extent of records has too little room for writers, whose last part is not theirs, or for what points at moved
    /// chunks, and would give much of it back were it sealed: nothing else may, where most of a full pool is chunks.
    pub(super) fn open_is_spent(&self) -> bool {
        let eighth = self.shared().pool.extent_bytes / 8;
        !self.shared().room.open_holds(3 * eighth)
            && self.open_commit(|used, live| used >= 2 * eighth && live <= used / 2)
    }

    /// Whether this holds of bytes used and live in the open extent of records.
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

    /// Whether emptying an extent in which `live` of `used` bytes have to be copied is worth it. What a snapshot keeps gives no room
    /// back now: it is emptied once, and only when it is mostly dead, so that the snapshots that come later need not keep it.
    pub(super) fn worth(&self, info: &ExtentInfo, live: u64, used: u64, pressure: Pressure) -> bool {
        let dead = used.saturating_sub(live);
        let dead_percent_min = self.dead_percent_min(info.kind, pressure);
        let dead_percent_min = match info.held {
            true if pressure > Pressure::Normal => return false,
            true => HELD_DEAD_PERCENT_MIN.max(dead_percent_min),
            false => dead_percent_min,
        };
        live == 0 || dead * 100 >= used * dead_percent_min && dead > 0
    }

    /// The fewest bytes of this kind that found no room in this round. Where chunks find none, records may: they need one extent less.
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
            // What may have come free since it was looked at, for another look to be worth it.
            let slack = if pressure >= Pressure::Full { used / 64 } else { used / 16 };
            if let Some(look) = self.not_worth.get(&info.extent)
                && known(look.epoch)
                && pressure <= look.pressure
                && (info.held || !look.held)
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
            // When nobody gets room, what gives most of it comes first, however young: it is also what fits into what is left.
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
