//! What is durable, and in which order.
//!
//! The log lays records into extents on a [`steadfast_disk::Disk`], makes many of them durable with one flush,
//! finds them again after a crash, and reclaims the space of those that the layer above no longer needs. It never looks into a
//! record: keys and channels are opaque bytes here. `docs/format.md` draws every byte.

mod api;
pub mod check;
pub mod format;
#[doc(hidden)]
pub mod fuzzing;
mod verify;

pub use api::{
    Applied, Applier, Batch, ChunkMove, Committed, Durability, ExtentUsage, Location, LogError, Lsn, Priority, Record,
};
pub use verify::{FINDINGS_MAX, VerifiedExtents, VerifyReport, verify};
