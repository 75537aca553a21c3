//! How a disk is opened.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// io_uring, else threads where the kernel or a container refuses it.
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
    /// Create the file when it is not there. Devices are never created.
    pub create: bool,
    /// Only read: nothing of the file or device is ever changed. For offline checks.
    pub read_only: bool,
    /// Reads and writes in flight at most; further ones wait. Flushes and writes with a flush have
    /// [`DiskOptions::commit_depth`] slots of their own, so that bulk work never queues in front of a commit.
    pub queue_depth: usize,
    /// Flushes and writes with a flush in flight at most.
    pub commit_depth: usize,
    /// Memory for [`crate::Disk::buffer`], in bytes.
    pub pool_bytes: usize,
    /// Memory for what reads return, in bytes. A buffer is in use until the last clone of the bytes is dropped.
    pub read_pool_bytes: usize,
    /// A regular file never grows over this many bytes; `None`: as far as its file system goes.
    pub file_limit_bytes: Option<u64>,
    /// Larger requests are split into pieces of this many bytes, which run side by side.
    pub max_io_bytes: usize,
    /// Let `discard` punch holes into a regular file. That gives space back to the file system, and with it the
    /// promise that a write below `len` cannot fail for want of space. Off: `discard` on a file does nothing.
    pub punch_holes: bool,
    /// How long to wait for the lock of a process that has just ended.
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
