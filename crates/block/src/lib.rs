//! A block device over the network: an NBD server for any disk.
//!
//! An [`Export`] is a named window of a [`steadfast_disk::Disk`]. A [`Server`] listens on a Unix
//! socket or on loopback and serves exports in the NBD protocol (fixed newstyle, structured
//! replies). Clients are the kernel's `nbd` driver, qemu, `nbdcopy` and other programs that use
//! libnbd.

#![forbid(unsafe_code)]

mod changes;
mod connection;
mod export;
mod flushes;
// The entries of the fuzz targets, in builds for fuzzing and tests only.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;
mod handshake;
mod layout;
mod listen;
mod options;
mod peer;
pub mod protocol;
mod ranges;
mod replies;
mod server;
mod status;

pub use export::{Export, ExportError};
pub use layout::{LayoutError, find_data, write_layout};
pub use listen::{Listen, ListenError};
pub use options::{ExportOptions, Limits, Window};
pub use server::Server;
pub use status::{Counts, ExportStatus, RequestCounts};
