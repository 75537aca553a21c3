//! The log: durability and order of records.
//!
//! The log writes records into extents on a [`steadfast_disk::Disk`] and makes many of them durable
//! with one flush. It finds them again after a crash, and reclaims the space of records that the
//! layer above no longer needs. It never interprets a record: keys and channels are opaque bytes
//! here. `docs/format.md` draws every byte.

mod api;
mod applier;
mod apply;
mod background;
mod bodies;
mod body;
pub mod check;
mod commit;
mod committer;
mod compact;
mod copies;
mod durable;
mod extents;
mod fence;
pub mod format;
mod frame;
// The entries of the fuzz targets, in builds for fuzzing and tests only.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;
mod gather;
mod guard;
mod heal;
mod heal_queue;
mod history;
mod hold;
mod io;
mod latch;
mod log;
mod moved;
mod opener;
mod options;
mod past_records;
mod peek;
mod pins;
mod placement;
mod pool;
mod prefill;
mod progress;
mod ranges;
mod read;
mod recover;
mod reserve;
mod roster;
mod scan;
mod scrub;
mod scrub_open;
mod scrub_state;
mod scrub_when;
mod seal;
mod shared;
mod status;
mod table;
mod trailer;
mod usage;
mod use_reader;
mod verify;

pub use api::{
    Applied, Batch, ChunkMove, Committed, Durability, ExtentUsage, Location, LogError, Priority, Record, Subject,
};
pub use applier::Applier;
pub use bodies::ChunkBuf;
pub use body::PendingChunk;
pub use commit::Ticket;
pub use compact::ChunkOwners;
pub use durable::{ExtentCut, LogCut, UseCut};
pub use format::Lsn;
pub use history::History;
pub use hold::Hold;
pub use latch::LogState;
pub use log::{Limits, Log};
pub use options::{CompactionOptions, DayWindow, FormatOptions, LogOptions, Sabotage, ScrubOptions};
pub use past_records::{PastRecords, RecyclingStopped};
pub use peek::{PeekedRecord, peek};
pub use pins::ExtentPin;
pub use pool::{PoolInfo, pool_on};
pub use ranges::Ranges;
pub use read::RecordFront;
pub use recover::{Cut, DamageFound, Doubt, HEALED_MAX, LostExtent, RecoveryReport};
pub use reserve::Reservation;
pub use scrub_state::ScrubRequest;
pub use status::{
    CompactionStatus, ExtentCounts, HealStatus, LogStatus, SCRUB_DAMAGE_MAX, ScrubStatus, StuckExtent, ZonesStatus,
};
pub use usage::Usage;
pub use use_reader::{UsePart, UseReader};
pub use verify::{FINDINGS_MAX, VerifiedExtents, VerifyReport, verify, verify_named};

#[cfg(test)]
mod tests;
