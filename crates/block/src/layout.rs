//! The layout of a durable disk: a GUID partition table, so that other tools see an ordinary disk.
//!
//! Partition 1 begins at 1 MiB and holds the client's data. Partition 2, from 32 KiB to 1 MiB,
//! holds the super-disk's labels and intent bits. A client sees the range of partition 1 only. The
//! labels are not at the end of the device, because that end moves when a cloud disk grows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use gpt::disk::LogicalBlockSize;
use gpt::partition_types::{OperatingSystem, Type};
use gpt::{GptConfig, mbr::ProtectiveMBR};
use uuid::{Uuid, uuid};

use crate::Window;

const MIB: u64 = 1 << 20;
/// Start of the label partition in bytes, behind the partition table.
const LABELS_START: u64 = 32 << 10;
/// The smallest disk, in bytes.
const DISK_BYTES_MIN: u64 = 8 * MIB;
/// The type of the data partition. It is private to Steadfast, so no system mounts the partition
/// automatically while a server uses it.
const DATA_TYPE: Uuid = uuid!("5d6c1b6e-1f0b-4f3c-9c5e-6b8f0a4d2e71");
/// The type of the label partition.
const LABELS_TYPE: Uuid = uuid!("b2a7c0de-87f3-4c19-a1d5-0e3c9d7f6a52");
/// The attribute "do not mount automatically" of the Discoverable Partitions Specification.
const NO_AUTO: u64 = 1 << 63;

/// Why a disk has no layout, or cannot be given one.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The operating system reports an error.
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// The partition table cannot be read or written.
    #[error("{0}: its partition table: {1}")]
    Table(String, String),
    /// A partition table exists, but it does not describe a block device of Steadfast.
    #[error("{0} is not the durable disk of a block device: make one with `steadfast block format`")]
    Foreign(String),
    /// The disk is too small.
    #[error("{0} has {1} bytes: a block device needs at least 8 MiB")]
    Small(String, u64),
    /// The partition ends beyond the disk's end.
    #[error("{0} has {1} bytes, and its data partition ends at {2}: the disk is smaller than it was")]
    Shrunk(String, u64, u64),
}

/// The size of a file or a block device, in bytes.
fn size_of(file: &File) -> io::Result<u64> {
    // A block device has no length in its metadata, but seeking to its end returns it.
    io::Seek::seek(&mut &*file, io::SeekFrom::End(0))
}

/// The logical block size of a device. A file counts as a disk of 512-byte sectors, like a loop
/// device.
fn sectors_of(file: &File) -> io::Result<LogicalBlockSize> {
    let meta = file.metadata()?;
    if !meta.file_type().is_block_device() {
        return Ok(LogicalBlockSize::Lb512);
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    // A partition has no queue directory of its own; its disk has one.
    let queue =
        |of: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{of}queue/logical_block_size"));
    let text = queue("").or_else(|_| queue("../"))?;
    Ok(if text.trim() == "4096" { LogicalBlockSize::Lb4096 } else { LogicalBlockSize::Lb512 })
}

/// Writes an empty layout and returns the range of the data. It erases the first and the last MiB
/// of the disk.
///
/// # Errors
/// When the disk is too small or cannot be written.
pub fn write_layout(path: &Path) -> Result<Window, LayoutError> {
    let shown = || path.display().to_string();
    let io_error = |error| LayoutError::Io(shown(), error);
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error)?;
    let len = size_of(&file).map_err(io_error)?;
    if len < DISK_BYTES_MIN {
        return Err(LayoutError::Small(shown(), len));
    }
    let end = len / MIB * MIB - MIB;
    let zeros = vec![0; MIB as usize];
    for at in [0, len - MIB] {
        file.write_all_at(&zeros, at).map_err(io_error)?;
    }
    let sectors = sectors_of(&file).map_err(io_error)?;
    let sector = sectors.as_u64();
    let table = |error: String| LayoutError::Table(shown(), error);
    ProtectiveMBR::with_lb_size(u32::try_from(len / sector - 1).unwrap_or(u32::MAX))
        .overwrite_lba0(&mut file)
        .map_err(|e| table(e.to_string()))?;
    let mut disk = GptConfig::new()
        .writable(true)
        .logical_block_size(sectors)
        .create_from_device(file, None)
        .map_err(|e| table(e.to_string()))?;
    let custom = |guid| Type { guid, os: OperatingSystem::Custom("Steadfast".to_owned()) };
    for (number, name, start, stop, kind) in
        [(1, "steadfast-data", MIB, end, DATA_TYPE), (2, "steadfast-labels", LABELS_START, MIB, LABELS_TYPE)]
    {
        let (first, length) = (start / sector, (stop - start) / sector);
        let added = disk.add_partition_at(name, number, first, length, custom(kind), NO_AUTO);
        added.map_err(|e| table(e.to_string()))?;
    }
    let file = disk.write().map_err(|e| table(e.to_string()))?;
    file.sync_all().map_err(io_error)?;
    Ok(Window { start: MIB, len: end - MIB })
}

/// Finds the range of the data on a disk that has a layout.
///
/// # Errors
/// When the disk has no layout, or is smaller than its data partition.
pub fn find_data(path: &Path) -> Result<Window, LayoutError> {
    let shown = || path.display().to_string();
    let io_error = |error| LayoutError::Io(shown(), error);
    let file = File::open(path).map_err(io_error)?;
    let len = size_of(&file).map_err(io_error)?;
    let sectors = sectors_of(&file).map_err(io_error)?;
    // The backup table is at the end, which moves when a disk grows, so the primary table is
    // enough.
    let disk = GptConfig::new().only_valid_headers(false).logical_block_size(sectors).open_from_device(&file);
    let disk = disk.map_err(|_| LayoutError::Foreign(shown()))?;
    let data = disk.partitions().get(&1).filter(|data| data.part_type_guid.guid == DATA_TYPE);
    let Some(data) = data else { return Err(LayoutError::Foreign(shown())) };
    let sector = sectors.as_u64();
    let (start, end) = (data.first_lba * sector, (data.last_lba + 1) * sector);
    if start != MIB || end <= start || !end.is_multiple_of(MIB) {
        return Err(LayoutError::Foreign(shown()));
    }
    if end > len {
        return Err(LayoutError::Shrunk(shown(), len, end));
    }
    Ok(Window { start, len: end - start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_found_again_also_when_the_disk_has_grown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let file = File::create(&path).expect("made");
        file.set_len(4 * MIB).expect("set");
        assert!(matches!(write_layout(&path), Err(LayoutError::Small(_, _))));
        file.set_len(64 * MIB + 4096).expect("set");
        assert!(matches!(find_data(&path), Err(LayoutError::Foreign(_))));
        let window = write_layout(&path).expect("written");
        assert_eq!(window, Window { start: MIB, len: 62 * MIB });
        assert_eq!(find_data(&path).expect("found"), window);
        file.set_len(128 * MIB).expect("set");
        assert_eq!(find_data(&path).expect("found"), window);
        file.set_len(32 * MIB).expect("set");
        assert!(matches!(find_data(&path), Err(LayoutError::Shrunk(_, _, _))));
        // sfdisk must report the type of the data partition.
        let text = std::process::Command::new("sfdisk").arg("--json").arg(&path).output();
        if let Ok(text) = text {
            let text = String::from_utf8_lossy(&text.stdout).to_lowercase();
            assert!(text.is_empty() || text.contains(&DATA_TYPE.to_string()), "{text}");
        }
    }
}
