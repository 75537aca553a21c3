//! The media edge: buckets whose objects come from an origin far away.
//!
//! What is asked for is fetched once, stored whole, and served from the local disks. [`Edge`] finds
//! an object: stored, as a `fill` that fetches it, or `passed` through. `entries` keeps one fill a
//! key, `origin` asks the origin, and `bucket_state` holds what the fills of a bucket share.
//! `space` bounds what is stored, `evict` deletes what was not used for long, and `sweep` removes
//! what fills left behind.

mod bucket_state;
mod counters;
mod edge;
mod entries;
mod error;
mod evict;
mod fill;
mod fresh;
mod options;
mod origin;
mod passed;
mod prefetch;
mod purge;
mod sabotage;
mod space;
mod status;
mod sweep;

pub use counters::Handling;
pub use edge::{Edge, EdgeAnswer, Fetched};
pub use error::EdgeError;
pub use fill::FillReader;
pub use options::{EdgeBounds, EdgeBucket, FillMode, Fresh, OriginAddress, Retention};
pub use origin::{ListedObject, Origin, OriginAnswer, OriginBody, OriginPage, OriginRequest};
pub use passed::{HeadObject, PassedObject, Wanted};
pub use prefetch::Prefetched;
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use status::{EdgeBucketStatus, EdgeStatus};
