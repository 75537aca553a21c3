//! Reads an extent from end to end, verifies all its checksums and compares all redundant data.
//! Used by the offline verification and by the scrub.

mod chunks;
mod entries;
mod extent;
mod footer;
mod frames;
#[cfg(test)]
mod tests;
mod window;

use serde::Serialize;

pub(crate) use entries::Entries;
pub use extent::{CheckedState, ExtentCheck};
pub(crate) use footer::FooterFault;
pub use window::Window;

use crate::Lsn;
use crate::format::{ExtentHeader, FrameHeader, Trailer};

/// Record heads kept for one damage, so that the layer above can name the affected objects.
pub const DAMAGE_HEADS_MAX: usize = 64;

/// Damaged data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch, where known.
    pub epoch: u64,
    /// Offset from the start of the extent, in bytes.
    pub offset: u64,
    /// Affected bytes, if known.
    pub len: u64,
    /// The fault.
    pub what: String,
    /// First and last affected LSN, if known.
    pub lsns: Option<(Lsn, Lsn)>,
    /// Heads of the affected records that could be read; at most [`DAMAGE_HEADS_MAX`].
    #[serde(skip)]
    pub heads: Vec<Vec<u8>>,
    /// Number of affected records, if known.
    pub records: u64,
}

/// End of the log in an extent that was open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Offset of the end of the last valid frame, from the start of the extent, in bytes.
    pub offset: u64,
    /// LSN of the last record before that.
    pub last_lsn: Lsn,
    /// The highest `durable_lsn` of later frames.
    pub durable_behind: Lsn,
    /// Data found instead of a frame; empty if there is none.
    pub what: String,
}

/// A chunk that does not verify, in an extent that was open. It is damage if a record names it,
/// else a part of an interrupted upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoubtfulChunk {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Offset of its frame from the start of the extent, in bytes.
    pub offset: u64,
    /// The fault.
    pub what: String,
}

/// Counts of data read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames verified.
    pub frames: u64,
    /// Records verified, chunks included.
    pub records: u64,
    /// Bytes read from the disk.
    pub read_bytes: u64,
}

/// A committed record that verifies.
#[derive(Debug, Clone, Copy)]
pub struct CheckedRecord<'a> {
    /// Its LSN.
    pub lsn: Lsn,
    /// Its head.
    pub head: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

/// Receiver of the findings of a check.
pub trait Findings: Send {
    /// Data is damaged.
    fn damage(&mut self, damage: Damage);
    /// An open extent ends.
    fn tail(&mut self, tail: Tail);
    /// A chunk in an open extent does not verify.
    fn doubtful(&mut self, chunk: DoubtfulChunk);
    /// The header of an extent is valid.
    fn extent(&mut self, header: &ExtentHeader) {
        let _ = header;
    }
    /// A commit extent is sealed.
    fn sealed(&mut self, trailer: &Trailer) {
        let _ = trailer;
    }
    /// The header of a frame is valid.
    fn frame(&mut self, header: &FrameHeader);
    /// A committed record is valid.
    fn record(&mut self, record: CheckedRecord<'_>) {
        let _ = record;
    }
    /// A body extent is open. Its whole chunks follow.
    fn open_body(&mut self, extent: u32, epoch: u64) {
        let _ = (extent, epoch);
    }
    /// A chunk in an open extent is valid. `offset` is that of its record.
    fn open_chunk(&mut self, extent: u32, epoch: u64, offset: u32) {
        let _ = (extent, epoch, offset);
    }
}
