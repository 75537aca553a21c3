//! Bytes on devices.
//!
//! A [`Disk`] is a linear address space that is read, written and flushed with direct I/O. A
//! regular file and a block device behave the same. Disks compose: a stripe, a super-disk and a
//! zoned wrapper are disks over disks, as are the faulty and slow disks of the tests. This layer
//! does not know the record format.

mod ages;
mod api;
mod block;
mod buffer;
mod claim;
mod faulty;
mod file;
mod grow;
mod huge_pages;
mod intent;
mod label;
mod latency;
mod mark;
mod mem;
mod open;
mod options;
mod pool_memory;
pub mod probe;
mod request;
mod slow;
mod status;
mod stripe;
mod superdisk;
mod threads;
mod uring;
mod zones;

pub use api::{CacheClaim, Disk, DiskStats, Geometry, IoFuture, Latencies, Zone, ZoneGeometry, ZoneState};
pub use block::BLOCK;
pub use buffer::{AlignedBuf, BufPool};
pub use claim::{cache_warnings, is_zoned};
pub use faulty::{Effect, Fault, Faults, Faulty, OpKind};
pub use file::{FileDisk, outlive_file_size_limit};
pub use grow::check_space;
pub use latency::{Histogram, Latency};
pub use mark::{MARK_OFFSETS, Mark, mark};
pub use mem::MemDisk;
pub use options::{DiskOptions, IoMode};
pub use slow::{Slow, SlowHandle, Slowness};
pub use status::{FastState, SuperdiskStatus};
pub use stripe::{Stripe, StripeOptions};
pub use superdisk::{
    Comparison, DIFFERENCES_MAX, FAST_DISKS_MAX, Labels, Superdisk, SuperdiskOptions, SuperdiskSabotage,
};
pub use zones::{Zoned, ZonedOptions};
