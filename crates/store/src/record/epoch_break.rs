//! The record that gives every channel of a disk another epoch.
//!
//! ```text
//! payload = number:v drawn:8
//! ```
//!
//! A pool that is put back to an earlier state has lost publications that subscribers may have
//! seen. Their offsets are given out again, so they need another epoch: also in channels that the
//! earlier state does not know. The epoch is drawn. If it were counted, two openings of the same
//! earlier state would give it out twice.

use steadfast_flow::Env;

use crate::record::wire::{Dec, Malformed, put_varint};

/// A break of the epochs of all channels. The greatest one counts, on all disks of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EpochBreak {
    /// One more than that of the break before it.
    pub(crate) number: u64,
    /// A random number.
    pub(crate) drawn: u64,
}

impl EpochBreak {
    /// A new break after an earlier one, if there was any.
    pub(crate) fn after(earlier: Option<Self>, env: &Env) -> Self {
        Self { number: earlier.map_or(0, |earlier| earlier.number) + 1, drawn: env.random_u64() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12);
        put_varint(&mut out, self.number);
        out.extend_from_slice(&self.drawn.to_le_bytes());
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        Ok(Self { number: dec.varint()?, drawn: u64::from_le_bytes(dec.array()?) })
    }
}

/// The epoch that follows `epoch` when publications may have been lost; `drawn` is random.
pub(crate) fn another_epoch(epoch: u32, drawn: u64) -> u32 {
    let another = hash_epoch(epoch.to_le_bytes().into_iter().chain(drawn.to_le_bytes()));
    if another == epoch { another.wrapping_add(1) } else { another }
}

/// An epoch made of these bytes.
pub(crate) fn hash_epoch(bytes: impl Iterator<Item = u8>) -> u32 {
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(number: u64, drawn: u64, junk: Vec<u8>) {
            let made = EpochBreak { number, drawn };
            prop_assert_eq!(EpochBreak::decode(&made.encode()), Ok(made));
            let _ = EpochBreak::decode(&junk);
        }

        #[test]
        fn another_epoch_differs(epoch: u32, drawn: u64) {
            prop_assert_ne!(another_epoch(epoch, drawn), epoch);
        }
    }
}
