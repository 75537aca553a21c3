//! Write intent: the regions in which a durable disk and its copy may differ.
//!
//! Each region has a bit on the durable disk. The bit is set and flushed before new content of the
//! region is sent to either disk. It is cleared only when both are known to hold the same. After a
//! crash, a region whose bit is clear is therefore the same on both disks. This module does no I/O:
//! it is a state machine under one lock. Its user carries out rounds, one at a time:
//! [`Intent::take`], write and flush, then [`Intent::set`] or [`Intent::put_back`]. To clear bits
//! it calls [`Intent::begin_clear`], writes the events on both disks, and calls
//! [`Intent::end_clear`].

mod bits;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use steadfast_flow::has_fault;

pub(crate) use bits::{BITS_BYTES, BLOCK_REGIONS, BLOCKS};

/// Maximum number of regions.
pub(crate) const REGIONS_MAX: u64 = (BLOCKS * BLOCK_REGIONS) as u64;

/// The state of a region's bit on the durable disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bit {
    /// Clear: both disks hold the same.
    Clean,
    /// To be set in the next round.
    Requested,
    /// In the current round.
    Setting,
    /// Set: the region may be written.
    Dirty,
    /// Set, and in the batch that is being cleared. A write removes the region from the batch.
    Clearing,
}

/// What a caller must do before it writes to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Nothing: the bits are set.
    Ready,
    /// Wait for the end of the round that sets the last of them.
    Wait,
}

/// The bits of all regions, and the requests to set them.
#[derive(Debug)]
pub(crate) struct Intent {
    bits: Vec<Bit>,
    requested: Vec<u32>,
    /// Number of regions that are not clean.
    dirty: u64,
    /// Number of failed rounds, and the operating system's number of the last error.
    failed_rounds: u64,
    errno: i32,
    /// A flush has failed, so the durable content is unknown. No bit is set or cleared until the
    /// disk is reopened.
    latched: bool,
    /// The task that carries out rounds has ended.
    closed: bool,
    /// Sabotage for tests: a write leaves its region in the batch that is being cleared.
    pub(crate) clears_under_writes: bool,
}

impl Intent {
    /// Creates the state with all bits set.
    pub(crate) fn new() -> Self {
        Self {
            bits: vec![Bit::Dirty; REGIONS_MAX as usize],
            requested: Vec::new(),
            dirty: REGIONS_MAX,
            failed_rounds: 0,
            errno: 0,
            latched: false,
            closed: false,
            clears_under_writes: false,
        }
    }

    /// Loads the bits of a disk, as [`Intent::encode`] encoded them for a copy with this name.
    /// Damaged sectors count as set.
    pub(crate) fn load(&mut self, bytes: &[u8], copy: &[u8; 16]) {
        for (region, set) in bits::decode(bytes, copy).into_iter().enumerate() {
            self.put(region, if set { Bit::Dirty } else { Bit::Clean });
        }
    }

    fn put(&mut self, region: usize, bit: Bit) {
        let before = std::mem::replace(&mut self.bits[region], bit);
        self.dirty += u64::from(bit != Bit::Clean);
        let counted = u64::from(before != Bit::Clean);
        assert!(self.dirty >= counted, "fewer regions are dirty than were counted");
        self.dirty -= counted;
    }

    /// Whether both disks hold the same in a region, also after a crash.
    pub(crate) fn is_clean(&self, region: usize) -> bool {
        self.bits.get(region) == Some(&Bit::Clean)
    }

    /// Whether a region's bit is set and may be cleared.
    pub(crate) fn is_dirty(&self, region: usize) -> bool {
        self.bits.get(region) == Some(&Bit::Dirty)
    }

    /// The number of the first `regions` that are not clean. The regions behind them are never
    /// clean, because they have not been compared.
    pub(crate) fn dirty(&self, regions: u64) -> u64 {
        self.dirty.saturating_sub(REGIONS_MAX.saturating_sub(regions))
    }

    /// Requests the bits of some regions and removes the regions from the batch that is being
    /// cleared. A caller that must wait calls it again after each round. `failed` is the value of
    /// [`Intent::failed_rounds`] before the first call.
    ///
    /// # Errors
    /// That of a round that failed since then, or of the flush after which no bits are set.
    pub(crate) fn request(&mut self, regions: Range<usize>, failed: u64) -> io::Result<Readiness> {
        let mut readiness = Readiness::Ready;
        for region in regions {
            match self.bits.get(region) {
                None | Some(Bit::Dirty) => {}
                Some(Bit::Clearing) if has_fault(self.clears_under_writes, true) => {}
                Some(Bit::Clearing) => self.put(region, Bit::Dirty),
                Some(Bit::Requested | Bit::Setting) => readiness = Readiness::Wait,
                Some(Bit::Clean) => {
                    readiness = Readiness::Wait;
                    if !self.latched && !self.closed && failed == self.failed_rounds {
                        self.put(region, Bit::Requested);
                        self.requested.push(region as u32);
                    }
                }
            }
        }
        if readiness == Readiness::Ready {
            return Ok(readiness);
        }
        if self.latched || failed != self.failed_rounds {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        if self.closed {
            return Err(io::Error::other("the super-disk is closed"));
        }
        Ok(readiness)
    }

    /// Whether a round has bits to set.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requested.is_empty()
    }

    /// The number of failed rounds.
    pub(crate) fn failed_rounds(&self) -> u64 {
        self.failed_rounds
    }

    /// Begins a round with all requested regions; empty when there are none.
    pub(crate) fn take(&mut self) -> Vec<u32> {
        if self.latched {
            return Vec::new();
        }
        let batch = std::mem::take(&mut self.requested);
        for region in &batch {
            debug_assert_eq!(self.bits[*region as usize], Bit::Requested, "region {region} is in a round");
            self.put(*region as usize, Bit::Setting);
        }
        batch
    }

    /// The blocks of the durable disk with the bits of some regions: each block's number and
    /// content. Requested regions are encoded as set.
    pub(crate) fn encode(&self, regions: &[u32], copy: &[u8; 16]) -> Vec<(u64, Bytes)> {
        let blocks: BTreeSet<usize> = regions.iter().map(|region| *region as usize / BLOCK_REGIONS).collect();
        let block = |block| (block as u64, bits::encode(block, copy, |region| self.bits[region] != Bit::Clean));
        blocks.into_iter().map(block).collect()
    }

    /// Encodes the whole area with every bit set.
    pub(crate) fn encode_all_set(copy: &[u8; 16]) -> Bytes {
        (0..BLOCKS).flat_map(|block| bits::encode(block, copy, |_| true)).collect::<Vec<u8>>().into()
    }

    /// Ends a successful round: its regions may be written.
    pub(crate) fn set(&mut self, batch: &[u32]) {
        batch.iter().for_each(|region| self.put(*region as usize, Bit::Dirty));
    }

    /// Ends a failed round: the callers that wait for it get the error.
    pub(crate) fn put_back(&mut self, batch: &[u32], errno: i32) {
        self.failed_rounds += 1;
        self.errno = errno;
        let waiting = std::mem::take(&mut self.requested);
        batch.iter().chain(&waiting).for_each(|region| self.put(*region as usize, Bit::Clean));
    }

    /// Latches a failed flush of the durable disk: from now on no bit is set or cleared.
    pub(crate) fn latch(&mut self, errno: i32) {
        self.latched = true;
        self.errno = errno;
        self.stop_clear();
    }

    /// Whether a flush of the durable disk has failed.
    pub(crate) fn is_latched(&self) -> bool {
        self.latched
    }

    /// Marks the end of the task that carries out rounds: callers that wait get an error.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Begins to clear the bits of some regions, for which [`Intent::is_dirty`] was true.
    pub(crate) fn begin_clear(&mut self, regions: &[u32]) {
        assert!(!self.latched, "no bit is cleared after a failed flush");
        for region in regions {
            assert!(self.is_dirty(*region as usize), "the bit of region {region} must not be cleared");
            self.put(*region as usize, Bit::Clearing);
        }
    }

    /// Cancels the batch that is being cleared.
    pub(crate) fn stop_clear(&mut self) {
        for region in 0..self.bits.len() {
            if self.bits[region] == Bit::Clearing {
                self.put(region, Bit::Dirty);
            }
        }
    }

    /// Ends the clearing: both disks hold the event of the batch durably, so its remaining regions
    /// are clean.
    pub(crate) fn end_clear(&mut self, regions: &[u32]) {
        for region in regions {
            if self.bits[*region as usize] == Bit::Clearing {
                self.put(*region as usize, Bit::Clean);
            }
        }
    }

    /// Sets every bit, because the copy has been replaced.
    pub(crate) fn set_all(&mut self) {
        self.requested.clear();
        self.bits.fill(Bit::Dirty);
        self.dirty = REGIONS_MAX;
    }
}
