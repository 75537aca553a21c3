//! The nouns of the store, as the doors see them. No protocol's types here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steadfast_log::{Durability, LogError, Lsn};

use crate::events::Notifications;

/// Settings of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSettings {
    /// Durability of writes whose request does not say.
    pub durability: Durability,
    /// Who is told of its objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<Notifications>,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// Creation time, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Its settings.
    pub settings: BucketSettings,
}

/// What is stored of an object beside its bytes. The store keeps these strings and gives them back; it does not interpret them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Entity tag, without quotes. Computed by the door.
    pub etag: String,
    /// System headers by lower-case name (`content-type`, `cache-control`, ...).
    pub system: BTreeMap<String, String>,
    /// User metadata by lower-case name, without the protocol's prefix.
    pub user: BTreeMap<String, String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Checksums by algorithm (`crc32`, `crc32c`, `crc64nvme`, `sha1`, `sha256`), in the protocol's text form.
    pub checksums: BTreeMap<String, String>,
    /// Whether the checksums are of the whole object or composed from its parts; empty when there are none.
    pub checksum_type: String,
}

/// A part of an object that was uploaded in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartInfo {
    /// 1 to 10,000.
    pub number: u16,
    /// Bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag and checksums of the part.
    pub attributes: Attributes,
}

/// An object without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// The LSN of the commit that made it.
    pub version: Lsn,
    /// The rest.
    pub attributes: Attributes,
    /// How many parts it was uploaded in; 0 when in one piece.
    pub part_count: u16,
}

/// All of an object but its key, its bytes and its version: with the bytes it makes the same object elsewhere. What
/// [`ObjectReader::stored`](crate::ObjectReader::stored) gives and [`ObjectWriter::commit_stored`](crate::ObjectWriter::commit_stored) takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag, metadata, tags and checksums.
    pub attributes: Attributes,
    /// The parts that it was uploaded in, in order; none when in one piece. Their sizes add up to the object's.
    pub parts: Vec<PartInfo>,
    /// The upload that it was completed from, as 32 hexadecimal digits: completing that again gives the same answer. `None` when it
    /// came in one piece, or where nobody needs to know.
    pub upload_id: Option<String>,
}

/// What must hold for a write to take place; decided atomically against committed and pending state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// No object with that key (`If-None-Match: *`).
    Absent,
    /// An object with this entity tag (`If-Match`); `*` for any.
    Matches(String),
}

/// What a write got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The LSN of the commit.
    pub version: Lsn,
    /// Whether it was flushed before the answer.
    pub durable: bool,
    /// Time of the commit, milliseconds since the Unix epoch.
    pub modified_ms: u64,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Only keys that start with this.
    pub prefix: String,
    /// Keys that go on past the prefix with this in them are rolled up to it. Empty: none.
    pub delimiter: String,
    /// Only keys after this one. A rolled-up prefix is after its own text.
    pub start_after: String,
    /// How many keys and rolled-up prefixes at most.
    pub limit: usize,
}

/// What a listing holds for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was stored, milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Entity tag, without quotes.
    pub etag: String,
    /// The algorithms of its checksums.
    pub checksum_algorithms: Vec<String>,
    /// Whether the checksums are of the whole object or composed from its parts.
    pub checksum_type: String,
}

/// A page of a listing, in key order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects.
    pub objects: Vec<ListEntry>,
    /// Rolled-up prefixes, each ending with the delimiter.
    pub prefixes: Vec<String>,
    /// Where to go on (`start_after` of the next page); `None` at the end.
    pub next: Option<String>,
}

/// An upload in parts that is going on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadInfo {
    /// The key that it will become.
    pub key: String,
    /// Its identity.
    pub upload_id: String,
    /// When it began, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// What the object will get. The entity tag is empty.
    pub attributes: Attributes,
    /// What must hold of the object when the upload is completed.
    #[serde(default)]
    pub condition: Condition,
}

/// A page of the uploads that are going on, by key and then by identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// Uploads.
    pub uploads: Vec<UploadInfo>,
    /// Rolled-up prefixes, each ending with the delimiter.
    pub prefixes: Vec<String>,
    /// Where to go on (`after` of the next page): a key and an upload of it, or a rolled-up prefix and nothing. `None` at the end.
    pub next: Option<(String, String)>,
}

/// A part named by the client when it completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartChoice {
    /// 1 to 10,000.
    pub number: u16,
    /// The entity tag that the client got for it.
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
    /// A part other than the last is below the smallest size.
    #[error("part {0} is too small")]
    PartTooSmall(u16),
    /// The condition of the write does not hold.
    #[error("the condition does not hold")]
    ConditionFailed,
    /// No such snapshot.
    #[error("no such snapshot")]
    NoSuchSnapshot,
    /// There is a snapshot of that name.
    #[error("there is a snapshot of that name")]
    SnapshotExists,
    /// The snapshot cannot be made or read; why, and what to do.
    #[error("{0}")]
    Snapshot(String),
    /// Beyond a limit.
    #[error("{0}")]
    TooLarge(String),
    /// At a bound for longer than the caller may wait: slow down.
    #[error("at the bound of {0}")]
    Busy(&'static str),
    /// The disk has not answered for as long as a write may wait. What was submitted may yet be committed, when it does.
    #[error("the disk does not answer")]
    Hangs,
    /// The log refused or failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The disk that this is on does not take part now, or takes no writes; which, and why.
    #[error("{0}")]
    Unavailable(String),
    /// Damage has taken records that had been acknowledged, and nothing else says what they were: what was asked for may be among them.
    #[error("damage: records of the pool are missing; {0}")]
    Doubtful(&'static str),
    /// The index cannot be read or written.
    #[error("index: {0}")]
    Index(String),
}
