//! The subject of a record in words, for reports of damage, and the chunks that it names, for
//! verification.

use std::collections::BTreeMap;

use steadfast_log::Location;

use crate::record::keys::{self, BucketId};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta};
use crate::record::{BucketMeta, Head};

/// The known names of buckets.
#[derive(Debug, Clone, Default)]
pub struct Names(BTreeMap<BucketId, String>);

impl Names {
    pub(crate) fn new(names: BTreeMap<BucketId, String>) -> Self {
        Self(names)
    }

    /// Learns a bucket's name if the record with this head is a bucket's.
    pub fn learn(&mut self, head: &[u8]) {
        if let Ok(Head::BucketPut { id, payload }) = Head::decode(head)
            && let Ok(meta) = BucketMeta::decode(payload)
        {
            self.0.insert(id, meta.name);
        }
    }

    /// Whether the record with this head is of a client or an administrator. Others are of the
    /// store itself.
    pub fn is_change(&self, head: &[u8]) -> bool {
        use Head::{ChannelEnd, EpochBreak, PoolLayout, Retired};
        let own = Head::decode(head);
        !matches!(own, Ok(PoolLayout { .. } | EpochBreak { .. } | ChannelEnd { .. } | Retired { .. }))
    }

    /// The subject of the record or chunk with this head, such as `object photos/2026/a.jpg`.
    pub fn describe(&self, head: &[u8]) -> String {
        let bucket = |id: BucketId| self.0.get(&id).cloned().unwrap_or_else(|| format!("(bucket {id:016x})"));
        let path = |id: BucketId, key: &[u8]| format!("{}/{}", bucket(id), String::from_utf8_lossy(key).escape_debug());
        match Head::decode(head) {
            Ok(Head::BucketPut { id, payload }) => {
                let name = BucketMeta::decode(payload).map_or_else(|_| bucket(id), |meta| meta.name);
                keys::user_of(&name).map_or_else(|| format!("bucket {name}"), |user| format!("user {user}"))
            }
            Ok(Head::BucketDelete { id }) => format!("deletion of bucket {}", bucket(id)),
            Ok(Head::ObjectPut { bucket, key, .. } | Head::Chunk { bucket, key, .. }) => {
                format!("object {}", path(bucket, key))
            }
            Ok(Head::ObjectDelete { bucket, key }) => format!("deletion of object {}", path(bucket, key)),
            Ok(Head::UploadCreate { bucket, key, .. }) => format!("upload of {}", path(bucket, key)),
            Ok(Head::UploadEnd { bucket, key, .. }) => format!("end of an upload of {}", path(bucket, key)),
            Ok(Head::PartPut { bucket, number, key, .. } | Head::PartChunk { bucket, number, key, .. }) => {
                format!("part {number} of {}", path(bucket, key))
            }
            Ok(Head::Retired { .. }) => "a snapshot of an earlier version".to_owned(),
            Ok(Head::PoolLayout { .. }) => "the layout of the pool".to_owned(),
            Ok(Head::EpochBreak { .. }) => "new epochs of all channels".to_owned(),
            Ok(Head::Publication { channel, offset, .. }) => {
                format!("publication {offset} of the channel {:?}", String::from_utf8_lossy(channel))
            }
            Ok(Head::ChannelEnd { channel }) => {
                format!("end of the channel {:?} on this disk", String::from_utf8_lossy(channel))
            }
            Err(_) => "a record of an unknown format".to_owned(),
        }
    }
}

/// The chunks that the committed record with this head and body names; none for an unknown format.
pub fn named_chunks(head: &[u8], body: &[u8]) -> Vec<Location> {
    let Ok(Head::ObjectPut { payload, .. } | Head::PartPut { payload, .. }) = Head::decode(head) else {
        return Vec::new();
    };
    let manifest = match ObjectMeta::decode(payload).map(|meta| meta.body) {
        Ok(Body::Chunks { manifest, .. }) => Manifest::decode(&manifest),
        Ok(Body::ChunksAside { .. }) => Manifest::decode(body),
        _ => return Vec::new(),
    };
    manifest.map(|manifest| manifest.chunks).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BucketSettings;

    #[test]
    fn records_are_described_by_bucket_and_key() {
        let mut names = Names::default();
        let object = Head::ObjectPut { bucket: 7, key: b"a/b\n", payload: &[] }.encode();
        assert_eq!(names.describe(&object), "object (bucket 0000000000000007)/a/b\\n");
        let meta = BucketMeta { name: "photos".into(), created_ms: 1, settings: BucketSettings::default() };
        names.learn(&Head::BucketPut { id: 7, payload: &meta.encode() }.encode());
        assert_eq!(names.describe(&object), "object photos/a/b\\n");
        let part = Head::PartChunk { bucket: 7, writer: [0; 16], upload: [0; 16], number: 3, key: b"k" }.encode();
        assert_eq!(names.describe(&part), "part 3 of photos/k");
        assert_eq!(names.describe(b"?"), "a record of an unknown format");
        assert!(names.is_change(&object) && !names.is_change(&Head::PoolLayout { payload: &[] }.encode()));
    }
}
