//! Heads of records: the log repeats them in its footers, and the index is built from them.
//!
//! ```text
//! head    = format:1 kind:1 fields key payload
//! value   = version location payload            (in the index)
//! ```
//!
//! The payload comes last so that the index takes it as it is. Integers are LEB128 unless said
//! otherwise; strings carry their length.

pub(crate) mod epoch_break;
pub(crate) mod event;
pub(crate) mod keys;
pub(crate) mod manifest;
pub(crate) mod object;
mod settings;
pub(crate) mod upload;
pub(crate) mod wire;

use steadfast_log::{Location, Lsn};

use crate::BucketSettings;
use keys::{BucketId, Id};
use wire::{Dec, Malformed, put_bytes, put_location, put_varint};

/// The format of heads and of the index. Unknown formats are rejected.
pub(crate) const FORMAT: u8 = 1;

const BUCKET_PUT: u8 = 1;
const BUCKET_DELETE: u8 = 2;
const OBJECT_PUT: u8 = 3;
const OBJECT_DELETE: u8 = 4;
const UPLOAD_CREATE: u8 = 5;
const UPLOAD_END: u8 = 6;
const PART_PUT: u8 = 7;
const CHUNK: u8 = 8;
const PART_CHUNK: u8 = 9;
const POOL_LAYOUT: u8 = 10;
const EPOCH_BREAK: u8 = 11;
/// The snapshots of earlier versions. Never to be used for another kind.
const RETIRED: [u8; 2] = [20, 21];
const PUBLICATION: u8 = 30;
const CHANNEL_END: u8 = 31;

/// A decoded head. Borrows from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head<'a> {
    /// A bucket exists, with these settings.
    BucketPut { id: BucketId, payload: &'a [u8] },
    /// A bucket was deleted.
    BucketDelete { id: BucketId },
    /// An object exists.
    ObjectPut { bucket: BucketId, key: &'a [u8], payload: &'a [u8] },
    /// An object was deleted.
    ObjectDelete { bucket: BucketId, key: &'a [u8] },
    /// A multipart upload began.
    UploadCreate { bucket: BucketId, upload: Id, key: &'a [u8], payload: &'a [u8] },
    /// An upload was completed or aborted; its parts end with it.
    UploadEnd { bucket: BucketId, upload: Id, key: &'a [u8] },
    /// A part was stored.
    PartPut { bucket: BucketId, upload: Id, number: u16, key: &'a [u8], payload: &'a [u8] },
    /// A piece of an object's body.
    Chunk { bucket: BucketId, writer: Id, key: &'a [u8] },
    /// The pool's layout. It belongs to no bucket: zeros in its place.
    PoolLayout { payload: &'a [u8] },
    /// Every channel of the disk gets another epoch. It belongs to no bucket: zeros in its place.
    EpochBreak { payload: &'a [u8] },
    /// A record of a kind that only earlier versions wrote. It is ignored. It belongs to no bucket:
    /// zeros in its place.
    Retired { kind: u8, payload: &'a [u8] },
    /// A publication of a channel, or a marker that all publications were removed. It belongs to no
    /// bucket: zeros in its place.
    Publication { channel: &'a [u8], offset: u64, payload: &'a [u8] },
    /// The channel left this disk: all of its older publications are removed.
    ChannelEnd { channel: &'a [u8] },
    /// A piece of a part's body.
    PartChunk { bucket: BucketId, writer: Id, upload: Id, number: u16, key: &'a [u8] },
}

impl<'a> Head<'a> {
    /// Decodes a head.
    pub(crate) fn decode(head: &'a [u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(head);
        if dec.u8()? != FORMAT {
            return Err(Malformed("record: unknown format"));
        }
        let kind = dec.u8()?;
        let bucket = u64::from_be_bytes(dec.array()?);
        Ok(match kind {
            BUCKET_PUT => Self::BucketPut { id: bucket, payload: dec.0 },
            BUCKET_DELETE => Self::BucketDelete { id: bucket },
            OBJECT_PUT => Self::ObjectPut { bucket, key: dec.bytes()?, payload: dec.0 },
            OBJECT_DELETE => Self::ObjectDelete { bucket, key: dec.bytes()? },
            UPLOAD_CREATE => Self::UploadCreate { bucket, upload: dec.array()?, key: dec.bytes()?, payload: dec.0 },
            UPLOAD_END => Self::UploadEnd { bucket, upload: dec.array()?, key: dec.bytes()? },
            PART_PUT => {
                Self::PartPut { bucket, upload: dec.array()?, number: dec.u16()?, key: dec.bytes()?, payload: dec.0 }
            }
            CHUNK => Self::Chunk { bucket, writer: dec.array()?, key: dec.bytes()? },
            PART_CHUNK => Self::PartChunk {
                bucket,
                writer: dec.array()?,
                upload: dec.array()?,
                number: dec.u16()?,
                key: dec.bytes()?,
            },
            POOL_LAYOUT => Self::PoolLayout { payload: dec.0 },
            EPOCH_BREAK => Self::EpochBreak { payload: dec.0 },
            kind if RETIRED.contains(&kind) => Self::Retired { kind, payload: dec.0 },
            PUBLICATION => {
                Self::Publication { offset: u64::from_be_bytes(dec.array()?), channel: dec.bytes()?, payload: dec.0 }
            }
            CHANNEL_END => Self::ChannelEnd { channel: dec.bytes()? },
            _ => return Err(Malformed("record: unknown kind")),
        })
    }

    /// Writes the head.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, bucket, key, payload): (u8, BucketId, &[u8], &[u8]) = match self {
            Self::BucketPut { id, payload } => (BUCKET_PUT, *id, &[], payload),
            Self::BucketDelete { id } => (BUCKET_DELETE, *id, &[], &[]),
            Self::ObjectPut { bucket, key, payload } => (OBJECT_PUT, *bucket, key, payload),
            Self::ObjectDelete { bucket, key } => (OBJECT_DELETE, *bucket, key, &[]),
            Self::UploadCreate { bucket, key, payload, .. } => (UPLOAD_CREATE, *bucket, key, payload),
            Self::UploadEnd { bucket, key, .. } => (UPLOAD_END, *bucket, key, &[]),
            Self::PartPut { bucket, key, payload, .. } => (PART_PUT, *bucket, key, payload),
            Self::Chunk { bucket, key, .. } => (CHUNK, *bucket, key, &[]),
            Self::PartChunk { bucket, key, .. } => (PART_CHUNK, *bucket, key, &[]),
            Self::PoolLayout { payload } => (POOL_LAYOUT, 0, &[], payload),
            Self::EpochBreak { payload } => (EPOCH_BREAK, 0, &[], payload),
            Self::Retired { kind, payload } => (*kind, 0, &[], payload),
            Self::Publication { channel, payload, .. } => (PUBLICATION, 0, channel, payload),
            Self::ChannelEnd { channel } => (CHANNEL_END, 0, channel, &[]),
        };
        let mut out = Vec::with_capacity(52 + key.len() + payload.len());
        out.extend_from_slice(&[FORMAT, kind]);
        out.extend_from_slice(&bucket.to_be_bytes());
        match self {
            Self::BucketPut { .. }
            | Self::BucketDelete { .. }
            | Self::PoolLayout { .. }
            | Self::EpochBreak { .. }
            | Self::Retired { .. } => {
                out.extend_from_slice(payload);
                return out;
            }
            Self::ObjectPut { .. } | Self::ObjectDelete { .. } | Self::ChannelEnd { .. } => {}
            Self::UploadCreate { upload, .. } | Self::UploadEnd { upload, .. } => out.extend_from_slice(upload),
            Self::PartPut { upload, number, .. } => {
                out.extend_from_slice(upload);
                put_varint(&mut out, u64::from(*number));
            }
            Self::Publication { offset, .. } => out.extend_from_slice(&offset.to_be_bytes()),
            Self::Chunk { writer, .. } => out.extend_from_slice(writer),
            Self::PartChunk { writer, upload, number, .. } => {
                out.extend_from_slice(writer);
                out.extend_from_slice(upload);
                put_varint(&mut out, u64::from(*number));
            }
        }
        put_bytes(&mut out, key);
        out.extend_from_slice(payload);
        out
    }
}

/// A bucket as stored in its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BucketMeta {
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    pub(crate) settings: BucketSettings,
}

impl BucketMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.name.len() + 12);
        put_bytes(&mut out, self.name.as_bytes());
        put_varint(&mut out, self.created_ms);
        settings::encode(&self.settings, &mut out);
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let name = dec.str()?.to_owned();
        Ok(Self { name, created_ms: dec.varint()?, settings: settings::decode(&mut dec)? })
    }
}

/// The indexed value of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value<'a> {
    pub(crate) version: Lsn,
    pub(crate) location: Location,
    pub(crate) payload: &'a [u8],
}

impl<'a> Value<'a> {
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(value);
        Ok(Self { version: dec.varint()?, location: dec.location()?, payload: dec.0 })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.payload.len());
        put_varint(&mut out, self.version);
        put_location(&mut out, &self.location);
        out.extend_from_slice(self.payload);
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>, kind in 0u8..32) {
            let _ = Head::decode(&bytes);
            let _ = Head::decode(&[&[FORMAT, kind], &bytes[..]].concat());
            let _ = Value::decode(&bytes);
            let _ = BucketMeta::decode(&bytes);
        }

        #[test]
        fn heads_come_back(bucket: u64, upload: Id, writer: Id, number: u16, key: Vec<u8>, payload: Vec<u8>) {
            let (key, payload) = (&key[..], &payload[..]);
            for head in [
                Head::BucketPut { id: bucket, payload },
                Head::BucketDelete { id: bucket },
                Head::ObjectPut { bucket, key, payload },
                Head::ObjectDelete { bucket, key },
                Head::UploadCreate { bucket, upload, key, payload },
                Head::UploadEnd { bucket, upload, key },
                Head::PartPut { bucket, upload, number, key, payload },
                Head::Chunk { bucket, writer, key },
                Head::PartChunk { bucket, writer, upload, number, key },
                Head::PoolLayout { payload },
                Head::EpochBreak { payload },
                Head::Retired { kind: RETIRED[usize::from(number % 2)], payload },
                Head::Publication { channel: key, offset: bucket, payload },
                Head::ChannelEnd { channel: key },
            ] {
                let bytes = head.encode();
                prop_assert_eq!(Head::decode(&bytes), Ok(head));
            }
        }
    }
}
