//! A disk in memory, for tests of the layers above.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::BoxFuture;

use crate::{AlignedBuf, BLOCK, BufPool, CacheClaim, Disk, DiskStats, Geometry, IoFuture};

/// A disk in memory. It keeps only the written blocks, completes requests at once, and loses its
/// content when dropped. Clones share the bytes, so a test can reopen the same disk.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<MemState>>,
    geometry: Geometry,
    pool: BufPool,
    read_pool: BufPool,
}

struct MemState {
    blocks: BTreeMap<u64, Bytes>,
    len: u64,
    stats: DiskStats,
}

impl MemDisk {
    /// Creates a disk of a fixed size, like a block device.
    pub fn fixed(bytes: u64) -> Self {
        Self::new(bytes, false)
    }

    /// Creates an empty disk that grows up to `capacity_bytes`, like a file.
    pub fn growable(capacity_bytes: u64) -> Self {
        Self::new(capacity_bytes, true)
    }

    fn new(bytes: u64, growable: bool) -> Self {
        let capacity_bytes = bytes / BLOCK as u64 * BLOCK as u64;
        let geometry = Geometry {
            capacity_bytes,
            growable,
            prefill_pays: false,
            align_bytes: 512,
            max_io_bytes: 1 << 20,
            zones: None,
            cache: CacheClaim::WriteThrough,
        };
        let len = if growable { 0 } else { capacity_bytes };
        let state = MemState { blocks: BTreeMap::new(), len, stats: DiskStats::default() };
        Self::of_state(state, geometry)
    }

    fn of_state(state: MemState, geometry: Geometry) -> Self {
        let (pool, read_pool) = (BufPool::new(64 << 20), BufPool::for_results(64 << 20));
        Self { state: Arc::new(Mutex::new(state)), geometry, pool, read_pool }
    }

    /// Bounds the memory for results of reads, in bytes; the default is 64 MiB. A larger read is an
    /// error.
    #[must_use]
    pub fn with_read_memory(self, bytes: usize) -> Self {
        Self { read_pool: BufPool::for_results(bytes), ..self }
    }

    /// The memory for the results of reads.
    pub fn buffers_for_reads(&self) -> &BufPool {
        &self.read_pool
    }

    /// Copies the current content to a separate disk, like the state after a crash at this moment.
    pub fn image(&self) -> Self {
        let state = self.state.lock();
        let copy = MemState { blocks: state.blocks.clone(), len: state.len, stats: DiskStats::default() };
        Self::of_state(copy, self.geometry)
    }

    /// Flips bits of the byte at `offset`, like a decaying medium.
    pub fn flip(&self, offset: u64, mask: u8) {
        let block = offset / BLOCK as u64;
        let mut state = self.state.lock();
        let mut bytes = state.blocks.get(&block).map_or_else(|| vec![0; BLOCK], |b| b.to_vec());
        bytes[(offset % BLOCK as u64) as usize] ^= mask;
        state.blocks.insert(block, bytes.into());
    }

    fn check(state: &MemState, offset: u64, len: u64, past_the_end: io::ErrorKind) -> io::Result<()> {
        if !(offset | len).is_multiple_of(BLOCK as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{len} bytes at {offset}: misaligned")));
        }
        if offset.checked_add(len).is_none_or(|end| end > state.len) {
            return Err(io::Error::new(past_the_end, format!("{len} bytes at {offset}: past the end")));
        }
        Ok(())
    }

    fn read_into_pool(&self, offset: u64, len: usize) -> IoFuture<AlignedBuf> {
        let pool = self.read_pool.clone();
        if !pool.fits(len) {
            let text = format!("a read of {len} bytes exceeds the memory for reads");
            return Box::pin(std::future::ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text))));
        }
        let read = self.later(move |state| {
            Self::check(state, offset, len as u64, io::ErrorKind::UnexpectedEof)?;
            let first = offset / BLOCK as u64;
            let mut bytes = vec![0; len];
            for (number, block) in state.blocks.range(first..first + (len / BLOCK) as u64) {
                let at = (number - first) as usize * BLOCK;
                bytes[at..at + BLOCK].copy_from_slice(block);
            }
            state.stats.reads += 1;
            state.stats.read_bytes += len as u64;
            Ok(bytes)
        });
        Box::pin(async move {
            let mut target = pool.get(len).await;
            target.put(&read.await?);
            Ok(target)
        })
    }

    /// Runs `work` when polled, like a real request.
    fn later<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut MemState) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let state = self.state.clone();
        Box::pin(async move {
            let mut state = state.lock();
            let result = work(&mut state);
            state.stats.errors += u64::from(result.is_err());
            result
        })
    }
}

impl MemState {
    fn write(&mut self, offset: u64, data: &Bytes) -> io::Result<()> {
        MemDisk::check(self, offset, data.len() as u64, io::ErrorKind::InvalidInput)?;
        for (i, block) in data.chunks(BLOCK).enumerate() {
            // The data is copied, because `data` may be pool memory, which must not be held
            // forever.
            self.blocks.insert(offset / BLOCK as u64 + i as u64, Bytes::copy_from_slice(block));
        }
        self.stats.writes += 1;
        self.stats.write_bytes += data.len() as u64;
        Ok(())
    }
}

impl Disk for MemDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn len(&self) -> u64 {
        self.state.lock().len
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let read = self.read_into_pool(offset, len);
        Box::pin(async move { Ok(read.await?.freeze()) })
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let read = self.read_into_pool(offset, len);
        Box::pin(async move { Ok(read.await?.keep()) })
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.later(move |state| state.write(offset, &data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.later(|state| {
            state.stats.flushes += 1;
            Ok(())
        })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.later(move |state| {
            state.write(offset, &data)?;
            state.stats.flushes += 1;
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.later(move |state| {
            Self::check(state, offset, len, io::ErrorKind::InvalidInput)?;
            let block = BLOCK as u64;
            let gone: Vec<u64> = state.blocks.range(offset / block..(offset + len) / block).map(|(n, _)| *n).collect();
            for number in gone {
                state.blocks.remove(&number);
            }
            Ok(())
        })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let capacity = self.geometry.capacity_bytes;
        self.later(move |state| {
            match end.checked_next_multiple_of(BLOCK as u64).filter(|end| *end <= capacity) {
                Some(end) => state.len = state.len.max(end),
                None => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            }
            Ok(())
        })
    }

    fn reopen(&self) -> IoFuture<()> {
        Box::pin(async { Ok(()) })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        let pool = self.pool.clone();
        Box::pin(async move { pool.get(capacity).await })
    }

    fn stats(&self) -> DiskStats {
        let mut stats = self.state.lock().stats;
        stats.pool_used_bytes = self.pool.used_bytes() as u64;
        stats.pool_limit_bytes = self.pool.limit_bytes() as u64;
        stats.oldest_read_ms = self.read_pool.stalled_ms();
        stats
    }

    fn describe(&self) -> String {
        format!("memory ({} bytes)", self.geometry.capacity_bytes)
    }
}
