//! What is durable, and in which order.
//!
//! The log lays records into extents on a [`steadfast_disk::Disk`], makes many of them durable with one flush,
//! finds them again after a crash, and reclaims the space of those that the layer above no longer needs. It never looks into a
//! record: keys and channels are opaque bytes here. `docs/format.md` draws every byte.

mod api;
mod apply;
mod background;
mod body;
pub mod check;
mod commit;
mod committer;
mod compact;
mod copies;
mod extents;
mod fence;
pub mod format;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod guard;
mod history;
mod hold;
mod io;
mod latch;
mod log;
mod mend;
mod options;
mod peek;
mod placement;
mod pool;
mod prefill;
mod read;
mod recover;
mod reserve;
mod roster;
mod scan;
mod scrub;
mod scrub_open;
mod scrub_when;
mod seal;
mod status;
mod table;
mod trailer;
mod verify;

pub use api::{
    Applied, Applier, Batch, ChunkMove, Committed, Durability, ExtentUsage, Location, LogError, Lsn, Priority, Record,
    Subject,
};
pub use body::ChunkBuf;
pub use commit::Ticket;
pub use compact::{CompactionOptions, CompactionStatus, StuckExtent};
pub use copies::HealStatus;
pub use extents::ExtentPin;
pub use history::History;
pub use hold::{HeldRecords, Hold, HoldPin, Holding};
pub use latch::LogState;
pub use log::{Limits, Log};
pub use options::{FormatOptions, LogOptions, Sabotage};
pub use peek::peek;
pub use pool::{PoolInfo, pool_on};
pub use recover::{Cut, DamageFound, Doubt, HEALED_MAX, LostExtent, RecoveryReport};
pub use reserve::Reservation;
pub use scrub::{SCRUB_DAMAGE_MAX, ScrubOptions, ScrubStatus};
pub use scrub_when::{DayWindow, ScrubWish};
pub use status::{ExtentCounts, LogStatus, ZonesStatus};
pub use verify::{FINDINGS_MAX, VerifiedExtents, VerifyReport, verify, verify_named};

#[cfg(test)]
mod tests;
