//! Flushes that must precede other steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Geometry, IoFuture, MemDisk};
use steadfast_flow::BoxFuture;

use super::harness::format;
use super::model::{Hook, Kv, ModelState, options};

const EXTENT: u64 = 1 << 20;

/// A disk that counts writes, and those that a flush covers.
struct Counting {
    disk: MemDisk,
    written: Arc<AtomicU64>,
    flushed: Arc<AtomicU64>,
}

impl Counting {
    fn counted<T: Send + 'static>(&self, writes: bool, flushes: bool, work: IoFuture<T>) -> IoFuture<T> {
        let (written, flushed) = (self.written.clone(), self.flushed.clone());
        let covered = flushes.then(|| written.load(Ordering::SeqCst) + u64::from(writes));
        Box::pin(async move {
            let done = work.await?;
            written.fetch_add(u64::from(writes), Ordering::SeqCst);
            if let Some(covered) = covered {
                flushed.fetch_max(covered, Ordering::SeqCst);
            }
            Ok(done)
        })
    }
}

impl Disk for Counting {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.counted(true, false, self.disk.write(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.counted(false, true, self.disk.flush())
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.counted(true, true, self.disk.write_flush(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.disk.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

#[tokio::test]
async fn copies_of_chunks_are_flushed_before_a_record_names_them() {
    let disk = MemDisk::fixed(33 * EXTENT);
    format(&disk, EXTENT).await;
    let mut still = options();
    still.compaction.enabled = false;
    let kv = Kv::open(&disk, ModelState::default(), still).await;
    for key in 0..30 {
        kv.put_chunks(key, key, &[200_000; 3]).await.expect("there is room");
    }
    for key in (0..30).filter(|key| key % 3 > 0) {
        kv.delete(key).await.expect("a delete");
    }
    let saved = kv.crash().await;
    // Only compaction writes from here on.
    let (written, flushed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let counting = Counting { disk: disk.clone(), written: written.clone(), flushed: flushed.clone() };
    let (found, mut next) = tokio::sync::mpsc::channel(1);
    let hook: Hook = Arc::new(move || {
        let _ = found.try_send((flushed.load(Ordering::SeqCst), written.load(Ordering::SeqCst)));
    });
    let kv = Kv::open_with_hook(Arc::new(counting), saved, options(), Some(hook)).await;
    let (flushed, written) = next.recv().await.expect("chunks are moved");
    assert_eq!(flushed, written, "of so many writes a flush covers so many");
    kv.check_all().await;
    kv.crash().await;
}
