//! Helpers of the driver tests.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk, DiskOptions, FileDisk, IoMode};
use tempfile::TempDir;

/// Both drivers.
pub const MODES: [IoMode; 2] = [IoMode::Threads, IoMode::Uring];

/// A folder on the file system of the build, which is a real one more often than `/tmp`.
pub fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

pub fn options(io: IoMode) -> DiskOptions {
    DiskOptions { io, create: true, ..DiskOptions::default() }
}

/// Opens a disk; prints the reason and returns `None` where this machine cannot.
pub fn open(path: &PathBuf, options: &DiskOptions) -> Option<Arc<dyn Disk>> {
    match FileDisk::open(path, options) {
        Ok(disk) => Some(disk),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Runs `test` with a fresh disk of `blocks` blocks for each driver.
pub async fn with_each<F: Future<Output = ()>>(blocks: usize, test: impl Fn(Arc<dyn Disk>) -> F) {
    for mode in MODES {
        let folder = folder();
        let Some(disk) = open(&folder.path().join("pool"), &options(mode)) else { continue };
        disk.reserve((blocks * BLOCK) as u64).await.expect("room");
        test(disk).await;
    }
}

/// Blocks whose bytes depend on `seed`.
pub fn pattern(seed: u64, blocks: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..blocks * BLOCK)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// The same bytes, in the disk's own memory.
pub async fn aligned(disk: &Arc<dyn Disk>, data: &[u8]) -> Bytes {
    let mut buf = disk.buffer(data.len()).await;
    buf.put(data);
    buf.freeze()
}

/// Offset of a block.
pub fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}
