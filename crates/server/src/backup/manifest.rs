//! The manifest of an export: the content of the snapshot, and the places of the bodies.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steadfast_store::{BucketInfo, StoredObject};

use super::place::Place;
use super::{MANIFEST, Result, check_name};

/// The version of the format that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Maximum length of a line; objects with their attributes are far smaller.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a manifest read at a time.
const STEP: u64 = 1 << 20;

/// A line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestLine {
    /// The first line.
    Export(Header),
    /// A bucket; precedes its objects.
    Bucket(BucketInfo),
    /// An object.
    Object(Box<ObjectLine>),
    /// The last line.
    End(End),
}

/// The identity of the export.
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
    /// Creation time of the snapshot, milliseconds since the Unix epoch.
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
    /// The write that created it: two exports of a pool with the same origin hold the same object.
    pub origin: String,
    /// The pieces of the body, in order.
    pub body: Vec<Piece>,
    /// All other attributes.
    pub stored: StoredObject,
}

/// A range of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The export that has the file; this one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Number of the file.
    pub file: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
}

/// Totals of the export.
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
    /// The other exports in the place whose files this one needs.
    pub needs: BTreeSet<String>,
    /// Objects of the snapshot that could not be read and are not in the export.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// SHA-256 of all lines before this one, hexadecimal.
    pub sha256: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Encodes the lines of a manifest and hashes them.
#[derive(Default)]
pub struct Lines {
    hash: Sha256,
}

impl Lines {
    /// A line as bytes.
    ///
    /// # Errors
    /// When the line cannot be encoded.
    pub fn encode(&mut self, line: &ManifestLine) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(line).map_err(|e| format!("the manifest: {e}"))?;
        bytes.push(b'\n');
        self.hash.update(&bytes);
        Ok(bytes)
    }

    /// The last line.
    ///
    /// # Errors
    /// When the line cannot be encoded.
    pub fn end(mut self, mut end: End) -> Result<Vec<u8>> {
        end.sha256 = hex(&std::mem::take(&mut self.hash).finalize());
        self.encode(&ManifestLine::End(end))
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads the manifest of an export, line by line.
pub struct Reader {
    place: Place,
    path: String,
    len: u64,
    at: u64,
    buffer: Vec<u8>,
    hash: Sha256,
    /// The last line, once it was read.
    pub end: Option<End>,
    /// The first line.
    pub header: Header,
}

impl Reader {
    /// Opens the manifest.
    ///
    /// # Errors
    /// When the export does not exist or has another format.
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
            Some(ManifestLine::Export(header)) if header.version == VERSION => reader.header = header,
            Some(ManifestLine::Export(header)) => {
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

    /// The next line; `None` at the end of an undamaged manifest.
    ///
    /// # Errors
    /// When it is damaged or cut short.
    pub async fn next(&mut self) -> Result<Option<ManifestLine>> {
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
        let parsed: ManifestLine = serde_json::from_slice(&line).map_err(|e| damaged(&e.to_string()))?;
        if let ManifestLine::End(end) = &parsed {
            if end.sha256 != hex(&self.hash.clone().finalize()) {
                return Err(damaged("its hash does not match"));
            }
            self.end = Some(end.clone());
        } else {
            self.hash.update(&line);
        }
        Ok(Some(parsed))
    }

    /// The next object; skips lines of buckets.
    ///
    /// # Errors
    /// Those of [`Reader::next`].
    pub async fn next_object(&mut self) -> Result<Option<Box<ObjectLine>>> {
        loop {
            match self.next().await? {
                Some(ManifestLine::Object(object)) => return Ok(Some(object)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}
