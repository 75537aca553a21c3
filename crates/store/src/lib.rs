//! What the data means: buckets and objects as records of the log; index, cache, cleanup.
//!
//! Everything is a record of a log; the index is derived from it and may be deleted. A *shard* is one disk's log with its index
//! and what is in them; a [`Store`] is all of them, each home to its share of the keys.

mod api;
mod cache;
mod index;
mod layout;
mod names;
mod options;
mod record;
mod shard;
mod status;
mod store;

pub use api::{
    Attributes, BucketInfo, BucketSettings, Condition, ListEntry, ListPage, ListQuery, ObjectInfo, PartChoice,
    PartInfo, StoreError, UploadInfo, UploadPage, Written,
};
pub use cache::CacheStatus;
pub use index::{IndexStatus, MemCheckpoint};
pub use names::{Names, named_chunks};
pub use options::{IndexKind, OpenReport, PoolDisk, StoreOptions};
pub use shard::reader::ObjectReader;
pub use shard::writer::ObjectWriter;
pub use status::{DiskState, DiskStatus, StoreStatus};
pub use store::Store;
