//! Allocating and freeing space of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatvfs, ftruncate, seek};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::{BLOCK, BufPool};

/// `BLKDISCARD`: discards a range of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Allocates `from..to` of a regular file and makes the allocation durable. On an error the file is
/// truncated to `from` bytes again, with no allocation past it.
pub(crate) fn grow(file: &File, from: u64, to: u64) -> io::Result<()> {
    debug_assert!(from < to && (from | to).is_multiple_of(BLOCK as u64), "a growth from {from} to {to}");
    let grown = allocate(file, from, to).and_then(|()| file.sync_all());
    if grown.is_err()
        && let Err(error) = ftruncate(file, from)
    {
        tracing::warn!(%error, from, "the file could not be cut back to its earlier length");
    }
    grown.map_err(full)
}

/// Checks that the file system can hold a file of `len` bytes in full, as far as it says.
///
/// # Errors
/// `StorageFull`, with the figures; the operating system's error.
pub fn check_space(file: &File, len: u64) -> io::Result<()> {
    let meta = file.metadata()?;
    let lacking = len.saturating_sub(meta.blocks() * 512);
    let space = fstatvfs(file)?;
    // The last blocks are the superuser's.
    let blocks = if geteuid().is_root() { space.f_bfree } else { space.f_bavail };
    let free = blocks * space.f_frsize;
    // Some file systems do not know their size.
    if lacking <= free || space.f_blocks == 0 {
        return Ok(());
    }
    // Where data is compressed, a file without a hole has few blocks.
    let lacking = lacking.min(holes(file, meta.len())? + len.saturating_sub(meta.len()));
    if lacking <= free {
        return Ok(());
    }
    let why = format!("of {len} bytes, {lacking} are not allocated, and the file system has {free} free");
    Err(io::Error::new(io::ErrorKind::StorageFull, why))
}

/// The bytes of a file of `len` bytes that are in holes.
fn holes(file: &File, len: u64) -> io::Result<u64> {
    let (mut sum, mut at) = (0, 0);
    while at < len {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(len),
            // No data follows.
            Err(Errno::NXIO) => len,
            // The file system does not know of holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        sum += data - at;
        at = if data < len { seek(file, SeekFrom::Hole(data))?.max(data + 1) } else { len };
    }
    Ok(sum)
}

/// Fills the holes of an existing file: a copy may have lost the allocation. Writes nothing if the
/// space does not suffice.
pub(crate) fn fill_holes(file: &File, len: u64) -> io::Result<()> {
    check_space(file, len)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_beyond_the_file_system_is_left_as_it_is() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[1; BLOCK], 1 << 20).expect("written");
        let space = fstatvfs(&file).expect("known");
        // Some file systems hold no file of this length.
        let len = space.f_blocks * space.f_frsize + (4 << 20);
        if file.set_len(len).is_err() {
            return;
        }
        let before = file.metadata().expect("its blocks").blocks();
        let error = fill_holes(&file, len).expect_err("too little space");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert_eq!(file.metadata().expect("its blocks").blocks(), before);
        assert_eq!(check_space(&file, 4 << 20).map_err(|e| e.to_string()), Ok(()));
        file.set_len(4 << 20).expect("shorter");
        fill_holes(&file, 4 << 20).expect("space");
        assert!(file.metadata().expect("its blocks").blocks() * 512 >= 4 << 20);
    }

    #[test]
    fn holes_are_counted() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(holes(&file, 0).expect("counted"), 0);
        file.write_all_at(&[1; 1 << 16], 1 << 20).expect("written");
        file.set_len(4 << 20).expect("longer");
        let counted = holes(&file, 4 << 20).expect("counted");
        // 0 where the file system does not know.
        assert!(counted == 0 || counted == (4 << 20) - (1 << 16), "{counted}");
    }
}
