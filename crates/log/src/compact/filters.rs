//! Filters of keys: they prove that a commit extent has no record that a delete hides.
//!
//! A delete may be dropped if no other extent holds an older record of its key. The versions in an
//! extent's trailer are too coarse: one cold record would keep every later delete forever. So a
//! sealed extent gets a Bloom filter of the keys in its footer. An open extent has no footer yet,
//! but its old records are copies that were moved there, and their keys are noted during the write.
//! Neither includes deletes: a delete hides no other, and two of one key would keep each other.
//!
//! Filters exist in memory only, and are built when a delete needs them. An extent without one may
//! hold any key.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_disk::BLOCK;

use super::{Compactor, Halt};
use crate::check::Entries;
use crate::extents::{ExtentInfo, ExtentState};
use crate::moved::MovedInto;
use crate::scan::Reader;
use crate::{Lsn, Sabotage, Subject};

/// Bound on the bytes of all filters together.
const FILTER_BYTES_MAX: u64 = 64 << 20;
/// Bits per key. About one absent key in 2,000 gives a false positive. A delete asks all filters of
/// older extents, and one false positive keeps it.
const BITS_PER_KEY: u64 = 16;
const BITS_SET: u64 = 8;
/// Footer entries that are processed before the task yields.
const TURN: usize = 1024;

/// A Bloom filter.
#[derive(Debug, Default)]
struct Filter(Vec<u64>);

impl Filter {
    fn of(keys: &[u64]) -> Self {
        let mut filter = Self(vec![0; filter_bytes(keys.len() as u64) as usize / 8]);
        for key in keys {
            for bit in filter.bits(*key) {
                if let Some(word) = filter.0.get_mut(bit / 64) {
                    *word |= 1 << (bit % 64);
                }
            }
        }
        filter
    }

    fn may_hold(&self, key: u64) -> bool {
        let set = |bit: usize| self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1);
        !self.0.is_empty() && self.bits(key).all(set)
    }

    /// The bits of a key, by double hashing.
    fn bits(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let bits = self.0.len() as u64 * 64;
        let (first, step) = (mixed(key), mixed(!key) | 1);
        let place = move |n: u64| {
            let at = first.wrapping_add(step.wrapping_mul(n));
            ((u128::from(at) * u128::from(bits)) >> 64) as usize
        };
        (0..BITS_SET).map(place)
    }
}

/// Bytes of a filter for so many keys.
fn filter_bytes(keys: u64) -> u64 {
    (keys * BITS_PER_KEY).div_ceil(64) * 8
}

/// Spreads a hash with uneven bits (the last step of splitmix64).
fn mixed(hash: u64) -> u64 {
    let mut z = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The filters, by extent and epoch; `None` where there can be none.
#[derive(Debug, Default)]
pub(super) struct Filters {
    filters: BTreeMap<(u32, u64), Option<Arc<Filter>>>,
    bytes: u64,
    /// Set if a filter was not built for lack of memory.
    full: bool,
}

/// Free bytes at which failed filters are retried, so that not every recycled extent causes a
/// retry.
const RETRY_FREE_BYTES: u64 = FILTER_BYTES_MAX / 8;

impl Filters {
    fn put(&mut self, at: (u32, u64), filter: Option<Filter>) {
        self.bytes += filter.as_ref().map_or(0, |filter| filter.0.len() as u64 * 8);
        self.filters.insert(at, filter.map(Arc::new));
    }

    /// Forgets filters of extents that no longer exist.
    fn retain(&mut self, is_there: impl Fn(u32, u64) -> bool) {
        let before = self.filters.len();
        self.filters.retain(|(extent, epoch), _| is_there(*extent, *epoch));
        if self.filters.len() == before {
            return;
        }
        self.bytes = self.filters.values().flatten().map(|filter| filter.0.len() as u64 * 8).sum();
        if self.full && self.bytes + RETRY_FREE_BYTES <= FILTER_BYTES_MAX {
            self.full = false;
            self.filters.retain(|_, filter| filter.is_some());
        }
    }

    /// Whether the extent has no filter and can get one.
    fn can_learn(&self, slot: &ExtentInfo) -> bool {
        let sealed = slot.state == ExtentState::Sealed && slot.footer.is_some();
        sealed && !self.filters.contains_key(&(slot.extent, slot.epoch))
    }
}

/// Knowledge of the keys in an extent.
#[derive(Debug)]
enum Keys {
    /// Unknown: the extent may hold any key.
    Unknown,
    Filter(Arc<Filter>),
    Moved(MovedInto),
}

impl Keys {
    fn may_hold(&self, key: u64, version: Lsn) -> bool {
        match self {
            Self::Unknown => true,
            Self::Filter(filter) => filter.may_hold(key),
            Self::Moved(moved) => moved.lock().may_hold(key, version),
        }
    }
}

/// An extent other than the victim.
#[derive(Debug)]
struct Other {
    extent: u32,
    epoch: u64,
    min_version: Lsn,
    keys: Keys,
}

/// The other commit extents that may hold records older than the newest of the victim, by their
/// lowest version.
#[derive(Debug, Default)]
pub(super) struct Others(Vec<Other>);

impl Others {
    /// The lowest version that any of them may hold.
    fn oldest(&self) -> Lsn {
        self.0.first().map_or(Lsn::MAX, |other| other.min_version)
    }

    /// The extent for which a delete of `key` with this version is kept. Extents with a known
    /// reason are preferred to unknown ones: learning the keys of the latter would not help.
    fn holder(&self, key: u64, version: Lsn) -> Option<(usize, &Other)> {
        let mut unknown = None;
        for (n, other) in self.0.iter().enumerate().take_while(|(_, other)| other.min_version <= version) {
            match other.keys {
                Keys::Unknown => unknown = unknown.or(Some((n, other))),
                _ if other.keys.may_hold(key, version) => return Some((n, other)),
                _ => {}
            }
        }
        unknown
    }

    /// For a record: the lowest version that it may hide elsewhere, and the number of the extent
    /// for which a delete is kept.
    pub(super) fn oldest_for(&self, subject: Subject, version: Lsn) -> (Lsn, Option<usize>) {
        match subject {
            Subject::Delete(key) => {
                let holder = self.holder(key, version);
                (holder.map_or(Lsn::MAX, |(_, other)| other.min_version), holder.map(|(n, _)| n))
            }
            Subject::Put(_) => (self.oldest(), None),
            Subject::Unknown => (self.oldest(), Some(0).filter(|_| !self.0.is_empty())),
        }
    }

    /// Whether the keys in the extent with this number are unknown.
    pub(super) fn is_unknown(&self, n: usize) -> bool {
        self.0.get(n).is_some_and(|other| matches!(other.keys, Keys::Unknown))
    }
}

/// Bytes of deletes kept for another extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptFor {
    extent: u32,
    epoch: u64,
    /// Whether its keys may become known, when it is sealed or memory is free.
    may_be_known: bool,
    bytes: u64,
}

impl Compactor {
    /// The extents other than the victim. Only compaction moves old records and recycles commit
    /// extents, so records added meanwhile are newer than all of the victim.
    pub(super) fn others(&self, victim: &ExtentInfo) -> Others {
        if self.sabotaged(Sabotage::EarlyTombstones) {
            return Others::default();
        }
        let shared = self.shared();
        let mut slots = Vec::new();
        shared.extents.each(|slot| {
            if slot.may_hold_records() {
                slots.push((slot.min_version, slot.extent, slot.epoch, slot.state));
            }
        });
        let is = |extent: u32, epoch: u64, state: ExtentState| {
            let found = slots.binary_search_by_key(&extent, |slot| slot.1).ok().and_then(|at| slots.get(at));
            found.is_some_and(|slot| (slot.2, slot.3) == (epoch, state))
        };
        let mut filters = self.filters.lock();
        filters.retain(|extent, epoch| is(extent, epoch, ExtentState::Sealed));
        let moved = &shared.compaction.moved;
        moved.retain(|extent, epoch| is(extent, epoch, ExtentState::Open));
        let blind = self.sabotaged(Sabotage::BlindFilters);
        let mut others = Vec::new();
        slots.retain(|(min_version, extent, ..)| *extent != victim.extent && *min_version <= victim.last_lsn);
        slots.sort_unstable_by_key(|(min_version, extent, ..)| (*min_version, *extent));
        for (min_version, extent, epoch, state) in slots {
            let filter = filters.filters.get(&(extent, epoch)).cloned().flatten();
            let keys = match (state, filter) {
                (ExtentState::Sealed, Some(_)) if blind => continue,
                (ExtentState::Sealed, Some(filter)) => Keys::Filter(filter),
                (ExtentState::Open, _) => moved.get(extent, epoch).map_or(Keys::Unknown, Keys::Moved),
                _ => Keys::Unknown,
            };
            others.push(Other { extent, epoch, min_version, keys });
        }
        Others(others)
    }

    /// Builds the missing filters of the others. Returns whether it built any.
    pub(super) async fn learn(&self, others: &Others) -> Result<bool, Halt> {
        let mut learned = false;
        for other in others.0.iter().filter(|other| matches!(other.keys, Keys::Unknown)) {
            let Some(info) = self.shared().extents.get(other.extent, other.epoch) else { continue };
            if !self.filters.lock().can_learn(&info) {
                continue;
            }
            let filter = self.filter(&info).await?;
            learned |= filter.is_some();
            self.filters.lock().put((info.extent, info.epoch), filter);
        }
        Ok(learned)
    }

    /// The filter of a sealed extent. `None` if its footer cannot be read whole, a record has no
    /// subject, or memory is short.
    async fn filter(&self, info: &ExtentInfo) -> Result<Option<Filter>, Halt> {
        let shared = self.shared();
        let Some((footer_offset, footer_len)) = info.footer else { return Ok(None) };
        let id = shared.extents.id(info.extent, info.epoch);
        let Some(mut entries) = Entries::open(shared.disk.clone(), &shared.pool, id).await else { return Ok(None) };
        {
            let mut filters = self.filters.lock();
            if filters.bytes + filter_bytes(entries.record_count()) > FILTER_BYTES_MAX {
                filters.full = true;
                return Ok(None);
            }
        }
        self.pace.spend(u64::from(footer_len)).await;
        let mut keys = Vec::new();
        let mut seen = 0usize;
        loop {
            match entries.next().await {
                Ok(Some(entry)) => match shared.applier.subject(&entry.head) {
                    Subject::Put(key) => keys.push(key),
                    Subject::Delete(_) => {}
                    Subject::Unknown => return Ok(None),
                },
                Ok(None) => break,
                Err(_) => return Ok(None),
            }
            seen += 1;
            if seen.is_multiple_of(TURN) {
                if self.stop.is_set() {
                    return Err(Halt::Later);
                }
                tokio::task::yield_now().await;
            }
        }
        if !self.add_cut(info, u64::from(footer_offset), &mut keys).await {
            return Ok(None);
        }
        shared.env.blocking(move || Filter::of(&keys)).await.map(Some).ok_or(Halt::Later)
    }

    /// Adds the records that a recovery has cut. They lie between the valid frames and the footer,
    /// and would be read again if the trailer were lost.
    async fn add_cut(&self, info: &ExtentInfo, end: u64, keys: &mut Vec<u64>) -> bool {
        let shared = self.shared();
        let id = shared.extents.id(info.extent, info.epoch);
        let mut at = info.data_end.max(BLOCK as u64);
        let mut reader = Reader::new(shared.disk.clone(), shared.extents.start(info.extent), at, end);
        while at < end {
            let Ok((header, _, frame)) = reader.frame(&id, at, end).await else { return false };
            for view in header.records(frame) {
                match view.map(|view| shared.applier.subject(view.head)) {
                    Ok(Subject::Put(key)) => keys.push(key),
                    Ok(Subject::Delete(_)) => {}
                    Ok(Subject::Unknown) | Err(_) => return false,
                }
            }
            at += header.total_len();
        }
        true
    }

    /// Lists the extents for which these bytes of deletes are kept.
    pub(super) fn kept_for(&self, others: &Others, bytes: &BTreeMap<usize, u64>) -> Vec<KeptFor> {
        let filters = self.filters.lock();
        let kept = |(n, bytes): (&usize, &u64)| {
            let Other { extent, epoch, ref keys, .. } = *others.0.get(*n)?;
            let slot = self.shared().extents.get(extent, epoch);
            let may_be_known = !matches!(keys, Keys::Filter(_)) && !slot.is_some_and(|slot| filters.can_learn(&slot));
            Some(KeptFor { extent, epoch, may_be_known, bytes: *bytes })
        };
        bytes.iter().filter_map(kept).collect()
    }

    /// Of the bytes of kept deletes, those that may have no reason any more.
    pub(super) fn freed(&self, kept: &[KeptFor]) -> u64 {
        let filters = self.filters.lock();
        let freed = |kept: &&KeptFor| {
            self.shared().extents.with(|table| match table.get(kept.extent).filter(|slot| slot.may_hold_records()) {
                Some(slot) if slot.epoch == kept.epoch => kept.may_be_known && filters.can_learn(slot),
                _ => true,
            })
        };
        kept.iter().filter(freed).map(|kept| kept.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::moved::Moved;

    #[test]
    fn a_filter_holds_its_keys_and_few_others() {
        for count in [0, 1, 3, 100, 10_000] {
            let keys: Vec<u64> = (0..count).collect();
            let filter = Filter::of(&keys);
            assert!(keys.iter().all(|key| filter.may_hold(*key)), "{count} keys");
            let wrong = (count..count + 100_000).filter(|key| filter.may_hold(*key)).count();
            assert!(wrong <= 200, "{wrong} of 100,000 others seem to be among {count}");
        }
    }

    fn other(extent: u32, min_version: Lsn, keys: Keys) -> Other {
        Other { extent, epoch: 1, min_version, keys }
    }

    fn filter(keys: &[u64]) -> Keys {
        Keys::Filter(Arc::new(Filter::of(keys)))
    }

    #[test]
    fn a_delete_is_kept_for_an_older_record_of_its_key_only() {
        let moved = Moved { keys: [7].into(), own_from: 90, any: false };
        let moved = Keys::Moved(Arc::new(Mutex::new(moved)));
        let others = Others(vec![other(1, 10, filter(&[1, 2])), other(2, 20, moved), other(3, 50, filter(&[3]))]);
        let holder = |key: u64, version: Lsn| others.oldest_for(Subject::Delete(key), version);
        assert_eq!(holder(1, 60), (10, Some(0)));
        assert_eq!(holder(1, 9), (Lsn::MAX, None), "older than all");
        assert_eq!(holder(7, 60), (20, Some(1)));
        assert_eq!(holder(3, 60), (50, Some(2)));
        assert_eq!(holder(3, 49), (Lsn::MAX, None));
        assert_eq!(holder(4, 60), (Lsn::MAX, None), "no extent has it");
        assert_eq!(holder(4, 90), (20, Some(1)), "newer than what was written there first");
        assert_eq!(others.oldest_for(Subject::Unknown, 60), (10, Some(0)));
    }

    #[test]
    fn an_extent_of_which_nothing_is_known_may_hold_any_key() {
        let others = Others(vec![other(1, 10, Keys::Unknown), other(2, 20, filter(&[1]))]);
        let holder = |key: u64| others.oldest_for(Subject::Delete(key), 60).1;
        assert_eq!((holder(1), holder(2)), (Some(1), Some(0)), "what is known to matter comes first");
        assert!(others.is_unknown(0) && !others.is_unknown(1));
    }

    #[test]
    fn memory_that_is_free_again_is_used() {
        let mut filters = Filters::default();
        filters.put((1, 1), Some(Filter::of(&[1, 2, 3])));
        filters.put((2, 1), None);
        filters.full = true;
        let slot =
            ExtentInfo { state: ExtentState::Sealed, footer: Some((4096, 4096)), epoch: 1, ..ExtentInfo::new(2) };
        filters.retain(|_, _| true);
        assert!(!filters.can_learn(&slot));
        filters.retain(|extent, _| extent != 1);
        assert!(filters.can_learn(&slot) && filters.bytes == 0);
        assert!(!filters.can_learn(&ExtentInfo { footer: None, ..slot }));
    }
}
