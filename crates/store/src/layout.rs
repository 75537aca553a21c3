//! The layout of a pool of several disks: its members, and the home disk of each slot.
//!
//! A key's slot is a hash of its bucket and itself. Everything of the key (object, uploads, parts,
//! chunks) is at the slot's home. The layout is a record in the log of every disk; the highest
//! generation counts.
//!
//! While keys move, the layout also has each slot's *goal*. Of each disk it says whether it may
//! hold foreign keys (*unclean*) and whether it is *leaving* the pool. Without any of these the
//! last line is absent. `store/moves/mod.rs` describes how layouts follow each other.
//!
//! ```text
//! payload = generation:v family:16 count:v (disk:16 name:s)* runs:v (slots:v disk:v)*
//!           [(flags:1)* runs:v (slots:v goal:v)*]
//! flags   = bit 0 unclean, bit 1 leaving
//! ```

use std::sync::Arc;

pub(crate) use steadfast_flow::ring::SLOTS;
use steadfast_flow::ring::shares;

use crate::record::keys::{self, BucketId, Id};
use crate::record::wire::{Dec, Malformed, put_bytes, put_varint};

/// The slot of a key of a bucket, or of a channel ([`keys::CHANNELS`] and its name). An outbox is
/// in the slot of its events.
pub(crate) fn slot_of(bucket: BucketId, key: &[u8]) -> usize {
    let outbox = if bucket == keys::CHANNELS { keys::outbox_slot(key) } else { None };
    outbox.unwrap_or_else(|| steadfast_flow::ring::slot_of(bucket, key))
}

/// Maximum number of disks in a pool: each has at least one slot, and the layout's record stays
/// small.
pub(crate) const DISKS_MAX: usize = 128;

/// A disk of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The identity of its log.
    pub(crate) disk: Id,
    /// The path or name under which it joined the pool, for operators.
    pub(crate) name: String,
    /// Whether it may hold keys of slots that it is not home to.
    pub(crate) unclean: bool,
    /// Whether it leaves the pool once it is home to no slot.
    pub(crate) leaving: bool,
}

const UNCLEAN: u8 = 1;
const LEAVING: u8 = 2;

/// Which disk is home to each slot, and where slots are to move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The identity of the pool.
    pub(crate) family: Id,
    /// Generation: higher in every later layout of the pool.
    pub(crate) generation: u64,
    /// The disks. The first one is authoritative for buckets.
    pub(crate) seats: Vec<Seat>,
    /// Home of each slot, as an index into the seats.
    pub(crate) homes: Vec<u16>,
    /// Future home of each slot, as an index into the seats. Where goal and home differ, the slot
    /// has yet to move.
    pub(crate) goals: Vec<u16>,
}

impl Layout {
    /// The first layout of a pool: every disk gets slots in proportion to its capacity.
    pub(crate) fn found(family: Id, seats: Vec<Seat>, capacities: &[u64]) -> Self {
        assert_eq!(seats.len(), capacities.len(), "each disk has a capacity");
        let homes = shares(capacities);
        assert_eq!(homes.len(), SLOTS, "each slot has a home");
        let goals = homes.clone();
        Self { family, generation: 1, seats, homes, goals }
    }

    /// Index of a disk among the seats.
    pub(crate) fn seat_of(&self, disk: &Id) -> Option<usize> {
        self.seats.iter().position(|seat| seat.disk == *disk)
    }

    /// Number of slots that a seat is home to.
    pub(crate) fn slots_of(&self, seat: usize) -> usize {
        self.homes.iter().filter(|home| usize::from(**home) == seat).count()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + 32 * self.seats.len());
        put_varint(&mut out, self.generation);
        out.extend_from_slice(&self.family);
        put_varint(&mut out, self.seats.len() as u64);
        for seat in &self.seats {
            out.extend_from_slice(&seat.disk);
            put_bytes(&mut out, seat.name.as_bytes());
        }
        put_runs(&mut out, &self.homes);
        if self.has_work() {
            for seat in &self.seats {
                out.push(if seat.unclean { UNCLEAN } else { 0 } | if seat.leaving { LEAVING } else { 0 });
            }
            put_runs(&mut out, &self.goals);
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let generation = dec.varint()?;
        let family = dec.array()?;
        let mut seats: Vec<Seat> = Vec::new();
        for _ in 0..dec.varint()? {
            let disk = dec.array()?;
            if seats.len() == DISKS_MAX || seats.iter().any(|seat| seat.disk == disk) {
                return Err(Malformed("layout: disks"));
            }
            seats.push(Seat { disk, name: dec.str()?.to_owned(), unclean: false, leaving: false });
        }
        let homes = take_runs(&mut dec, seats.len())?;
        let mut goals = homes.clone();
        if !dec.0.is_empty() {
            for seat in &mut seats {
                let flags = dec.u8()?;
                (seat.unclean, seat.leaving) = (flags & UNCLEAN != 0, flags & LEAVING != 0);
            }
            goals = take_runs(&mut dec, seats.len())?;
        }
        Ok(Self { family, generation, seats, homes, goals })
    }

    /// Whether slots must move, or keys or disks be removed.
    pub(crate) fn has_work(&self) -> bool {
        self.homes != self.goals || self.seats.iter().any(|seat| seat.unclean || seat.leaving)
    }
}

fn put_runs(out: &mut Vec<u8>, table: &[u16]) {
    let runs: Vec<&[u16]> = table.chunk_by(|a, b| a == b).collect();
    put_varint(out, runs.len() as u64);
    for run in runs {
        put_varint(out, run.len() as u64);
        put_varint(out, u64::from(run[0]));
    }
}

fn take_runs(dec: &mut Dec<'_>, seats: usize) -> Result<Vec<u16>, Malformed> {
    let mut table = Vec::with_capacity(SLOTS);
    for _ in 0..dec.varint()? {
        let (count, seat) = (dec.varint()?, dec.u16()?);
        let end = table.len() as u64 + count.min(SLOTS as u64 + 1);
        if count == 0 || end > SLOTS as u64 || usize::from(seat) >= seats {
            return Err(Malformed("layout: slots"));
        }
        table.resize(end as usize, seat);
    }
    if table.len() == SLOTS { Ok(table) } else { Err(Malformed("layout: slots")) }
}

/// The keys of a shard that are at home there; it may hold others too.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) layout: Arc<Layout>,
    pub(crate) seat: usize,
}

impl Owned {
    /// Whether the slot's home is this disk.
    pub(crate) fn has_slot(&self, slot: usize) -> bool {
        usize::from(self.layout.homes[slot]) == self.seat
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn founded(capacities: &[u64]) -> Layout {
        let seats = (0..capacities.len())
            .map(|i| {
                let mut disk = [7; 16];
                disk[..8].copy_from_slice(&(i as u64).to_le_bytes());
                Seat { disk, name: format!("/dev/disk{i}"), unclean: false, leaving: false }
            })
            .collect();
        Layout::found([3; 16], seats, capacities)
    }

    proptest! {
        #[test]
        fn comes_back(
            capacities in proptest::collection::vec(any::<u64>(), 1..40),
            generation: u64,
            flags: u128,
            goals in proptest::collection::vec(any::<u16>(), SLOTS),
            junk: Vec<u8>,
        ) {
            let mut layout = Layout { generation, ..founded(&capacities) };
            prop_assert_eq!(Layout::decode(&layout.encode()), Ok(layout.clone()));
            for (i, seat) in layout.seats.iter_mut().enumerate() {
                (seat.unclean, seat.leaving) = (flags >> i & 1 == 1, flags >> i & 2 == 2);
            }
            layout.goals = goals.into_iter().map(|goal| goal % capacities.len() as u16).collect();
            prop_assert_eq!(Layout::decode(&layout.encode()), Ok(layout));
            let _ = Layout::decode(&junk);
        }

        #[test]
        fn every_disk_has_its_share(capacities in proptest::collection::vec(1u64..1 << 50, 1..=DISKS_MAX)) {
            let layout = founded(&capacities);
            prop_assert_eq!(layout.homes.len(), SLOTS);
            let total: f64 = capacities.iter().map(|c| *c as f64).sum();
            for (seat, capacity) in capacities.iter().enumerate() {
                let slots = layout.slots_of(seat);
                let due = (SLOTS - capacities.len()) as f64 * *capacity as f64 / total;
                prop_assert!(slots >= 1 && (slots as f64 - 1.0 - due).abs() <= 1.0, "{slots} slots, {due} due");
            }
        }
    }

    #[test]
    fn one_from_before_disks_could_be_added_is_understood() {
        let layout = founded(&[1, 1]);
        let bytes = layout.encode();
        assert_eq!(bytes[bytes.len() - 7..], [2, 0x80, 4, 0, 0x80, 4, 1], "two runs of 512, and nothing behind them");
        assert!(!Layout::decode(&bytes).expect("understood").has_work());
    }

    #[test]
    fn equal_disks_have_equal_shares() {
        let layout = founded(&[1 << 40; 8]);
        assert!((0..8).all(|seat| layout.slots_of(seat) == 128));
    }
}
