//! What the data means: buckets and objects as records of the log; index, cache, cleanup.
//!
//! Everything is a record of the log; the index is derived from it and may be deleted. A [`Store`] is the whole of it.

mod accounts;
mod api;
mod apply;
mod buckets;
mod cache;
mod checkpoint;
mod complete;
mod core;
mod index;
mod list;
mod names;
mod objects;
mod options;
mod owners;
mod pending;
mod reader;
mod record;
mod status;
mod store;
mod uploads;
mod writer;

pub use api::{
    Attributes, BucketInfo, BucketSettings, Condition, ListEntry, ListPage, ListQuery, ObjectInfo, PartChoice,
    PartInfo, StoreError, UploadInfo, UploadPage, Written,
};
pub use cache::CacheStatus;
pub use index::{IndexStatus, MemCheckpoint};
pub use names::{Names, named_chunks};
pub use options::{IndexKind, OpenReport, StoreOptions};
pub use reader::ObjectReader;
pub use status::StoreStatus;
pub use store::Store;
pub use writer::ObjectWriter;
