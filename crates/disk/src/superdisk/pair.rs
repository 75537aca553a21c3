//! The identity of a pair: the labels on both legs.
//!
//! ```text
//! durable   0         256 KiB  260 KiB           512 KiB  768 KiB  1 MiB
//!           +---------+--------+-----------------+--------+--------+---
//!           | pool's  | label, | intent bits,    | pool's | label, | pool
//!           | own     | odd    | then zeros      | own    | even   |
//!           +---------+--------+-----------------+--------+--------+---
//! fast      0         256 KiB  512 KiB  768 KiB        16 MiB
//!           +---------+--------+--------+--------+-----+---
//!           | label,  | label, | label, | label, | ... | byte 0 of the durable leg, ...
//!           | odd     | even   | odd    | even   |     |
//!           +---------+--------+--------+--------+-----+---
//! ```
//!
//! On the durable leg, label and intent bits lie in the space that the pool's first MiB leaves
//! free. They read as zeros through the super-disk. On the fast leg each device has separate
//! labels; the figure shows a stripe of several.
//!
//! A label, version 3: mark (8), version (4), number of the opening (4), pair UUID (16), fast leg's
//! UUID (16), generation (8), event (8), cleared_at (8), number of the writing (8), bytes of a
//! region (8), the four blocks written last (8 each, plus one; 0 for none), number of the previous
//! opening (4), CRC32C (4) at 124. The two places are written alternately, by the number of the
//! writing. A fast leg that a label of an earlier version names is stale.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use steadfast_flow::{Env, has_fault};

use super::options::SuperdiskSabotage;
use crate::intent::{BITS_BYTES, Intent};
use crate::label::{Found, Label, field, look, new_uuid, u32_at, u64_at};
use crate::{BLOCK, Disk};

pub(crate) const DURABLE_MAGIC: [u8; 8] = *b"STEADPAI";
pub(crate) const FAST_MAGIC: [u8; 8] = *b"STEADFLG";

/// Offsets of the durable leg's labels.
pub(crate) const DURABLE_LABELS: [u64; 2] = [256 << 10, 768 << 10];
/// Bytes at the beginning of the durable leg that contain them.
pub(crate) const DURABLE_RESERVED: u64 = 1 << 20;
/// Offset of the durable leg's intent bits.
pub(crate) const INTENT_BITS: u64 = (256 << 10) + BLOCK as u64;
/// Byte ranges of the durable leg that the layers above cannot use.
const RESERVED: [(u64, u64); 2] = [(256 << 10, 512 << 10), (768 << 10, (768 << 10) + BLOCK as u64)];
/// Offset of byte 0 of the durable leg on the fast leg. The labels precede it
/// ([`Disk::label_places`]).
pub(crate) const FAST_START: u64 = 16 << 20;
/// Maximum number of disks of a fast leg: the number of chunks of the default size in front of its
/// data.
pub const FAST_DISKS_MAX: usize = 32;

const VERSION: u32 = 3;

/// UUID for a missing fast leg.
pub(crate) const NO_LEG: [u8; 16] = [0; 16];

/// The content of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// UUID of the pair.
    pub(crate) pair: [u8; 16],
    /// UUID of the fast leg; zeros before the first one.
    pub(crate) fast: [u8; 16],
    /// Random number drawn by every opening with a fast leg, and by every return of one.
    pub(crate) opening: u32,
    /// Number that the fast leg had before the current one; equal to `opening` from the next event
    /// on. Zero on the fast leg.
    pub(crate) opening_before: u32,
    /// Number of openings of the pair with a fast leg when the label was written.
    pub(crate) generation: u64,
    /// Counter that rises with every round that sets or clears bits while the fast leg is in use.
    /// On the fast leg: the last event that it holds durably.
    pub(crate) event: u64,
    /// Event of the last clearing of bits: an earlier image of the fast leg does not count. Zero on
    /// the fast leg.
    pub(crate) cleared_at: u64,
    /// Number of writings of the label.
    pub(crate) seq: u64,
    /// Bytes per region; the durable leg has a bit for each. Zero on the fast leg.
    pub(crate) region_bytes: u64,
    /// Blocks written last, plus one each; 0 for none. Zeros on the fast leg.
    pub(crate) last_written: [u64; LAST_WRITTEN],
}

/// Number of last written blocks in the label.
pub(crate) const LAST_WRITTEN: usize = 4;

impl Identity {
    /// This label with the next event. The fast leg then has the number of this opening.
    pub(crate) fn raised(self) -> Self {
        Self { event: self.event + 1, opening_before: self.opening, ..self }
    }

    /// This label with the next event, in a new opening, for a fast leg whose label has the number
    /// `before`.
    pub(crate) fn reopened(self, before: u32, env: &Env) -> Self {
        Self { opening: (env.random_u64() >> 32) as u32, opening_before: before, ..self.raised() }
    }

    /// Like [`Identity::reopened`], for a fast leg whose content is refused: it gets a new UUID.
    pub(crate) fn renamed(self, env: &Env) -> Self {
        let new = self.reopened(0, env);
        Self { fast: new_uuid(env), cleared_at: new.event, opening_before: new.opening, ..new }
    }

    /// The fast leg's label that matches this one.
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
            // The label of an earlier version names no leg, so that leg never counts.
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

    /// Writes the durable leg's label over the older one of the two. Durable with the next flush.
    /// Returns the written label.
    pub(crate) async fn write_durable(mut self, disk: &Arc<dyn Disk>) -> io::Result<Self> {
        self.seq += 1;
        disk.write(DURABLE_LABELS[place(self.seq)], self.encode(DURABLE_MAGIC)).await?;
        Ok(self)
    }

    /// Like [`Identity::write_durable`], and flushes the disk.
    pub(crate) async fn write_durable_flushed(self, disk: &Arc<dyn Disk>) -> io::Result<Self> {
        let written = self.write_durable(disk).await?;
        disk.flush().await?;
        Ok(written)
    }

    /// Writes the label on each device of the fast leg and flushes that leg, including its earlier
    /// completed writes.
    pub(crate) async fn write_fast(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write_on_devices(disk, place(self.seq), true).await
    }

    /// Like [`Identity::write_fast`], without the flush. For sabotage.
    pub(crate) async fn write_fast_unflushed(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write_on_devices(disk, place(self.seq), false).await
    }

    /// Writes the fast leg's label at both places of each device.
    pub(crate) async fn write_new_fast(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        for which in [0, 1] {
            self.write_on_devices(disk, which, true).await?;
        }
        Ok(())
    }

    /// Waits for all devices even after an error: a label that is written late would replace a
    /// newer one.
    async fn write_on_devices(&self, disk: &Arc<dyn Disk>, which: usize, flush: bool) -> io::Result<()> {
        let (label, places) = (self.encode(FAST_MAGIC), disk.label_places());
        if let (true, [one]) = (flush, &places[..]) {
            return disk.write_flush(one[which], label).await;
        }
        let writes = places.iter().map(|device| disk.write(device[which], label.clone()));
        join_all(writes).await.into_iter().collect::<io::Result<()>>()?;
        if flush { disk.flush().await } else { Ok(()) }
    }

    /// Whether each device of the fast leg accepts its current labels and returns them. Without a
    /// flush: a disk with a failed flush refuses all further ones, and may still serve reads.
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

/// The place of a label with this number.
fn place(seq: u64) -> usize {
    usize::from(seq.is_multiple_of(2))
}

/// Writes the durable leg's label for a fast leg that is new to it, with all bits set. Durable when
/// it returns.
pub(crate) async fn write_new_pair(
    identity: Identity,
    disk: &Arc<dyn Disk>,
    sabotage: SuperdiskSabotage,
) -> io::Result<Identity> {
    disk.write(INTENT_BITS, Intent::encode_all_set(&identity.fast)).await?;
    if has_fault(sabotage, SuperdiskSabotage::AttachNotFlushed) {
        return identity.write_durable(disk).await;
    }
    identity.write_durable_flushed(disk).await
}

/// Reads the intent bits; unreadable ones count as set.
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

/// Finds labels: returns the newest undamaged one, or else what the places hold.
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

/// The reserved parts of a range, as byte ranges.
fn reserved_in(offset: u64, len: usize) -> impl Iterator<Item = (u64, u64)> {
    let end = offset.saturating_add(len as u64);
    RESERVED.into_iter().map(move |(from, to)| (from.max(offset), to.min(end))).filter(|(from, to)| from < to)
}

/// Whether a range overlaps the space reserved for labels and bits.
pub(crate) fn touches_reserved(offset: u64, len: usize) -> bool {
    reserved_in(offset, len).next().is_some()
}

/// Replaces labels and bits by zeros for the layers above, so that a pair without a pool is blank.
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
