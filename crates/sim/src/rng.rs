//! Seeded randomness, the same on every machine and with every version of every library.

/// A small generator (SplitMix64): good enough statistically, and simple to fork.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates another generator, independent of the later output of this one.
    pub fn fork(&mut self) -> Self {
        Self(self.next() ^ 0x5851_f42d_4c95_7f2d)
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "an iterator would never end and never be used as one")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { ((u128::from(self.next()) * u128::from(end)) >> 64) as u64 }
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with the probability `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// Spreads every bit of `x` over the result.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `out` with the bytes of the endless stream `id`, from `offset` on.
pub fn stream_bytes(id: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = mix(id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at / 8)).to_le_bytes();
        let from = (at % 8) as usize;
        let n = (8 - from).min(rest.len());
        rest[..n].copy_from_slice(&word[from..from + n]);
        rest = &mut rest[n..];
        at += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_the_same_from_any_offset() {
        let mut whole = [0; 100];
        stream_bytes(7, 0, &mut whole);
        for from in 0..90 {
            let mut part = [0; 10];
            stream_bytes(7, from, &mut part);
            assert_eq!(part, whole[from as usize..from as usize + 10]);
        }
        let mut other = [0; 100];
        stream_bytes(8, 0, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn numbers_stay_in_range() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[rng.range(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
    }
}
