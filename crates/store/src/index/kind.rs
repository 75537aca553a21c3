//! The place of an index.

use std::path::PathBuf;

use super::MemCheckpoint;

/// The place of an index.
#[derive(Debug, Clone)]
pub enum IndexKind {
    /// A directory, created when missing. It may be deleted while the store is closed: the store
    /// rebuilds it from the log. In a pool of several disks each disk has its own directory next to
    /// this one: the name, a dot and the disk's UUID.
    Lsm(PathBuf),
    /// In memory. The checkpoint outlives the store, so that a test can open it again.
    Memory(MemCheckpoint),
}

impl IndexKind {
    /// In memory, empty.
    pub fn memory() -> Self {
        Self::Memory(MemCheckpoint::default())
    }

    /// The index of one disk in a pool of several, named after the disk's UUID.
    pub(crate) fn of_disk(&self, disk: &[u8; 16]) -> Self {
        match self {
            Self::Lsm(dir) => {
                let mut name = dir.file_name().unwrap_or_default().to_owned();
                name.push(format!(".{}", uuid::Uuid::from_bytes(*disk)));
                Self::Lsm(dir.with_file_name(name))
            }
            Self::Memory(checkpoint) => Self::Memory(checkpoint.of_disk(disk)),
        }
    }

    /// The place where the index is rebuilt while this one is still read.
    pub(crate) fn rebuild_kind(&self) -> Self {
        match self {
            Self::Lsm(dir) => Self::Lsm(super::rebuild_dir(dir)),
            Self::Memory(checkpoint) => Self::Memory(checkpoint.clone()),
        }
    }

    /// The index of the only given disk, which may still be a member of a larger pool.
    pub(crate) fn of_only_disk(&self, disk: &[u8; 16]) -> Self {
        let of_disk = match self {
            Self::Lsm(_) => matches!(self.of_disk(disk), Self::Lsm(dir) if dir.exists()),
            Self::Memory(checkpoint) => checkpoint.has_disk(disk),
        };
        if of_disk { self.of_disk(disk) } else { self.clone() }
    }
}
