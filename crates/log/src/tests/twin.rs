//! A disk of two copies, both of which can be damaged at will.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, BLOCK, Disk, DiskStats, Geometry, IoFuture, MemDisk};
use steadfast_flow::BoxFuture;

#[derive(Default)]
struct BadBlocks {
    /// Blocks that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
    /// Blocks that do not exist.
    absent: BTreeSet<u64>,
    /// Blocks at which writes fail.
    worn: BTreeSet<u64>,
}

/// Two copies in memory. Reads prefer the second, as a super-disk does.
#[derive(Clone)]
pub(super) struct Twin {
    pub(super) copies: [MemDisk; 2],
    bad: Arc<[Mutex<BadBlocks>; 2]>,
    /// Reads of the second copy until it disappears.
    left: Arc<AtomicU64>,
}

impl Twin {
    pub(super) fn new(bytes: u64) -> Self {
        let copies = [MemDisk::fixed(bytes), MemDisk::fixed(bytes)];
        Self { copies, bad: Arc::default(), left: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Removes the second copy after so many further reads.
    pub(super) fn gone_after(&self, reads: u64) {
        self.left.store(reads, SeqCst);
    }

    /// Whether the second copy is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.left.load(SeqCst) == 0
    }

    /// A disk with the same bytes, to be damaged in another way.
    pub(super) async fn fork(&self) -> Self {
        let len = self.copies[0].len();
        let other = Self::new(len);
        for (from, to) in self.copies.iter().zip(&other.copies) {
            for at in (0..len).step_by(1 << 20) {
                let n = (len - at).min(1 << 20) as usize;
                let bytes = from.read(at, n).await.expect("reads");
                to.write(at, bytes).await.expect("writes");
            }
        }
        other
    }

    fn blocks(offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / BLOCK as u64..(offset + len).div_ceil(BLOCK as u64)
    }

    pub(super) fn flip(&self, copy: usize, offset: u64) {
        self.copies[copy].flip(offset, 0x10);
    }

    pub(super) fn unreadable(&self, copy: usize, offset: u64) {
        self.bad[copy].lock().unreadable.insert(offset / BLOCK as u64);
    }

    pub(super) fn worn(&self, copy: usize, offset: u64) {
        self.unreadable(copy, offset);
        self.bad[copy].lock().worn.insert(offset / BLOCK as u64);
    }

    pub(super) fn absent(&self, offset: u64, len: u64) {
        self.bad[1].lock().absent.extend(Self::blocks(offset, len));
    }

    async fn read_from(&self, copy: usize, offset: u64, len: usize) -> io::Result<Bytes> {
        let blocks = Self::blocks(offset, len as u64);
        let left = || self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        if copy == 1 && left().is_err() {
            return Err(io::ErrorKind::NotFound.into());
        }
        {
            let bad = self.bad[copy].lock();
            if bad.absent.range(blocks.clone()).next().is_some() {
                return Err(io::ErrorKind::NotFound.into());
            }
            if bad.unreadable.range(blocks).next().is_some() {
                return Err(io::Error::from_raw_os_error(5));
            }
        }
        self.copies[copy].read(offset, len).await
    }

    async fn write_to(&self, copy: usize, offset: u64, data: Bytes) -> io::Result<()> {
        {
            let mut bad = self.bad[copy].lock();
            let blocks = Self::blocks(offset, data.len() as u64);
            if bad.worn.range(blocks.clone()).next().is_some() {
                return Err(io::Error::from_raw_os_error(5));
            }
            bad.unreadable.retain(|block| !blocks.contains(block));
        }
        self.copies[copy].write(offset, data).await
    }

    /// Whether both copies are readable and equal there.
    pub(super) async fn agree(&self, offset: u64, len: usize) -> bool {
        let (a, b) = (self.read_from(0, offset, len).await, self.read_from(1, offset, len).await);
        a.is_ok_and(|a| b.is_ok_and(|b| a == b))
    }
}

impl Disk for Twin {
    fn geometry(&self) -> Geometry {
        self.copies[0].geometry()
    }

    fn len(&self) -> u64 {
        self.copies[0].len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let disk = self.clone();
        Box::pin(async move {
            match disk.read_from(1, offset, len).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => disk.read_from(0, offset, len).await,
                done => done,
            }
        })
    }

    fn copies(&self) -> u32 {
        2
    }

    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        let disk = self.clone();
        Box::pin(async move { disk.read_from(copy as usize, offset, len).await })
    }

    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        let disk = self.clone();
        Box::pin(async move {
            let mut healed = 0;
            for copy in 0..2 {
                match disk.read_from(copy, offset, good.len()).await {
                    Ok(bytes) if bytes == good => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    _ => {
                        disk.write_to(copy, offset, good.clone()).await?;
                        assert_eq!(disk.read_from(copy, offset, good.len()).await?, good);
                        healed += 1;
                    }
                }
            }
            Ok(healed)
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let disk = self.clone();
        Box::pin(async move {
            disk.write_to(1, offset, data.clone()).await?;
            disk.write_to(0, offset, data).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.copies[0].flush()
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.write(offset, data)
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        Box::pin(async { Ok(()) })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.copies[0].reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.copies[0].buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.copies[0].stats()
    }

    fn describe(&self) -> String {
        "two copies in memory".into()
    }
}
