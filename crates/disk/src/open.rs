//! Opens a file or a block device for direct I/O and exclusive use.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};

use crate::ages::now;
use crate::claim::{cache_claim, must_be_written_in_order, queue_text};
use crate::zones::{Zones, zones_of};
use crate::{BLOCK, DiskOptions, Geometry};

/// `BLKGETSIZE64`: the size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;

/// Largest request in bytes: the kernel accepts no more than 2 GiB, and larger requests gain
/// nothing.
const MAX_IO_BYTES: usize = 64 << 20;

/// An open and locked file or device.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) device: bool,
    pub(crate) len: u64,
    pub(crate) geometry: Geometry,
    /// Zones of a device whose zones must be written in order.
    pub(crate) zones: Option<Zones>,
}

/// Opens `path` for direct I/O with an exclusive lock. Creates a regular file if the options allow
/// it.
pub(crate) fn open(path: &Path, options: &DiskOptions) -> io::Result<Opened> {
    let (file, created) = match open_direct(path, options, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.create && !options.read_only => {
            (open_direct(path, options, true)?, true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(io::Error::new(error.kind(), format!("{}: there is no such file or device", path.display())));
        }
        other => (other?, false),
    };
    let opened = inspect(file, path, options);
    match &opened {
        Ok(_) if created => sync_directory(path)?,
        // Removes the created file. The first error is returned.
        Err(_) if created => drop(std::fs::remove_file(path)),
        _ => {}
    }
    opened
}

/// Makes the name of `path` durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

fn open_direct(path: &Path, options: &DiskOptions, create: bool) -> io::Result<File> {
    let device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    // On a device, O_EXCL requests exclusive use: no mounted file system and no other server.
    let exclusive = if device { libc::O_EXCL } else { 0 };
    let mut how = OpenOptions::new();
    how.read(true)
        .write(!options.read_only)
        .create_new(create)
        .mode(0o600)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive);
    let opened = patiently(options.lock_wait, || how.open(path), |e| device && e.kind() == io::ErrorKind::ResourceBusy);
    opened.map_err(|error| match error.kind() {
        // The kernel reports missing O_DIRECT support this way, and then leaves behind a file that
        // this call created.
        io::ErrorKind::InvalidInput => {
            if create {
                let _ = std::fs::remove_file(path);
            }
            no_direct_io(path)
        }
        io::ErrorKind::ResourceBusy => {
            let why = "the device is in use: unmount it, or stop the other process that has it open";
            io::Error::new(io::ErrorKind::ResourceBusy, format!("{}: {why}", path.display()))
        }
        io::ErrorKind::NotFound => error,
        kind => io::Error::new(kind, format!("{}: {error}", path.display())),
    })
}

fn no_direct_io(path: &Path) -> io::Error {
    let text = "this file system refuses direct I/O (O_DIRECT), without which no write can be trusted to reach the \
                device. Put the pool on ext4, xfs or btrfs, or give a block device";
    io::Error::new(io::ErrorKind::Unsupported, format!("{}: {text}", path.display()))
}

/// Retries for `wait` while `busy` matches the error. The kernel releases the files of a killed
/// process only after its I/O in flight has ended.
#[allow(
    clippy::disallowed_methods,
    reason = "opening blocks by nature, and happens before there is anything to hold up"
)]
fn patiently<T>(wait: Duration, open: impl Fn() -> io::Result<T>, busy: impl Fn(&io::Error) -> bool) -> io::Result<T> {
    let start = now();
    loop {
        match open() {
            Err(error) if busy(&error) && start.elapsed() < wait => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
}

fn lock(file: &File, path: &Path, wait: Duration) -> io::Result<()> {
    let attempt = || match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let why = "another process has it open (it is locked): two servers cannot share a pool";
            Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{}: {why}", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(error),
    };
    patiently(wait, attempt, |error| error.kind() == io::ErrorKind::ResourceBusy)
}

fn inspect(file: File, path: &Path, options: &DiskOptions) -> io::Result<Opened> {
    let meta = file.metadata()?;
    let device = meta.file_type().is_block_device();
    if !device && !meta.file_type().is_file() {
        let text = format!("{}: neither a regular file nor a block device", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    lock(&file, path, options.lock_wait)?;
    let number = if device { meta.rdev() } else { meta.dev() };
    let block = BLOCK as u64;
    let len = if device { device_bytes(&file)? } else { meta.len() } / block * block;
    let zones = if device && must_be_written_in_order(number) {
        let limits = ["max_open_zones", "max_active_zones"].map(|name| queue_text(number, name));
        let zones = zones_of(&file, len, limits[0].as_deref(), limits[1].as_deref());
        Some(zones.map_err(|e| io::Error::new(e.kind(), format!("{}: cannot use its zones: {e}", path.display())))?)
    } else {
        None
    };
    let capacity_bytes = if device { len } else { file_capacity(&file, len, options)? };
    let geometry = Geometry {
        capacity_bytes,
        growable: !device,
        prefill_pays: !device,
        align_bytes: alignment(&file, path)?,
        max_io_bytes: (options.max_io_bytes.min(MAX_IO_BYTES) / BLOCK).max(1) * BLOCK,
        zones: None,
        cache: cache_claim(number),
    };
    Ok(Opened { file, path: path.to_owned(), device, len, geometry, zones })
}

fn device_bytes(file: &File) -> io::Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: the request writes one u64 through the pointer, which is valid for that.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if done == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// The configured limit, else the size of the file system; never less than the current length.
fn file_capacity(file: &File, len: u64, options: &DiskOptions) -> io::Result<u64> {
    let limit = match options.file_limit_bytes {
        Some(limit) => limit,
        None => {
            let fs = rustix::fs::fstatvfs(file)?;
            fs.f_blocks.saturating_mul(fs.f_frsize)
        }
    };
    Ok(limit.max(len) / BLOCK as u64 * BLOCK as u64)
}

/// The alignment that direct I/O needs, where the kernel reports it (since 6.1), else [`BLOCK`].
fn alignment(file: &File, path: &Path) -> io::Result<usize> {
    let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(BLOCK) };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(BLOCK);
    }
    let align = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize;
    if align == 0 {
        return Err(no_direct_io(path));
    }
    if !BLOCK.is_multiple_of(align) {
        let text = format!("{}: direct I/O needs an alignment of {align} bytes, over {BLOCK}", path.display());
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(align)
}
