//! What an archive had when another pool took it over.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::name::DiskId;

/// What an archive had when another pool took it over.
#[derive(Debug, Clone, Serialize)]
pub struct Aside {
    /// The store.
    pub to: String,
    /// The machine of the owner now.
    pub machine: String,
    /// The last tenure of the former pool.
    pub tenure: u64,
    /// When the archive was taken over, in milliseconds since the Unix epoch.
    pub taken_ms: u64,
    #[serde(skip)]
    pub(crate) last_lsns: BTreeMap<DiskId, u64>,
}

impl Aside {
    /// LSN of the last record of a disk that the archive had; 0 if it had none. What the disk has
    /// behind it, only that disk has.
    pub fn last_lsn(&self, disk: DiskId) -> u64 {
        self.last_lsns.get(&disk).copied().unwrap_or(0)
    }
}
