//! What a client without checksums may read.
//!
//! The unit is the sector, which a device writes completely or not at all. For each sector, the
//! ledger knows the contents that a read may return now (`now`), and those that the durable leg may
//! hold after a power cut (`after_cut`). The number of the write identifies a content. The remains
//! of a discard count as a write with any content.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_disk::BLOCK;

use crate::disk::Device;
use crate::platter::SECTOR;

/// Sectors in a block.
pub(crate) const SECTORS: usize = BLOCK / SECTOR;
/// Set in the number of a discard.
const ANY: u64 = 1 << 62;
/// Set in a content that was never written.
const STRANGE: u64 = 1 << 63;
/// After a failed flush of the durable leg, reads that begin within this time may see data that it
/// has since dropped.
const GRACE: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
struct Sector {
    now: Vec<u64>,
    after_cut: Vec<u64>,
    /// Number of writes in flight.
    flying: u32,
    /// Whether a write or discard has begun since the pair was opened.
    touched: bool,
    /// Contents that reads found after a discard, each with the mark at that time.
    found: Vec<(u64, u64)>,
}

struct LedgerWrite {
    first: usize,
    /// For each sector: the contents that the write replaces when it is acknowledged.
    before: Vec<Vec<u64>>,
}

struct LedgerRead {
    first: usize,
    allowed: Vec<Vec<u64>>,
    /// For each sector: whether no write was in flight at any time of the read.
    calm: Vec<bool>,
}

/// A flush in flight: the contents acknowledged when it began.
pub(crate) struct Flush {
    mark: u64,
    covered: Vec<Vec<u64>>,
}

/// The possible contents of the durable leg when an image of it was taken.
#[derive(Clone)]
pub(crate) struct LedgerMoment(Vec<Vec<u64>>);

/// The contents that each sector may have.
pub(crate) struct Ledger {
    sectors: Vec<Sector>,
    next: u64,
    writes: BTreeMap<u64, LedgerWrite>,
    reads: BTreeMap<u64, LedgerRead>,
    durable: Device,
    flush_errors: u64,
    grace_until: Duration,
    /// The first violation.
    pub(crate) violation: Option<String>,
}

fn is_any(number: u64) -> bool {
    number & (ANY | STRANGE) == ANY
}

fn is_after(number: u64, mark: u64) -> bool {
    number & STRANGE == 0 && number & !ANY > mark
}

/// The content of `blocks` blocks written by the write with this number.
pub(crate) fn content(number: u64, blocks: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(blocks * BLOCK / 8)
}

/// The number of the write that a sector comes from.
fn decode(sector: &[u8]) -> u64 {
    let mut hash = 0u64;
    let mut words = sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.next().unwrap_or(0);
    let mut same = first < ANY;
    for word in words {
        same &= word == first;
        hash = crate::rng::mix(hash ^ word);
    }
    if same { first } else { crate::rng::mix(hash ^ first) | STRANGE }
}

impl Ledger {
    pub(crate) fn new(blocks: usize, durable: Device) -> Self {
        let blank = Sector { now: vec![0], after_cut: vec![0], ..Sector::default() };
        Self {
            sectors: vec![blank; blocks * SECTORS],
            next: 0,
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            durable,
            flush_errors: 0,
            grace_until: Duration::ZERO,
            violation: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Handles a refused request: only errors of the durable leg excuse it.
    pub(crate) fn refused(&mut self, what: &str, error: &std::io::Error) {
        if !self.durable.lock().counts.write_errors() {
            self.fail(format!("{what} was refused: {error}"));
        }
    }

    /// After a failed flush of the durable leg, the durability of its unflushed data is unknown.
    fn look_at_durable(&mut self, now: Duration) {
        let errors = self.durable.lock().counts.flush_eio;
        if errors == self.flush_errors {
            return;
        }
        self.flush_errors = errors;
        self.grace_until = now + GRACE;
        for sector in &mut self.sectors {
            let lost: Vec<u64> = sector.after_cut.iter().filter(|n| !sector.now.contains(n)).copied().collect();
            sector.now.extend(lost);
        }
        self.writes.values_mut().flat_map(|write| &mut write.before).for_each(Vec::clear);
        for read in self.reads.values_mut() {
            for (at, allowed) in read.allowed.iter_mut().enumerate() {
                allowed.extend(&self.sectors[read.first + at].now);
                read.calm[at] = false;
            }
        }
    }

    /// Records the start of a write, or with `any` of a discard. Returns its number.
    pub(crate) fn write_begins(&mut self, block: usize, blocks: usize, any: bool, now: Duration) -> u64 {
        self.look_at_durable(now);
        let number = self.number() | if any { ANY } else { 0 };
        let (first, count) = (block * SECTORS, blocks * SECTORS);
        let mut before = Vec::with_capacity(count);
        for sector in &mut self.sectors[first..first + count] {
            before.push(sector.now.iter().filter(|n| !self.writes.contains_key(n)).copied().collect());
            sector.now.push(number);
            sector.after_cut.push(number);
            sector.flying += 1;
            sector.touched = true;
        }
        for read in self.reads.values_mut() {
            for (at, allowed) in read.allowed.iter_mut().enumerate() {
                if (first..first + count).contains(&(read.first + at)) {
                    allowed.push(number);
                    read.calm[at] = false;
                }
            }
        }
        self.writes.insert(number, LedgerWrite { first, before });
        number
    }

    /// Records the end of a write. With `flushed`, it is durable.
    pub(crate) fn write_ends(&mut self, number: u64, done: bool, flushed: bool, now: Duration) {
        self.look_at_durable(now);
        let Some(write) = self.writes.remove(&number) else { return };
        for (at, before) in write.before.iter().enumerate() {
            let sector = &mut self.sectors[write.first + at];
            sector.flying -= 1;
            if done {
                sector.now.retain(|n| !before.contains(n));
            }
            if done && flushed {
                sector.after_cut.retain(|n| !before.contains(n));
            }
        }
    }

    pub(crate) fn flush_begins(&mut self, now: Duration) -> Flush {
        self.look_at_durable(now);
        Flush { mark: self.next, covered: self.sectors.iter().map(|sector| sector.now.clone()).collect() }
    }

    /// Records the success of a flush.
    pub(crate) fn flush_ends(&mut self, flush: &Flush, now: Duration) {
        self.look_at_durable(now);
        for (sector, covered) in self.sectors.iter_mut().zip(&flush.covered) {
            // The remains of a discard are as old as their first read.
            let found_after = |n: u64| sector.found.iter().any(|(found, at)| *found == n && *at >= flush.mark);
            sector.after_cut.retain(|n| covered.contains(n) || is_after(*n, flush.mark) || found_after(*n));
        }
    }

    pub(crate) fn read_begins(&mut self, block: usize, blocks: usize, now: Duration) -> u64 {
        self.look_at_durable(now);
        let first = block * SECTORS;
        let sectors = &self.sectors[first..first + blocks * SECTORS];
        let read = LedgerRead {
            first,
            allowed: sectors.iter().map(|sector| sector.now.clone()).collect(),
            calm: sectors.iter().map(|sector| sector.flying == 0 && now >= self.grace_until).collect(),
        };
        let number = self.number();
        self.reads.insert(number, read);
        number
    }

    /// Checks the result of a read: `bytes`, or `None` for an error.
    pub(crate) fn read_ends(&mut self, number: u64, bytes: Option<&[u8]>, now: Duration) {
        self.look_at_durable(now);
        let (Some(read), Some(bytes)) = (self.reads.remove(&number), bytes) else { return };
        for (at, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
            let (seen, place) = (decode(bytes), read.first + at);
            let fits = |numbers: &[u64]| numbers.iter().any(|n| *n == seen || is_any(*n));
            let sector = &self.sectors[place];
            let good = fits(&read.allowed[at]) && (!read.calm[at] || fits(&sector.now));
            if !good {
                let (block, sector_at) = (place / SECTORS, place % SECTORS);
                let text = format!(
                    "block {block}, sector {sector_at} reads as write {seen:#x}; it may be one of {:x?}, of {:x?} when the read began",
                    sector.now, read.allowed[at]
                );
                self.fail(text);
                return;
            }
            if read.calm[at] {
                let mark = self.next;
                self.sectors[place].settle(seen, mark);
            }
        }
    }

    /// Records the open of the pair: all readable contents are durable.
    pub(crate) fn opened(&mut self) {
        for sector in &mut self.sectors {
            sector.after_cut.clone_from(&sector.now);
            sector.touched = false;
            sector.found.clear();
        }
    }

    /// Records the end of the process. With `cut`, the durable leg has lost its power too.
    pub(crate) fn ended(&mut self, cut: bool, now: Duration) {
        self.look_at_durable(now);
        self.writes.clear();
        self.reads.clear();
        self.grace_until = Duration::ZERO;
        for sector in &mut self.sectors {
            sector.flying = 0;
            if cut {
                sector.now.clone_from(&sector.after_cut);
            }
        }
    }

    pub(crate) fn moment(&mut self, now: Duration) -> LedgerMoment {
        self.look_at_durable(now);
        LedgerMoment(self.sectors.iter().map(|sector| sector.after_cut.clone()).collect())
    }

    /// Records the restore of the durable leg, while no process runs.
    pub(crate) fn restore(&mut self, moment: &LedgerMoment) {
        for (sector, held) in self.sectors.iter_mut().zip(&moment.0) {
            sector.now.clone_from(held);
            sector.after_cut.clone_from(held);
        }
    }
}

impl Sector {
    /// Fixes the content that a read found while no write was in flight.
    fn settle(&mut self, seen: u64, mark: u64) {
        if !self.now.contains(&seen) {
            self.found.push((seen, mark));
        }
        self.now.clear();
        self.now.push(seen);
        if !self.after_cut.contains(&seen) {
            self.after_cut.push(seen);
        }
        if !self.touched {
            self.after_cut.clone_from(&self.now);
        }
    }
}
