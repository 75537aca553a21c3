//! Reading an extent from end to end and comparing everything in it with its checksums and with everything else that says the same.
//! For the offline verification and for the scrub.

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

/// Record heads kept of one damage, so that the layer above can say what it concerns.
pub const DAMAGE_HEADS_MAX: usize = 64;

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch, where known.
    pub epoch: u64,
    /// Where, in bytes from the start of the extent.
    pub offset: u64,
    /// How many bytes are concerned, as far as can be told.
    pub len: u64,
    /// What was found.
    pub what: String,
    /// The LSNs that are concerned, where known: first and last.
    pub lsns: Option<(Lsn, Lsn)>,
    /// Heads of the records that are concerned, as far as they could be read; at most [`DAMAGE_HEADS_MAX`].
    #[serde(skip)]
    pub heads: Vec<Vec<u8>>,
    /// How many records are concerned, as far as can be told.
    pub records: u64,
}

/// Where the log ends in an extent that was open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Where the last valid frame ends, in bytes from the start of the extent.
    pub offset: u64,
    /// LSN of the last record before that.
    pub last_lsn: Lsn,
    /// The highest `durable_lsn` of the frames behind it.
    pub durable_behind: Lsn,
    /// What stands there instead of a frame; empty when nothing does.
    pub what: String,
}

/// A chunk that does not verify, in an extent that was open: a piece of an upload that was cut off, and then it means
/// nothing; or, if a record names it, damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoubtfulChunk {
    /// Number of the extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Where its frame begins, in bytes from the start of the extent.
    pub offset: u64,
    /// What does not verify.
    pub what: String,
}

/// What was read of an extent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames verified.
    pub frames: u64,
    /// Records verified, chunks included.
    pub records: u64,
    /// Bytes read from the disk.
    pub read_bytes: u64,
}

/// A committed record that is as it was written.
#[derive(Debug, Clone, Copy)]
pub struct CheckedRecord<'a> {
    /// Its LSN.
    pub lsn: Lsn,
    /// Its head.
    pub head: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

/// Takes what is found.
pub trait Findings: Send {
    /// Something is damaged.
    fn damage(&mut self, damage: Damage);
    /// An open extent ends.
    fn tail(&mut self, tail: Tail);
    /// A chunk in an open extent does not verify.
    fn doubtful(&mut self, chunk: DoubtfulChunk);
    /// The header of an extent is valid.
    fn extent(&mut self, header: &ExtentHeader) {
        let _ = header;
    }
    /// An extent of records is sealed.
    fn sealed(&mut self, trailer: &Trailer) {
        let _ = trailer;
    }
    /// The header of a frame is valid.
    fn frame(&mut self, header: &FrameHeader);
    /// A committed record is valid.
    fn record(&mut self, record: CheckedRecord<'_>) {
        let _ = record;
    }
    /// An extent of chunks is open: what follows are its whole ones.
    fn open_body(&mut self, extent: u32, epoch: u64) {
        let _ = (extent, epoch);
    }
    /// A chunk in an open extent is valid; `offset` is that of its record.
    fn open_chunk(&mut self, extent: u32, epoch: u64, offset: u32) {
        let _ = (extent, epoch, offset);
    }
}
