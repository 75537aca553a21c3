//! The record of a snapshot: its name, and the part of this disk that it keeps.
//!
//! ```text
//! payload = name created_ms disks objects bytes lsn epoch except
//! ```

use steadfast_log::{Hold, Lsn};

use super::keys::Id;
use super::wire::{Dec, Malformed, put_bytes, put_varint};

/// A snapshot as stored in one disk's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotMeta {
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    /// Number of disks that hold a part of it.
    pub(crate) disks: u64,
    /// Objects on this disk, about: concurrent writes may or may not count.
    pub(crate) objects: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// See [`Hold`].
    pub(crate) lsn: Lsn,
    pub(crate) epoch: u64,
    pub(crate) except: Vec<u8>,
}

impl SnapshotMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.name.len() + self.except.len());
        put_bytes(&mut out, self.name.as_bytes());
        for value in [self.created_ms, self.disks, self.objects, self.bytes, self.lsn, self.epoch] {
            put_varint(&mut out, value);
        }
        put_bytes(&mut out, &self.except);
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        Ok(Self {
            name: dec.str()?.to_owned(),
            created_ms: dec.varint()?,
            disks: dec.varint()?,
            objects: dec.varint()?,
            bytes: dec.varint()?,
            lsn: dec.varint()?,
            epoch: dec.varint()?,
            except: dec.bytes()?.to_vec(),
        })
    }

    /// The hold that the log must keep for it.
    pub(crate) fn hold(&self, id: Id) -> Hold {
        Hold { id, lsn: self.lsn, epoch: self.epoch, except: self.except.clone() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back(name: String, n: [u64; 6], except: Vec<u8>, junk: Vec<u8>) {
            let [created_ms, disks, objects, bytes, lsn, epoch] = n;
            let meta = SnapshotMeta { name, created_ms, disks, objects, bytes, lsn, epoch, except };
            prop_assert_eq!(SnapshotMeta::decode(&meta.encode()), Ok(meta));
            let _ = SnapshotMeta::decode(&junk);
        }
    }
}
