//! A bounded memory of keys.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Keys of a generation.
const GENERATION: usize = 32 << 10;

struct Generations<V> {
    young: HashMap<u64, V>,
    old: HashMap<u64, V>,
}

/// Remembers something about the keys used last, between 32,768 and 65,536 of them. It stores keyed
/// hashes instead of keys.
pub(crate) struct Recent<V> {
    hasher: RandomState,
    generations: Mutex<Generations<V>>,
}

impl<V: Copy> Recent<V> {
    pub(crate) fn new() -> Self {
        let generations = Generations { young: HashMap::new(), old: HashMap::new() };
        Self { hasher: RandomState::new(), generations: Mutex::new(generations) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        let generations = self.generations.lock();
        generations.young.get(&hash).or_else(|| generations.old.get(&hash)).copied()
    }

    pub(crate) fn put(&self, key: &str, value: V) {
        let mut generations = self.generations.lock();
        if generations.young.len() >= GENERATION {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(self.hasher.hash_one(key), value);
    }

    pub(crate) fn forget(&self, key: &str) {
        let hash = self.hasher.hash_one(key);
        let mut generations = self.generations.lock();
        generations.young.remove(&hash);
        generations.old.remove(&hash);
    }

    pub(crate) fn clear(&self) {
        let mut generations = self.generations.lock();
        generations.young.clear();
        generations.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_keys_are_remembered_and_the_memory_is_bounded() {
        let recent = Recent::new();
        for n in 0..3 * GENERATION {
            recent.put(&n.to_string(), n);
        }
        assert_eq!(recent.get("0"), None);
        assert_eq!(recent.get(&(2 * GENERATION).to_string()), Some(2 * GENERATION));
        let generations = recent.generations.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
        drop(generations);
        recent.forget(&(2 * GENERATION).to_string());
        assert_eq!(recent.get(&(2 * GENERATION).to_string()), None);
        recent.clear();
        assert_eq!(recent.get(&(3 * GENERATION - 1).to_string()), None);
    }
}
