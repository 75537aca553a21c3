//! What the data means: buckets and objects as records of the log; index, cache, cleanup.

mod api;

pub use api::{
    Attributes, BucketInfo, BucketSettings, Condition, ListEntry, ListPage, ListQuery, ObjectInfo, PartChoice,
    PartInfo, StoreError, UploadInfo, Written,
};
