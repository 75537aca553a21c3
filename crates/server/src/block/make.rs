//! Creates the disks of a block device, and discards the fast leg of a durable disk.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use steadfast_block::write_layout;
use steadfast_disk::{Disk, DiskOptions, FileDisk, Labels, Superdisk, check_space};
use steadfast_flow::Env;

use super::{data_of, open_disks};
use crate::config::{BlockSpec, Config};
use crate::disks::contents::{self, Contents};
use crate::disks::open::Taking;
use crate::disks::paths::named;

/// Options for creating a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatRequest {
    /// Bytes of the durable disk if it is a file to be created.
    pub size: Option<u64>,
    /// Whether data on the disks may be overwritten.
    pub force: bool,
}

async fn blocking<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    env.blocking(work).await.unwrap_or_else(|| Err("it panicked".to_owned()))
}

/// A device that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDevice {
    /// Bytes of its data.
    pub data_bytes: u64,
    /// Whether the file system keeps the space of a new file for it.
    pub reserved: bool,
}

/// Creates the disks of a device. After an error, the files that it made are gone.
///
/// # Errors
/// When a disk holds data and `force` is not set, or cannot be written; as a message.
pub async fn make(spec: &BlockSpec, config: &Config, making: FormatRequest, env: &Env) -> Result<NewDevice, String> {
    let all = std::iter::once(&spec.durable).chain(&spec.fast.0);
    let absent: Vec<_> = all.clone().filter(|path| !path.exists()).cloned().collect();
    let empty: Vec<_> = all.filter(|path| is_empty_file(path)).cloned().collect();
    let path = spec.durable.clone();
    let made = async {
        let reserved = blocking(env, move || prepare(&path, making)).await?;
        Ok(NewDevice { data_bytes: pair(spec, config, making, env).await?, reserved })
    };
    let made = made.await;
    if made.is_err() {
        // The first error is returned.
        absent.iter().for_each(|path| drop(std::fs::remove_file(path)));
        for path in empty {
            let _ = std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
        }
    }
    made
}

fn is_empty_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0)
}

/// Pairs the disks of a device. Returns the bytes of its data.
async fn pair(spec: &BlockSpec, config: &Config, making: FormatRequest, env: &Env) -> Result<u64, String> {
    let window = data_of(&spec.durable, env).await?;
    if spec.fast.0.is_empty() {
        return Ok(window.len);
    }
    let taking = if making.force { Taking::All } else { Taking::Safe };
    let disks = open_disks(spec, config, window, env, taking).await?;
    let fast = disks.superdisk();
    disks.close().await;
    match fast.as_ref().and_then(|fast| fast.why()) {
        Some(why) => Err(format!("the fast leg could not be created: {why}")),
        None => Ok(window.len),
    }
}

/// Creates the durable file, or checks the existing disk, and writes the layout. Returns whether
/// the file has all its space.
fn prepare(path: &Path, making: FormatRequest) -> Result<bool, String> {
    let shown = path.display();
    let found = contents::look(path);
    let mut reserved = true;
    match (&found.contents, making.size) {
        (Contents::Unreadable { why }, _) => return Err(format!("{shown}: {why}")),
        (Contents::Absent, None) => {
            return Err(format!("{shown} does not exist: give its size with --size"));
        }
        (Contents::Absent, Some(_)) if path.starts_with("/dev") => {
            return Err(format!("{shown}: no such device"));
        }
        (Contents::Absent, Some(size)) => reserved = reserve(path, size)?,
        (_, Some(size)) if !found.device && found.size_bytes == 0 => reserved = reserve(path, size)?,
        (_, Some(_)) => return Err(format!("{shown} exists: its size cannot be set")),
        (held, None) if !held.is_empty() && !making.force => {
            return Err(format!("{shown} holds {held}; --force overwrites it, and ALL ITS DATA IS LOST"));
        }
        (_, None) if !found.device => {
            let file = std::fs::File::open(path).map_err(|e| named(path, &e))?;
            check_space(&file, found.size_bytes).map_err(|e| named(path, &e))?;
        }
        (_, None) => {}
    }
    // Fails while a server uses the disk.
    let lock = FileDisk::open(path, &DiskOptions::default()).map_err(|e| named(path, &e))?;
    write_layout(path).map_err(|e| e.to_string())?;
    drop(lock);
    Ok(reserved)
}

/// Allocates a file, so that no write of a client fails for lack of space. Returns whether the file
/// system can do that; if not, the file only gets its length.
fn reserve(path: &Path, size: u64) -> Result<bool, String> {
    let make = || {
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        let size = size / (1 << 20) * (1 << 20);
        check_space(&file, size)?;
        let allocated = allocated(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size))?;
        if !allocated {
            file.set_len(size)?;
        }
        file.sync_all()?;
        Ok(allocated)
    };
    make().map_err(|e| named(path, &e))
}

/// Whether an allocation was made; `false` where the file system allocates no space in advance.
fn allocated(result: Result<(), Errno>) -> std::io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn open_alone(path: &Path, read_only: bool, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let path = path.to_owned();
    let options = DiskOptions { read_only, ..DiskOptions::default() };
    blocking(env, move || FileDisk::open(&path, &options).map_err(|e| named(&path, &e))).await.map(|disk| disk as _)
}

/// Removes the fast leg from the label of the durable disk.
///
/// # Errors
/// When the disk is in use or is not a durable leg, as a message.
pub async fn forget_fast(durable: &Path, env: &Env) -> Result<(), String> {
    data_of(durable, env).await?;
    let disk = open_alone(durable, false, env).await?;
    match Superdisk::forget_fast(&disk).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} has never had a fast leg", durable.display())),
        Err(e) => Err(format!("{}: {e}", durable.display())),
    }
}

/// The bytes of the data of a device that is not served, and its labels; `None` if it never had a
/// fast leg.
///
/// # Errors
/// When a disk cannot be read, as a message.
pub async fn labels(durable: &Path, fast: Option<&Path>, env: &Env) -> Result<(u64, Option<Labels>), String> {
    let window = data_of(durable, env).await?;
    let disk = open_alone(durable, true, env).await?;
    let fast = match fast {
        Some(path) => Some(open_alone(path, true, env).await?),
        None => None,
    };
    let labels = Superdisk::labels(&disk, fast.as_ref()).await;
    Ok((window.len, labels.map_err(|e| format!("{}: {e}", durable.display()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_reserves_no_space_is_no_failure() {
        assert!(allocated(Ok(())).expect("reserved"));
        for error in [Errno::OPNOTSUPP, Errno::NOSYS] {
            assert!(!allocated(Err(error)).expect("only its length"));
        }
        assert_eq!(allocated(Err(Errno::NOSPC)).expect_err("full").kind(), std::io::ErrorKind::StorageFull);
    }
}
