//! Who belongs together: the pair's identity on both legs.
//!
//! ```text
//! durable   0         256 KiB  512 KiB  768 KiB  1 MiB
//!           +---------+--------+--------+--------+---          the pair's label, in two copies, in the space that the pool's
//!           | pool's  | pair   | pool's | pair,  | pool        first MiB leaves free; through the super-disk it reads as zeros
//!           | own     |        | own    | copy   |
//!           +---------+--------+--------+--------+---
//! fast      0         512 KiB  1 MiB    2.5 MiB  4 MiB
//!           +---------+--------+--------+--------+---
//!           | label   | label, | map    | map    | byte 0 of the durable leg, ...
//!           |         | copy   | slot 0 | slot 1 |
//!           +---------+--------+--------+--------+---
//! ```
//!
//! A label: mark (8), version (4), zeros (4), pair UUID (16), fast leg's UUID (16), generation (8), event (8), cleared_at (8), zeros,
//! CRC32C (4) at 124. Builds from before events leave those at zero.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::label::{Found, Label, field, look, u64_at};
use crate::{BLOCK, Disk};

pub(crate) const DURABLE_MAGIC: [u8; 8] = *b"STEADPAI";
pub(crate) const FAST_MAGIC: [u8; 8] = *b"STEADFLG";

/// Where the durable leg's labels are.
pub(crate) const DURABLE_LABELS: [u64; 2] = [256 << 10, 768 << 10];
/// The part of the durable leg that they are in.
pub(crate) const DURABLE_RESERVED: u64 = 1 << 20;
/// Where the fast leg's labels are.
pub(crate) const FAST_LABELS: [u64; 2] = [0, 512 << 10];
/// Where the fast leg keeps its map, alternately.
pub(crate) const MAP_SLOTS: [u64; 2] = [1 << 20, 5 << 19];
/// Where the fast leg keeps byte 0 of the durable leg.
pub(crate) const FAST_START: u64 = 4 << 20;

/// The fast leg's UUID where there is none.
pub(crate) const NO_LEG: [u8; 16] = [0; 16];

/// What a label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// UUID of the pair.
    pub(crate) pair: [u8; 16],
    /// UUID of the fast leg; zeros while there has been none.
    pub(crate) fast: [u8; 16],
    /// How often the pair had been opened when this was written.
    pub(crate) generation: u64,
    /// Rises on the durable leg, durably, before the fast leg's map may call more valid than before. Zero: written by a build without events.
    pub(crate) event: u64,
    /// The last event that the fast leg is known to have: an image of it from before does not count. Zero on the fast leg.
    pub(crate) cleared_at: u64,
}

impl Identity {
    /// Whether the fast leg's label fits this one, the durable leg's. What the leg holds counts only if its map's event does too.
    pub(crate) fn names(&self, fast: &Identity) -> bool {
        let same = self.pair == fast.pair && self.fast == fast.fast && fast.fast != NO_LEG;
        let before_events = self.event == 0 && fast.event == 0 && self.generation == fast.generation;
        same && (before_events || (fast.event != 0 && fast.event <= self.event))
    }

    /// Whether a map of the fast leg with this event may be believed. A later event than this leg's: it has been put back to an
    /// earlier time. An earlier one than was cleared: the fast leg has.
    pub(crate) fn covers(&self, event: u64) -> bool {
        if self.event == 0 {
            return event == 0;
        }
        event != 0 && self.cleared_at <= event && event <= self.event
    }

    fn encode(&self, magic: [u8; 8]) -> Bytes {
        let mut label = Label::new(magic);
        label.put(16, &self.pair);
        label.put(32, &self.fast);
        label.put(48, &self.generation.to_le_bytes());
        label.put(56, &self.event.to_le_bytes());
        label.put(64, &self.cleared_at.to_le_bytes());
        Bytes::copy_from_slice(&label.seal())
    }

    pub(crate) fn look(block: &[u8], magic: [u8; 8]) -> Found<Self> {
        look(block, magic, |b| Self {
            pair: field(b, 16),
            fast: field(b, 32),
            generation: u64_at(b, 48),
            event: u64_at(b, 56),
            cleared_at: u64_at(b, 64),
        })
    }

    /// Writes both copies, one after the other, so that never both are in doubt.
    async fn write(&self, disk: &Arc<dyn Disk>, magic: [u8; 8], places: [u64; 2]) -> io::Result<()> {
        for offset in places {
            disk.write_flush(offset, self.encode(magic)).await?;
        }
        Ok(())
    }

    /// Writes the durable leg's labels.
    pub(crate) async fn write_durable(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write(disk, DURABLE_MAGIC, DURABLE_LABELS).await
    }

    /// As [`Identity::write_durable`]; durable with a later flush.
    pub(crate) async fn write_durable_unflushed(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        for offset in DURABLE_LABELS {
            disk.write(offset, self.encode(DURABLE_MAGIC)).await?;
        }
        Ok(())
    }

    /// Whether the fast leg takes its labels, as they are, gives them back, and each device of it answers. Without a flush: a disk that once
    /// failed one refuses all further ones, and may still serve reads.
    pub(crate) async fn is_kept(&self, fast: &Arc<dyn Disk>) -> io::Result<bool> {
        for copy in FAST_LABELS {
            fast.write(copy, self.encode(FAST_MAGIC)).await?;
            if Self::look(&fast.read(copy, BLOCK).await?, FAST_MAGIC) != Found::Label(*self) {
                return Ok(false);
            }
        }
        fast.answers().await.map(|()| true)
    }

    /// Writes the fast leg's labels.
    pub(crate) async fn write_fast(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.write(disk, FAST_MAGIC, FAST_LABELS).await
    }
}

/// Looks for labels: the newest one that is whole, else what else is there.
async fn find(disk: &Arc<dyn Disk>, magic: [u8; 8], places: [u64; 2]) -> io::Result<Found<Identity>> {
    let mut best: Option<Identity> = None;
    let age = |label: &Identity| (label.generation, label.event, label.cleared_at);
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

/// The fast leg's label.
pub(crate) async fn find_fast(disk: &Arc<dyn Disk>) -> io::Result<Found<Identity>> {
    find(disk, FAST_MAGIC, FAST_LABELS).await
}

/// The durable leg's labels that a range touches.
fn labels_in(offset: u64, len: usize) -> impl Iterator<Item = u64> {
    DURABLE_LABELS.into_iter().filter(move |at| offset < at + BLOCK as u64 && *at < offset + len as u64)
}

/// Whether a range touches a label.
pub(crate) fn touches_label(offset: u64, len: usize) -> bool {
    labels_in(offset, len).next().is_some()
}

/// What the layers above see of a range: labels are zeros to them, so that a pair without a pool is blank.
pub(crate) fn masked(offset: u64, bytes: Bytes) -> Bytes {
    if !touches_label(offset, bytes.len()) {
        return bytes;
    }
    let mut masked = bytes.to_vec();
    for label in labels_in(offset, bytes.len()) {
        let at = (label - offset) as usize;
        masked[at..at + BLOCK].fill(0);
    }
    masked.into()
}
