//! Allocating and freeing space of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;

use crate::{BLOCK, BufPool};

/// `BLKDISCARD`: discards a range of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Allocates `from..to` of a regular file and makes the allocation durable. On an error the file is
/// truncated to `from` bytes again, with no allocation past it.
pub(crate) fn grow(file: &File, from: u64, to: u64) -> io::Result<()> {
    let grown = allocate(file, from, to).and_then(|()| file.sync_all());
    if grown.is_err()
        && let Err(error) = ftruncate(file, from)
    {
        tracing::warn!(%error, from, "the file could not be cut back to its earlier length");
    }
    grown.map_err(full)
}

/// Fills the holes of an existing file: a copy may have lost the allocation.
pub(crate) fn fill_holes(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(full(error.into())),
    }
}

fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), from, to - from) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(file, from, to),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where the file system cannot allocate, only writing guarantees the space.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let piece = 256 * BLOCK;
    let Some(mut zeros) = BufPool::new(piece * 2).try_get(piece) else { return Err(io::ErrorKind::OutOfMemory.into()) };
    zeros.set_len(piece);
    let mut at = from;
    while at < to {
        let len = (piece as u64).min(to - at);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// Exceeded quotas and file size limits count as a full disk.
fn full(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => io::Error::new(io::ErrorKind::StorageFull, error),
        _ => error,
    }
}

/// Frees the blocks of a range of a regular file. The file keeps its length.
pub(crate) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Discards a range of a block device.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the request reads two u64 through the pointer, which is valid for that.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => Ok(()),
        _ => Err(error),
    }
}
