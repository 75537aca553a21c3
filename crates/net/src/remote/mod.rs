//! Stores of objects elsewhere: a bucket of any S3 endpoint, or a directory.
//!
//! A caller may create an object that does not exist, replace one whose entity tag it knows, read,
//! list and delete. Each call is one attempt: a write without a clear answer may have happened, and
//! only the caller knows what to do then.

mod adapter;
mod directory;
mod memory;
mod name;
mod probe;
mod rules;
mod s3;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use steadfast_flow::BoxFuture;

pub use directory::DirectoryStore;
pub use memory::{Fate, Fates, MemoryStore, RemoteCall};
pub use name::{RemotePlace, S3Place};
pub use probe::{ProbeFinding, ProbeVerdict, probe};
pub use s3::S3Store;

/// Most names of a page of a listing, and most names deleted at a time.
pub const REMOTE_PAGE: usize = 1000;

/// The entity tag of an object, as the store gave it. Equal bytes may have equal tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityTag(pub String);

/// What was read of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteObject {
    /// The requested bytes.
    pub body: Bytes,
    /// The entity tag; a directory gives none for a part of a file.
    pub tag: Option<EntityTag>,
    /// Bytes of the whole object.
    pub size: u64,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEntry {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// When it was written, in milliseconds since the Unix epoch, by the clock of the store.
    pub modified_ms: u64,
}

/// Why a call to a store did not succeed. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The object to be created exists.
    #[error("it exists already")]
    Exists,
    /// The object to be replaced has another entity tag, or does not exist.
    #[error("it has changed")]
    Changed,
    /// There is no such object.
    #[error("it does not exist")]
    Missing,
    /// There was no clear answer: a write may have happened, or may still happen.
    #[error("no clear answer: {0}")]
    Unknown(String),
    /// The store asks for fewer requests. Nothing happened.
    #[error("the store asks for fewer requests: {0}")]
    Slow(String),
    /// The store refuses the request, and will refuse it again. Nothing happened.
    #[error("refused: {0}")]
    Refused(String),
}

/// A result of a store.
pub type RemoteResult<T> = Result<T, RemoteError>;

/// A store of objects elsewhere. Names are parts separated by `/`, of ASCII letters, digits and
/// `-`, `_`, `.`, `~`.
pub trait RemoteStore: Send + Sync + fmt::Debug {
    /// Creates an object that does not exist, of bytes in pieces. Durable when it returns.
    ///
    /// # Errors
    /// [`RemoteError::Exists`], [`RemoteError::Unknown`], [`RemoteError::Slow`],
    /// [`RemoteError::Refused`].
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>>;

    /// Replaces an object that has this entity tag. Durable when it returns.
    ///
    /// # Errors
    /// [`RemoteError::Changed`], and those of [`RemoteStore::create`] but the first.
    fn replace<'a>(&'a self, name: &'a str, body: Bytes, over: &'a EntityTag)
    -> BoxFuture<'a, RemoteResult<EntityTag>>;

    /// Reads an object, or a range of its bytes; at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`RemoteError::Missing`], [`RemoteError::Unknown`], [`RemoteError::Slow`],
    /// [`RemoteError::Refused`], also when it is larger.
    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>>;

    /// The objects whose names begin with the parts `under` (all if it is empty) and are greater
    /// than `after`, in order: at most [`REMOTE_PAGE`]. None at the end. The listing may lag, and
    /// may have names that others gave.
    ///
    /// # Errors
    /// [`RemoteError::Unknown`], [`RemoteError::Slow`], [`RemoteError::Refused`].
    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>>;

    /// Deletes at most [`REMOTE_PAGE`] objects; those that do not exist are no error.
    ///
    /// # Errors
    /// [`RemoteError::Unknown`], [`RemoteError::Slow`], [`RemoteError::Refused`]; some may have
    /// been deleted.
    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>>;

    /// What it is, for operators, without secrets.
    fn describe(&self) -> String;
}
