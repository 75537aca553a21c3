//! Exports a snapshot: reads, hashes and writes its bodies one after another, then finishes the
//! manifest.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use steadfast_flow::{Env, Pace};
use steadfast_log::LogError;
use steadfast_store::{BucketInfo, ObjectReader, Snapshot, SnapshotObject, Store, StoreError, StoredObject};

use super::bodies::Bodies;
use super::manifest::{End, Header, Lines, ManifestLine, ObjectLine, Piece, Reader, VERSION, hex};
use super::place::{Place, Writer};
use super::read_ahead::ReadAhead;
use super::{MANIFEST, Result, UNFINISHED, check_name, data_file};

/// Maximum size of a file of bodies, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Objects looked up at a time; an object of many parts may take a MiB.
const PAGE: usize = 64;
/// Small bodies read at a time.
const READS: usize = 8;
/// Maximum size of a small body, in bytes. Larger ones are read one after another, a few pieces
/// ahead.
const SMALL: u64 = 256 << 10;
/// Maximum bytes hashed in place; more are hashed off the threads that serve requests.
const HASH_HERE: usize = 64 << 10;

/// Options of an export.
pub struct Export {
    /// The snapshot.
    pub name: String,
    /// An older export in the same place; unchanged bodies are not written again.
    pub since: Option<String>,
    /// A temporary directory for the index of this export.
    pub scratch: PathBuf,
    /// Maximum bytes read a second; 0: no limit.
    pub bytes_s: u64,
    /// Maximum size of a file of bodies, in bytes.
    pub file_bytes_max: u64,
}

/// The body of an object.
enum Body {
    /// Stored in an older export.
    Known(Box<ObjectLine>),
    Small(Vec<u8>, Box<StoredObject>),
    Large(Box<ObjectReader>),
    /// Why it cannot be read.
    Unreadable(String),
}

/// An older export, read in step with the snapshot: both are in the order of buckets and keys.
struct Older {
    name: String,
    reader: Reader,
    next: Option<Box<ObjectLine>>,
}

impl Older {
    async fn open(place: &Place, name: &str, pool: &str) -> Result<Self> {
        let mut reader = Reader::open(place, name).await?;
        if reader.header.pool != pool {
            return Err(format!("the export {name:?} is of another pool and cannot be used; export without --since"));
        }
        let next = reader.next_object().await?;
        Ok(Self { name: name.to_owned(), reader, next })
    }

    /// The line of the same object in the older export, if it has one.
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

/// Maps a read error to the reason why an object is unreadable; a closed log ends the export.
fn unreadable(e: StoreError) -> Result<String> {
    match e {
        StoreError::Log(LogError::Closed) => Err("the server is stopping; nothing was exported".to_owned()),
        e => Ok(e.to_string()),
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
        Err(e) => return unreadable(e).map(Body::Unreadable),
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
            Err(e) => return unreadable(e).map(Body::Unreadable),
        }
    }
    Ok(Body::Small(bytes, Box::new(stored)))
}

/// Exports a snapshot. `report` gets the progress; the result lists what was written.
///
/// # Errors
/// The reason and what to do. The partial export stays in the place with a mark; another export
/// under the same name replaces it.
pub async fn run(
    store: &Store,
    env: &Env,
    place: &Place,
    export: &Export,
    report: impl Fn(Value) + Sync,
) -> Result<Value> {
    let begun = env.now();
    let name = &export.name;
    check_unused(place, name).await?;
    let progress = |part: f64| report(json!({"phase": "index", "part": part}));
    let opened = store.snapshots().open(name, Some(export.scratch.clone()), export.bytes_s, progress).await;
    let snapshot = Arc::new(opened.map_err(|e| format!("snapshot {name:?}: {e}"))?);
    let older = match &export.since {
        Some(since) if since == name => return Err("--since names the snapshot itself".to_owned()),
        Some(since) => Some(Older::open(place, since, &snapshot.pool()).await?),
        None => None,
    };
    let mark = json!({"snapshot": snapshot.info().id, "pool": snapshot.pool()}).to_string();
    place.put(&format!("{name}/{UNFINISHED}"), mark.as_bytes()).await?;

    let pace = Pace::new(export.bytes_s, Duration::from_millis(250), env.clone());
    let mut exporter = Exporter::begin(env, place, export, &snapshot, &pace, older).await?;
    for bucket in snapshot.buckets() {
        exporter.write_bucket(bucket, &report).await?;
    }
    let mut summary = exporter.finish().await?;
    summary["took_ms"] = json!(u64::try_from(env.now().saturating_sub(begun).as_millis()).unwrap_or(u64::MAX));
    Ok(summary)
}

/// Checks that the place has no complete export of this name, and no foreign files in its folder.
async fn check_unused(place: &Place, name: &str) -> Result<()> {
    check_name(name)?;
    if place.size(&format!("{name}/{MANIFEST}")).await?.is_some() {
        return Err(format!(
            "{}: there is an export {name:?} already; delete it or export to another place",
            place.shown()
        ));
    }
    place.refuse_foreign(name).await
}

/// An export that is being written: its manifest, its bodies and its totals.
struct Exporter<'a> {
    env: &'a Env,
    place: &'a Place,
    name: &'a str,
    snapshot: &'a Arc<Snapshot>,
    pace: &'a Pace,
    older: Option<Older>,
    lines: Lines,
    manifest: Writer,
    bodies: Bodies,
    end: End,
    missing: Missing,
    /// Objects whose bodies are in an older export.
    known_objects: u64,
}

impl<'a> Exporter<'a> {
    /// Begins the manifest with the identity of the export, and notes what the snapshot has lost.
    async fn begin(
        env: &'a Env,
        place: &'a Place,
        export: &'a Export,
        snapshot: &'a Arc<Snapshot>,
        pace: &'a Pace,
        older: Option<Older>,
    ) -> Result<Self> {
        let name = &export.name;
        let manifest = place.create(&format!("{name}/{MANIFEST}")).await?;
        let bodies = Bodies::new(place, name, export.file_bytes_max);
        let mut exporter = Self {
            env,
            place,
            name,
            snapshot,
            pace,
            older,
            lines: Lines::default(),
            manifest,
            bodies,
            end: End::default(),
            missing: Missing::default(),
            known_objects: 0,
        };
        let header = Header {
            version: VERSION,
            name: name.clone(),
            snapshot: snapshot.info().id.clone(),
            pool: snapshot.pool(),
            created_ms: snapshot.info().created_ms,
        };
        exporter.write_line(&ManifestLine::Export(header)).await?;
        exporter.missing.faults = snapshot.faults().iter().map(ToString::to_string).collect();
        for bucket in snapshot.missing_buckets() {
            exporter.missing.put(&bucket, "", "the whole bucket: its record is damaged");
        }
        Ok(exporter)
    }

    /// Writes a line of the manifest.
    async fn write_line(&mut self, line: &ManifestLine) -> Result<()> {
        let line = self.lines.encode(line)?;
        self.manifest.write(&line).await
    }

    /// Writes a bucket: its line, then its objects in the order of their keys.
    async fn write_bucket(&mut self, bucket: BucketInfo, report: &(impl Fn(Value) + Sync)) -> Result<()> {
        let of = bucket.name.clone();
        self.write_line(&ManifestLine::Bucket(bucket)).await?;
        self.end.buckets += 1;
        let mut gone = BTreeSet::new();
        let compared = self.snapshot.missing(&of, |keys| gone.extend(keys)).await;
        compared.map_err(|e| format!("bucket {of}: {e}"))?;
        for key in &gone {
            self.missing.put(&of, key, "its record is damaged");
        }
        let mut after = None;
        loop {
            let page = self.snapshot.next_page(&of, after.take(), PAGE).await;
            let page = page.map_err(|e| format!("bucket {of}: {e}"))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.info.key.clone());
            // The snapshot holds older versions of these objects.
            let page: Vec<SnapshotObject> = page.into_iter().filter(|o| !gone.contains(&o.info.key)).collect();
            self.write_page(&of, &page).await?;
            let (objects, bytes) = (self.end.objects, self.end.bytes);
            let part = objects as f64 / self.snapshot.info().objects.max(objects).max(1) as f64;
            report(json!({"phase": "bodies", "part": part, "objects": objects, "bytes": bytes}));
        }
    }

    /// Writes the objects of a page. Their bodies are read ahead, unless an older export has them.
    async fn write_page(&mut self, bucket: &str, page: &[SnapshotObject]) -> Result<()> {
        let mut known = Vec::with_capacity(page.len());
        for object in page {
            known.push(match &mut self.older {
                Some(older) => older.same(bucket, object).await?,
                None => None,
            });
        }
        let (snapshot, pace) = (self.snapshot, self.pace);
        let mut left = page.iter().zip(known);
        let mut ahead = ReadAhead::default();
        for object in page {
            while ahead.len() < READS
                && let Some((object, known)) = left.next()
            {
                ahead.begin(body_of(snapshot, bucket, object, known, pace));
            }
            let body = ahead.next().await.expect("a read for each object")?;
            ahead.during(self.write_object(bucket, object, body)).await?;
        }
        Ok(())
    }

    /// Writes an object: its body, unless an older export has it, and its line. An unreadable
    /// object is noted as missing.
    async fn write_object(&mut self, bucket: &str, object: &SnapshotObject, body: Body) -> Result<()> {
        let line = match body {
            Body::Unreadable(why) => {
                self.missing.put(bucket, &object.info.key, &why);
                return Ok(());
            }
            Body::Known(line) => {
                self.known_objects += 1;
                self.end.needs.extend(line.body.iter().filter_map(|piece| piece.export.clone()));
                *line
            }
            Body::Small(bytes, stored) => {
                let bytes = Bytes::from(bytes);
                let hash = hashed(self.env, Sha256::new(), &bytes).await?;
                let mut pieces = Vec::new();
                self.bodies.write(&bytes, &mut pieces).await?;
                line_of(bucket, object, hash, pieces, *stored)
            }
            Body::Large(reader) => {
                let stored = reader.stored();
                let Some((hash, pieces)) = self.write_large(bucket, object, *reader).await? else { return Ok(()) };
                line_of(bucket, object, hash, pieces, stored)
            }
        };
        if line.body.iter().map(|piece| piece.length).sum::<u64>() != line.size {
            return Err(format!(
                "object {bucket}/{}: its body has another length than recorded",
                line.key.escape_debug()
            ));
        }
        self.end.objects += 1;
        self.end.bytes += line.size;
        self.write_line(&ManifestLine::Object(Box::new(line))).await
    }

    /// Writes a large body and returns its hash and its places; `None` if it cannot be read, which
    /// is noted.
    async fn write_large(
        &mut self,
        bucket: &str,
        object: &SnapshotObject,
        reader: ObjectReader,
    ) -> Result<Option<(Sha256, Vec<Piece>)>> {
        let (mut hash, mut pieces) = (Sha256::new(), Vec::new());
        let mut read = std::pin::pin!(reader.stream(0..u64::MAX));
        while let Some(bytes) = read.next().await {
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(e) => {
                    // The bytes written so far stay in their file; no line refers to them.
                    self.missing.put(bucket, &object.info.key, &unreadable(e)?);
                    return Ok(None);
                }
            };
            self.pace.spend(bytes.len() as u64).await;
            hash = hashed(self.env, hash, &bytes).await?;
            self.bodies.write(&bytes, &mut pieces).await?;
        }
        Ok(Some((hash, pieces)))
    }

    /// Completes the bodies and the manifest, and returns the summary.
    async fn finish(mut self) -> Result<Value> {
        self.bodies.finish().await?;
        (self.end.own_bytes, self.end.files) = (self.bodies.bytes, self.bodies.number);
        // Files that an earlier attempt left behind.
        let mut stale = self.bodies.number + 1;
        while self.place.remove(&format!("{}/{}", self.name, data_file(stale))).await? {
            stale += 1;
        }
        self.end.missing = self.missing.total;
        let (end, missing) = (&self.end, &self.missing);
        let summary = json!({
            "missing": missing.list, "missing_total": missing.total, "faults": missing.faults,
            "name": self.name, "to": self.place.shown(), "buckets": end.buckets, "objects": end.objects,
            "bytes": end.bytes, "written_bytes": end.own_bytes, "files": end.files,
            "known_objects": self.known_objects, "needs": end.needs,
        });
        let last = self.lines.end(self.end)?;
        self.manifest.write(&last).await?;
        self.manifest.finish().await?;
        self.place.remove(&format!("{}/{UNFINISHED}", self.name)).await?;
        Ok(summary)
    }
}

/// Maximum number of missing objects named in the answer; more are only counted.
pub const MISSING_MAX: usize = 1000;

/// Objects that could not be read or restored.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// The first ones, with the reason.
    pub(super) list: Vec<Value>,
    pub(super) total: u64,
    /// Read errors of the log.
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
