//! Of which openings of the pool its records are: what tells one history of it from another.

use super::{put, u64_at};
use crate::Lsn;

/// How many openings an extent's header names.
pub const LINEAGE: usize = 3;

/// An opening of the pool: the records that it has committed are those after `after`, up to where the next one began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opening {
    /// Drawn at random; 0 for none.
    pub id: u64,
    /// The last LSN that was there when it began, but for those that it has written again elsewhere, since they may not have been durable.
    pub after: Lsn,
}

/// The last openings that have committed anything, and the present one before them: newest first, filled up with none.
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

    /// Those that there are.
    pub fn openings(&self) -> impl Iterator<Item = Opening> + use<> {
        self.0.into_iter().take_while(|opening| opening.id != 0)
    }
}
