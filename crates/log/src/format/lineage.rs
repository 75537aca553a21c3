//! The openings of the pool that committed its records. They distinguish one history from another.

use super::Lsn;
use super::{put, u64_at};

/// Number of openings in an extent's header.
pub const LINEAGE: usize = 3;

/// An opening of the pool. It committed the records after `after`, up to the start of the next
/// opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opening {
    /// Random number; 0 for none.
    pub id: u64,
    /// The last LSN before it began. Excludes records that may not have been durable, which it
    /// rewrote elsewhere.
    pub after: Lsn,
}

/// The present opening and the last ones before it that committed records: newest first, filled
/// with none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lineage(pub [Opening; LINEAGE]);

impl Lineage {
    /// Bytes in a header.
    pub const LEN: usize = LINEAGE * 16;

    pub(super) fn encode(&self, b: &mut [u8], at: usize) {
        for (i, opening) in self.0.iter().enumerate() {
            put(b, at + 16 * i, &opening.id.to_le_bytes());
            put(b, at + 16 * i + 8, &opening.after.to_le_bytes());
        }
    }

    pub(super) fn decode(b: &[u8], at: usize) -> Self {
        let mut lineage = Self::default();
        for (i, opening) in lineage.0.iter_mut().enumerate() {
            *opening = Opening { id: u64_at(b, at + 16 * i), after: u64_at(b, at + 16 * i + 8) };
        }
        lineage
    }

    /// The openings, without the fillers.
    pub fn openings(&self) -> impl Iterator<Item = Opening> + use<> {
        self.0.into_iter().take_while(|opening| opening.id != 0)
    }
}
