//! Restores an export. The whole manifest is checked before anything is written, and each body
//! before its object becomes visible.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use steadfast_flow::{BoxFuture, Env};
use steadfast_store::{BucketInfo, Condition, ListQuery, Store, StoreError};
use tokio::sync::OnceCell;

use super::export::Missing;
use super::manifest::{End, ManifestLine, ObjectLine, Reader, hex};
use super::place::Place;
use super::{Result, check_name, data_file};

/// Bytes read at a time; small bodies lie one behind the other.
const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks kept in memory.
const BLOCKS: usize = 16;
/// Objects being restored at a time.
const OBJECTS: usize = 16;

/// A file of bodies: its export and its number.
type File = (String, u64);

/// The result of the first pass over the manifest.
struct RestorePlan {
    buckets: Vec<BucketInfo>,
    end: End,
    /// Minimum size of each file, in bytes.
    files: BTreeMap<File, u64>,
}

/// Reads the whole manifest and checks that it and the files that it names are complete.
async fn look(place: &Place, name: &str) -> Result<RestorePlan> {
    let mut reader = Reader::open(place, name).await?;
    let (mut buckets, mut files) = (Vec::<BucketInfo>::new(), BTreeMap::<File, u64>::new());
    let (mut objects, mut bytes) = (0, 0);
    while let Some(line) = reader.next().await? {
        match line {
            ManifestLine::Bucket(bucket) => buckets.push(bucket),
            ManifestLine::Object(object) => {
                objects += 1;
                bytes += object.size;
                let sum = object.body.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length));
                if sum != Some(object.size) || buckets.last().is_none_or(|bucket| bucket.name != object.bucket) {
                    return Err(format!("{}: the manifest contradicts itself at {:?}", place.shown(), object.key));
                }
                for piece in &object.body {
                    let file = (piece.export.clone().unwrap_or_else(|| name.to_owned()), piece.file);
                    let needed = files.entry(file).or_default();
                    *needed = (*needed).max(piece.offset.saturating_add(piece.length));
                }
            }
            ManifestLine::Export(_) | ManifestLine::End(_) => {}
        }
    }
    let Some(end) = reader.end.take() else { return Err("the manifest has no end".to_owned()) };
    if (end.objects, end.bytes, end.buckets) != (objects, bytes, buckets.len() as u64) {
        return Err(format!("{}: the manifest contradicts itself: its counts do not match", place.shown()));
    }
    for ((export, file), needed) in &mut files {
        check_name(export)?;
        let path = format!("{export}/{}", data_file(*file));
        match place.size(&path).await? {
            Some(size) if size >= *needed => *needed = size,
            Some(size) => return Err(format!("{}/{path}: {size} bytes, but {needed} are needed", place.shown())),
            None => {
                return Err(format!(
                    "{}/{path}: it is missing; the export {name:?} needs it, even if it belongs to an older export",
                    place.shown()
                ));
            }
        }
    }
    Ok(RestorePlan { buckets, end, files })
}

type Block = Arc<OnceCell<Bytes>>;

/// Reads bodies by blocks, and keeps the latest ones.
struct Blocks {
    place: Place,
    files: BTreeMap<File, u64>,
    kept: Mutex<VecDeque<((File, u64), Block)>>,
}

impl Blocks {
    /// Bytes of a file from `offset` to the end of their block, at most `most`.
    async fn read(&self, file: &File, offset: u64, most: u64) -> Result<Bytes> {
        let number = offset / BLOCK_BYTES;
        let key = (file.clone(), number);
        let block = {
            let mut kept = self.kept.lock();
            match kept.iter().position(|(other, _)| *other == key) {
                Some(at) => kept[at].1.clone(),
                None => {
                    let block = Block::default();
                    if kept.len() == BLOCKS {
                        kept.pop_front();
                    }
                    kept.push_back((key, block.clone()));
                    block
                }
            }
        };
        let from = number * BLOCK_BYTES;
        let size = self.files.get(file).copied().unwrap_or_default();
        let len = BLOCK_BYTES.min(size.saturating_sub(from));
        let path = format!("{}/{}", file.0, data_file(file.1));
        let bytes = block.get_or_try_init(|| self.place.read(&path, from, len)).await?;
        let start = (offset - from) as usize;
        let end = bytes.len().min(start + usize::try_from(most).unwrap_or(usize::MAX));
        if start >= end {
            return Err(format!("{}/{path}: it ends before {offset}", self.place.shown()));
        }
        Ok(bytes.slice(start..end))
    }
}

/// Why an object was not restored.
enum NotRestored {
    /// Its bytes are missing or changed; other objects may be intact.
    Bad { bucket: String, key: String, why: String },
    /// The pool refuses it, which ends the restore.
    Ended(String),
}

async fn restore_object(
    store: &Store,
    env: &Env,
    blocks: &Blocks,
    name: &str,
    line: ObjectLine,
    overwrite: bool,
) -> std::result::Result<u64, NotRestored> {
    let shown = format!("object {}/{}", line.bucket, line.key.escape_debug());
    let fail = |e: StoreError| NotRestored::Ended(format!("{shown}: {e}"));
    let (bucket, key) = (line.bucket.clone(), line.key.clone());
    let bad = |why: String| NotRestored::Bad { bucket: bucket.clone(), key: key.clone(), why };
    let mut writer = store.at(&line.bucket, &line.key).writer(Some(line.size)).await.map_err(fail)?;
    let mut hash = Sha256::new();
    for piece in &line.body {
        let file = (piece.export.clone().unwrap_or_else(|| name.to_owned()), piece.file);
        let (mut at, end) = (piece.offset, piece.offset + piece.length);
        while at < end {
            let read = blocks.read(&file, at, (end - at).min(1 << 20));
            let bytes = writer.give_room_during(read).await.map_err(bad)?;
            at += bytes.len() as u64;
            let hashed = bytes.clone();
            hash = if bytes.len() <= 64 << 10 {
                hash.update(&hashed);
                hash
            } else {
                let work = move || {
                    hash.update(&hashed);
                    hash
                };
                env.blocking(work).await.ok_or_else(|| NotRestored::Ended(format!("{shown}: hashing failed")))?
            };
            writer.write(bytes).await.map_err(fail)?;
        }
    }
    let found = hex(&hash.finalize());
    if found != line.sha256 {
        return Err(bad(format!(
            "its bytes in {} are not those that were exported (SHA-256 {found}, not {})",
            blocks.place.shown(),
            line.sha256
        )));
    }
    let condition = if overwrite { Condition::None } else { Condition::Absent };
    match writer.commit_stored(line.stored, condition, None).await {
        Ok(_) => Ok(line.size),
        Err(StoreError::ConditionFailed) => Err(bad("it exists already; --overwrite replaces it".to_owned())),
        Err(e) => Err(fail(e)),
    }
}

/// Creates the buckets, or sets the settings of existing ones.
async fn restore_buckets(store: &Store, buckets: &[BucketInfo], overwrite: bool) -> Result<()> {
    if !overwrite {
        let query = ListQuery { limit: 1, ..ListQuery::default() };
        for bucket in buckets {
            match store.contents(&bucket.name).objects(&query) {
                Err(StoreError::NoSuchBucket) => {}
                Ok(page) if page.objects.is_empty() => {}
                Ok(_) => {
                    return Err(format!(
                        "the bucket {} holds objects already; nothing was restored. Restore into an empty pool, or use --overwrite, \
                         which replaces objects with the same key and keeps the others",
                        bucket.name
                    ));
                }
                Err(e) => return Err(format!("bucket {}: {e}", bucket.name)),
            }
        }
    }
    for bucket in buckets {
        let made = match store.buckets().create_as(bucket).await {
            Err(StoreError::BucketExists) => {
                store.buckets().change(&bucket.name, |settings| settings.clone_from(&bucket.settings)).await
            }
            made => made,
        };
        made.map_err(|e| format!("bucket {}: {e}", bucket.name))?;
    }
    Ok(())
}

/// Restores the export `name`. `report` gets the progress.
///
/// # Errors
/// The reason and what to do. Objects restored before it stay.
pub async fn run(
    store: &Store,
    env: &Env,
    place: &Place,
    name: &str,
    overwrite: bool,
    report: impl Fn(Value) + Sync,
) -> Result<Value> {
    let begun = env.now();
    report(json!({"phase": "manifest", "part": 0.0}));
    let plan = look(place, name).await?;
    restore_buckets(store, &plan.buckets, overwrite).await?;
    let blocks = Blocks { place: place.clone(), files: plan.files, kept: Mutex::default() };
    let reader = Reader::open(place, name).await?;
    let lines = futures::stream::try_unfold(reader, |mut reader| async move {
        Ok::<_, String>(reader.next_object().await?.map(|line| (line, reader)))
    });
    let (mut objects, mut bytes) = (0u64, 0u64);
    let mut missing = Missing::default();
    let blocks = &blocks;
    let work = lines.map(|line| -> BoxFuture<'_, std::result::Result<u64, NotRestored>> {
        Box::pin(async move {
            let line = line.map_err(NotRestored::Ended)?;
            restore_object(store, env, blocks, name, *line, overwrite).await
        })
    });
    let mut work = std::pin::pin!(work.buffer_unordered(OBJECTS));
    while let Some(restored) = work.next().await {
        bytes += match restored {
            Ok(bytes) => bytes,
            Err(NotRestored::Bad { bucket, key, why }) => {
                missing.put(&bucket, &key, &why);
                continue;
            }
            Err(NotRestored::Ended(e)) => {
                return Err(format!("{e} ({objects} of {} objects are restored)", plan.end.objects));
            }
        };
        objects += 1;
        if objects.is_multiple_of(64) || objects == plan.end.objects {
            let part = (bytes + 4096 * objects) as f64 / (plan.end.bytes + 4096 * plan.end.objects).max(1) as f64;
            report(json!({"phase": "bodies", "part": part, "objects": objects, "bytes": bytes}));
        }
    }
    let needs: &BTreeSet<String> = &plan.end.needs;
    Ok(json!({
        "missing": missing.list, "missing_total": missing.total, "missing_in_export": plan.end.missing,
        "name": name, "from": place.shown(), "buckets": plan.end.buckets, "objects": objects, "bytes": bytes, "needs": needs,
        "took_ms": u64::try_from(env.now().saturating_sub(begun).as_millis()).unwrap_or(u64::MAX),
    }))
}
