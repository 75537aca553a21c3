//! Who belongs together: the pair's identity on both legs.
//!
//! ```text
//! durable   0         256 KiB  260 KiB           512 KiB  768 KiB  1 MiB
//!           +---------+--------+-----------------+--------+--------+---   label and intent bits lie in the space that the pool's
//!           | pool's  | label, | intent bits,    | pool's | label, | pool  first MiB leaves free; through the super-disk they
//!           | own     | odd    | then zeros      | own    | even   |       read as zeros
//!           +---------+--------+-----------------+--------+--------+---
//! fast      0         256 KiB  512 KiB  768 KiB        16 MiB
//!           +---------+--------+--------+--------+-----+---
//!           | label,  | label, | label, | label, | ... | byte 0 of the durable leg, ...    each device of the leg has its own
//!           | odd     | even   | odd    | even   |     |                                   labels: here a stripe of several
//!           +---------+--------+--------+--------+-----+---
//! ```
//!
//! A label, version 3: mark (8), version (4), number of the opening (4), pair UUID (16), fast leg's UUID (16), generation (8), event (8),
//! cleared_at (8), number of the writing (8), bytes of a region (8), the four blocks written last (8 each, plus one; 0 for none), number of
//! the opening before (4), CRC32C (4) at 124. The two places are written in turn, by the number of the writing.
//! A fast leg that is named by a label of an earlier version is stale.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use steadfast_flow::Env;

use super::options::SuperdiskSabotage;
use crate::intent::{BITS_BYTES, Intent};
use crate::label::{Found, Label, field, look, new_uuid, u32_at, u64_at};
use crate::{BLOCK, Disk};

pub(crate) const DURABLE_MAGIC: [u8; 8] = *b"STEADPAI";
pub(crate) const FAST_MAGIC: [u8; 8] = *b"STEADFLG";

/// Where the durable leg's labels are.
pub(crate) const DURABLE_LABELS: [u64; 2] = [256 << 10, 768 << 10];
/// The part of the durable leg that they are in.
pub(crate) const DURABLE_RESERVED: u64 = 1 << 20;
/// Where the durable leg's intent bits are.
pub(crate) const INTENT_BITS: u64 = (256 << 10) + BLOCK as u64;
/// What the layers above cannot use of the durable leg, from byte to byte.
const RESERVED: [(u64, u64); 2] = [(256 << 10, 512 << 10), (768 << 10, (768 << 10) + BLOCK as u64)];
/// Where the fast leg keeps byte 0 of the durable leg. The labels are in front of it ([`Disk::label_places`]).
pub(crate) const FAST_START: u64 = 16 << 20;
/// How many disks a fast leg may have: as many as chunks of the usual size are in front of its data.
pub const FAST_DISKS_MAX: usize = 32;

const VERSION: u32 = 3;

/// The fast leg's UUID where there is none.
pub(crate) const NO_LEG: [u8; 16] = [0; 16];

/// What a label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// UUID of the pair.
    pub(crate) pair: [u8; 16],
    /// UUID of the fast leg; zeros while there has been none.
    pub(crate) fast: [u8; 16],
    /// A random number that every opening with a fast leg draws, and every return of one.
    pub(crate) opening: u32,
    /// The number that the fast leg had before it got that one; the same as `opening` from the next event on. Zero on the fast leg.
    pub(crate) opening_before: u32,
    /// How often the pair had been opened with a fast leg when this was written.
    pub(crate) generation: u64,
    /// Rises with every round that sets or clears bits while the fast leg is in use. Of the fast leg: the last that it has, durably.
    pub(crate) event: u64,
    /// The event of the last batch of bits that were cleared: an image of the fast leg from before does not count. Zero on the fast leg.
    pub(crate) cleared_at: u64,
    /// How often the label has been written.
    pub(crate) seq: u64,
    /// Bytes of a region, of which the durable leg has a bit. Zero on the fast leg.
    pub(crate) region_bytes: u64,
    /// The blocks that were written last, plus one each: 0 for none. Zeros on the fast leg.
    pub(crate) last_written: [u64; LAST_WRITTEN],
}

/// How many of the blocks that were written last are in the label.
pub(crate) const LAST_WRITTEN: usize = 4;

impl Identity {
    /// This label with the next event. The fast leg has the number of this opening.
    pub(crate) fn raised(self) -> Self {
        Self { event: self.event + 1, opening_before: self.opening, ..self }
    }

    /// This label with the next event, in a new opening, for a fast leg whose label has the number `before`.
    pub(crate) fn reopened(self, before: u32, env: &Env) -> Self {
        Self { opening: (env.random_u64() >> 32) as u32, opening_before: before, ..self.raised() }
    }

    /// As [`Identity::reopened`], for a fast leg of which nothing counts: it gets a new UUID.
    pub(crate) fn renamed(self, env: &Env) -> Self {
        let new = self.reopened(0, env);
        Self { fast: new_uuid(env), cleared_at: new.event, opening_before: new.opening, ..new }
    }

    /// The fast leg's label that goes with this one.
    pub(crate) fn of_fast(self) -> Self {
        let last_written = [0; LAST_WRITTEN];
        Self { opening_before: 0, cleared_at: 0, region_bytes: 0, seq: self.event, last_written, ..self }
    }

    fn encode(&self, magic: [u8; 8]) -> Bytes {
        let mut label = Label::new(magic, VERSION);
        label.put(12, &self.opening.to_le_bytes());
        label.put(16, &self.pair);
        label.put(120, &self.opening_before.to_le_bytes());
        label.put(32, &self.fast);
        let numbers = [self.generation, self.event, self.cleared_at, self.seq, self.region_bytes];
        for (i, number) in numbers.into_iter().chain(self.last_written).enumerate() {
            label.put(48 + 8 * i, &number.to_le_bytes());
        }
        Bytes::copy_from_slice(&label.seal())
    }

    pub(crate) fn look(block: &[u8], magic: [u8; 8]) -> Found<Self> {
        look(block, magic, VERSION, |b, version| Self {
            pair: field(b, 16),
            // A leg of an earlier version never counts.
            fast: if version < VERSION { NO_LEG } else { field(b, 32) },
            opening: u32_at(b, 12),
            opening_before: u32_at(b, 120),
            generation: u64_at(b, 48),
            event: u64_at(b, 56),
            cleared_at: u64_at(b, 64),
            seq: u64_at(b, 72),
            region_bytes: u64_at(b, 80),
            last_written: std::array::from_fn(|i| u64_at(b, 88 + 8 * i)),
        })
    }

    /// Writes the durable leg's label, over the older one of the two. Durable with the next flush. Answers what was written.
    pub(crate) async fn write_durable(mut self, disk: &Arc<dyn Disk>) -> io::Result<Self> {
        self.seq += 1;
        disk.write(DURABLE_LABELS[place(self.seq)], self.encode(DURABLE_MAGIC)).await?;
        Ok(self)
    }

    /// As [`Identity::write_durable`], and flushes the disk.
    pub(crate) async fn write_durable_flushed(self, disk: &Arc<dyn Disk>) -> io::Result<Self> {
        let written = self.write_durable(disk).await?;
        disk.flush().await?;
        Ok(written)
    }

    /// Writes the label on each device of the fast leg, and flushes that leg: what it had completed before is durable with it.
    pub(crate) async fn write_fast(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write_on_devices(disk, place(self.seq), true).await
    }

    /// As [`Identity::write_fast`], without the flush. For sabotage.
    pub(crate) async fn write_fast_unflushed(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write_on_devices(disk, place(self.seq), false).await
    }

    /// Writes the fast leg's label in both places of each device.
    pub(crate) async fn write_new_fast(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        for which in [0, 1] {
            self.write_on_devices(disk, which, true).await?;
        }
        Ok(())
    }

    /// Waits for all devices also after an error: a label that is written late would replace a newer one.
    async fn write_on_devices(&self, disk: &Arc<dyn Disk>, which: usize, flush: bool) -> io::Result<()> {
        let (label, places) = (self.encode(FAST_MAGIC), disk.label_places());
        if let (true, [one]) = (flush, &places[..]) {
            return disk.write_flush(one[which], label).await;
        }
        let writes = places.iter().map(|device| disk.write(device[which], label.clone()));
        join_all(writes).await.into_iter().collect::<io::Result<()>>()?;
        if flush { disk.flush().await } else { Ok(()) }
    }

    /// Whether each device of the fast leg takes its labels, as they are, and gives them back. Without a flush: a disk that once
    /// failed one refuses all further ones, and may still serve reads.
    pub(crate) async fn is_kept(&self, fast: &Arc<dyn Disk>) -> io::Result<bool> {
        for which in [0, 1] {
            self.write_on_devices(fast, which, false).await?;
            for device in fast.label_places() {
                if Self::look(&fast.read(device[which], BLOCK).await?, FAST_MAGIC) != Found::Label(*self) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Which of its two places a label with this number has.
fn place(seq: u64) -> usize {
    usize::from(seq.is_multiple_of(2))
}

/// Writes the durable leg's label for a fast leg that is new to it: all bits are set. Durable when it returns.
pub(crate) async fn write_new_pair(
    identity: Identity,
    disk: &Arc<dyn Disk>,
    sabotage: SuperdiskSabotage,
) -> io::Result<Identity> {
    disk.write(INTENT_BITS, Intent::encode_all_set(&identity.fast)).await?;
    if sabotage == SuperdiskSabotage::AttachNotFlushed {
        return identity.write_durable(disk).await;
    }
    identity.write_durable_flushed(disk).await
}

/// Reads the intent bits; what cannot be read counts as set.
pub(crate) async fn read_intent(identity: &Identity, disk: &Arc<dyn Disk>) -> Intent {
    let mut area = vec![0u8; BITS_BYTES];
    for (i, block) in area.chunks_mut(BLOCK).enumerate() {
        match disk.read(INTENT_BITS + (i * BLOCK) as u64, BLOCK).await {
            Ok(bytes) => block.copy_from_slice(&bytes),
            Err(error) => {
                tracing::warn!(disk = disk.describe(), %error, "intent bits cannot be read: they count as set")
            }
        }
    }
    let mut intent = Intent::new();
    intent.load(&area, &identity.fast);
    intent
}

/// Looks for labels: the newest one that is whole, else what else is there.
pub(super) async fn find(disk: &Arc<dyn Disk>, magic: [u8; 8], places: [u64; 2]) -> io::Result<Found<Identity>> {
    let mut best: Option<Identity> = None;
    let age = |label: &Identity| (label.seq, label.generation, label.event, label.cleared_at);
    let mut rest = Found::Blank;
    let mut failed = None;
    for offset in places {
        if offset + BLOCK as u64 > disk.len() {
            continue;
        }
        match disk.read(offset, BLOCK).await {
            Ok(block) => match Identity::look(&block, magic) {
                Found::Label(label) if best.is_none_or(|b| age(&b) < age(&label)) => best = Some(label),
                Found::Label(_) | Found::Blank => {}
                bad @ (Found::Damaged | Found::Version(_)) => rest = bad,
                Found::Other if rest == Found::Blank => rest = Found::Other,
                Found::Other => {}
            },
            Err(error) => failed = Some(error),
        }
    }
    match (best, failed) {
        (Some(label), _) => Ok(Found::Label(label)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(rest),
    }
}

/// The durable leg's label.
pub(crate) async fn find_durable(disk: &Arc<dyn Disk>) -> io::Result<Found<Identity>> {
    find(disk, DURABLE_MAGIC, DURABLE_LABELS).await
}

/// The reserved parts of a range, from byte to byte.
fn reserved_in(offset: u64, len: usize) -> impl Iterator<Item = (u64, u64)> {
    let end = offset.saturating_add(len as u64);
    RESERVED.into_iter().map(move |(from, to)| (from.max(offset), to.min(end))).filter(|(from, to)| from < to)
}

/// Whether a range touches what is reserved for labels and bits.
pub(crate) fn touches_reserved(offset: u64, len: usize) -> bool {
    reserved_in(offset, len).next().is_some()
}

/// What the layers above see of a range: labels and bits are zeros to them, so that a pair without a pool is blank.
pub(crate) fn masked(offset: u64, bytes: Bytes) -> Bytes {
    if !touches_reserved(offset, bytes.len()) {
        return bytes;
    }
    let mut masked = bytes.to_vec();
    for (from, to) in reserved_in(offset, bytes.len()) {
        masked[(from - offset) as usize..(to - offset) as usize].fill(0);
    }
    masked.into()
}
