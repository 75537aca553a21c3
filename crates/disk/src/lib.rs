//! Bytes on devices.
//!
//! A [`Disk`] is a linear address space that is read, written and flushed with direct I/O. A regular file and a
//! block device behave the same. Disks compose: a stripe, a super-disk, a zoned wrapper and the faulty and slow
//! disks of the tests are disks over disks. This layer knows nothing of records.

mod api;
mod buffer;
mod claim;
mod faulty;
mod file;
mod grow;
mod intent;
mod label;
mod latency;
mod mark;
mod mem;
mod open;
mod options;
pub mod probe;
mod request;
mod slow;
mod stripe;
mod superdisk;
mod threads;
mod uring;
mod zones;

pub use api::{BLOCK, CacheClaim, Disk, DiskStats, Geometry, IoFuture, Latencies, ZoneGeometry};
pub use buffer::{AlignedBuf, BufPool};
pub use claim::{cache_warnings, is_zoned};
pub use faulty::{Effect, Fault, Faults, Faulty, OpKind};
pub use file::{FileDisk, outlive_file_size_limit};
pub use latency::{Histogram, Latency};
pub use mark::{MARK_OFFSETS, Mark, mark};
pub use mem::MemDisk;
pub use options::{DiskOptions, IoMode};
pub use slow::{Slow, SlowHandle, Slowness};
pub use stripe::{Stripe, StripeOptions};
pub use superdisk::{
    Comparison, DIFFERENCES_MAX, FAST_DISKS_MAX, FastState, Labels, Superdisk, SuperdiskOptions, SuperdiskSabotage,
    SuperdiskStatus,
};
pub use zones::{Zone, ZoneState, Zoned, ZonedOptions};
