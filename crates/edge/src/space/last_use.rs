//! When keys were last used, within a bounded memory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys that share a place. The one used longest ago makes way for a new one.
const WAYS: usize = 8;
/// Bits of a slot for the time. The rest tells keys of a set apart.
const TIME_BITS: u32 = 40;
const TIME_MAX: u64 = (1 << TIME_BITS) - 1;
/// Most sets that a sample reads.
const SAMPLED_SETS: usize = 16 << 10;
/// Times that a sample collects.
const SAMPLE: usize = 256;

/// A set-associative table of keyed hashes: 8 bytes a key, without locks. A key that it does not
/// know counts as used longest ago.
pub(crate) struct LastUse {
    seed: u64,
    sets: Box<[[AtomicU64; WAYS]]>,
}

impl LastUse {
    /// A table of about `bytes`. `seed` is random.
    pub(crate) fn new(bytes: u64, seed: u64) -> Self {
        let sets = (bytes / (8 * WAYS as u64)).max(1);
        Self { seed, sets: (0..sets).map(|_| Default::default()).collect() }
    }

    fn place(&self, key: &str) -> (&[AtomicU64; WAYS], u64) {
        let mut hasher = DefaultHasher::new();
        (self.seed, key).hash(&mut hasher);
        let hash = hasher.finish();
        let set = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        (&self.sets[set], hash << TIME_BITS)
    }

    /// Notes a use at `now_ms`, a time since the start.
    pub(crate) fn touch(&self, key: &str, now_ms: u64) {
        let (set, tag) = self.place(key);
        let value = tag | now_ms.clamp(1, TIME_MAX);
        let mut oldest = (u64::MAX, 0);
        for (n, slot) in set.iter().enumerate() {
            let there = slot.load(Ordering::Relaxed);
            if there & !TIME_MAX == tag && there != 0 {
                if there != value {
                    slot.store(value, Ordering::Relaxed);
                }
                return;
            }
            oldest = oldest.min((there & TIME_MAX, n));
        }
        set[oldest.1].store(value, Ordering::Relaxed);
    }

    /// When the key was last used; 0 if that is not known.
    pub(crate) fn get(&self, key: &str) -> u64 {
        let (set, tag) = self.place(key);
        let there = |slot: &AtomicU64| Some(slot.load(Ordering::Relaxed)).filter(|v| v & !TIME_MAX == tag);
        set.iter().find_map(there).unwrap_or(0) & TIME_MAX
    }

    /// Forgets a key that is not stored any more.
    pub(crate) fn forget(&self, key: &str) {
        let (set, tag) = self.place(key);
        for slot in set {
            let there = slot.load(Ordering::Relaxed);
            if there & !TIME_MAX == tag {
                let _ = slot.compare_exchange(there, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// The time that about `percent` of the known keys were not used after; 0 if the sample has too
    /// few keys to tell. `random` chooses where the sample begins.
    pub(crate) fn oldest(&self, percent: usize, random: u64) -> u64 {
        assert!((1..=100).contains(&percent), "{percent} is no part of the keys");
        let start = (random % self.sets.len() as u64) as usize;
        let mut times = Vec::with_capacity(SAMPLE + WAYS);
        for set in self.sets[start..].iter().chain(&self.sets[..start]).take(SAMPLED_SETS) {
            times.extend(set.iter().map(|slot| slot.load(Ordering::Relaxed) & TIME_MAX).filter(|time| *time > 0));
            if times.len() >= SAMPLE {
                break;
            }
        }
        // Of one key that was found by chance, even the oldest part may be the key used last.
        let place = times.len() * percent / 100;
        let last = times.len().saturating_sub(1);
        if place == 0 { 0 } else { *times.select_nth_unstable(place.min(last)).1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_used_last_are_known() {
        let table = LastUse::new(64 << 10, 7);
        for n in 0..20_000 {
            table.touch(&n.to_string(), n);
        }
        let known = |keys: std::ops::Range<u64>| keys.filter(|n| table.get(&n.to_string()) == *n).count();
        // 8,192 slots in sets: nearly all of the last quarter of them, none of the first keys.
        assert!(known(18_000..20_000) >= 1_990, "{}", known(18_000..20_000));
        assert!(known(1..5_000) < 50);
        let oldest = table.oldest(5, 3);
        assert!((5_000..14_000).contains(&oldest), "{oldest}");
        table.forget("19999");
        assert_eq!((table.get("19999"), table.get("never")), (0, 0));
        table.touch("19998", 5);
        assert_eq!(table.get("19998"), 5);
    }

    #[test]
    fn a_sample_of_few_keys_reads_the_table() {
        let table = LastUse::new(1 << 20, 7);
        assert_eq!(table.oldest(5, 0), 0);
        (0..100).for_each(|n| table.touch(&n.to_string(), 1000 + n));
        for random in [0, 99, u64::MAX] {
            assert_eq!(table.oldest(5, random), 1005);
            assert_eq!(table.oldest(100, random), 1099);
        }
    }

    #[test]
    fn a_sample_that_is_too_small_finds_no_old_key() {
        let table = LastUse::new(16 << 20, 7);
        (0..19).for_each(|n| table.touch(&n.to_string(), 1000 + n));
        let all: Vec<_> = (0..64).map(|part| table.oldest(5, part * (table.sets.len() as u64 / 64))).collect();
        assert_eq!(all, [0; 64]);
    }
}
