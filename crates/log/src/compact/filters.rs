//! Filters of keys: which extents of records certainly hold nothing that a delete hides.
//!
//! A delete may be dropped when no other extent holds an older record of its key. The versions in
//! an extent's trailer say too little: one cold record would keep every later delete for ever. So a
//! sealed extent gets a Bloom filter of the keys in its footer. An extent that is being written has
//! no footer yet, but its old records are copies that were moved there: their keys are noted as
//! they are written. Deletes themselves are in neither: a delete hides no other, and two of one key
//! would keep each other.
//!
//! Filters are in memory only, and made when a delete asks for them. An extent without one may hold
//! any key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_disk::BLOCK;

use super::{Compactor, Halt};
use crate::check::Entries;
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::ExtentId;
use crate::scan::Reader;
use crate::{Applied, Applier, Lsn, Sabotage, Subject};

/// Bytes of all filters together.
const FILTER_BYTES_MAX: u64 = 64 << 20;
/// Bits for each key, and how many of them are set: one key in about 2,000 that is not there seems
/// to be. A delete asks all filters of older extents, and one that errs keeps it.
const BITS_PER_KEY: u64 = 16;
const BITS_SET: u64 = 8;
/// Keys noted of an extent that is being written, at most.
const MOVED_MAX: usize = 256 << 10;
/// Entries of a footer that are taken in before others get their turn.
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

/// Bytes of a filter of so many keys.
fn filter_bytes(keys: u64) -> u64 {
    (keys * BITS_PER_KEY).div_ceil(64) * 8
}

/// Spreads a hash whose bits may not be even (the last step of splitmix64).
fn mixed(hash: u64) -> u64 {
    let mut z = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Records that were moved into an extent that is being written.
#[derive(Debug)]
pub(super) struct Moved {
    keys: BTreeSet<u64>,
    /// The lowest version of a record that was not moved.
    own_from: Lsn,
    /// It may hold any key: there were too many, or a record is not understood.
    any: bool,
}

impl Moved {
    fn may_hold(&self, key: u64, version: Lsn) -> bool {
        self.any || self.own_from <= version || self.keys.contains(&key)
    }
}

/// Compaction reads it while the committer writes the extent.
type MovedInto = Arc<Mutex<Moved>>;

/// What was moved into extents that are being written, by extent and epoch: one or two. What was
/// written before this is kept is not in it, so an extent is here only from its first frame on.
#[derive(Debug, Default)]
pub(crate) struct MovedRecords(Mutex<BTreeMap<(u32, u64), MovedInto>>);

impl MovedRecords {
    /// Nothing has been written to this extent yet.
    pub(crate) fn begun(&self, id: &ExtentId) {
        let none = Moved { keys: BTreeSet::new(), own_from: Lsn::MAX, any: false };
        self.0.lock().insert((id.extent, id.epoch), Arc::new(Mutex::new(none)));
    }

    /// These records are in this extent. Called before its lowest version is changed.
    pub(crate) fn wrote(&self, id: &ExtentId, records: &[Applied], applier: &dyn Applier) {
        let Some(moved) = self.get(id.extent, id.epoch) else { return };
        let mut moved = moved.lock();
        for record in records {
            if !record.moved {
                moved.own_from = moved.own_from.min(record.version);
                continue;
            }
            match applier.subject(&record.head) {
                Subject::Put(key) => {
                    moved.keys.insert(key);
                }
                Subject::Delete(_) => {}
                Subject::Unknown => moved.any = true,
            }
        }
        if moved.any || moved.keys.len() > MOVED_MAX {
            moved.any = true;
            moved.keys.clear();
        }
    }

    fn get(&self, extent: u32, epoch: u64) -> Option<MovedInto> {
        self.0.lock().get(&(extent, epoch)).cloned()
    }

    /// Forgets extents that are not being written any more.
    fn retain(&self, is_open: impl Fn(u32, u64) -> bool) {
        self.0.lock().retain(|(extent, epoch), _| is_open(*extent, *epoch));
    }
}

/// The filters that there are, by extent and epoch; `None` where there can be none.
#[derive(Debug, Default)]
pub(super) struct Filters {
    filters: BTreeMap<(u32, u64), Option<Arc<Filter>>>,
    bytes: u64,
    /// One was not made for want of memory.
    full: bool,
}

/// Filters that did not fit are tried again when so much is free: not each time that an extent is
/// recycled.
const FREE_AGAIN_BYTES: u64 = FILTER_BYTES_MAX / 8;

impl Filters {
    fn put(&mut self, at: (u32, u64), filter: Option<Filter>) {
        self.bytes += filter.as_ref().map_or(0, |filter| filter.0.len() as u64 * 8);
        self.filters.insert(at, filter.map(Arc::new));
    }

    /// Forgets filters of extents that are not there any more.
    fn retain(&mut self, is_there: impl Fn(u32, u64) -> bool) {
        let before = self.filters.len();
        self.filters.retain(|(extent, epoch), _| is_there(*extent, *epoch));
        if self.filters.len() == before {
            return;
        }
        self.bytes = self.filters.values().flatten().map(|filter| filter.0.len() as u64 * 8).sum();
        if self.full && self.bytes + FREE_AGAIN_BYTES <= FILTER_BYTES_MAX {
            self.full = false;
            self.filters.retain(|_, filter| filter.is_some());
        }
    }

    /// Whether the extent has no filter, and can get one.
    fn can_learn(&self, slot: &ExtentInfo) -> bool {
        let sealed = slot.state == ExtentState::Sealed && slot.footer.is_some();
        sealed && !self.filters.contains_key(&(slot.extent, slot.epoch))
    }
}

/// What is known of the keys in an extent.
#[derive(Debug)]
enum Keys {
    /// Nothing: it may hold any.
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

/// Another extent than the one to be emptied.
#[derive(Debug)]
struct Other {
    extent: u32,
    epoch: u64,
    min_version: Lsn,
    keys: Keys,
}

/// The other extents of records with what may be older than the newest record of the one to be
/// emptied, by their lowest version.
#[derive(Debug, Default)]
pub(super) struct Others(Vec<Other>);

impl Others {
    /// The lowest version that any of them may hold.
    fn oldest(&self) -> Lsn {
        self.0.first().map_or(Lsn::MAX, |other| other.min_version)
    }

    /// The extent for which a delete of `key` with this version has to be kept. One that is known
    /// to matter before one of which nothing is known: what is learned of that would not help.
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

    /// For a record: the lowest version of what it may hide elsewhere, and the number of the extent
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

    /// Whether nothing is known of the keys in the extent with this number.
    pub(super) fn is_unknown(&self, n: usize) -> bool {
        self.0.get(n).is_some_and(|other| matches!(other.keys, Keys::Unknown))
    }
}

/// Bytes of deletes that were kept for another extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptFor {
    extent: u32,
    epoch: u64,
    /// More of its keys may come to be known, when it is sealed or when there is memory.
    may_be_known: bool,
    bytes: u64,
}

impl Compactor {
    /// What else there is beside the extent that is to be emptied. Nothing but compaction moves old
    /// records or recycles extents of records: what others add while this is used is newer than all
    /// that the victim holds.
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

    /// Makes filters of those of the others that have none. Whether there are more now.
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

    /// The filter of a sealed extent; none where its footer cannot be read whole, a record is not
    /// understood, or memory does not suffice.
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

    /// Adds what a recovery has cut off. It lies between the frames that count and the footer, and
    /// would be read again, were the trailer lost.
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

    /// Says for which extents so many bytes of deletes are kept.
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

    /// Of the bytes of deletes that were kept, those for which there may be no reason any more.
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
    use super::*;

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
