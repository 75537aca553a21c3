//! Zones over any disk: what a host-managed zoned device demands is demanded here, and nothing is forgiven.
//!
//! Behind a first area that may be written anywhere (conventional zones), the disk is cut into zones of one size. Each is written
//! from its start to its end, in order; what is before its write pointer cannot be written again before the zone is reset; only so many zones
//! may be begun and not full. So a log that runs on it is proven to run on ZNS and SMR devices.
//!
//! The write pointers are kept in a table behind the last zone (two copies of each block, written in turn) and are made durable with every flush, as a device
//! does: after a crash a zone's pointer may be behind unflushed writes, or in front of some that got lost, never behind flushed ones.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::BoxFuture;

use crate::label::{crc32c, u32_at, u64_at};
use crate::{AlignedBuf, BLOCK, Disk, DiskStats, Geometry, IoFuture, ZoneGeometry};

const B: u64 = BLOCK as u64;
const MAGIC: [u8; 8] = *b"STEADZON";
/// Where the pointers begin in a block of the table, and how many there are.
const HEAD: usize = 32;
const POINTERS: usize = (BLOCK - HEAD - 4) / 4;

/// How far a zone has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ZoneState {
    /// Nothing is written.
    Empty,
    /// Begun and not full: counts against the limit of open zones.
    Open,
    /// Written to its end, or finished before it.
    Full,
    /// A write failed: nothing more can be written before a reset. Counts as open.
    Failed,
}

/// One zone that must be written in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// Where it begins, in bytes.
    pub start: u64,
    /// Its size in bytes.
    pub len: u64,
    /// Where the next write must begin, in bytes from the start of the disk.
    pub write_pointer: u64,
    /// How far it has been written.
    pub state: ZoneState,
}

/// How a [`Zoned`] is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZonedOptions {
    /// Bytes in a zone, a multiple of [`BLOCK`].
    pub zone_bytes: u64,
    /// Bytes at the beginning that may be written anywhere, a multiple of [`BLOCK`].
    pub conventional_bytes: u64,
    /// Zones that may be open at a time; 0 for no limit.
    pub open_zones_max: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pointer {
    /// Blocks written, or accepted for writing.
    blocks: u32,
    in_flight: u32,
    failed: bool,
}

struct State {
    pointers: Vec<Pointer>,
    open: u32,
    /// Blocks of the table that differ from what is on the disk.
    changed: Vec<bool>,
    /// How often each was written: the copy to write next.
    written: Vec<u64>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    options: ZonedOptions,
    zones: u64,
    state: Mutex<State>,
    /// One writer of the table at a time, until it is flushed.
    table: tokio::sync::Mutex<()>,
}

/// A disk of zones over any disk.
#[derive(Clone)]
pub struct Zoned(Arc<Inner>);

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl Inner {
    fn zone_blocks(&self) -> u32 {
        (self.options.zone_bytes / B) as u32
    }

    fn len(&self) -> u64 {
        self.options.conventional_bytes + self.zones * self.options.zone_bytes
    }

    /// Which zone an offset is in; `None` in the conventional area.
    fn zone_of(&self, offset: u64) -> Option<usize> {
        Some((offset.checked_sub(self.options.conventional_bytes)? / self.options.zone_bytes) as usize)
    }

    fn start_of(&self, zone: usize) -> u64 {
        self.options.conventional_bytes + zone as u64 * self.options.zone_bytes
    }

    fn state_of(&self, pointer: Pointer) -> ZoneState {
        match pointer {
            Pointer { failed: true, .. } => ZoneState::Failed,
            Pointer { blocks: 0, .. } => ZoneState::Empty,
            Pointer { blocks, .. } if blocks == self.zone_blocks() => ZoneState::Full,
            _ => ZoneState::Open,
        }
    }

    /// Changes a zone's pointer, and keeps count of the open ones.
    fn set(&self, state: &mut State, zone: usize, pointer: Pointer) {
        let counts = |pointer| u32::from(matches!(self.state_of(pointer), ZoneState::Open | ZoneState::Failed));
        let before = state.pointers[zone];
        state.open = state.open + counts(pointer) - counts(before);
        if before.blocks != pointer.blocks {
            state.changed[zone / POINTERS] = true;
        }
        state.pointers[zone] = pointer;
    }

    fn check(&self, offset: u64, len: u64, past_the_end: io::ErrorKind) -> io::Result<()> {
        if !(offset | len).is_multiple_of(B) {
            return Err(refused(format!("{len} bytes at offset {offset}: not multiples of {BLOCK}")));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let text = format!("{len} bytes at offset {offset}: past the end of the zoned disk at {}", self.len());
            return Err(io::Error::new(past_the_end, text));
        }
        Ok(())
    }

    /// Admits a write: `Some` zone whose pointer it has moved.
    fn admit(&self, offset: u64, len: u64) -> io::Result<Option<usize>> {
        self.check(offset, len, io::ErrorKind::InvalidInput)?;
        if len == 0 {
            return Ok(None);
        }
        let first = self.zone_of(offset);
        if self.zone_of(offset + len - 1) != first {
            return Err(refused(format!("a write of {len} bytes at {offset} crosses the border of a zone")));
        }
        let Some(zone) = first else { return Ok(None) };
        let mut state = self.state.lock();
        let pointer = state.pointers[zone];
        let at = self.start_of(zone) + u64::from(pointer.blocks) * B;
        let what = format!("a write of {len} bytes at {offset}, zone {zone}");
        if pointer.failed {
            return Err(refused(format!("{what}: a write to this zone has failed; reset it first")));
        }
        if self.state_of(pointer) == ZoneState::Full {
            return Err(refused(format!("{what}: the zone is full; reset it first")));
        }
        if at != offset {
            return Err(refused(format!("{what}: not at the zone's write pointer, which is at {at}")));
        }
        let max = self.options.open_zones_max;
        // A write that fills an empty zone at once opens it all the same.
        if pointer.blocks == 0 && max > 0 && state.open >= max {
            return Err(refused(format!("{what}: would open a zone too many, {max} are open already")));
        }
        let blocks = pointer.blocks + (len / B) as u32;
        self.set(&mut state, zone, Pointer { blocks, in_flight: pointer.in_flight + 1, ..pointer });
        Ok(Some(zone))
    }

    fn done(&self, zone: Option<usize>, failed: bool) {
        let Some(zone) = zone else { return };
        let mut state = self.state.lock();
        let pointer = state.pointers[zone];
        let pointer = Pointer { in_flight: pointer.in_flight - 1, failed: pointer.failed || failed, ..pointer };
        self.set(&mut state, zone, pointer);
    }

    /// Where copy `copy` of a block of the table is.
    fn table_at(&self, block: usize, copy: u64) -> u64 {
        self.len() + (block as u64 * 2 + copy) * B
    }

    /// Makes the table's changes, and all that was written before, durable.
    async fn flush(&self) -> io::Result<()> {
        let _one = self.table.lock().await;
        let changed: Vec<(usize, u64, Bytes)> = {
            let mut state = self.state.lock();
            let blocks = (0..state.changed.len()).filter(|block| state.changed[*block]).collect::<Vec<_>>();
            blocks
                .into_iter()
                .map(|block| {
                    state.changed[block] = false;
                    state.written[block] += 1;
                    let pointers = state.pointers.iter().skip(block * POINTERS).take(POINTERS);
                    (block, state.written[block] % 2, encode(block, state.written[block], pointers))
                })
                .collect()
        };
        for (i, (block, copy, bytes)) in changed.iter().enumerate() {
            if let Err(error) = self.disk.write(self.table_at(*block, *copy), bytes.clone()).await {
                let mut state = self.state.lock();
                changed[i..].iter().for_each(|(block, ..)| state.changed[*block] = true);
                return Err(error);
            }
        }
        self.disk.flush().await
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let zone = self.admit(offset, data.len() as u64)?;
        let mut ended = Ended { inner: self, zone, failed: true };
        let result = self.disk.write(offset, data).await;
        ended.failed = result.is_err();
        result
    }

    /// What is not written reads as zeros.
    async fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.check(offset, len as u64, io::ErrorKind::UnexpectedEof)?;
        let bytes = self.disk.read(offset, len).await?;
        let end = offset + len as u64;
        let mut masked: Option<Vec<u8>> = None;
        let first = self.zone_of(offset.max(self.options.conventional_bytes)).unwrap_or(0);
        for zone in (first..self.zones as usize).take_while(|zone| self.start_of(*zone) < end) {
            let written = u64::from(self.state.lock().pointers[zone].blocks) * B;
            let from = (self.start_of(zone) + written).max(offset);
            let to = (self.start_of(zone) + self.options.zone_bytes).min(end);
            if from < to {
                let bytes = masked.get_or_insert_with(|| bytes.to_vec());
                bytes[(from - offset) as usize..(to - offset) as usize].fill(0);
            }
        }
        Ok(masked.map_or(bytes, Bytes::from))
    }

    /// The zone that begins at `offset`, with nothing under way.
    fn quiet_zone(&self, offset: u64) -> io::Result<Option<usize>> {
        let Some(zone) = self.zone_of(offset) else { return Ok(None) };
        if zone as u64 >= self.zones || self.start_of(zone) != offset {
            return Err(refused(format!("no zone begins at {offset}")));
        }
        match self.state.lock().pointers[zone].in_flight {
            0 => Ok(Some(zone)),
            n => Err(refused(format!("{n} writes to zone {zone} are under way"))),
        }
    }

    async fn move_pointer(&self, offset: u64, blocks: u32) -> io::Result<()> {
        if let Some(zone) = self.quiet_zone(offset)? {
            self.set(&mut self.state.lock(), zone, Pointer { blocks, ..Pointer::default() });
            self.flush().await?;
        }
        Ok(())
    }
}

/// Tells the zone that a write has ended, also when its caller went away: then nobody knows how.
struct Ended<'a> {
    inner: &'a Inner,
    zone: Option<usize>,
    failed: bool,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.inner.done(self.zone, self.failed);
    }
}

/// A block of the table: mark (8), how often it was written (8), its number (4), zeros, pointers in blocks (4 each), CRC32C (4).
fn encode<'a>(block: usize, written: u64, pointers: impl Iterator<Item = &'a Pointer>) -> Bytes {
    let mut bytes = vec![0u8; BLOCK];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&written.to_le_bytes());
    bytes[16..20].copy_from_slice(&(block as u32).to_le_bytes());
    for (i, pointer) in pointers.enumerate() {
        bytes[HEAD + i * 4..HEAD + i * 4 + 4].copy_from_slice(&pointer.blocks.to_le_bytes());
    }
    let crc = crc32c(&bytes[..BLOCK - 4]);
    bytes[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes.into()
}

fn is_valid(bytes: &[u8], block: usize) -> bool {
    bytes.len() == BLOCK
        && bytes[..8] == MAGIC
        && u32_at(bytes, 16) == block as u32
        && u32_at(bytes, BLOCK - 4) == crc32c(&bytes[..BLOCK - 4])
}

impl Zoned {
    /// Cuts `disk` into zones, or finds the write pointers of an earlier time. All of it must have been reserved; what is left over
    /// behind the last whole zone and the table is not used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes that do not fit, and those of the disk.
    pub async fn open(disk: Arc<dyn Disk>, options: ZonedOptions) -> io::Result<Arc<Self>> {
        let ZonedOptions { zone_bytes, conventional_bytes, .. } = options;
        if zone_bytes == 0
            || !(zone_bytes | conventional_bytes).is_multiple_of(B)
            || zone_bytes / B > u64::from(u32::MAX)
        {
            return Err(refused(format!("zones of {zone_bytes} bytes behind {conventional_bytes}: not blocks")));
        }
        let room = disk.len().saturating_sub(conventional_bytes);
        let table = |zones: u64| zones.div_ceil(POINTERS as u64) * 2 * B;
        let mut zones = room / zone_bytes;
        while zones > 0 && zones * zone_bytes + table(zones) > room {
            zones -= 1;
        }
        if zones == 0 {
            return Err(refused(format!("{} is too small for a zone of {zone_bytes} bytes", disk.describe())));
        }
        let blocks = (zones as usize).div_ceil(POINTERS);
        let state = State {
            pointers: vec![Pointer::default(); zones as usize],
            open: 0,
            changed: vec![false; blocks],
            written: vec![0; blocks],
        };
        let table = tokio::sync::Mutex::new(());
        let inner = Inner { disk, options, zones, state: Mutex::new(state), table };
        for block in 0..blocks {
            let mut best: Option<Bytes> = None;
            for copy in 0..2 {
                let bytes = inner.disk.read(inner.table_at(block, copy), BLOCK).await?;
                let newer = best.as_ref().is_none_or(|best| u64_at(best, 8) < u64_at(&bytes, 8));
                if is_valid(&bytes, block) && newer {
                    best = Some(bytes);
                }
            }
            let Some(bytes) = best else { continue };
            let mut state = inner.state.lock();
            for zone in block * POINTERS..((block + 1) * POINTERS).min(zones as usize) {
                let blocks = u32_at(&bytes, HEAD + zone % POINTERS * 4).min(inner.zone_blocks());
                inner.set(&mut state, zone, Pointer { blocks, ..Pointer::default() });
            }
            state.changed[block] = false;
            state.written[block] = u64_at(&bytes, 8);
        }
        Ok(Arc::new(Self(Arc::new(inner))))
    }
}

impl Disk for Zoned {
    fn geometry(&self) -> Geometry {
        let ZonedOptions { zone_bytes, conventional_bytes, open_zones_max } = self.0.options;
        Geometry {
            capacity_bytes: self.0.len(),
            growable: false,
            prefill_pays: false,
            zones: Some(ZoneGeometry { zone_bytes, conventional_bytes, open_zones_max }),
            ..self.0.disk.geometry()
        }
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { inner.read(offset, len).await })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write(offset, data).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.flush().await })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.write(offset, data).await?;
            inner.flush().await
        })
    }

    /// Reaches the conventional area only: a zone gives its space back with a reset.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.check(offset, len, io::ErrorKind::InvalidInput)?;
            let end = (offset + len).min(inner.options.conventional_bytes);
            if offset < end { inner.disk.discard(offset, end - offset).await } else { Ok(()) }
        })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let fits = end <= self.len();
        Box::pin(async move { if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } })
    }

    fn zone(&self, offset: u64) -> Option<Zone> {
        let zone = self.0.zone_of(offset).filter(|zone| (*zone as u64) < self.0.zones)?;
        let pointer = self.0.state.lock().pointers[zone];
        let start = self.0.start_of(zone);
        let write_pointer = start + u64::from(pointer.blocks) * B;
        Some(Zone { start, len: self.0.options.zone_bytes, write_pointer, state: self.0.state_of(pointer) })
    }

    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.move_pointer(offset, 0).await })
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            let blocks = inner.zone_blocks();
            inner.move_pointer(offset, blocks).await
        })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.0.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.0.disk.stats()
    }

    fn describe(&self) -> String {
        format!("{} zones over {}", self.0.zones, self.0.disk.describe())
    }
}
