//! The device behind a simulated disk: what is on the medium, what is only in its volatile cache or on its way, and what a
//! power cut makes of that. It outlives the power cuts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use steadfast_disk::BLOCK;

use crate::rng::Rng;

/// The grain of tearing: a device writes a sector whole or not at all.
pub const SECTOR: usize = 512;

/// How likely each fault is, in 1/1,000,000 of the requests of its kind. All zero by default.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct FaultRates {
    /// A read fails with `EIO`.
    pub read_eio: u64,
    /// A write fails with `EIO`, having written any part.
    pub write_eio: u64,
    /// A flush fails with `EIO`, having made any part durable; the rest is dropped from the cache.
    pub flush_eio: u64,
    /// A write is acknowledged and goes nowhere.
    pub lost_write: u64,
    /// A write is acknowledged and goes to another place.
    pub misdirected_write: u64,
    /// A flush is acknowledged and does nothing.
    pub lying_flush: u64,
    /// A request of any kind takes ten seconds to a minute.
    pub hang: u64,
}

/// How often each fault has struck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Reads that failed.
    pub read_eio: u64,
    /// Writes that failed.
    pub write_eio: u64,
    /// Flushes that failed.
    pub flush_eio: u64,
    /// Writes that went nowhere.
    pub lost_writes: u64,
    /// Writes that went elsewhere.
    pub misdirected_writes: u64,
    /// Flushes that did nothing.
    pub lying_flushes: u64,
    /// Bits that were flipped on the medium.
    pub flipped_bits: u64,
    /// Reservations refused for want of room.
    pub full: u64,
    /// Requests that hung for a while.
    pub hangs: u64,
    /// Bits that were flipped where another copy has the same: no excuse for anything.
    pub covered_bits: u64,
    /// Devices that failed altogether until the next start.
    pub deaths: u64,
}

impl FaultCounts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.read_eio += other.read_eio;
        self.write_eio += other.write_eio;
        self.flush_eio += other.flush_eio;
        self.lost_writes += other.lost_writes;
        self.misdirected_writes += other.misdirected_writes;
        self.lying_flushes += other.lying_flushes;
        self.flipped_bits += other.flipped_bits;
        self.full += other.full;
        self.hangs += other.hangs;
        self.covered_bits += other.covered_bits;
        self.deaths += other.deaths;
    }

    /// Whether writes or flushes have failed.
    pub fn write_errors(&self) -> bool {
        self.write_eio + self.flush_eio > 0
    }

    /// Whether the medium may hold something else than what was acknowledged.
    pub fn damage(&self) -> bool {
        self.lost_writes + self.misdirected_writes + self.lying_flushes + self.flipped_bits > 0
    }
}

type Page = Box<[u8; BLOCK]>;

/// What is on a medium at one time, and its length.
pub struct Image(Vec<Option<Page>>, u64);

#[derive(Clone)]
struct Write {
    offset: u64,
    data: Vec<u8>,
    /// Dropped from the cache by a failed flush: no later flush writes it, though reads may still see it.
    doomed: bool,
}

impl Write {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.data.len() as u64 && other.offset < self.offset + self.data.len() as u64
    }
}

/// The device. All methods are instantaneous; the disk gives them their time.
pub struct Platter {
    pages: Vec<Option<Page>>,
    len: u64,
    /// Completed writes that no flush has covered, in the order of completion.
    cached: BTreeMap<u64, Write>,
    /// Writes that have not completed.
    in_flight: BTreeMap<u64, Write>,
    next_id: u64,
    /// Counts power cuts: a request of an earlier life does nothing.
    pub(crate) life: u64,
    pub(crate) rng: Rng,
    /// The faults that are switched on.
    pub rates: FaultRates,
    /// What has struck so far.
    pub counts: FaultCounts,
    /// How many more faults may strike.
    pub faults_left: u64,
    /// Everything fails until the power goes.
    dead: bool,
    /// A growable device has no room past this many bytes.
    pub room_bytes: u64,
    /// What a failed flush has dropped cannot be read any more; else it may be, for a while.
    pub drops_at_once: bool,
    tainted: BTreeSet<u64>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Right,
    Eio,
    Lost,
    Misdirected,
}

impl Platter {
    /// A blank device of `capacity_bytes`, of which `len` can be used at once.
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

    /// Bytes that the device can ever hold.
    pub fn capacity_bytes(&self) -> u64 {
        (self.pages.len() * BLOCK) as u64
    }

    /// Bytes that can be read and written.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing can be read or written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Grows to `end`; false when there is no room.
    pub fn grow(&mut self, end: u64) -> bool {
        if end > self.room_bytes.min(self.capacity_bytes()) {
            self.counts.full += 1;
            return false;
        }
        self.len = self.len.max(end);
        true
    }

    fn strikes(&mut self, rate: u64) -> bool {
        if rate == 0 || self.faults_left == 0 || self.rng.below(1_000_000) >= rate {
            return false;
        }
        self.faults_left -= 1;
        true
    }

    /// How long a request hangs, in nanoseconds, if it does.
    pub(crate) fn hang_ns(&mut self) -> Option<u64> {
        let rate = self.rates.hang;
        if !self.strikes(rate) {
            return None;
        }
        self.counts.hangs += 1;
        Some(self.rng.range(10_000_000_000, 60_000_000_000))
    }

    /// What is on the medium now.
    pub fn image(&self) -> Image {
        Image(self.pages.clone(), self.len)
    }

    /// What would be on the medium if the power went now: what a snapshot of it holds.
    pub fn snapshot(&mut self) -> Image {
        let (cached, in_flight) = (self.cached.clone(), self.in_flight.clone());
        let (pages, life, dead) = (self.pages.clone(), self.life, self.dead);
        self.cut();
        (self.cached, self.in_flight, self.life, self.dead) = (cached, in_flight, life, dead);
        Image(std::mem::replace(&mut self.pages, pages), self.len)
    }

    /// Puts the medium back to an earlier time. The power is off.
    pub fn restore(&mut self, image: &Image) {
        self.pages.clone_from(&image.0);
        self.len = image.1;
        self.tainted.clear();
    }

    /// Puts those blocks back to an earlier time of which `chosen` says so, by their numbers. The power is off.
    pub(crate) fn restore_blocks(&mut self, image: &Image, chosen: impl Fn(u64) -> bool) {
        let blocks = (0..).zip(self.pages.iter_mut().zip(&image.0));
        for (_, (page, older)) in blocks.filter(|(block, _)| chosen(*block)) {
            page.clone_from(older);
        }
        self.tainted.clear();
    }

    /// Makes the medium blank. The power is off.
    pub fn wipe(&mut self) {
        self.pages.fill_with(|| None);
        self.tainted.clear();
    }

    /// From now on everything fails, until the power goes.
    pub fn die(&mut self) {
        self.counts.deaths += u64::from(!self.dead);
        self.dead = true;
    }

    pub(crate) fn read_fate(&mut self) -> Fate {
        let rate = self.rates.read_eio;
        if self.dead || self.strikes(rate) {
            self.counts.read_eio += 1;
            return Fate::Eio;
        }
        Fate::Right
    }

    pub(crate) fn write_fate(&mut self) -> Fate {
        let rates = self.rates;
        if self.dead || self.strikes(rates.write_eio) {
            self.counts.write_eio += 1;
            Fate::Eio
        } else if self.strikes(rates.lost_write) {
            self.counts.lost_writes += 1;
            Fate::Lost
        } else if self.strikes(rates.misdirected_write) {
            self.counts.misdirected_writes += 1;
            Fate::Misdirected
        } else {
            Fate::Right
        }
    }

    pub(crate) fn flush_fate(&mut self) -> Fate {
        let rates = self.rates;
        if self.dead || self.strikes(rates.flush_eio) {
            self.counts.flush_eio += 1;
            Fate::Eio
        } else if self.strikes(rates.lying_flush) {
            self.counts.lying_flushes += 1;
            Fate::Lost
        } else {
            Fate::Right
        }
    }

    /// What a read of a place gives: the medium under the cache; a write on its way shows in any of its sectors.
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

    /// What a read would give once all is settled, for tests and tools.
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

    /// A write sets out.
    pub(crate) fn start_write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, Write { offset, data: data.to_vec(), doomed: false });
        id
    }

    /// A write arrives.
    pub(crate) fn finish_write(&mut self, id: u64, fate: Fate) {
        let Some(mut write) = self.in_flight.remove(&id) else { return };
        match fate {
            Fate::Right => {}
            Fate::Lost => return,
            Fate::Eio => {
                self.persist_some(&write, 500);
                return;
            }
            Fate::Misdirected => {
                let blocks = (self.len - write.data.len() as u64) / BLOCK as u64;
                // Near or anywhere: a neighbour is the likelier confusion.
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
        // What a failed flush left readable gives way to what is written over it.
        self.cached.retain(|_, old| !(old.doomed && old.overlaps(&write)));
        let order = self.next_id;
        self.next_id += 1;
        self.cached.insert(order, write);
    }

    /// The completed writes that a flush that starts now covers: those before the returned mark.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.next_id
    }

    /// A flush of what had completed at `mark` ends.
    pub(crate) fn finish_flush(&mut self, mark: u64, fate: Fate) {
        if fate == Fate::Lost {
            return;
        }
        let later = self.cached.split_off(&mark);
        let covered = std::mem::replace(&mut self.cached, later);
        for (order, write) in covered {
            if write.doomed {
                self.cached.insert(order, write);
            } else if fate == Fate::Right {
                self.persist(write.offset, &write.data);
            } else {
                self.persist_some(&write, 400);
                if self.rng.one_in(2) && !self.drops_at_once {
                    self.cached.insert(order, Write { doomed: true, ..write });
                }
            }
        }
    }

    /// Makes the bytes anything.
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
    fn persist_some(&mut self, write: &Write, per_mille: u64) {
        for (at, bytes) in write.data.chunks_exact(SECTOR).enumerate() {
            if self.rng.chance(per_mille) {
                let offset = write.offset as usize + at * SECTOR;
                let page = self.pages[offset / BLOCK].get_or_insert_with(|| Box::new([0; BLOCK]));
                page[offset % BLOCK..offset % BLOCK + SECTOR].copy_from_slice(bytes);
            }
        }
    }

    /// The process that used the device is killed, and the power stays: each request that is under way arrives or does not.
    pub fn kill(&mut self) {
        self.life += 1;
        let mut ids: Vec<u64> = self.in_flight.keys().copied().collect();
        while !ids.is_empty() {
            let at = self.rng.below(ids.len() as u64) as usize;
            let fate = if self.rng.one_in(2) { Fate::Right } else { Fate::Lost };
            self.finish_write(ids.swap_remove(at), fate);
        }
    }

    /// Makes the device another size: what lay behind its end is lost. The power is off.
    pub fn resize(&mut self, bytes: u64) {
        self.pages.resize_with((bytes / BLOCK as u64) as usize, || None);
        self.len = bytes;
    }

    /// The power goes: of all that was not flushed, any part may have reached the medium. Everything else is gone.
    pub fn cut(&mut self) {
        self.life += 1;
        self.dead = false;
        let mut writes: Vec<Write> = std::mem::take(&mut self.cached).into_values().collect();
        writes.extend(std::mem::take(&mut self.in_flight).into_values());
        // Some cuts leave everything, some nothing, most a mixture.
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

    /// Flips one bit of something that is on the medium; returns the byte's offset, `None` when the medium is blank.
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

    /// Flips one bit of something from `start` on that another copy is known to hold. It is no excuse for anything until
    /// [`Platter::uncover`] is called.
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

    /// The other copy may be gone: what is still bad counts as damage from now on.
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

    /// Blocks that were damaged and have not been written again since.
    pub fn tainted_blocks(&self) -> usize {
        self.tainted.len()
    }

    /// Whether anything is waiting for a flush.
    pub fn dirty(&self) -> bool {
        !self.cached.is_empty() || !self.in_flight.is_empty()
    }
}

fn overlay(out: &mut [u8], offset: u64, write: &Write, mut takes: impl FnMut(usize) -> bool) {
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
