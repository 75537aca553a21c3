//! The checkpoint: up to where the index is complete, and what was true then. Kept in the index, so persisted with it or not at all.

use steadfast_log::{ExtentUsage, Lsn};

use crate::record::FORMAT;
use crate::record::wire::{Dec, Malformed, put_varint};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The pool that the index belongs to.
    pub(crate) pool: [u8; 16],
    /// All records up to this one are in the index.
    pub(crate) lsn: Lsn,
    /// The opening of the log that has committed that record; 0 when it is not known.
    pub(crate) opening: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) usage: Vec<ExtentUsage>,
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
        // Older builds did not write it.
        let opening = if dec.0.is_empty() { 0 } else { dec.varint()? };
        Ok(Self { pool, lsn, opening, objects, bytes, usage })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(pool: [u8; 16], lsn: u64, opening: u64, objects: u64, bytes: u64, usage: Vec<(u32, u64, u64)>, junk: Vec<u8>) {
            let usage = usage
                .into_iter()
                .map(|(extent, epoch, live_bytes)| ExtentUsage { extent, epoch, live_bytes })
                .collect();
            let checkpoint = Checkpoint { pool, lsn, opening, objects, bytes, usage };
            prop_assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
            let _ = Checkpoint::decode(&junk);
        }
    }
}
