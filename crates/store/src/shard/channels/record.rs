//! The metadata in a publication's record and index entry.
//!
//! ```text
//! payload = flags:1 epoch:v time_ms:v ttl_ms:v floor:v [key:16]
//! ```
//!
//! `floor` is the lowest offset that the channel kept when this was published. So the newest
//! publication decides which earlier ones count. An old entry that an index rebuild restores from
//! an extent not yet reused does no harm. `key` is a hash of the idempotency key, if the
//! publication has one. Builds that do not know keys ignore it.

use crate::record::wire::{Dec, Malformed, put_varint};

/// It is the marker of a removed publication, which keeps only the channel's epoch and last offset.
const REMOVED: u8 = 1;
/// Later publications may have been delivered without a flush.
const ASYNC: u8 = 2;

/// The metadata of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicationMeta {
    pub(crate) removed: bool,
    pub(crate) is_async: bool,
    /// The channel's epoch.
    pub(crate) epoch: u32,
    /// Time of publication, milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
    /// TTL in milliseconds.
    pub(crate) ttl_ms: u64,
    /// The lowest offset that the channel kept when this was published.
    pub(crate) floor: u64,
    /// Hash of the idempotency key, if the publication has one.
    pub(crate) key: Option<u128>,
}

impl PublicationMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        out.push((u8::from(self.removed) * REMOVED) | (u8::from(self.is_async) * ASYNC));
        for value in [u64::from(self.epoch), self.time_ms, self.ttl_ms, self.floor] {
            put_varint(&mut out, value);
        }
        out.extend(self.key.iter().flat_map(|key| key.to_be_bytes()));
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let flags = dec.u8()?;
        if flags & !(REMOVED | ASYNC) != 0 {
            return Err(Malformed("publication: unknown flags"));
        }
        let (epoch, time_ms, ttl_ms, floor) = (dec.u32()?, dec.varint()?, dec.varint()?, dec.varint()?);
        let key = match dec.0.is_empty() {
            true => None,
            false => Some(u128::from_be_bytes(dec.array()?)),
        };
        let (removed, is_async) = (flags & REMOVED != 0, flags & ASYNC != 0);
        Ok(Self { removed, is_async, epoch, time_ms, ttl_ms, floor, key })
    }

    /// Whether its TTL has passed.
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
        fn comes_back(removed: bool, is_async: bool, epoch: u32, times: [u64; 2], floor: u64, key: Option<u128>, junk: Vec<u8>) {
            let [time_ms, ttl_ms] = times;
            let meta = PublicationMeta { removed, is_async, epoch, time_ms, ttl_ms, floor, key };
            prop_assert_eq!(PublicationMeta::decode(&meta.encode()), Ok(meta));
            let _ = PublicationMeta::decode(&junk);
        }
    }
}
