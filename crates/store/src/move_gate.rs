//! What a move of slots waits for.

use std::fmt;

use steadfast_log::Lsn;

/// Knows what a copy of the pool elsewhere has. A slot's home changes only when that copy has what
/// was copied; else a disk that is restored from it alone would lack the slot.
pub trait MoveGate: fmt::Debug + Send + Sync {
    /// Whether it has the records of a disk, by the identity of its log, up to this one.
    fn has(&self, disk: [u8; 16], lsn: Lsn) -> bool;
}
