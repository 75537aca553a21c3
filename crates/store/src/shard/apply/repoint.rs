//! Rewriting manifests for chunks that compaction has moved.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_log::{ChunkMove, Durability, Location, LogError, Priority, Record};

use super::live;
use crate::StoreError;
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta};
use crate::record::{Head, Value, keys};
use crate::shard::core::Core;
use steadfast_log::Log;

fn into_log_error(e: StoreError) -> LogError {
    match e {
        StoreError::Log(e) => e,
        e => LogError::Failed { what: "repoint", cause: e.to_string() },
    }
}

/// See [`steadfast_log::Applier::repoint`].
pub(super) async fn repoint(core: &Core, log: &Log, head: &Bytes, moves: &[ChunkMove]) -> Result<(), LogError> {
    let (bucket, writer, key, part) = match Head::decode(head) {
        Ok(Head::Chunk { bucket, writer, key }) => (bucket, writer, key, None),
        Ok(Head::PartChunk { bucket, writer, upload, number, key }) => (bucket, writer, key, Some((upload, number))),
        _ => return Ok(()),
    };
    // Nobody may be between reading a manifest and submitting a record made from it; what was submitted must be seen.
    let _exclusive = core.manifests.write().await;
    core.wait_applied(core.submitted.load(Ordering::Acquire)).await.map_err(into_log_error)?;
    core.owners.applied(core.progress.borrow().lsn);
    if core.owners.moved(&writer, moves) {
        return Ok(());
    }
    let moves: BTreeMap<Location, Location> = moves.iter().map(|m| (m.from, m.to)).collect();
    let mut batch = Vec::new();
    let object = keys::object(bucket, key);
    if let Some((upload, number)) = part {
        let rewritten = rewrite(core, log, &keys::part(&upload, number), &moves).await.map_err(into_log_error)?;
        batch.extend(rewritten.map(|(version, payload, body)| Record {
            head: Head::PartPut { bucket, upload, number, key, payload: &payload }.encode().into(),
            body,
            version: Some(version),
        }));
    }
    let rewritten = rewrite(core, log, &object, &moves).await.map_err(into_log_error)?;
    batch.extend(rewritten.map(|(version, payload, body)| Record {
        head: Head::ObjectPut { bucket, key, payload: &payload }.encode().into(),
        body,
        version: Some(version),
    }));
    if batch.is_empty() {
        return Ok(());
    }
    let bytes = crate::shard::writer::batch_bytes(&batch);
    let reservation = log.reserve(bytes, Priority::Compaction, core.options.write_wait).await?;
    let count = batch.len() as u64;
    let ticket = log.submit(reservation, batch, Durability::Sync)?;
    core.submitted.fetch_max(ticket.first_lsn() + count - 1, Ordering::AcqRel);
    ticket.await.map(drop)
}

type Rewritten = (u64, Vec<u8>, Vec<Bytes>);

/// The record under `key` with moved chunks in place of the originals; `None` when it has none of them.
async fn rewrite(
    core: &Core,
    log: &Log,
    key: &[u8],
    moves: &BTreeMap<Location, Location>,
) -> Result<Option<Rewritten>, StoreError> {
    loop {
        let Some(value) = core.lookup(key)? else { return Ok(None) };
        let value = Value::decode(&value)?;
        let mut meta = ObjectMeta::decode(value.payload)?;
        let mut manifest = match live::manifest(log, &value.location, &meta).await {
            Ok(manifest) => manifest,
            Err(StoreError::Log(LogError::Moved)) => continue,
            Err(e) => return Err(e),
        };
        let mut changed = false;
        for chunk in &mut manifest.chunks {
            if let Some(to) = moves.get(chunk) {
                *chunk = *to;
                changed = true;
            }
        }
        if !changed {
            return Ok(None);
        }
        meta.revision += 1;
        let body = place(&mut meta, &manifest);
        return Ok(Some((value.version, meta.encode(), body)));
    }
}

/// Manifests up to this many bytes stay in the head: about 64 chunks of one piece, or as many parts.
const MANIFEST_IN_HEAD_BYTES_MAX: usize = 4096;

/// Puts the manifest into the head or, when it is large, aside; returns the record's body.
pub(crate) fn place(meta: &mut ObjectMeta, manifest: &Manifest) -> Vec<Bytes> {
    let shares = manifest.shares();
    let bytes = Bytes::from(manifest.encode());
    if bytes.len() <= MANIFEST_IN_HEAD_BYTES_MAX {
        meta.body = Body::Chunks { shares, manifest: bytes };
        Vec::new()
    } else {
        meta.body = Body::ChunksAside { shares };
        vec![bytes]
    }
}
