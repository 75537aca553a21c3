//! The mark of a restore in the data directory. It exists from the first write to a disk until the
//! pool is whole, and a server does not start meanwhile. Another attempt continues from it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::datadir::DataDir;
use crate::private_file;

/// A disk that is being restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedDisk {
    /// Its identity in the archive.
    pub disk: String,
    /// The configured paths onto which it is restored.
    pub paths: Vec<PathBuf>,
    /// Whether these are files, which the restore makes.
    pub files: bool,
    /// All extents before this one are complete.
    pub reached: u32,
}

/// The state that is being restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MarkedState {
    /// The tenure with which the archive was taken over; `None` for a state of an earlier time.
    pub(super) tenure: Option<u64>,
    /// The checksum of the state.
    pub(super) fingerprint: u32,
    /// The identity of the restore, which its disks hold too: 32 hexadecimal digits.
    pub(super) id: String,
    /// The disks.
    pub(super) disks: Vec<MarkedDisk>,
    /// Whether all disks are filled. They may have changed since, as the pool was opened.
    pub(super) written: bool,
    /// Whether the state is all that was answered.
    #[serde(default)]
    pub(super) complete: bool,
}

impl MarkedState {
    /// Nothing of the disks counts.
    pub(super) fn begin_anew(&mut self) {
        // The index may be of a state that the disks do not have any more.
        (self.written, self.complete) = (false, false);
        self.disks.iter_mut().for_each(|disk| disk.reached = 0);
    }

    /// The identity of the restore.
    pub(super) fn id(&self) -> [u8; 16] {
        uuid::Uuid::parse_str(&self.id).map_or([0; 16], uuid::Uuid::into_bytes)
    }
}

/// A restore that was begun and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RestoreMark {
    /// The store of the archive.
    pub(super) from: String,
    /// The time that was wanted, in milliseconds since the Unix epoch; `None`: the newest state.
    pub(super) at_ms: Option<u64>,
    /// The names of the disks that were wanted; empty: all.
    pub(super) wanted: Vec<String>,
    /// The state; `None` while the archive is taken over.
    pub(super) state: Option<MarkedState>,
}

impl RestoreMark {
    /// The mark of a data directory, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn load(data: &DataDir) -> Result<Option<Self>, String> {
        let path = data.restoring();
        let Some(text) = private_file::read(&path)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Writes the mark. Durable when it returns.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn store(&self, data: &DataDir) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        private_file::store(&data.restoring(), &text)
    }

    /// Removes the mark, durably.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn remove(data: &DataDir) -> Result<(), String> {
        let path = data.restoring();
        let removed = std::fs::remove_file(&path).and_then(|()| data.sync());
        removed.map_err(|e| format!("{}: {e}", path.display()))
    }
}
