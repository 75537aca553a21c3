//! The nouns of the store, as protocol front ends use them. They contain no protocol types.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use steadfast_log::{LogError, Lsn};

use crate::settings::BucketSettings;

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Name.
    pub name: String,
    /// Creation time, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Settings.
    pub settings: BucketSettings,
}

/// Metadata of an object. The store keeps these strings as given and does not interpret them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Entity tag, without quotes. The front end computes it.
    pub etag: String,
    /// System headers by lower-case name (`content-type`, `cache-control`, ...).
    pub system: BTreeMap<String, String>,
    /// User metadata by lower-case name, without the protocol's prefix.
    pub user: BTreeMap<String, String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Checksums by algorithm (`crc32`, `crc32c`, `crc64nvme`, `sha1`, `sha256`), in the protocol's
    /// text form.
    pub checksums: BTreeMap<String, String>,
    /// Whether the checksums cover the whole object or are composed from its parts; empty without
    /// any.
    pub checksum_type: String,
}

/// Name in [`Attributes::system`] that marks the entity tag as weak, as some origins send it. Only
/// objects fetched from an origin have it.
pub const WEAK_ETAG: &str = "steadfast-weak-etag";
/// Name in [`Attributes::system`] of every object that the edge fetched from an origin. The edge
/// may delete such an object. It never deletes what a client wrote.
pub const CACHED: &str = "steadfast-cached";
/// Prefix of the names in [`Attributes::system`] that the server keeps for itself.
const OWN_PREFIX: &str = "steadfast-";
/// Name in [`Attributes::system`] of the object's access control list, in the front end's form.
const ACL: &str = "steadfast-acl";
/// Name in [`Attributes::system`] of the client that began an upload. No object has it.
const INITIATOR: &str = "steadfast-initiator";

impl Attributes {
    /// Removes the marks of the edge: a client has written the object, so the edge must keep it.
    pub fn forget_origin(&mut self) {
        self.system.retain(|name, _| name == ACL || !name.starts_with(OWN_PREFIX));
    }

    /// The client that began an upload, in the front end's form.
    pub fn initiator(&self) -> Option<&str> {
        self.system.get(INITIATOR).map(String::as_str)
    }

    /// Sets the client that began an upload.
    pub fn set_initiator(&mut self, initiator: Option<String>) {
        match initiator {
            Some(initiator) => _ = self.system.insert(INITIATOR.to_owned(), initiator),
            None => _ = self.system.remove(INITIATOR),
        }
    }

    /// The access control list, in the front end's form; `None`: the front end's default.
    pub fn acl(&self) -> Option<&str> {
        self.system.get(ACL).map(String::as_str)
    }

    /// Sets the access control list.
    pub fn set_acl(&mut self, acl: Option<String>) {
        match acl {
            Some(acl) => _ = self.system.insert(ACL.to_owned(), acl),
            None => _ = self.system.remove(ACL),
        }
    }
}

/// A part of an object that was uploaded in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartInfo {
    /// Part number, 1 to 10,000.
    pub number: u16,
    /// Size in bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag and checksums of the part.
    pub attributes: Attributes,
}

/// An object without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// LSN of the commit that created it.
    pub version: Lsn,
    /// Metadata.
    pub attributes: Attributes,
    /// Number of parts it was uploaded in; 0 for a single-part upload.
    pub part_count: u16,
}

/// An object's stored state without its key, bytes and version. With the bytes it recreates the
/// same object elsewhere.
///
/// [`ObjectReader::stored`](crate::ObjectReader::stored) returns it and
/// [`ObjectWriter::commit_stored`](crate::ObjectWriter::commit_stored) takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag, metadata, tags and checksums.
    pub attributes: Attributes,
    /// Parts it was uploaded in, in order; empty for one piece. Their sizes add up to the object's.
    pub parts: Vec<PartInfo>,
    /// The upload it was completed from, as 32 hexadecimal digits: completing that upload again
    /// returns the same answer. `None` for an object in one piece, or where completion need not be
    /// repeatable.
    pub upload_id: Option<String>,
}

/// Precondition of a write, decided atomically against committed and pending state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// No precondition.
    #[default]
    None,
    /// No object with that key (`If-None-Match: *`).
    Absent,
    /// An object with this entity tag (`If-Match`); `*` for any.
    Matches(String),
}

/// Precondition for storing an answer of an origin, decided atomically with the commit.
#[derive(Debug, Clone)]
pub struct FillCondition {
    /// The version that the key had when the origin was asked; `None` for no object.
    pub version: Option<Lsn>,
    /// Whether the answer may still be stored. A purge clears it before its own change.
    pub attached: Arc<AtomicBool>,
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The LSN of the commit.
    pub version: Lsn,
    /// Whether the commit was flushed before the answer.
    pub durable: bool,
    /// Time of the commit, milliseconds since the Unix epoch.
    pub modified_ms: u64,
}

/// Parameters of a listing.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Prefix of the listed keys.
    pub prefix: String,
    /// Delimiter: keys that contain it after the prefix are rolled up to it. Empty: no roll-up.
    pub delimiter: String,
    /// Lower bound, exclusive. A rolled-up prefix sorts at its own text.
    pub start_after: String,
    /// Maximum number of keys and rolled-up prefixes.
    pub limit: usize,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// Key.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag, without quotes.
    pub etag: String,
    /// The algorithms of its checksums.
    pub checksum_algorithms: Vec<String>,
    /// Whether the checksums cover the whole object or are composed from its parts.
    pub checksum_type: String,
}

/// A page of a listing, in key order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects.
    pub objects: Vec<ListEntry>,
    /// Rolled-up prefixes, each ending with the delimiter.
    pub prefixes: Vec<String>,
    /// `start_after` of the next page; `None` at the end.
    pub next: Option<String>,
}

/// An unfinished multipart upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadInfo {
    /// The key that it will become.
    pub key: String,
    /// Its identity.
    pub upload_id: String,
    /// When it began, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Metadata of the future object. The entity tag is empty.
    pub attributes: Attributes,
    /// Precondition, decided when the upload is completed.
    #[serde(default)]
    pub condition: Condition,
}

/// A page of unfinished multipart uploads, by key and then by upload ID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// Uploads.
    pub uploads: Vec<UploadInfo>,
    /// Rolled-up prefixes, each ending with the delimiter.
    pub prefixes: Vec<String>,
    /// `after` of the next page: a key and an upload of it, or a rolled-up prefix and an empty
    /// string. `None` at the end.
    pub next: Option<(String, String)>,
}

/// A part named by the client when it completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartChoice {
    /// Part number, 1 to 10,000.
    pub number: u16,
    /// Entity tag that the client received for it.
    pub etag: String,
}

/// Why the store refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No such bucket.
    #[error("no such bucket")]
    NoSuchBucket,
    /// The bucket exists already.
    #[error("the bucket exists")]
    BucketExists,
    /// The bucket holds objects or uploads.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// No such object.
    #[error("no such object")]
    NoSuchKey,
    /// No such upload.
    #[error("no such upload")]
    NoSuchUpload,
    /// A part named in a completion does not exist or has another entity tag.
    #[error("part {0} was not found, or its entity tag does not match")]
    InvalidPart(u16),
    /// The parts of a completion are not in ascending order.
    #[error("parts are not in ascending order")]
    InvalidPartOrder,
    /// A part other than the last is below the minimum size.
    #[error("part {0} is too small")]
    PartTooSmall(u16),
    /// The condition of the write does not hold.
    #[error("the precondition failed")]
    ConditionFailed,
    /// A limit is exceeded.
    #[error("{0}")]
    TooLarge(String),
    /// A budget stayed exhausted for longer than the caller may wait; the caller must slow down.
    #[error("at the bound of {0}")]
    Busy(&'static str),
    /// The disk, or an archive that must have the change, has not answered for as long as a write
    /// may wait. A submitted change may still be committed when it answers.
    #[error("the disk, or the archive that must have each write, does not answer")]
    Hangs,
    /// The log refused or failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The disk is missing or read-only; the text names it and gives the reason.
    #[error("{0}")]
    Unavailable(String),
    /// Damage took acknowledged records, and no other source says which. The requested entity may
    /// be among them.
    #[error("damage: records of the pool are missing: {0}")]
    Doubtful(&'static str),
    /// The pool has something that only a later build knows; the text names it.
    #[error("{0}")]
    Unsupported(String),
    /// The index cannot be read or written.
    #[error("index: {0}")]
    Index(String),
}
