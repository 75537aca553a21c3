//! How far the copying of an archive's bytes is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How far the copying of an archive's bytes is. Tasks share it.
#[derive(Debug, Default)]
pub struct TransferProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl TransferProgress {
    /// More bytes are to be copied.
    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    /// Bytes were copied.
    pub(crate) fn copied(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }

    /// Bytes that were copied.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Bytes that are still to be copied.
    pub fn left(&self) -> u64 {
        self.total.load(Relaxed).saturating_sub(self.done())
    }

    /// The finished share, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.done() as f64 / self.total.load(Relaxed).max(1) as f64
    }
}
