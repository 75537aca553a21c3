//! The faults of a device: their rates, their counts, and the decision whether one strikes.

use serde::Serialize;

use super::Platter;

/// The rate of each fault, per 1,000,000 requests of its kind. All are zero by default.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct FaultRates {
    /// A read fails with `EIO`.
    pub read_eio: u64,
    /// A write fails with `EIO` after writing a random part.
    pub write_eio: u64,
    /// A flush fails with `EIO` after making a random part durable; the cache drops the rest.
    pub flush_eio: u64,
    /// A write is acknowledged and dropped.
    pub lost_write: u64,
    /// A write is acknowledged and written to another place.
    pub misdirected_write: u64,
    /// A flush is acknowledged and does nothing.
    pub lying_flush: u64,
    /// A request of any kind takes ten seconds to a minute.
    pub hang: u64,
}

/// The number of faults that have struck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Reads that failed.
    pub read_eio: u64,
    /// Writes that failed.
    pub write_eio: u64,
    /// Flushes that failed.
    pub flush_eio: u64,
    /// Writes that were dropped.
    pub lost_writes: u64,
    /// Writes that were written to another place.
    pub misdirected_writes: u64,
    /// Flushes that did nothing.
    pub lying_flushes: u64,
    /// Bits that were flipped on the medium.
    pub flipped_bits: u64,
    /// Reservations refused for lack of space.
    pub full: u64,
    /// Requests that hung for a while.
    pub hangs: u64,
    /// Bits flipped in data that has another good copy; they excuse no error.
    pub covered_bits: u64,
    /// Devices that failed completely until the next start.
    pub deaths: u64,
}

impl FaultCounts {
    /// Adds the counts of another run.
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

    /// Whether the medium may hold data that differs from what was acknowledged.
    pub fn damage(&self) -> bool {
        self.lost_writes + self.misdirected_writes + self.lying_flushes + self.flipped_bits > 0
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Normal,
    Eio,
    Lost,
    Misdirected,
}

impl Platter {
    /// Whether a fault of this rate strikes now.
    fn strikes(&mut self, rate: u64) -> bool {
        if rate == 0 || self.faults_left == 0 || self.rng.below(1_000_000) >= rate {
            return false;
        }
        self.faults_left -= 1;
        true
    }

    /// Nanoseconds that a request hangs, if it does.
    pub(crate) fn hang_ns(&mut self) -> Option<u64> {
        let rate = self.rates.hang;
        if !self.strikes(rate) {
            return None;
        }
        self.counts.hangs += 1;
        Some(self.rng.range(10_000_000_000, 60_000_000_000))
    }

    /// Decides the fate of a read.
    pub(crate) fn read_fate(&mut self) -> Fate {
        let rate = self.rates.read_eio;
        if self.dead || self.strikes(rate) {
            self.counts.read_eio += 1;
            return Fate::Eio;
        }
        Fate::Normal
    }

    /// Decides the fate of a write.
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
            Fate::Normal
        }
    }

    /// Decides the fate of a flush.
    pub(crate) fn flush_fate(&mut self) -> Fate {
        let rates = self.rates;
        if self.dead || self.strikes(rates.flush_eio) {
            self.counts.flush_eio += 1;
            Fate::Eio
        } else if self.strikes(rates.lying_flush) {
            self.counts.lying_flushes += 1;
            Fate::Lost
        } else {
            Fate::Normal
        }
    }
}
