//! A real zoned block device (ZBC, ZAC, ZNS). Its zones are queried when it is opened, and reset
//! and finished with `ioctl`s.
//!
//! Write pointers are tracked in memory, by the same rules as in [`super::Zoned`]. Requests that
//! the device would refuse are refused here, with the reason. Each zone has at most one write in
//! flight, because neither the kernel nor the device guarantees an order.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_flow::BoxFuture;
use tokio::sync::oneshot;

use super::map::{Ended, ZoneMap};
use super::report::{self, BLKFINISHZONE, BLKREPORTZONE, BLKRESETZONE};
use crate::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, Latencies, Zone};

/// Maximum number of zones per report.
const REPORT_ZONES_MAX: u32 = 4096;

/// The current zones of a device.
pub(crate) struct Zones(ZoneMap);

/// Queries the zones of the device. `open` and `active` are the limits from sysfs.
///
/// # Errors
/// The kernel's error, `InvalidData` for an invalid report, `Unsupported` for a layout of zones
/// that the log cannot use.
pub(crate) fn zones_of(file: &File, len: u64, open: Option<&str>, active: Option<&str>) -> io::Result<Zones> {
    let mut zones: Vec<report::Reported> = Vec::new();
    let mut at = 0;
    while at < len {
        let mut bytes = report::request(at, REPORT_ZONES_MAX);
        // SAFETY: the request reads the head, and writes the head and at most as many entries as it
        // requests; the vector is large enough for both.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), BLKREPORTZONE, bytes.as_mut_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let more = report::decode(&bytes)?;
        let Some(last) = more.last() else { break };
        let end = last.start + last.len;
        if end <= at {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the device reports the same zones again"));
        }
        at = end;
        zones.extend(more);
    }
    let (shape, pointers) = report::shape(&zones, report::open_limit(open, active))?;
    Ok(Zones(ZoneMap::new(shape, pointers, usize::MAX)))
}

/// A zoned device. Clones share it.
#[derive(Clone)]
pub(crate) struct ZonedDevice(Arc<ZonedDeviceInner>);

struct ZonedDeviceInner {
    /// The disk for reads, writes and flushes.
    disk: Arc<dyn Disk>,
    file: Arc<File>,
    map: ZoneMap,
}

impl ZonedDevice {
    pub(crate) fn new(disk: Arc<dyn Disk>, file: Arc<File>, zones: Zones) -> Self {
        Self(Arc::new(ZonedDeviceInner { disk, file, map: zones.0 }))
    }
}

impl ZonedDeviceInner {
    async fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.map.check(offset, len as u64, io::ErrorKind::UnexpectedEof)?;
        let holes = self.map.unwritten(offset, len as u64);
        if holes.is_empty() {
            return self.disk.read(offset, len).await;
        }
        // Some devices return an error for unwritten blocks, so those are not read.
        let mut whole = vec![0u8; len];
        let mut at = 0;
        for hole in holes.into_iter().chain(std::iter::once(len..len)) {
            if at < hole.start {
                let bytes = self.disk.read(offset + at as u64, hole.start - at).await?;
                whole[at..hole.start].copy_from_slice(&bytes);
            }
            at = hole.end;
        }
        Ok(whole.into())
    }

    /// Writes in pieces, one after the other: concurrent pieces could reach the device in any
    /// order.
    async fn write(&self, offset: u64, data: Bytes, flush: bool) -> io::Result<()> {
        let zone = self.map.admit(offset, data.len() as u64)?;
        let mut ended = Ended { map: &self.map, zone, failed: true };
        let piece = self.disk.geometry().max_io_bytes;
        let mut at = 0;
        while at < data.len() {
            let end = data.len().min(at + piece);
            let (place, bytes) = (offset + at as u64, data.slice(at..end));
            if flush && end == data.len() {
                self.disk.write_flush(place, bytes).await?;
            } else {
                self.disk.write(place, bytes).await?;
            }
            at = end;
        }
        ended.failed = false;
        Ok(())
    }

    /// Sends a zone command to the device on a separate thread, because a reset may take long.
    async fn manage(self: Arc<Self>, request: libc::Ioctl, zone: usize) -> io::Result<()> {
        let range = report::range(self.map.start_of(zone), self.map.shape.zone_bytes);
        let (done, answer) = oneshot::channel();
        let inner = self.clone();
        std::thread::Builder::new().name("zone".into()).spawn(move || {
            // SAFETY: the request reads two u64 through the pointer, which is valid for that.
            let result = match unsafe { libc::ioctl(inner.file.as_raw_fd(), request, range.as_ptr()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            };
            let _ = done.send(result);
        })?;
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the thread that managed the zone has ended")))
    }
}

impl Disk for ZonedDevice {
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
        Box::pin(async move { inner.write(offset, data, false).await })
    }

    fn flush(&self) -> IoFuture<()> {
        self.0.disk.flush()
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write(offset, data, true).await })
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
        Box::pin(async move {
            if let Some(zone) = inner.map.quiet_zone(offset)? {
                inner.clone().manage(BLKRESETZONE, zone).await?;
                inner.map.reset(zone);
                // The device makes its pointer durable; a cache in front of it may not.
                inner.disk.flush().await?;
            }
            Ok(())
        })
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            if let Some(zone) = inner.map.quiet_zone(offset)? {
                inner.clone().manage(BLKFINISHZONE, zone).await?;
                inner.map.finish(zone);
            }
            Ok(())
        })
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
        format!("{}, {} zones", self.0.disk.describe(), self.0.map.zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zones::map::Pointer;
    use crate::{BLOCK, MemDisk, ZoneGeometry, ZoneState};

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().expect("a file");
        let error = zones_of(&file, 1 << 20, None, None).err().expect("refused");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    /// Tests that need no device: the rules, and the state after a refused command.
    #[tokio::test]
    async fn rules_are_kept_and_a_refused_reset_changes_nothing() {
        const B: u64 = BLOCK as u64;
        let shape =
            ZoneGeometry { zone_bytes: 4 * B, zone_capacity_bytes: 3 * B, conventional_bytes: B, open_zones_max: 1 };
        let map = ZoneMap::new(shape, vec![Pointer::default(); 2], usize::MAX);
        let below: Arc<dyn Disk> = Arc::new(MemDisk::fixed(9 * B));
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        let disk = ZonedDevice::new(below, file, Zones(map));
        let filled = |blocks: usize| Bytes::from(vec![7u8; blocks * BLOCK]);
        disk.write(0, filled(1)).await.expect("conventional");
        disk.write_flush(B, filled(2)).await.expect("in order");
        assert!(disk.write(B, filled(1)).await.is_err(), "behind the pointer");
        assert!(disk.write(5 * B, filled(1)).await.is_err(), "a second open zone");
        assert!(disk.write(3 * B, filled(2)).await.is_err(), "past the capacity");
        let read = disk.read(0, 9 * BLOCK).await.expect("reads");
        assert!(read[..3 * BLOCK].iter().all(|b| *b == 7) && read[3 * BLOCK..].iter().all(|b| *b == 0));
        // The file is not a zoned device: the kernel refuses, and the zone is unchanged.
        let error = disk.reset_zone(B).await.expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        assert!(disk.finish_zone(B).await.is_err());
        let zone = disk.zone(B).expect("a zone");
        assert_eq!((zone.state, zone.write_pointer, zone.len), (ZoneState::Open, 3 * B, 3 * B));
        disk.write(3 * B, filled(1)).await.expect("to its capacity");
        assert_eq!(disk.zone(B).expect("a zone").state, ZoneState::Full);
    }
}
