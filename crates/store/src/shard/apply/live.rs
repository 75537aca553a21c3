//! Liveness for compaction: whether a record or chunk is still referenced.

use std::collections::BTreeSet;
use std::sync::Arc;

use steadfast_log::{Location, LogError, Lsn, Subject};

use crate::StoreError;
use crate::record::manifest::Manifest;
use crate::record::object::{Account, Body, ObjectMeta};
use crate::record::{Head, Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::follow::{self, Follow};
use steadfast_log::Log;

/// See [`steadfast_log::Applier::record_is_live`].
pub(super) fn record(
    applied: &AppliedState,
    head: &[u8],
    version: Lsn,
    location: &Location,
    oldest: Lsn,
) -> Option<bool> {
    if !applied.index.is_well() {
        return None;
    }
    let Ok(head) = Head::decode(head) else {
        // The format is unknown: the record must be kept.
        return Some(true);
    };
    let ends_upload = matches!(head, Head::UploadEnd { .. });
    let (key, delete) = match head {
        Head::BucketPut { id, .. } => (keys::bucket(id), false),
        Head::BucketDelete { id } => (keys::bucket(id), true),
        Head::ObjectPut { bucket, key, .. } => (keys::object(bucket, key), false),
        Head::ObjectDelete { bucket, key } => (keys::object(bucket, key), true),
        Head::UploadCreate { bucket, upload, key, .. } => (keys::upload(bucket, key, &upload), false),
        Head::UploadEnd { bucket, upload, key } => (keys::upload(bucket, key, &upload), true),
        Head::PartPut { upload, number, .. } => (keys::part(&upload, number), false),
        Head::PoolLayout { .. } => (keys::LAYOUT.to_vec(), false),
        Head::EpochBreak { .. } => (keys::EPOCH_BREAK.to_vec(), false),
        Head::Publication { channel, offset, .. } => (keys::publication(channel, offset), false),
        Head::ChannelEnd { channel } => (keys::channel_end(channel), true),
        Head::Chunk { .. } | Head::PartChunk { .. } => return Some(true),
        Head::Retired { .. } => return Some(false),
    };
    let value = applied.lookup(&key).ok()?;
    let there = value.as_deref().map(Value::decode).transpose().ok()?;
    Some(match there {
        // A newer record of the key hides all that the delete would hide, except parts of an upload
        // that was opened again.
        Some(value) if delete => value.version < version || ends_upload && version >= oldest,
        Some(value) => value.location == *location,
        None => delete && version >= oldest,
    })
}

/// See [`steadfast_log::Applier::subject`]. The end of an upload also hides its parts, and the end
/// of a channel its publications. Those belong to the upload or channel as a whole.
pub(super) fn subject(head: &[u8]) -> Subject {
    let Ok(head) = Head::decode(head) else { return Subject::Unknown };
    let (key, delete) = match head {
        Head::BucketPut { id, .. } => (keys::bucket(id), false),
        Head::BucketDelete { id } => (keys::bucket(id), true),
        Head::ObjectPut { bucket, key, .. } => (keys::object(bucket, key), false),
        Head::ObjectDelete { bucket, key } => (keys::object(bucket, key), true),
        Head::UploadCreate { bucket, upload, key, .. } | Head::PartPut { bucket, upload, key, .. } => {
            (keys::upload(bucket, key, &upload), false)
        }
        Head::UploadEnd { bucket, upload, key } => (keys::upload(bucket, key, &upload), true),
        Head::PoolLayout { .. } => (keys::LAYOUT.to_vec(), false),
        Head::EpochBreak { .. } => (keys::EPOCH_BREAK.to_vec(), false),
        Head::Publication { channel, .. } => (keys::channel_end(channel), false),
        Head::ChannelEnd { channel } => (keys::channel_end(channel), true),
        Head::Retired { .. } => (keys::SNAPSHOTS.to_vec(), false),
        Head::Chunk { .. } | Head::PartChunk { .. } => return Subject::Unknown,
    };
    let hash = xxhash_rust::xxh3::xxh3_64(&key);
    if delete { Subject::Delete(hash) } else { Subject::Put(hash) }
}

/// See [`steadfast_log::Applier::names_chunks`].
pub(super) fn names_chunks(head: &[u8]) -> bool {
    match Head::decode(head) {
        Ok(Head::ObjectPut { payload, .. } | Head::PartPut { payload, .. }) => {
            Account::decode(payload).map_or(true, |account| !account.shares.is_empty())
        }
        Ok(_) => false,
        // The format is unknown: the safe answer.
        Err(_) => true,
    }
}

/// The last manifest that was looked up: compaction checks one chunk after another.
#[derive(Default)]
pub(crate) struct LastManifest(parking_lot::Mutex<Option<(Location, Arc<BTreeSet<Location>>)>>);

/// The manifest of the indexed record under `key`.
pub(crate) async fn manifest(log: &Log, key: &[u8], at: &Location, meta: &ObjectMeta) -> Result<Manifest, StoreError> {
    Ok(match &meta.body {
        Body::Inline => Manifest::default(),
        Body::Chunks { manifest, .. } => Manifest::decode(manifest)?,
        Body::ChunksAside { .. } => Manifest::decode(&follow::read(log, at, 0..at.body_len, key).await?)?,
    })
}

/// Whether the record under `key` names `chunk`.
async fn refers(applied: &AppliedState, log: &Log, key: &[u8], chunk: &Location) -> Result<bool, StoreError> {
    let mut follow = Follow::default();
    loop {
        let Some(value) = applied.lookup(key)? else { return Ok(false) };
        let value = Value::decode(&value)?;
        let shares = Account::decode(value.payload)?.shares;
        if !shares.iter().any(|s| s.extent == chunk.extent && s.epoch == chunk.epoch) {
            return Ok(false);
        }
        let known = applied.last_manifest.0.lock().clone().filter(|(at, _)| *at == value.location);
        if let Some((_, chunks)) = known {
            return Ok(chunks.contains(chunk));
        }
        let meta = ObjectMeta::decode(value.payload)?;
        match manifest(log, key, &value.location, &meta).await {
            Ok(manifest) => {
                let chunks: Arc<BTreeSet<Location>> = Arc::new(manifest.chunks.into_iter().collect());
                let referred = chunks.contains(chunk);
                *applied.last_manifest.0.lock() = Some((value.location, chunks));
                return Ok(referred);
            }
            Err(StoreError::Log(LogError::Moved)) => follow.moved(log, &value.location).await?,
            Err(e) => return Err(e),
        }
    }
}

/// See [`steadfast_log::ChunkOwners::chunk_is_live`].
pub(super) async fn chunk(applied: &AppliedState, log: &Log, head: &[u8], location: &Location) -> bool {
    let (bucket, writer, key, part) = match Head::decode(head) {
        Ok(Head::Chunk { bucket, writer, key }) => (bucket, writer, key, None),
        Ok(Head::PartChunk { bucket, writer, upload, number, key }) => {
            (bucket, writer, key, Some(keys::part(&upload, number)))
        }
        _ => return true,
    };
    if !applied.index.is_well() || applied.owners.contains(&writer) {
        return true;
    }
    // A completion creates the object before it removes the parts, so one of the two exists at any
    // time.
    for key in part.into_iter().chain([keys::object(bucket, key)]) {
        match refers(applied, log, &key, location).await {
            Ok(false) => {}
            Ok(true) => return true,
            Err(e) => {
                tracing::warn!(error = %e, "cannot decide whether a chunk is referenced; it is kept");
                return true;
            }
        }
    }
    false
}

/// See [`steadfast_log::ChunkOwners::discard`].
pub(super) async fn discard(applied: &AppliedState, head: &[u8]) -> bool {
    let Some(evictor) = applied.options.evictor.get() else { return false };
    let Ok(Head::Chunk { bucket, key, .. } | Head::PartChunk { bucket, key, .. }) = Head::decode(head) else {
        return false;
    };
    let bucket = applied.registry.read().by_id.get(&bucket).cloned();
    match (bucket, std::str::from_utf8(key)) {
        (Some(bucket), Ok(key)) => evictor.evict(&bucket.name, key).await,
        _ => false,
    }
}
