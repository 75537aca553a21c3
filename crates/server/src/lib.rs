//! The `steadfast` binary as a library, so that tests and fuzzers reach its parts: configuration,
//! ports, admin port, commands.

pub mod admin;
mod audit;
pub mod block;
pub mod cli;
pub mod config;
pub mod control;
pub mod credentials;
pub mod datadir;
pub mod disks;
// The entries of the fuzz targets, in builds for fuzzing and tests only.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;
pub mod memory;
pub mod net;
mod notify;
pub mod output;
mod private_file;
pub mod report;
pub mod restoring;
mod seal_key;
pub mod serve;
mod standby;
