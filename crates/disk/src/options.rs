//! Options for opening a disk.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// io_uring, or threads where the kernel or a container refuses it.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// A bounded pool of threads.
    Threads,
}

impl FromStr for IoMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            other => Err(format!("unknown I/O mode {other:?}: use auto, uring or threads")),
        }
    }
}

impl std::fmt::Display for IoMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Threads => "threads",
        })
    }
}

/// How to open a [`crate::FileDisk`].
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// How requests reach the kernel.
    pub io: IoMode,
    /// Creates the file if it does not exist. Devices are never created.
    pub create: bool,
    /// Read-only: never changes the file or device. For offline checks.
    pub read_only: bool,
    /// Maximum number of reads and writes in flight; further ones wait. Flushes and writes with a
    /// flush have [`DiskOptions::commit_depth`] separate slots, so that bulk work never delays a
    /// commit.
    pub queue_depth: usize,
    /// Maximum number of flushes and writes with a flush in flight.
    pub commit_depth: usize,
    /// Memory for [`crate::Disk::buffer`], in bytes.
    pub pool_bytes: usize,
    /// Memory for the results of reads, in bytes. A buffer is in use until the last clone of its
    /// bytes is dropped.
    pub read_pool_bytes: usize,
    /// Maximum size of a regular file in bytes; `None` for the limit of its file system.
    pub file_limit_bytes: Option<u64>,
    /// Size of the pieces into which larger requests are split, in bytes. The pieces run
    /// concurrently.
    pub max_io_bytes: usize,
    /// Whether `discard` punches holes into a regular file. That frees space in the file system, so
    /// a write below `len` may then fail for lack of space. Off: `discard` on a file does nothing.
    pub punch_holes: bool,
    /// Maximum time to wait for the lock of a process that has just ended.
    pub lock_wait: Duration,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            io: IoMode::Auto,
            create: false,
            read_only: false,
            queue_depth: 32,
            commit_depth: 4,
            pool_bytes: 64 << 20,
            read_pool_bytes: 64 << 20,
            file_limit_bytes: None,
            max_io_bytes: 1 << 20,
            punch_holes: false,
            lock_wait: Duration::from_secs(3),
        }
    }
}
