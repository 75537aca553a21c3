//! The manifest of an export: what was in the snapshot, and where the bodies are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steadfast_store::{BucketInfo, StoredObject};

use super::place::Place;
use super::{MANIFEST, Result, check_name};

/// The version of the format that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// A line of a manifest: an object and its attributes are far below this.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Bytes read of a manifest at a time.
const STEP: u64 = 1 << 20;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first one.
    Export(Header),
    /// A bucket; before its objects.
    Bucket(BucketInfo),
    /// An object.
    Object(Box<ObjectLine>),
    /// The last one.
    End(End),
}

/// What the export is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this format.
    pub version: u32,
    /// Name of the snapshot and of the export.
    pub name: String,
    /// Identity of the snapshot.
    pub snapshot: String,
    /// Identity of the pool.
    pub pool: String,
    /// When the snapshot was made, milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectLine {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Bytes of its body.
    pub size: u64,
    /// SHA-256 of its body, hexadecimal.
    pub sha256: String,
    /// Which write made it: the same in two exports of a pool means the same object.
    pub origin: String,
    /// Where the body is: these pieces, one after another.
    pub body: Vec<Piece>,
    /// Everything else.
    pub stored: StoredObject,
}

/// Bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The export that has the file; this one when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Number of the file.
    pub file: u64,
    /// Bytes before it.
    pub offset: u64,
    /// Bytes of it.
    pub length: u64,
}

/// What there was in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Buckets.
    pub buckets: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Bytes of bodies in files of this export.
    pub own_bytes: u64,
    /// Files of this export.
    pub files: u64,
    /// The exports beside this one whose files it refers to.
    pub needs: BTreeSet<String>,
    /// Objects that were in the snapshot and could not be read: the export lacks them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// SHA-256 of all lines before this one, hexadecimal.
    pub sha256: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Makes the lines of a manifest, and their hash.
#[derive(Default)]
pub struct Lines {
    hash: Sha256,
}

impl Lines {
    /// A line as bytes.
    ///
    /// # Errors
    /// None that is known.
    pub fn encode(&mut self, line: &Line) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(line).map_err(|e| format!("the manifest: {e}"))?;
        bytes.push(b'\n');
        self.hash.update(&bytes);
        Ok(bytes)
    }

    /// The last line.
    ///
    /// # Errors
    /// None that is known.
    pub fn end(mut self, mut end: End) -> Result<Vec<u8>> {
        end.sha256 = hex(&std::mem::take(&mut self.hash).finalize());
        self.encode(&Line::End(end))
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Goes through the manifest of an export.
pub struct Reader {
    place: Place,
    path: String,
    len: u64,
    at: u64,
    buffer: Vec<u8>,
    hash: Sha256,
    /// The last line, when it has been met.
    pub end: Option<End>,
    /// The first line.
    pub header: Header,
}

impl Reader {
    /// Opens it.
    ///
    /// # Errors
    /// When there is no export of that name, or of another format.
    pub async fn open(place: &Place, name: &str) -> Result<Self> {
        check_name(name)?;
        let path = format!("{name}/{MANIFEST}");
        let Some(len) = place.size(&path).await? else {
            let begun = place.size(&format!("{name}/{}", super::UNFINISHED)).await?.is_some();
            return Err(if begun {
                format!("{}: the export {name:?} was not finished; export it again", place.shown())
            } else {
                format!("{}: there is no export {name:?}", place.shown())
            });
        };
        let header =
            Header { version: 0, name: String::new(), snapshot: String::new(), pool: String::new(), created_ms: 0 };
        let (place, buffer, hash) = (place.clone(), Vec::new(), Sha256::new());
        let mut reader = Self { place, path, len, at: 0, buffer, hash, end: None, header };
        match reader.next().await? {
            Some(Line::Export(header)) if header.version == VERSION => reader.header = header,
            Some(Line::Export(header)) => {
                return Err(format!(
                    "{}: format version {}; this build knows {VERSION}: use a newer one",
                    reader.shown(),
                    header.version
                ));
            }
            _ => return Err(format!("{}: it does not begin like a manifest", reader.shown())),
        }
        Ok(reader)
    }

    fn shown(&self) -> String {
        format!("{}/{}", self.place.shown(), self.path)
    }

    /// The next line; `None` at the end, when all of it was as it was written.
    ///
    /// # Errors
    /// When it is damaged or cut short.
    pub async fn next(&mut self) -> Result<Option<Line>> {
        let mut looked = 0;
        let line = loop {
            if let Some(at) = self.buffer[looked..].iter().position(|b| *b == b'\n') {
                break self.buffer.drain(..=looked + at).collect::<Vec<u8>>();
            }
            looked = self.buffer.len();
            if self.at == self.len || looked > LINE_BYTES_MAX {
                return if self.end.is_some() && looked == 0 {
                    Ok(None)
                } else {
                    Err(format!("{}: it is cut short or damaged", self.shown()))
                };
            }
            let len = STEP.min(self.len - self.at);
            let bytes = self.place.read(&self.path, self.at, len).await?;
            self.at += len;
            self.buffer.extend_from_slice(&bytes);
        };
        let damaged = |what: &str| format!("{}: damaged: {what}", self.shown());
        if self.end.is_some() {
            return Err(damaged("lines after the last one"));
        }
        let parsed: Line = serde_json::from_slice(&line).map_err(|e| damaged(&e.to_string()))?;
        if let Line::End(end) = &parsed {
            if end.sha256 != hex(&self.hash.clone().finalize()) {
                return Err(damaged("its hash is another"));
            }
            self.end = Some(end.clone());
        } else {
            self.hash.update(&line);
        }
        Ok(Some(parsed))
    }

    /// The next object; lines of buckets are passed over.
    ///
    /// # Errors
    /// Those of [`Reader::next`].
    pub async fn next_object(&mut self) -> Result<Option<Box<ObjectLine>>> {
        loop {
            match self.next().await? {
                Some(Line::Object(object)) => return Ok(Some(object)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}
