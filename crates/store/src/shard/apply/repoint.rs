//! Rewriting of manifests after compaction has moved chunks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use steadfast_log::{Batch, ChunkMove, Durability, Location, LogError, Priority, Record, Ticket};

use super::live;
use crate::StoreError;
use crate::record::keys::{self, BucketId, Id};
use crate::record::manifest::Manifest;
use crate::record::object::{Body, ObjectMeta};
use crate::record::{Head, Value};
use crate::shard::applied::AppliedState;
use crate::shard::follow::Follow;
use crate::shard::submit::batch_bytes;
use steadfast_log::Log;

fn into_log_error(e: StoreError) -> LogError {
    match e {
        StoreError::Log(e) => e,
        e => LogError::Failed { what: "repoint", cause: e.to_string() },
    }
}

/// Bytes of records committed together, unless a single one is larger.
const BATCH_BYTES: u64 = 256 << 10;

/// A record that may name chunks, given by its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChunkHolder<'a> {
    Part { bucket: BucketId, upload: Id, number: u16, key: &'a [u8] },
    Object { bucket: BucketId, key: &'a [u8] },
}

impl ChunkHolder<'_> {
    fn index_key(&self) -> Vec<u8> {
        match self {
            Self::Part { upload, number, .. } => keys::part(upload, *number),
            Self::Object { bucket, key } => keys::object(*bucket, key),
        }
    }

    fn head(&self, payload: &[u8]) -> Vec<u8> {
        match *self {
            Self::Part { bucket, upload, number, key } => Head::PartPut { bucket, upload, number, key, payload },
            Self::Object { bucket, key } => Head::ObjectPut { bucket, key, payload },
        }
        .encode()
    }
}

/// See [`steadfast_log::ChunkOwners::repoint`].
pub(super) async fn repoint(
    applied: &AppliedState,
    log: &Log,
    moves: &BTreeMap<Bytes, Vec<ChunkMove>>,
) -> Result<(), LogError> {
    // Manifest readers hold a shared lock until submit; chunk moves take it exclusively. Submitted
    // records must be applied.
    let _exclusive = applied.manifests.write().await;
    applied.wait_applied(applied.pending.last_submitted()).await.map_err(into_log_error)?;
    applied.owners.applied(applied.progress.borrow().lsn);
    // One record may name chunks with many heads, as an object of several parts does: each record
    // is rewritten once.
    let mut targets = BTreeSet::new();
    let mut all: BTreeMap<Location, Location> = BTreeMap::new();
    for (head, moves) in moves {
        let (bucket, writer, key, part) = match Head::decode(head) {
            Ok(Head::Chunk { bucket, writer, key }) => (bucket, writer, key, None),
            Ok(Head::PartChunk { bucket, writer, upload, number, key }) => {
                (bucket, writer, key, Some((upload, number)))
            }
            _ => continue,
        };
        if applied.owners.moved(&writer, moves) {
            continue;
        }
        targets.extend(part.map(|(upload, number)| ChunkHolder::Part { bucket, upload, number, key }));
        targets.insert(ChunkHolder::Object { bucket, key });
        all.extend(moves.iter().map(|m| (m.from, m.to)));
    }
    let mut tickets = Vec::new();
    let mut batch = Vec::new();
    for target in targets {
        let Some((version, payload, body)) =
            rewrite(applied, log, &target.index_key(), &all).await.map_err(into_log_error)?
        else {
            continue;
        };
        let record = vec![Record { head: target.head(&payload).into(), body, version: Some(version) }];
        if !batch.is_empty() && batch_bytes(&batch) + batch_bytes(&record) > BATCH_BYTES {
            tickets.push(submit(applied, log, std::mem::take(&mut batch)).await?);
        }
        batch.extend(record);
    }
    if !batch.is_empty() {
        tickets.push(submit(applied, log, batch).await?);
    }
    for ticket in tickets {
        ticket.await?;
    }
    Ok(())
}

async fn submit(applied: &AppliedState, log: &Log, batch: Batch) -> Result<Ticket, LogError> {
    let room = log.reserve(batch_bytes(&batch), Priority::Compaction, applied.options.write_wait).await?;
    let count = batch.len() as u64;
    let ticket = log.submit(room, batch, Durability::Sync)?;
    applied.pending.submitted(ticket.first_lsn() + count - 1);
    Ok(ticket)
}

type Rewritten = (u64, Vec<u8>, Vec<Bytes>);

/// The record under `key` with moved chunks in place of the originals; `None` when it names none of
/// them.
async fn rewrite(
    applied: &AppliedState,
    log: &Log,
    key: &[u8],
    moves: &BTreeMap<Location, Location>,
) -> Result<Option<Rewritten>, StoreError> {
    let mut follow = Follow::default();
    loop {
        let Some(value) = applied.lookup(key)? else { return Ok(None) };
        let value = Value::decode(&value)?;
        let mut meta = ObjectMeta::decode(value.payload)?;
        let mut manifest = match live::manifest(log, key, &value.location, &meta).await {
            Ok(manifest) => manifest,
            Err(StoreError::Log(LogError::Moved)) => {
                follow.moved(log, &value.location).await?;
                continue;
            }
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

/// Maximum bytes of a manifest in the head: about 64 chunks of one piece, or as many parts.
const MANIFEST_IN_HEAD_BYTES_MAX: usize = 4096;

/// Puts the manifest into the head or, when it is large, into the body; returns the record's body.
pub(crate) fn place(meta: &mut ObjectMeta, manifest: &Manifest) -> Vec<Bytes> {
    let bytes: u64 = manifest.chunks.iter().map(|chunk| u64::from(chunk.body_len)).sum();
    assert_eq!(bytes, meta.size, "the chunks of an object are not its bytes");
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
