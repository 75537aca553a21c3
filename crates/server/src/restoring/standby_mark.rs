//! The mark of a standby in the data directory. It exists from before the first write to a disk
//! until the standby is promoted and its pool was opened.

use std::io;

use serde::{Deserialize, Serialize};

use super::mark::MarkedDisk;
use crate::datadir::DataDir;
use crate::private_file;

/// A standby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyMark {
    /// The store of the archive.
    pub from: String,
    /// The identity of the standby, which its disks hold too: 32 hexadecimal digits.
    pub id: String,
    /// The disks.
    pub disks: Vec<MarkedDisk>,
}

impl StandbyMark {
    /// The mark of a data directory, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(data: &DataDir) -> Result<Option<Self>, String> {
        let path = data.standby();
        let Some(text) = private_file::read(&path)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Writes the mark. Durable when it returns.
    ///
    /// # Errors
    /// The file system's error.
    pub fn store(&self, data: &DataDir) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|e| e.to_string())?;
        private_file::store(&data.standby(), &text)
    }

    /// Removes the mark, if there is one, and what is kept with it. Durable when it returns.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn remove(data: &DataDir) -> Result<(), String> {
        for path in [data.standby(), data.standby_head()] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {e}", path.display())),
                _ => {}
            }
        }
        data.sync().map_err(|e| format!("{}: {e}", data.path().display()))
    }

    /// The identity of the standby.
    pub fn id(&self) -> [u8; 16] {
        uuid::Uuid::parse_str(&self.id).map_or([0; 16], uuid::Uuid::into_bytes)
    }
}
