//! The media edge: buckets whose objects come from an origin far away.
//!
//! What is asked for is fetched once, stored whole, and served from the local disks. [`Edge`] finds
//! an object: stored, as a `fill` that fetches it, or `passed` through. `entries` keeps one fill a
//! key, `origin` asks the origin, `site` holds what the fills of a bucket share, and `sweep`
//! removes what fills left behind.

mod edge;
mod entries;
mod error;
mod fill;
mod options;
mod origin;
mod passed;
mod site;
mod sweep;

pub use edge::{Edge, Fetched};
pub use error::EdgeError;
pub use fill::FillReader;
pub use options::{EdgeBounds, EdgeBucket, FillMode, OriginAddress};
pub use origin::{Origin, OriginAnswer, OriginBody, OriginRequest};
pub use passed::{PassedObject, Wanted};
