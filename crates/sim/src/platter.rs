//! The device behind a simulated disk: the medium, the volatile cache, the requests in flight, and
//! the effect of a power cut on them. It outlives power cuts.

mod faults;

use std::collections::{BTreeMap, BTreeSet};

use steadfast_disk::BLOCK;

use crate::rng::Rng;

pub(crate) use faults::Fate;
pub use faults::{FaultCounts, FaultRates};

/// The unit of tearing: a device writes a sector completely or not at all.
pub const SECTOR: usize = 512;

type Page = Box<[u8; BLOCK]>;

/// The content of a medium at one time, and its length.
pub struct Image(Vec<Option<Page>>, u64);

#[derive(Clone)]
struct CachedWrite {
    offset: u64,
    data: Vec<u8>,
    /// Whether a failed flush has dropped it from the cache: no later flush writes it, but reads
    /// may still see it.
    doomed: bool,
}

impl CachedWrite {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.data.len() as u64 && other.offset < self.offset + self.data.len() as u64
    }
}

/// The device. All methods are instantaneous; the disk adds the latencies.
pub struct Platter {
    pages: Vec<Option<Page>>,
    len: u64,
    /// Completed writes that no flush has covered, in the order of completion.
    cached: BTreeMap<u64, CachedWrite>,
    /// Writes that have not completed.
    in_flight: BTreeMap<u64, CachedWrite>,
    next_id: u64,
    /// Number of power cuts: requests of an earlier life have no effect.
    pub(crate) life: u64,
    pub(crate) rng: Rng,
    /// The active fault rates.
    pub rates: FaultRates,
    /// Faults that have struck so far.
    pub counts: FaultCounts,
    /// Number of faults that may still strike.
    pub faults_left: u64,
    /// Whether every request fails until the next power cut.
    dead: bool,
    /// Bytes to which a growable device can grow.
    pub room_bytes: u64,
    /// Whether data dropped by a failed flush is unreadable at once; otherwise reads may see it for
    /// a while.
    pub drops_at_once: bool,
    tainted: BTreeSet<u64>,
}

impl Platter {
    /// Creates a blank device of `capacity_bytes`, of which `len` are usable at once.
    pub fn new(rng: Rng, capacity_bytes: u64, len: u64) -> Self {
        let mut pages = Vec::new();
        pages.resize_with((capacity_bytes / BLOCK as u64) as usize, || None);
        Self {
            pages,
            len,
            cached: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_id: 0,
            life: 0,
            rng,
            rates: FaultRates::default(),
            counts: FaultCounts::default(),
            faults_left: 0,
            dead: false,
            room_bytes: capacity_bytes,
            drops_at_once: false,
            tainted: BTreeSet::new(),
        }
    }

    /// Maximum size in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        (self.pages.len() * BLOCK) as u64
    }

    /// Readable and writable bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the readable length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Grows to `end`; returns false if space is lacking.
    pub fn grow(&mut self, end: u64) -> bool {
        if end > self.room_bytes.min(self.capacity_bytes()) {
            self.counts.full += 1;
            return false;
        }
        self.len = self.len.max(end);
        true
    }

    /// An image of the medium.
    pub fn image(&self) -> Image {
        Image(self.pages.clone(), self.len)
    }

    /// An image of the medium as a power cut at this moment would leave it: the content of a
    /// snapshot.
    pub fn snapshot(&mut self) -> Image {
        let (cached, in_flight) = (self.cached.clone(), self.in_flight.clone());
        let (pages, life, dead) = (self.pages.clone(), self.life, self.dead);
        self.cut();
        (self.cached, self.in_flight, self.life, self.dead) = (cached, in_flight, life, dead);
        Image(std::mem::replace(&mut self.pages, pages), self.len)
    }

    /// Restores the medium from an image, while the power is off.
    pub fn restore(&mut self, image: &Image) {
        self.pages.clone_from(&image.0);
        self.len = image.1;
        self.tainted.clear();
    }

    /// Restores the blocks whose numbers `chosen` accepts, while the power is off.
    pub(crate) fn restore_blocks(&mut self, image: &Image, chosen: impl Fn(u64) -> bool) {
        let blocks = (0..).zip(self.pages.iter_mut().zip(&image.0));
        for (_, (page, older)) in blocks.filter(|(block, _)| chosen(*block)) {
            page.clone_from(older);
        }
        self.tainted.clear();
    }

    /// Erases the medium while the power is off.
    pub fn wipe(&mut self) {
        self.pages.fill_with(|| None);
        self.tainted.clear();
    }

    /// Makes every request fail until the next power cut.
    pub fn die(&mut self) {
        self.counts.deaths += u64::from(!self.dead);
        self.dead = true;
    }

    /// Reads bytes: the medium, overlaid by the cache. A write in flight may show in any of its
    /// sectors.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (at, block) in out.chunks_exact_mut(BLOCK).enumerate() {
            if let Some(page) = &self.pages[offset as usize / BLOCK + at] {
                block.copy_from_slice(&page[..]);
            }
        }
        for write in self.cached.values() {
            overlay(&mut out, offset, write, |_| true);
        }
        let rng = &mut self.rng;
        for write in self.in_flight.values() {
            overlay(&mut out, offset, write, |_| rng.one_in(2));
        }
        out
    }

    /// The bytes that a read returns once all writes have completed, for tests and tools.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (at, block) in out.chunks_exact_mut(BLOCK).enumerate() {
            if let Some(page) = &self.pages[offset as usize / BLOCK + at] {
                block.copy_from_slice(&page[..]);
            }
        }
        for write in self.cached.values() {
            overlay(&mut out, offset, write, |_| true);
        }
        out
    }

    /// Starts a write.
    pub(crate) fn start_write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, CachedWrite { offset, data: data.to_vec(), doomed: false });
        id
    }

    /// Completes a write.
    pub(crate) fn finish_write(&mut self, id: u64, fate: Fate) {
        let Some(mut write) = self.in_flight.remove(&id) else { return };
        match fate {
            Fate::Normal => {}
            Fate::Lost => return,
            Fate::Eio => {
                self.persist_some(&write, 500);
                return;
            }
            Fate::Misdirected => {
                let blocks = (self.len - write.data.len() as u64) / BLOCK as u64;
                // A near or a random place: confusion with a neighbour is more likely.
                let at = write.offset / BLOCK as u64;
                let to = if self.rng.one_in(2) {
                    self.rng.range(at.saturating_sub(64), at + 64).min(blocks)
                } else {
                    self.rng.below(blocks + 1)
                };
                for block in 0..(write.data.len() / BLOCK) as u64 {
                    self.tainted.insert(to + block);
                }
                write.offset = to * BLOCK as u64;
            }
        }
        // New data replaces what a failed flush left readable.
        self.cached.retain(|_, old| !(old.doomed && old.overlaps(&write)));
        let order = self.next_id;
        self.next_id += 1;
        self.cached.insert(order, write);
    }

    /// The mark of a flush that starts now: it covers the writes completed before it.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.next_id
    }

    /// Completes a flush of the writes completed before `mark`.
    pub(crate) fn finish_flush(&mut self, mark: u64, fate: Fate) {
        if fate == Fate::Lost {
            return;
        }
        let later = self.cached.split_off(&mark);
        let covered = std::mem::replace(&mut self.cached, later);
        for (order, write) in covered {
            if write.doomed {
                self.cached.insert(order, write);
            } else if fate == Fate::Normal {
                self.persist(write.offset, &write.data);
            } else {
                self.persist_some(&write, 400);
                if self.rng.one_in(2) && !self.drops_at_once {
                    self.cached.insert(order, CachedWrite { doomed: true, ..write });
                }
            }
        }
    }

    /// Leaves random content in the range.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        let how = self.rng.below(4);
        let first = (offset / BLOCK as u64) as usize;
        let count = (len / BLOCK as u64) as usize;
        for block in first..(first + count).min(self.pages.len()) {
            match how {
                0 => self.pages[block] = None,
                1 if self.rng.one_in(2) => self.pages[block] = None,
                2 if self.pages[block].is_some() => self.pages[block] = Some(Box::new([0xdd; BLOCK])),
                _ => {}
            }
        }
    }

    fn persist(&mut self, offset: u64, data: &[u8]) {
        for (at, bytes) in data.chunks_exact(BLOCK).enumerate() {
            let block = offset / BLOCK as u64 + at as u64;
            self.tainted.remove(&block);
            let slot = &mut self.pages[block as usize];
            match slot {
                Some(page) => page.copy_from_slice(bytes),
                None if bytes.iter().all(|&b| b == 0) => {}
                None => {
                    let mut page = Box::new([0; BLOCK]);
                    page.copy_from_slice(bytes);
                    *slot = Some(page);
                }
            }
        }
    }

    /// Persists each sector with the probability `per_mille` / 1000.
    fn persist_some(&mut self, write: &CachedWrite, per_mille: u64) {
        for (at, bytes) in write.data.chunks_exact(SECTOR).enumerate() {
            if self.rng.chance(per_mille) {
                let offset = write.offset as usize + at * SECTOR;
                let page = self.pages[offset / BLOCK].get_or_insert_with(|| Box::new([0; BLOCK]));
                page[offset % BLOCK..offset % BLOCK + SECTOR].copy_from_slice(bytes);
            }
        }
    }

    /// Kills the process while the power stays on: each request in flight either completes or has
    /// no effect.
    pub fn kill(&mut self) {
        self.life += 1;
        let mut ids: Vec<u64> = self.in_flight.keys().copied().collect();
        while !ids.is_empty() {
            let at = self.rng.below(ids.len() as u64) as usize;
            let fate = if self.rng.one_in(2) { Fate::Normal } else { Fate::Lost };
            self.finish_write(ids.swap_remove(at), fate);
        }
    }

    /// Changes the size of the device while the power is off; data beyond the new end is lost.
    pub fn resize(&mut self, bytes: u64) {
        self.pages.resize_with((bytes / BLOCK as u64) as usize, || None);
        self.len = bytes;
    }

    /// Cuts the power: a random part of the unflushed data has reached the medium. The rest is
    /// lost.
    pub fn cut(&mut self) {
        self.life += 1;
        self.dead = false;
        let mut writes: Vec<CachedWrite> = std::mem::take(&mut self.cached).into_values().collect();
        writes.extend(std::mem::take(&mut self.in_flight).into_values());
        // Some cuts keep everything, some nothing, most a mixture.
        let mode = self.rng.below(6);
        for write in writes {
            if write.doomed {
                continue;
            }
            match (mode, self.rng.below(4)) {
                (0, _) | (2..=4, 0) => self.persist(write.offset, &write.data),
                (1, _) | (2..=4, 1) => {}
                (2 | 3, 2) => {
                    // A prefix or a suffix of sectors.
                    let at = self.rng.below((write.data.len() / SECTOR) as u64 + 1) as usize * SECTOR;
                    let (from, to) = if self.rng.one_in(2) { (0, at) } else { (at, write.data.len()) };
                    self.persist_sectors(write.offset, &write.data, from, to);
                }
                _ => {
                    let per_mille = self.rng.range(50, 950);
                    self.persist_some(&write, per_mille);
                }
            }
        }
    }

    fn persist_sectors(&mut self, offset: u64, data: &[u8], from: usize, to: usize) {
        for at in (from..to).step_by(SECTOR) {
            let place = offset as usize + at;
            let page = self.pages[place / BLOCK].get_or_insert_with(|| Box::new([0; BLOCK]));
            page[place % BLOCK..place % BLOCK + SECTOR].copy_from_slice(&data[at..at + SECTOR]);
        }
    }

    /// Flips one bit of written data. Returns the byte's offset, or `None` if the medium is blank.
    pub fn flip_bit(&mut self) -> Option<u64> {
        let written: Vec<usize> = (0..self.pages.len()).filter(|&at| self.pages[at].is_some()).collect();
        if written.is_empty() {
            return None;
        }
        let block = *self.rng.pick(&written);
        let byte = self.rng.below(BLOCK as u64) as usize;
        let bit = self.rng.below(8);
        self.flip(block as u64 * BLOCK as u64 + byte as u64, bit as u32);
        Some((block * BLOCK + byte) as u64)
    }

    /// Flips one bit of written data from `start` on, of which another copy is known to exist. The
    /// bit excuses no error until [`Platter::uncover`] is called.
    pub fn flip_covered(&mut self, start: u64) {
        let first = start as usize / BLOCK;
        let written: Vec<usize> = (first..self.pages.len()).filter(|&at| self.pages[at].is_some()).collect();
        if written.is_empty() {
            return;
        }
        let at = *self.rng.pick(&written) as u64 * BLOCK as u64 + self.rng.below(BLOCK as u64);
        let bit = self.rng.below(8) as u32;
        self.flip(at, bit);
        self.counts.flipped_bits -= 1;
        self.counts.covered_bits += 1;
    }

    /// Records that the other copy may be lost: remaining bad blocks count as damage from now on.
    pub fn uncover(&mut self) {
        if self.counts.covered_bits > 0 && self.counts.flipped_bits == 0 {
            self.counts.flipped_bits += self.tainted.len() as u64;
        }
    }

    /// Flips a bit of the medium.
    pub fn flip(&mut self, offset: u64, bit: u32) {
        let block = offset as usize / BLOCK;
        let page = self.pages[block].get_or_insert_with(|| Box::new([0; BLOCK]));
        page[offset as usize % BLOCK] ^= 1 << bit;
        self.tainted.insert(block as u64);
        self.counts.flipped_bits += 1;
    }

    /// Damaged blocks that have not been rewritten since.
    pub fn tainted_blocks(&self) -> usize {
        self.tainted.len()
    }

    /// Whether any write waits for a flush.
    pub fn dirty(&self) -> bool {
        !self.cached.is_empty() || !self.in_flight.is_empty()
    }
}

fn overlay(out: &mut [u8], offset: u64, write: &CachedWrite, mut takes: impl FnMut(usize) -> bool) {
    let start = write.offset.max(offset);
    let end = (write.offset + write.data.len() as u64).min(offset + out.len() as u64);
    let mut at = start;
    while at < end {
        let n = SECTOR.min((end - at) as usize);
        if takes(at as usize) {
            let (from, to) = ((at - write.offset) as usize, (at - offset) as usize);
            out[to..to + n].copy_from_slice(&write.data[from..from + n]);
        }
        at += n as u64;
    }
}
