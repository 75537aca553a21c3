//! A map behind many locks, so that its users seldom wait for each other.

use std::hash::{BuildHasher, Hash, RandomState};

use parking_lot::Mutex;

/// Number of parts.
const PARTS: usize = 64;

/// Values in parts, each behind a lock of its own. A key is always in the same part.
#[derive(Debug)]
pub struct Striped<T> {
    parts: Box<[Mutex<T>]>,
    hasher: RandomState,
}

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl<T> Striped<T> {
    /// The part of a key.
    pub fn part(&self, key: impl Hash) -> &Mutex<T> {
        &self.parts[self.hasher.hash_one(key) as usize % PARTS]
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.parts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_always_in_the_same_part_and_keys_spread() {
        let counts: Striped<u32> = Striped::default();
        for n in 0..6400 {
            *counts.part(n).lock() += 1;
            assert!(std::ptr::eq(counts.part(n), counts.part(n)));
        }
        assert!(counts.parts().all(|count| (20..=300).contains(&*count.lock())), "{counts:?}");
    }
}
