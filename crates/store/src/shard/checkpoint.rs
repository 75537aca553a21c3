//! The checkpoint: the LSN up to which the index is complete, with the state at that point. Kept in
//! the index, so persisted with it or not at all.

use steadfast_log::{ExtentUsage, Lsn};

use crate::record::FORMAT;
use crate::record::wire::{Dec, Malformed, put_varint};
use crate::shard::losses::AsyncLosses;

/// The state of a shard at one LSN, without the entries of its index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The pool that the index belongs to.
    pub(crate) pool: [u8; 16],
    /// All records up to this one are in the index.
    pub(crate) lsn: Lsn,
    /// The opening of the log that committed that record; 0 when unknown.
    pub(crate) opening: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) usage: Vec<ExtentUsage>,
    /// The believed time then, milliseconds since the Unix epoch; 0 when unknown.
    pub(crate) clock_ms: u64,
}

impl Checkpoint {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.pool);
        for value in [self.lsn, self.objects, self.bytes, self.usage.len() as u64] {
            put_varint(&mut out, value);
        }
        for usage in &self.usage {
            put_varint(&mut out, u64::from(usage.extent));
            put_varint(&mut out, usage.epoch);
            put_varint(&mut out, usage.live_bytes);
        }
        put_varint(&mut out, self.opening);
        put_varint(&mut out, self.clock_ms);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(bytes);
        if dec.u8()? != FORMAT {
            return Err(Malformed("checkpoint: unknown format"));
        }
        let pool = dec.array()?;
        let (lsn, objects, bytes) = (dec.varint()?, dec.varint()?, dec.varint()?);
        let mut usage = Vec::new();
        for _ in 0..dec.varint()? {
            usage.push(ExtentUsage { extent: dec.u32()?, epoch: dec.varint()?, live_bytes: dec.varint()? });
        }
        // Older builds did not write them.
        let opening = if dec.0.is_empty() { 0 } else { dec.varint()? };
        let clock_ms = if dec.0.is_empty() { 0 } else { dec.varint()? };
        Ok(Self { pool, lsn, opening, objects, bytes, usage, clock_ms })
    }
}

/// Written when a shard closes cleanly: all publications are on the disk.
///
/// It is valid only for the log as that opening left it: the next opening that may write records
/// itself on the disk first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CleanClose {
    /// The last record of the log.
    pub(crate) lsn: Lsn,
    /// Asynchronous publications that may have been lost in an earlier run: see `Losses::lost`.
    pub(crate) lost: AsyncLosses,
    /// The believed time, milliseconds since the Unix epoch.
    pub(crate) clock_ms: u64,
}

impl CleanClose {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        for value in [self.lsn, self.lost.lsn, self.clock_ms, self.lost.opening] {
            put_varint(&mut out, value);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(bytes);
        if dec.u8()? != FORMAT {
            return Err(Malformed("end: unknown format"));
        }
        let (lsn, lost_lsn, clock_ms) = (dec.varint()?, dec.varint()?, dec.varint()?);
        // Older builds did not write it.
        let opening = if dec.0.is_empty() { 0 } else { dec.varint()? };
        Ok(Self { lsn, lost: AsyncLosses { lsn: lost_lsn, opening }, clock_ms })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(pool: [u8; 16], numbers: [u64; 5], usage: Vec<(u32, u64, u64)>, junk: Vec<u8>) {
            let [lsn, opening, objects, bytes, clock_ms] = numbers;
            let closed = CleanClose { lsn, lost: AsyncLosses { lsn: bytes, opening }, clock_ms };
            prop_assert_eq!(CleanClose::decode(&closed.encode()), Ok(closed));
            let _ = CleanClose::decode(&junk);
            let usage = usage
                .into_iter()
                .map(|(extent, epoch, live_bytes)| ExtentUsage { extent, epoch, live_bytes })
                .collect();
            let checkpoint = Checkpoint { pool, lsn, opening, objects, bytes, usage, clock_ms };
            prop_assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
            let _ = Checkpoint::decode(&junk);
        }
    }
}
