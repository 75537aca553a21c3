//! Exporting a snapshot: its bodies are read, hashed and written one after another, then the manifest counts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use steadfast_flow::{BoxFuture, Env, Pace};
use steadfast_log::LogError;
use steadfast_store::{ObjectReader, Snapshot, SnapshotObject, Store, StoreError, StoredObject};

use super::manifest::{End, Header, Line, Lines, ObjectLine, Piece, Reader, VERSION, hex};
use super::place::{Place, Writer};
use super::{MANIFEST, Result, UNFINISHED, check_name, data_file};

/// Bytes of a file of bodies, at most.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Objects looked up at a time; one that came in many parts may take a MiB.
const PAGE: usize = 64;
/// Small bodies read at a time,
const READS: usize = 8;
/// and what small is, in bytes. Larger ones are read one after another, a few pieces ahead.
const SMALL: u64 = 256 << 10;
/// Bytes that are hashed where they are; more than that is hashed off the threads that serve requests.
const HASH_HERE: usize = 64 << 10;

/// What to export, and how.
pub struct Export {
    /// The snapshot.
    pub name: String,
    /// An export beside this one: what has not changed since is not written again.
    pub since: Option<String>,
    /// A directory for an index, of this export alone, which is removed again.
    pub scratch: PathBuf,
    /// Bytes read a second at most; 0 for no bound.
    pub bytes_s: u64,
    /// Bytes of a file of bodies.
    pub file_bytes_max: u64,
}

/// Writes bodies one after another into files.
struct Bodies {
    place: Place,
    name: String,
    file_bytes_max: u64,
    number: u64,
    at: u64,
    writer: Option<Writer>,
    bytes: u64,
}

impl Bodies {
    async fn write(&mut self, mut bytes: &[u8], pieces: &mut Vec<Piece>) -> Result<()> {
        while !bytes.is_empty() {
            if self.at >= self.file_bytes_max {
                self.finish().await?;
            }
            if self.writer.is_none() {
                self.number += 1;
                self.at = 0;
                let path = format!("{}/{}", self.name, data_file(self.number));
                self.writer = Some(self.place.create(&path).await?);
            }
            let room = usize::try_from(self.file_bytes_max - self.at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some(writer) = &mut self.writer {
                writer.write(now).await?;
            }
            let length = now.len() as u64;
            match pieces.last_mut() {
                Some(last) if last.file == self.number => last.length += length,
                _ => pieces.push(Piece { export: None, file: self.number, offset: self.at, length }),
            }
            self.at += length;
            self.bytes += length;
            bytes = later;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        match self.writer.take() {
            Some(writer) => writer.finish().await,
            None => Ok(()),
        }
    }
}

/// What there is to write of an object.
enum Body {
    /// It is in an older export.
    Known(Box<ObjectLine>),
    Small(Vec<u8>, Box<StoredObject>),
    Large(Box<ObjectReader>),
    /// Why there is nothing.
    Unreadable(String),
}

/// An older export, gone through beside the snapshot: both are in the order of buckets and keys.
struct Older {
    name: String,
    reader: Reader,
    next: Option<Box<ObjectLine>>,
}

impl Older {
    async fn open(place: &Place, name: &str, pool: &str) -> Result<Self> {
        let mut reader = Reader::open(place, name).await?;
        if reader.header.pool != pool {
            return Err(format!(
                "the export {name:?} is of another pool: nothing of it can be used; export without --since"
            ));
        }
        let next = reader.next_object().await?;
        Ok(Self { name: name.to_owned(), reader, next })
    }

    /// Its line of the same object, if it has that.
    async fn same(&mut self, bucket: &str, object: &SnapshotObject) -> Result<Option<Box<ObjectLine>>> {
        let wanted = (bucket, object.info.key.as_str());
        while let Some(line) = &self.next {
            let here = (line.bucket.as_str(), line.key.as_str());
            if here > wanted {
                return Ok(None);
            }
            let same = here == wanted && line.origin == object.origin && line.size == object.info.size;
            let line = std::mem::replace(&mut self.next, self.reader.next_object().await?);
            if let (true, Some(mut line)) = (same, line) {
                for piece in &mut line.body {
                    piece.export.get_or_insert_with(|| self.name.clone());
                }
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

async fn hashed(env: &Env, mut hash: Sha256, bytes: &Bytes) -> Result<Sha256> {
    if bytes.len() <= HASH_HERE {
        hash.update(bytes);
        return Ok(hash);
    }
    let bytes = bytes.clone();
    let done = env.blocking(move || {
        hash.update(&bytes);
        hash
    });
    done.await.ok_or_else(|| "hashing failed".to_owned())
}

/// What is the matter with one object, which is left out, unless nothing can be read any more.
fn unreadable(e: StoreError) -> Result<Body> {
    match e {
        StoreError::Log(LogError::Closed) => Err("the server is stopping; nothing was exported".to_owned()),
        e => Ok(Body::Unreadable(e.to_string())),
    }
}

async fn body_of(
    snapshot: &Snapshot,
    bucket: &str,
    object: &SnapshotObject,
    known: Option<Box<ObjectLine>>,
    pace: &Pace,
) -> Result<Body> {
    if let Some(line) = known {
        return Ok(Body::Known(line));
    }
    let small = object.info.size <= SMALL;
    if small {
        pace.spend(object.info.size + 4096).await;
    }
    let reader = match snapshot.reader(bucket, object).await {
        Ok(reader) => reader,
        Err(e) => return unreadable(e),
    };
    if !small {
        return Ok(Body::Large(Box::new(reader)));
    }
    let stored = reader.stored();
    let mut bytes = Vec::with_capacity(object.info.size as usize);
    let mut pieces = std::pin::pin!(reader.stream(0..u64::MAX));
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(e) => return unreadable(e),
        }
    }
    Ok(Body::Small(bytes, Box::new(stored)))
}

/// Exports a snapshot; `tell` hears how far it is. The result says what was written.
///
/// # Errors
/// Why not, and what to do. What was begun is then in the place, with a mark that it is not finished, and another export under
/// the same name takes its place.
pub async fn run(
    store: &Store,
    env: &Env,
    place: &Place,
    export: &Export,
    tell: impl Fn(Value) + Sync,
) -> Result<Value> {
    let begun = env.now();
    let name = &export.name;
    check_name(name)?;
    if place.size(&format!("{name}/{MANIFEST}")).await?.is_some() {
        return Err(format!(
            "{}: there is an export {name:?} already; delete it or export to another place",
            place.shown()
        ));
    }
    place.refuse_foreign(name).await?;
    let progress = |part: f64| tell(json!({"phase": "index", "part": part}));
    let opened = store.open_snapshot(name, Some(export.scratch.clone()), export.bytes_s, progress).await;
    let snapshot = Arc::new(opened.map_err(|e| format!("snapshot {name:?}: {e}"))?);
    let mut older = match &export.since {
        Some(since) if since == name => return Err("--since names the snapshot itself".to_owned()),
        Some(since) => Some(Older::open(place, since, &snapshot.pool()).await?),
        None => None,
    };
    let info = snapshot.info().clone();
    let mark = json!({"snapshot": info.id, "pool": snapshot.pool()}).to_string();
    place.put(&format!("{name}/{UNFINISHED}"), mark.as_bytes()).await?;

    let pace = Pace::new(export.bytes_s, Duration::from_millis(250), env.clone());
    let mut lines = Lines::default();
    let mut manifest = place.create(&format!("{name}/{MANIFEST}")).await?;
    let mut bodies = Bodies {
        place: place.clone(),
        name: name.clone(),
        file_bytes_max: export.file_bytes_max.max(1),
        number: 0,
        at: 0,
        writer: None,
        bytes: 0,
    };
    let header = Header {
        version: VERSION,
        name: name.clone(),
        snapshot: info.id.clone(),
        pool: snapshot.pool(),
        created_ms: info.created_ms,
    };
    manifest.write(&lines.encode(&Line::Export(header))?).await?;
    let mut end = End::default();
    let faults = snapshot.faults().iter().map(ToString::to_string).collect();
    let mut missing = Missing { faults, ..Missing::default() };
    snapshot
        .missing_buckets()
        .iter()
        .for_each(|bucket| missing.put(bucket, "", "the whole bucket: damage has taken its record"));
    let mut known_objects = 0u64;
    for bucket in snapshot.buckets() {
        let of = bucket.name.clone();
        manifest.write(&lines.encode(&Line::Bucket(bucket))?).await?;
        end.buckets += 1;
        let mut gone = BTreeSet::new();
        let compared = snapshot.missing(&of, |keys| gone.extend(keys)).await;
        compared.map_err(|e| format!("bucket {of}: {e}"))?;
        gone.iter().for_each(|key| missing.put(&of, key, "damage has taken its record"));
        let mut after = None;
        loop {
            let page = snapshot.next_page(&of, after.take(), PAGE).await.map_err(|e| format!("bucket {of}: {e}"))?;
            let Some(last) = page.last() else { break };
            after = Some(last.info.key.clone());
            // What the snapshot has of these is older than what was there.
            let page: Vec<SnapshotObject> = page.into_iter().filter(|o| !gone.contains(&o.info.key)).collect();
            let mut known = Vec::with_capacity(page.len());
            for object in &page {
                known.push(match &mut older {
                    Some(older) => older.same(&of, object).await?,
                    None => None,
                });
            }
            let mut reads: Vec<BoxFuture<'_, Result<Body>>> = Vec::with_capacity(page.len());
            for (object, known) in page.iter().zip(known) {
                reads.push(Box::pin(body_of(&snapshot, &of, object, known, &pace)));
            }
            let mut reads = futures::stream::iter(reads).buffered(READS).zip(futures::stream::iter(&page));
            while let Some((body, object)) = reads.next().await {
                let key = &object.info.key;
                let line = match body? {
                    Body::Unreadable(why) => {
                        missing.put(&of, key, &why);
                        continue;
                    }
                    Body::Known(line) => {
                        known_objects += 1;
                        end.needs.extend(line.body.iter().filter_map(|piece| piece.export.clone()));
                        *line
                    }
                    Body::Small(bytes, stored) => {
                        let bytes = Bytes::from(bytes);
                        let hash = hashed(env, Sha256::new(), &bytes).await?;
                        let mut pieces = Vec::new();
                        bodies.write(&bytes, &mut pieces).await?;
                        line_of(&of, object, hash, pieces, *stored)
                    }
                    Body::Large(reader) => {
                        let stored = reader.stored();
                        let (mut hash, mut pieces) = (Sha256::new(), Vec::new());
                        let mut read = std::pin::pin!(reader.stream(0..u64::MAX));
                        let mut bad = None;
                        while let Some(bytes) = read.next().await {
                            let bytes = match bytes {
                                Ok(bytes) => bytes,
                                Err(e) => {
                                    bad = Some(unreadable(e)?);
                                    break;
                                }
                            };
                            pace.spend(bytes.len() as u64).await;
                            hash = hashed(env, hash, &bytes).await?;
                            bodies.write(&bytes, &mut pieces).await?;
                        }
                        // What was written of it stays in its file, and nothing refers to it.
                        if let Some(Body::Unreadable(why)) = bad {
                            missing.put(&of, key, &why);
                            continue;
                        }
                        line_of(&of, object, hash, pieces, stored)
                    }
                };
                if line.body.iter().map(|piece| piece.length).sum::<u64>() != line.size {
                    return Err(format!("object {of}/{}: its body is not as long as it says", line.key.escape_debug()));
                }
                end.objects += 1;
                end.bytes += line.size;
                manifest.write(&lines.encode(&Line::Object(Box::new(line)))?).await?;
            }
            let part = end.objects as f64 / info.objects.max(end.objects).max(1) as f64;
            tell(json!({"phase": "bodies", "part": part, "objects": end.objects, "bytes": end.bytes}));
        }
    }
    bodies.finish().await?;
    (end.own_bytes, end.files) = (bodies.bytes, bodies.number);
    // What an earlier try has left behind.
    let mut stale = bodies.number + 1;
    while place.remove(&format!("{name}/{}", data_file(stale))).await? {
        stale += 1;
    }
    let needs: BTreeSet<String> = end.needs.clone();
    end.missing = missing.total;
    let said = json!({
        "missing": missing.list, "missing_total": missing.total, "faults": missing.faults,
        "name": name, "to": place.shown(), "buckets": end.buckets, "objects": end.objects, "bytes": end.bytes,
        "written_bytes": end.own_bytes, "files": end.files, "known_objects": known_objects, "needs": needs,
    });
    manifest.write(&lines.end(end)?).await?;
    manifest.finish().await?;
    place.remove(&format!("{name}/{UNFINISHED}")).await?;
    let mut said = said;
    said["took_ms"] = json!(u64::try_from(env.now().saturating_sub(begun).as_millis()).unwrap_or(u64::MAX));
    Ok(said)
}

/// Objects that are named in the answer; more are only counted.
pub const MISSING_MAX: usize = 1000;

/// What could not be had.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// The first of them.
    pub(super) list: Vec<Value>,
    pub(super) total: u64,
    /// What could not be read of the log.
    pub(super) faults: Vec<String>,
}

impl Missing {
    pub(super) fn put(&mut self, bucket: &str, key: &str, why: &str) {
        tracing::error!(bucket, key, why, "an object is missing in a backup");
        self.total += 1;
        if self.list.len() < MISSING_MAX {
            self.list.push(json!({"bucket": bucket, "key": key, "why": why}));
        }
    }
}

fn line_of(bucket: &str, object: &SnapshotObject, hash: Sha256, body: Vec<Piece>, stored: StoredObject) -> ObjectLine {
    ObjectLine {
        bucket: bucket.to_owned(),
        key: object.info.key.clone(),
        size: object.info.size,
        sha256: hex(&hash.finalize()),
        origin: object.origin.clone(),
        body,
        stored,
    }
}
