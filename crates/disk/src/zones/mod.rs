//! Zones over any disk, with exactly the rules of a host-managed zoned device.
//!
//! Behind a conventional area that may be written anywhere, the disk is divided into zones of one
//! size. Each zone is written from its start to its end, in order. Blocks in front of its write
//! pointer cannot be rewritten before a reset, and only a limited number of zones may be open. A
//! log that runs on this wrapper therefore also runs on ZNS and SMR devices.
//!
//! The write pointers are stored in a table behind the last zone, with two copies of each block
//! that are written alternately. Every flush makes them durable, like a device does. After a crash
//! a zone's pointer may be behind unflushed writes, or in front of some that were lost, but never
//! behind flushed ones.

mod device;
mod map;
mod report;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::BoxFuture;

use crate::label::{crc32c, u32_at, u64_at};
use crate::{AlignedBuf, BLOCK, Disk, DiskStats, Geometry, IoFuture, Latencies, Zone, ZoneGeometry};
pub(crate) use device::{ZonedDevice, Zones, zones_of};
use map::{Ended, Pointer, ZoneMap, refused};

const B: u64 = BLOCK as u64;
const MAGIC: [u8; 8] = *b"STEADZON";
/// Offset of the pointers in a block of the table, and their number.
const HEAD: usize = 32;
const POINTERS: usize = (BLOCK - HEAD - 4) / 4;

/// The layout of a [`Zoned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZonedOptions {
    /// Bytes from the start of one zone to the next, a multiple of [`BLOCK`].
    pub zone_bytes: u64,
    /// Writable bytes of each zone, a multiple of [`BLOCK`]; 0 for the whole zone.
    pub zone_capacity_bytes: u64,
    /// Bytes at the beginning that may be written anywhere, a multiple of [`BLOCK`].
    pub conventional_bytes: u64,
    /// Maximum number of open zones; 0 for no limit.
    pub open_zones_max: u32,
}

struct ZonedInner {
    disk: Arc<dyn Disk>,
    map: ZoneMap,
    /// Number of writings of each block of the table: selects the copy to write next.
    written: Mutex<Vec<u64>>,
    /// Lock of the table until it is flushed: one writer at a time.
    table: tokio::sync::Mutex<()>,
}

/// A disk of zones over any disk.
#[derive(Clone)]
pub struct Zoned(Arc<ZonedInner>);

impl ZonedInner {
    /// Offset of copy `copy` of a block of the table.
    fn table_at(&self, block: usize, copy: u64) -> u64 {
        self.map.len() + (block as u64 * 2 + copy) * B
    }

    /// Makes the table's changes and all earlier writes durable.
    async fn flush(&self) -> io::Result<()> {
        let _one = self.table.lock().await;
        let changed: Vec<(usize, u64, Bytes)> = {
            let mut written = self.written.lock();
            let encoded = self.map.take_changed().into_iter().map(|(block, pointers)| {
                written[block] += 1;
                (block, written[block] % 2, encode(block, written[block], pointers.iter()))
            });
            encoded.collect()
        };
        for (i, (block, copy, bytes)) in changed.iter().enumerate() {
            if let Err(error) = self.disk.write(self.table_at(*block, *copy), bytes.clone()).await {
                self.map.changed_again(changed[i..].iter().map(|(block, ..)| *block));
                return Err(error);
            }
        }
        self.disk.flush().await
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let zone = self.map.admit(offset, data.len() as u64)?;
        let mut ended = Ended { map: &self.map, zone, failed: true };
        let result = self.disk.write(offset, data).await;
        ended.failed = result.is_err();
        result
    }

    /// Unwritten blocks read as zeros.
    async fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.map.check(offset, len as u64, io::ErrorKind::UnexpectedEof)?;
        let bytes = self.disk.read(offset, len).await?;
        let holes = self.map.unwritten(offset, len as u64);
        if holes.is_empty() {
            return Ok(bytes);
        }
        let mut masked = bytes.to_vec();
        holes.into_iter().for_each(|hole| masked[hole].fill(0));
        Ok(masked.into())
    }

    async fn change(&self, offset: u64, change: impl FnOnce(&ZoneMap, usize)) -> io::Result<()> {
        if let Some(zone) = self.map.quiet_zone(offset)? {
            change(&self.map, zone);
            self.flush().await?;
        }
        Ok(())
    }
}

/// Encodes a block of the table: mark (8), number of writings (8), block number (4), zeros,
/// pointers in blocks (4 each), CRC32C (4).
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
    /// Divides `disk` into zones, or loads earlier write pointers. The whole disk must have been
    /// reserved. The space behind the last whole zone and the table is not used.
    ///
    /// # Errors
    /// `InvalidInput` for sizes that do not fit, and those of the disk.
    pub async fn open(disk: Arc<dyn Disk>, options: ZonedOptions) -> io::Result<Arc<Self>> {
        let ZonedOptions { zone_bytes, zone_capacity_bytes, conventional_bytes, open_zones_max } = options;
        let zone_capacity_bytes = if zone_capacity_bytes == 0 { zone_bytes } else { zone_capacity_bytes };
        if zone_bytes == 0
            || !(zone_bytes | zone_capacity_bytes | conventional_bytes).is_multiple_of(B)
            || zone_capacity_bytes > zone_bytes
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
        let mut written = vec![0; blocks];
        let mut pointers = vec![Pointer::default(); zones as usize];
        let end = conventional_bytes + zones * zone_bytes;
        for (block, written) in written.iter_mut().enumerate() {
            let mut best: Option<Bytes> = None;
            for copy in 0..2 {
                let bytes = disk.read(end + (block as u64 * 2 + copy) * B, BLOCK).await?;
                let newer = best.as_ref().is_none_or(|best| u64_at(best, 8) < u64_at(&bytes, 8));
                if is_valid(&bytes, block) && newer {
                    // A copy: the next read may wait for its memory.
                    best = Some(Bytes::copy_from_slice(&bytes));
                }
            }
            let Some(bytes) = best else { continue };
            for (i, pointer) in pointers.iter_mut().skip(block * POINTERS).take(POINTERS).enumerate() {
                pointer.blocks = u32_at(&bytes, HEAD + i * 4).min((zone_capacity_bytes / B) as u32);
            }
            *written = u64_at(&bytes, 8);
        }
        let shape = ZoneGeometry { zone_bytes, zone_capacity_bytes, conventional_bytes, open_zones_max };
        let map = ZoneMap::new(shape, pointers, POINTERS);
        let inner = ZonedInner { disk, map, written: Mutex::new(written), table: tokio::sync::Mutex::new(()) };
        Ok(Arc::new(Self(Arc::new(inner))))
    }

    /// The number of writes, resets and finishes that were refused because a zoned device would
    /// refuse them. It is 0 for a caller that follows the rules.
    pub fn refused(&self) -> u64 {
        self.0.map.refusals()
    }

    /// The number of zones that are partly written.
    pub fn open_zones(&self) -> u32 {
        self.0.map.open()
    }
}

impl Disk for Zoned {
    fn geometry(&self) -> Geometry {
        self.0.map.geometry(self.0.disk.geometry())
    }

    fn len(&self) -> u64 {
        self.0.map.len()
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

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.map.discard(&*inner.disk, offset, len).await })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let there = self.0.map.reserve(end);
        Box::pin(async move { there })
    }

    fn zone(&self, offset: u64) -> Option<Zone> {
        self.0.map.zone(offset)
    }

    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.change(offset, ZoneMap::reset).await })
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.change(offset, ZoneMap::finish).await })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.0.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.0.disk.stats()
    }

    fn latencies(&self) -> Option<Latencies> {
        self.0.disk.latencies()
    }

    fn describe(&self) -> String {
        format!("{} zones over {}", self.0.map.zones, self.0.disk.describe())
    }
}
