//! Objects whose bytes follow from their name: an origin makes them up, and a client can check
//! every byte.

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// The period of the bytes, a prime: no segment begins like another.
const PERIOD: usize = 262_147;
/// Largest number of bytes of one [`Content::piece`].
pub const PIECE: usize = 64 << 10;

/// The bytes of all objects of one version.
pub struct Content {
    pattern: Vec<u8>,
}

impl Content {
    /// The bytes of the version `seed`.
    pub fn new(seed: u64) -> Self {
        let mut pattern = vec![0; PERIOD];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut pattern);
        pattern.extend_from_within(..PIECE);
        Self { pattern }
    }

    /// The bytes of the object with this shift from `offset` on, at most [`PIECE`].
    pub fn piece(&self, shift: usize, offset: u64, len: usize) -> &[u8] {
        let at = ((offset % PERIOD as u64) as usize + shift) % PERIOD;
        &self.pattern[at..at + len.min(PIECE)]
    }

    /// The number of bytes in `got` that differ from the object's bytes at `offset`.
    pub fn wrong(&self, shift: usize, offset: u64, got: &[u8]) -> u64 {
        let mut wrong = 0;
        for (n, part) in got.chunks(PIECE).enumerate() {
            let right = self.piece(shift, offset + (n * PIECE) as u64, part.len());
            if right != part {
                wrong += right.iter().zip(part).filter(|(a, b)| a != b).count() as u64;
            }
        }
        wrong
    }
}

/// The distance by which an object's bytes are shifted: it follows from the last two steps of the
/// path, `<size>/<name>`.
pub fn shift(path: &str) -> usize {
    let begin = path.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    path[begin..].bytes().fold(7, |sum, byte| (sum * 31 + usize::from(byte)) % PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_another_place_or_object_is_wrong() {
        let content = Content::new(1);
        let of = shift("/vod/1000/a");
        assert_eq!(of, shift("/media/1000/a"));
        assert_ne!(of, shift("/media/1000/b"));
        let mut whole = Vec::new();
        while whole.len() < 3 * PERIOD {
            whole.extend_from_slice(content.piece(of, whole.len() as u64, 50_000));
        }
        assert_eq!(content.wrong(of, 0, &whole), 0);
        assert_eq!(content.wrong(of, 777, &whole[777..]), 0);
        assert!(content.wrong(of, 8 << 20, &whole) > 0);
        assert!(content.wrong(shift("/media/1000/b"), 0, &whole) > 0);
        whole[100_000] ^= 1;
        assert_eq!(content.wrong(of, 0, &whole), 1);
    }
}
