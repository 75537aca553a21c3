//! Hashes whose seed is from the environment, so that a simulated run replays exactly.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

use steadfast_flow::Env;

/// Makes hashers with a random seed.
#[derive(Clone)]
pub(crate) struct SeededHashes([u64; 2]);

impl SeededHashes {
    pub(crate) fn new(env: &Env) -> Self {
        Self([env.random_u64(), env.random_u64()])
    }
}

impl BuildHasher for SeededHashes {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        self.0.iter().for_each(|word| hasher.write_u64(*word));
        hasher
    }
}
