//! The names of an archive's objects, under its prefix.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Says what the archive is. Created once.
pub(crate) const ARCHIVE: &str = "archive";

/// The only object that is ever replaced. What it does not name does not count.
pub(crate) const HEAD: &str = "head";

/// A disk of the pool, by the identity of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiskId(pub [u8; 16]);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Number of an object. The tenure is that of the process that wrote it, and no process gives out a
/// number twice. So no name is ever used for two contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Numbered {
    /// The tenure.
    pub tenure: u64,
    /// Number within the tenure.
    pub n: u64,
}

/// One use of an extent: an epoch may have been given out by two openings of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UseId {
    /// The disk.
    pub disk: DiskId,
    /// The extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// The opening that took it.
    pub opening: u64,
}

/// The name of the changes that came after the segment before.
pub(crate) fn segment(by: Numbered) -> String {
    format!("seg/{}.{}", by.tenure, by.n)
}

/// The name of a complete manifest.
pub(crate) fn base(by: Numbered) -> String {
    format!("base/{}.{}", by.tenure, by.n)
}

/// The name of bytes of a use, which begin at offset `from`.
pub(crate) fn piece(of: UseId, from: u32, by: Numbered) -> String {
    let UseId { disk, extent, epoch, opening } = of;
    format!("p/{disk}/{extent}.{epoch}.{opening}/{from}.{}.{}", by.tenure, by.n)
}
