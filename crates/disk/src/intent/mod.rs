//! Write intent: which regions of a durable disk its copy may differ in.
//!
//! Each region has a bit on the durable disk. A bit is set, and flushed, before new content of the region is sent to either
//! disk, and cleared only when both are known to hold the same. So after a crash a region whose bit is clear is the same on both.
//! No I/O here: a state machine under one lock. Its user carries out rounds, one at a time: [`Intent::take`], write and flush,
//! [`Intent::set`] or [`Intent::put_back`]; and [`Intent::begin_clear`], the events on both disks, [`Intent::end_clear`].

mod bits;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use bytes::Bytes;

pub(crate) use bits::{BITS_BYTES, BLOCK_REGIONS, BLOCKS};

/// Regions at most.
pub(crate) const REGIONS_MAX: u64 = (BLOCKS * BLOCK_REGIONS) as u64;

/// What is known of a region's bit on the durable disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bit {
    /// Not set: both disks hold the same.
    Clean,
    /// To be set with the next round.
    Asked,
    /// In the round that is under way.
    Setting,
    /// Set: the region may be written.
    Dirty,
    /// Set, and in the batch that is being cleared. A write takes the region out of the batch.
    Clearing,
}

/// What a caller has to do before it writes to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Nothing: the bits are set.
    Ready,
    /// Wait for the end of the round that sets the last of them.
    Wait,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Intent {
    bits: Vec<Bit>,
    asked: Vec<u32>,
    /// Regions that are not clean.
    dirty: u64,
    /// How many rounds have failed, and the system's number of the last error.
    failed_rounds: u64,
    errno: i32,
    /// A flush has failed: what is durable is not known any more. Nothing is set or cleared until the disk is opened again.
    latched: bool,
    /// The task that carries out rounds has ended.
    closed: bool,
    /// A write leaves its region in the batch that is being cleared. For sabotage.
    pub(crate) clears_under_writes: bool,
}

impl Intent {
    /// All bits are set.
    pub(crate) fn new() -> Self {
        Self {
            bits: vec![Bit::Dirty; REGIONS_MAX as usize],
            asked: Vec::new(),
            dirty: REGIONS_MAX,
            failed_rounds: 0,
            errno: 0,
            latched: false,
            closed: false,
            clears_under_writes: false,
        }
    }

    /// Takes over the bits of a disk, as [`Intent::encode`] made them for a copy with this name. What is damaged counts as set.
    pub(crate) fn load(&mut self, bytes: &[u8], copy: &[u8; 16]) {
        for (region, set) in bits::decode(bytes, copy).into_iter().enumerate() {
            self.put(region, if set { Bit::Dirty } else { Bit::Clean });
        }
    }

    fn put(&mut self, region: usize, bit: Bit) {
        let before = std::mem::replace(&mut self.bits[region], bit);
        self.dirty += u64::from(bit != Bit::Clean);
        self.dirty -= u64::from(before != Bit::Clean);
    }

    /// Whether both disks hold the same in a region, also after a crash.
    pub(crate) fn is_clean(&self, region: usize) -> bool {
        self.bits.get(region) == Some(&Bit::Clean)
    }

    /// Whether a region's bit is set, and it may be cleared.
    pub(crate) fn is_dirty(&self, region: usize) -> bool {
        self.bits.get(region) == Some(&Bit::Dirty)
    }

    /// How many of the first `regions` are not clean. Those behind them never are: they have not been compared.
    pub(crate) fn dirty(&self, regions: u64) -> u64 {
        self.dirty.saturating_sub(REGIONS_MAX.saturating_sub(regions))
    }

    /// Asks for the bits of some regions, and takes them out of the batch that is being cleared. A caller that has to wait asks again
    /// after each round. `failed`: what [`Intent::failed_rounds`] said before it asked first.
    ///
    /// # Errors
    /// That of the round that failed since, or of the flush after which nothing is set any more.
    pub(crate) fn ask(&mut self, regions: Range<usize>, failed: u64) -> io::Result<Readiness> {
        let mut readiness = Readiness::Ready;
        for region in regions {
            match self.bits.get(region) {
                None | Some(Bit::Dirty) => {}
                Some(Bit::Clearing) if self.clears_under_writes => {}
                Some(Bit::Clearing) => self.put(region, Bit::Dirty),
                Some(Bit::Asked | Bit::Setting) => readiness = Readiness::Wait,
                Some(Bit::Clean) => {
                    readiness = Readiness::Wait;
                    if !self.latched && !self.closed && failed == self.failed_rounds {
                        self.put(region, Bit::Asked);
                        self.asked.push(region as u32);
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

    /// Whether there is something for a round to do.
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// How many rounds have failed.
    pub(crate) fn failed_rounds(&self) -> u64 {
        self.failed_rounds
    }

    /// Begins a round with all that was asked for; empty when there is nothing to do.
    pub(crate) fn take(&mut self) -> Vec<u32> {
        if self.latched {
            return Vec::new();
        }
        let batch = std::mem::take(&mut self.asked);
        batch.iter().for_each(|region| self.put(*region as usize, Bit::Setting));
        batch
    }

    /// The blocks of the durable disk that hold the bits of some regions: each block's number and content. A region that was asked for
    /// is shown as set.
    pub(crate) fn encode(&self, regions: &[u32], copy: &[u8; 16]) -> Vec<(u64, Bytes)> {
        let blocks: BTreeSet<usize> = regions.iter().map(|region| *region as usize / BLOCK_REGIONS).collect();
        let block = |block| (block as u64, bits::encode(block, copy, |region| self.bits[region] != Bit::Clean));
        blocks.into_iter().map(block).collect()
    }

    /// The content of the whole area with every bit set.
    pub(crate) fn encode_all_set(copy: &[u8; 16]) -> Bytes {
        (0..BLOCKS).flat_map(|block| bits::encode(block, copy, |_| true)).collect::<Vec<u8>>().into()
    }

    /// The round has succeeded: its regions may be written.
    pub(crate) fn set(&mut self, batch: &[u32]) {
        batch.iter().for_each(|region| self.put(*region as usize, Bit::Dirty));
    }

    /// The round has failed: the callers that wait for it get the error.
    pub(crate) fn put_back(&mut self, batch: &[u32], errno: i32) {
        self.failed_rounds += 1;
        self.errno = errno;
        let waiting = std::mem::take(&mut self.asked);
        batch.iter().chain(&waiting).for_each(|region| self.put(*region as usize, Bit::Clean));
    }

    /// A flush of the durable disk has failed: nothing is set or cleared from now on.
    pub(crate) fn latch(&mut self, errno: i32) {
        self.latched = true;
        self.errno = errno;
        self.stop_clear();
    }

    /// Whether a flush of the durable disk has failed.
    pub(crate) fn is_latched(&self) -> bool {
        self.latched
    }

    /// The task that carries out rounds has ended: callers that wait get an error.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Begins to clear the bits of some regions, of which [`Intent::is_dirty`] was true.
    pub(crate) fn begin_clear(&mut self, regions: &[u32]) {
        regions.iter().for_each(|region| self.put(*region as usize, Bit::Clearing));
    }

    /// Gives up the batch that is being cleared.
    pub(crate) fn stop_clear(&mut self) {
        for region in 0..self.bits.len() {
            if self.bits[region] == Bit::Clearing {
                self.put(region, Bit::Dirty);
            }
        }
    }

    /// Both disks have the event of the batch, durably: what is left of it is clean.
    pub(crate) fn end_clear(&mut self, regions: &[u32]) {
        for region in regions {
            if self.bits[*region as usize] == Bit::Clearing {
                self.put(*region as usize, Bit::Clean);
            }
        }
    }

    /// Every bit is set: the copy is another one now.
    pub(crate) fn set_all(&mut self) {
        self.asked.clear();
        self.bits.fill(Bit::Dirty);
        self.dirty = REGIONS_MAX;
    }
}
