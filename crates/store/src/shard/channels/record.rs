//! What a publication's record and its index entry say, beside its body.
//!
//! ```text
//! payload = flags:1 epoch:v time_ms:v ttl_ms:v floor:v
//! ```
//!
//! `floor` is the lowest offset that the channel kept when this was published. So the newest publication says of everything before it
//! whether it counts, and an entry that a rebuild of the index brings back from an extent not yet used again does no harm.

use crate::record::wire::{Dec, Malformed, put_varint};

/// It stands for a publication that was removed: it only keeps the channel's epoch and last offset.
const REMOVED: u8 = 1;
/// Publications that were not flushed when they were delivered may have come after it.
const ASYNC: u8 = 2;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicationMeta {
    pub(crate) removed: bool,
    pub(crate) is_async: bool,
    /// The channel's epoch.
    pub(crate) epoch: u32,
    /// When it was published, milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
    /// For how long it is kept, milliseconds.
    pub(crate) ttl_ms: u64,
    /// See the module.
    pub(crate) floor: u64,
}

impl PublicationMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.push((u8::from(self.removed) * REMOVED) | (u8::from(self.is_async) * ASYNC));
        for value in [u64::from(self.epoch), self.time_ms, self.ttl_ms, self.floor] {
            put_varint(&mut out, value);
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let flags = dec.u8()?;
        if flags & !(REMOVED | ASYNC) != 0 {
            return Err(Malformed("publication: unknown flags"));
        }
        Ok(Self {
            removed: flags & REMOVED != 0,
            is_async: flags & ASYNC != 0,
            epoch: dec.u32()?,
            time_ms: dec.varint()?,
            ttl_ms: dec.varint()?,
            floor: dec.varint()?,
        })
    }

    /// Whether its time is over.
    pub(crate) fn expired(&self, now_ms: u64) -> bool {
        self.removed || self.time_ms.saturating_add(self.ttl_ms) <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(removed: bool, is_async: bool, epoch: u32, time_ms: u64, ttl_ms: u64, floor: u64, junk: Vec<u8>) {
            let meta = PublicationMeta { removed, is_async, epoch, time_ms, ttl_ms, floor };
            prop_assert_eq!(PublicationMeta::decode(&meta.encode()), Ok(meta));
            let _ = PublicationMeta::decode(&junk);
        }
    }
}
