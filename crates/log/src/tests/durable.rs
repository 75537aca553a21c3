//! Copies of a log that follow what is durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{AlignedBuf, BLOCK, Disk, DiskStats, Geometry, IoFuture, MemDisk};
use steadfast_flow::{BoxFuture, Env};

use super::harness::{Random, format};
use super::model::{Kv, ModelState, options};
use super::twin::Twin;
use crate::format::{ExtentHeader, ExtentId, ExtentKind, Lineage, SUPERBLOCK_OFFSETS};
use crate::{ExtentCut, Log, LogCut, LogError, LogOptions, Ranges, UseCut};

const EXTENT: u64 = 1 << 20;

fn followed() -> LogOptions {
    LogOptions { followed: true, ..options() }
}

/// A disk in memory, with the bytes that a power cut would leave.
#[derive(Clone)]
struct Volatile {
    now: MemDisk,
    kept: MemDisk,
    written: Arc<Mutex<Vec<(u64, Bytes)>>>,
    /// Flushes wait while it is locked.
    stalled: Arc<tokio::sync::Mutex<()>>,
    /// Flushes that have begun.
    begun: Arc<tokio::sync::Notify>,
}

impl Volatile {
    async fn new(bytes: u64) -> Self {
        let now = MemDisk::fixed(bytes);
        format(&now, EXTENT).await;
        let kept = now.image();
        Self { now, kept, written: Arc::default(), stalled: Arc::default(), begun: Arc::default() }
    }
}

impl Disk for Volatile {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn len(&self) -> u64 {
        self.now.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.now.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let disk = self.clone();
        Box::pin(async move {
            disk.now.write(offset, data.clone()).await?;
            // A private copy: the memory of the disk's pool is needed before the next flush.
            disk.written.lock().push((offset, Bytes::copy_from_slice(&data)));
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let disk = self.clone();
        Box::pin(async move {
            let written = std::mem::take(&mut *disk.written.lock());
            disk.begun.notify_one();
            let _unstalled = disk.stalled.lock().await;
            for (offset, data) in written {
                disk.kept.write(offset, data).await?;
            }
            Ok(())
        })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let disk = self.clone();
        Box::pin(async move {
            disk.write(offset, data).await?;
            disk.flush().await
        })
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        Box::pin(async { Ok(()) })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.now.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.now.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.now.stats()
    }

    fn describe(&self) -> String {
        "a disk in memory".into()
    }
}

/// One use of an extent: extent, epoch, opening.
type Use = (u32, u64, u64);

/// A copy of a log.
#[derive(Default)]
struct Follower {
    extents: BTreeMap<u32, ExtentCut>,
    recycled_lsn: u64,
    /// What has been copied of each use: the ranges, and the structures.
    copied: BTreeMap<Use, (Ranges, BTreeMap<u32, Bytes>)>,
    copied_bytes: u64,
    given_up: u64,
}

impl Follower {
    /// Follows up to now. `kept` is what a power cut would have left at the cut. Whether the cut
    /// was copied: it is given up if one of its extents was recycled.
    async fn follow(&mut self, log: &Log, kept: Option<&MemDisk>) -> bool {
        let cut = Log::durable_cut(&[log]).expect("followed").remove(0);
        let kept = kept.map(MemDisk::image);
        self.take(&cut);
        let uses: Vec<(u32, UseCut)> = self.extents.iter().filter_map(|(extent, state)| used(*extent, state)).collect();
        for (extent, of) in uses {
            if self.copy(log, extent, &of, kept.as_ref()).await.is_err() {
                self.given_up += 1;
                return false;
            }
        }
        true
    }

    fn take(&mut self, cut: &LogCut) {
        assert!(self.recycled_lsn <= cut.recycled_lsn);
        self.recycled_lsn = cut.recycled_lsn;
        self.extents.extend(cut.changed.clone());
        for (extent, state) in &self.extents {
            let (ExtentCut::Free { epoch } | ExtentCut::Lost { epoch } | ExtentCut::InUse(UseCut { epoch, .. })) =
                state;
            assert!(*epoch < cut.next_epoch, "extent {extent}");
        }
    }

    async fn copy(&mut self, log: &Log, extent: u32, of: &UseCut, kept: Option<&MemDisk>) -> Result<(), LogError> {
        let (copied, pieces) = self.copied.entry((extent, of.epoch, of.opening)).or_default();
        let missing = of.durable.without(copied);
        if missing.is_empty() {
            return Ok(());
        }
        let mut reader = log.read_use(extent, of.epoch).await.ok_or(LogError::Moved)?;
        for range in missing.iter() {
            let mut at = range.start;
            while at < range.end {
                let part = reader.read(at..range.end, 50_000).await?;
                assert!(part.end > at && part.damaged.is_empty(), "{extent} {of:?} {at}: {:?}", part.damaged);
                for (at, bytes) in part.pieces {
                    if let Some(kept) = kept {
                        let place = log.shared.extents.start(extent) + u64::from(at);
                        let there = kept.read(place, bytes.len()).await.expect("reads");
                        assert!(there == bytes, "extent {extent} at {at}: a power cut loses what is in the cut");
                    }
                    self.copied_bytes += bytes.len() as u64;
                    pieces.insert(at, bytes);
                }
                copied.insert(at..part.end);
                at = part.end;
            }
        }
        Ok(())
    }

    /// A disk with the copy on it.
    async fn restored(&self, log: &Log, bytes: u64) -> MemDisk {
        let (disk, pool) = (MemDisk::fixed(bytes), &log.shared.pool);
        for offset in SUPERBLOCK_OFFSETS {
            disk.write(offset, Bytes::copy_from_slice(&pool.encode())).await.expect("writes");
        }
        for (extent, state) in &self.extents {
            let start = pool.extent_start(*extent);
            match state {
                ExtentCut::Free { epoch } => {
                    let id = ExtentId { pool: pool.pool, extent: *extent, epoch: *epoch };
                    let header = ExtentHeader {
                        id,
                        kind: ExtentKind::Free,
                        base_lsn: 0,
                        recycled_lsn: self.recycled_lsn,
                        lineage: Lineage::default(),
                    };
                    disk.write(start, Bytes::copy_from_slice(&header.encode())).await.expect("writes");
                }
                ExtentCut::Lost { .. } => panic!("nothing was lost"),
                ExtentCut::InUse(of) => {
                    let (_, pieces) = &self.copied[&(*extent, of.epoch, of.opening)];
                    for (at, bytes) in pieces {
                        disk.write(start + u64::from(*at), bytes.clone()).await.expect("writes");
                    }
                }
            }
        }
        disk
    }
}

fn used(extent: u32, state: &ExtentCut) -> Option<(u32, UseCut)> {
    match state {
        ExtentCut::InUse(of) => Some((extent, of.clone())),
        _ => None,
    }
}

async fn step(kv: &Kv, random: &mut Random, op: u64) {
    let key = random.below(60);
    let done = match random.below(10) {
        0 => kv.delete(key).await,
        1 | 2 => kv.put_chunks(key, op * 10, &[70_000, 9_000]).await,
        3 => {
            kv.begin_chunks(key, op * 10, &[30_000]).await;
            kv.give_up(key, op * 10);
            Ok(())
        }
        _ => kv.put(key, op * 10, 12_000).await,
    };
    done.expect("room");
    if random.below(40) == 0 {
        kv.save().await;
    }
}

/// After each cut, a disk made of the copy opens with exactly the content of that moment.
#[tokio::test]
async fn a_copy_of_each_cut_opens_with_the_content_of_its_moment() {
    let bytes = 41 * EXTENT;
    let mut given_up = 0;
    for seed in 0..6 {
        let mut random = Random(seed);
        let disk = Volatile::new(bytes).await;
        let (mut saved, mut copy, mut op) = (ModelState::default(), Follower::default(), 1);
        for life in 0..3 {
            let kv = Kv::open_with_hook(Arc::new(disk.clone()), saved, followed(), None).await;
            let before = copy.copied_bytes;
            assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
            // Of a known use nothing is copied again; recovery seals what was open.
            assert!(life == 0 || copy.copied_bytes - before < 3 * EXTENT, "{}", copy.copied_bytes - before);
            for _ in 0..120 {
                step(&kv, &mut random, op).await;
                op += 1;
                if random.below(6) > 0 {
                    continue;
                }
                let content = kv.content();
                if !copy.follow(&kv.log, Some(&disk.kept)).await || random.below(3) > 0 {
                    continue;
                }
                let restored = Kv::open(&copy.restored(&kv.log, bytes).await, ModelState::default(), options()).await;
                assert!(!restored.report.read_only && restored.report.damage.is_empty(), "{:?}", restored.report);
                assert_eq!(restored.content(), content, "seed {seed}, operation {op}");
                restored.check_all().await;
                restored.crash().await;
            }
            saved = kv.crash().await;
        }
        given_up += copy.given_up;
    }
    println!("{given_up} cuts were given up");
}

/// The uses of a body extent, with their durable bytes beside the header.
fn chunk_bytes(copy: &Follower) -> u64 {
    let uses = copy.extents.iter().filter_map(|(extent, state)| used(*extent, state));
    uses.filter(|(_, of)| of.kind == ExtentKind::Body).map(|(_, of)| of.durable.bytes() - BLOCK as u64).sum()
}

#[tokio::test]
async fn chunks_count_when_a_flush_has_covered_them() {
    let disk = Volatile::new(41 * EXTENT).await;
    let kv = Kv::open_with_hook(Arc::new(disk.clone()), ModelState::default(), followed(), None).await;
    let mut copy = Follower::default();
    kv.begin_chunks(1, 10, &[70_000, 9_000]).await;
    assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
    assert_eq!(chunk_bytes(&copy), 0, "written, not flushed");
    kv.put(2, 20, 100).await.expect("room");
    assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
    let (first, second) = (70_000u64.next_multiple_of(4096) + 4096, 9_000u64.next_multiple_of(4096) + 4096);
    assert_eq!(chunk_bytes(&copy), first + second, "the flush of a commit covers them");
    assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
    let cut = Log::durable_cut(&[&kv.log]).expect("followed").remove(0);
    assert!(cut.changed.is_empty() && cut.last_lsn > 0, "nothing has changed since: {cut:?}");
    kv.crash().await;
}

#[tokio::test]
async fn a_flush_covers_only_what_was_written_before_it_began() {
    let disk = Volatile::new(41 * EXTENT).await;
    let kv = Kv::open_with_hook(Arc::new(disk.clone()), ModelState::default(), followed(), None).await;
    let mut copy = Follower::default();
    // The extent of the chunks is in use.
    kv.put_chunks(1, 10, &[9_000]).await.expect("room");
    assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
    let before = chunk_bytes(&copy);
    for (n, waits) in [(2, false), (3, true)] {
        let stalled = disk.stalled.clone().lock_owned().await;
        let begun = disk.begun.clone();
        // One that was made by an earlier flush is used up.
        let _ = Env::tokio().timeout(Duration::ZERO, begun.notified()).await;
        let put = async {
            if waits {
                // The flush of chunks alone.
                return kv.put_chunks(n, n * 10, &[9_000]).await;
            }
            kv.put(n, n * 10, 100).await
        };
        let chunks = async {
            begun.notified().await;
            kv.begin_chunks(100 + n, n * 1000, &[70_000]).await;
            kv.give_up(100 + n, n * 1000);
            drop(stalled);
        };
        let (put, ()) = futures::join!(put, chunks);
        put.expect("room");
        assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
        if !waits {
            assert_eq!(chunk_bytes(&copy), before, "written during the flush");
        }
        kv.put(n, n * 10, 100).await.expect("room");
        assert!(copy.follow(&kv.log, Some(&disk.kept)).await);
        assert!(chunk_bytes(&copy) > before);
    }
}

#[tokio::test]
async fn a_log_that_is_not_followed_gives_no_cut() {
    let disk = MemDisk::fixed(41 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), options()).await;
    assert_eq!(Log::durable_cut(&[&kv.log]), None);
    kv.crash().await;
}

/// A cut of two logs has nothing of one that was acknowledged after something that it lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cut_of_two_logs_is_one_moment() {
    let mut kvs = Vec::new();
    for _ in 0..2 {
        let disk = MemDisk::fixed(129 * EXTENT);
        format(&disk, EXTENT).await;
        kvs.push(Kv::open(&disk, ModelState::default(), followed()).await);
    }
    let done = AtomicBool::new(false);
    let writer = async {
        for n in 0..300 {
            kvs[0].put(n, n, 100).await.expect("room");
            kvs[1].put(n, n, 100).await.expect("room");
        }
        done.store(true, Relaxed);
    };
    let follower = async {
        while !done.load(Relaxed) {
            let cuts = Log::durable_cut(&[&kvs[0].log, &kvs[1].log]).expect("followed");
            let (first, second) = (cuts[0].last_lsn, cuts[1].last_lsn);
            assert!(second <= first && first <= second + 1, "{first} {second}");
            tokio::task::yield_now().await;
        }
    };
    futures::join!(writer, follower);
}

/// A followed log on two copies, with a sealed body extent and a sealed commit extent.
async fn on_two_copies() -> (Twin, Kv) {
    let twin = Twin::new(41 * EXTENT);
    format(&twin, EXTENT).await;
    let open = async |saved| {
        let options = LogOptions { followed: true, ..super::harness::options() };
        Kv::open_with_hook(Arc::new(twin.clone()), saved, options, None).await
    };
    let kv = open(ModelState::default()).await;
    for n in 0..30 {
        kv.put_chunks(n, n * 10, &[70_000]).await.expect("room");
        kv.put(100 + n, n, 1000).await.expect("room");
    }
    kv.save().await;
    let saved = kv.state();
    kv.log.close().await.expect("closes");
    (twin.clone(), open(saved).await)
}

#[tokio::test]
async fn what_one_copy_has_lost_is_read_from_the_other_and_rot_is_never_copied() {
    let (twin, kv) = on_two_copies().await;
    let cut = Log::durable_cut(&[&kv.log]).expect("followed").remove(0);
    let sealed = |(extent, state): (&u32, &ExtentCut)| used(*extent, state).filter(|(_, of)| of.sealed);
    let uses: Vec<_> = cut.changed.iter().filter_map(sealed).collect();
    assert!([ExtentKind::Body, ExtentKind::Commit].iter().all(|kind| uses.iter().any(|(_, of)| of.kind == *kind)));
    for (extent, of) in &uses {
        let start = kv.log.shared.extents.start(*extent);
        let read = async || {
            let (mut found, mut damaged) = (BTreeMap::new(), Ranges::default());
            let mut reader = kv.log.read_use(*extent, of.epoch).await.expect("in use");
            for range in of.durable.iter() {
                let part = reader.read(range.clone(), u64::MAX).await.expect("in use");
                assert_eq!(part.end, range.end);
                for (at, piece) in part.pieces {
                    found.extend((0..piece.len()).step_by(BLOCK).map(|n| (at + n as u32, piece.slice(n..n + BLOCK))));
                }
                damaged.extend(&part.damaged);
            }
            (found, damaged)
        };
        let (whole, damaged) = read().await;
        assert!(damaged.is_empty(), "{damaged:?}");
        assert_eq!((whole.len() * BLOCK) as u64, of.durable.bytes());
        for at in whole.keys() {
            let place = start + u64::from(*at) + BLOCK as u64 / 2;
            twin.flip(0, place);
            assert_eq!(read().await, (whole.clone(), Ranges::default()), "extent {extent} at {at}");
            assert!(twin.agree(place / 4096 * 4096, 4096).await, "and healed");
        }
        for at in whole.keys() {
            let middle = start + u64::from(*at) + BLOCK as u64 / 2;
            (0..2).for_each(|copy| twin.flip(copy, middle));
            let (found, damaged) = read().await;
            assert_eq!(found.get(at), None, "extent {extent} at {at}");
            assert!(damaged.iter().any(|range| range.contains(at)), "extent {extent} at {at}: {damaged:?}");
            assert!(found.iter().all(|(at, block)| whole.get(at) == Some(block)));
            (0..2).for_each(|copy| twin.flip(copy, middle));
        }
    }
    kv.crash().await;
}

#[tokio::test]
async fn readers_keep_extents_until_free_ones_run_low() {
    let disk = MemDisk::fixed(41 * EXTENT);
    format(&disk, EXTENT).await;
    let kv = Kv::open(&disk, ModelState::default(), followed()).await;
    let fill = async |from: u64| {
        for n in from..from + 8 {
            kv.put_chunks(1, n * 10, &[70_000, 70_000]).await.expect("room");
        }
        kv.save().await;
    };
    fill(1).await;
    let cut = Log::durable_cut(&[&kv.log]).expect("followed").remove(0);
    let body = |(extent, state): (&u32, &ExtentCut)| used(*extent, state).filter(|(_, of)| of.kind == ExtentKind::Body);
    let (extent, of) = cut.changed.iter().find_map(body).expect("a body extent");
    let mut reader = kv.log.read_use(extent, of.epoch).await.expect("in use");
    fill(20).await;
    let there = || kv.log.shared.extents.get(extent, of.epoch).is_some();
    let recycled = || kv.log.status().compaction.recycled;
    // Others are recycled, and this one too when another reader would find no more space.
    let before = recycled();
    for n in 0..40 {
        fill(100 + n * 10).await;
        Env::tokio().sleep(Duration::from_millis(2)).await;
        if recycled() > before + 3 {
            break;
        }
    }
    assert!(recycled() > before && there(), "the pinned extent stays");
    let part = reader.read(0..of.durable.end(), u64::MAX).await.expect("it is kept");
    assert!(part.damaged.is_empty() && part.end == of.durable.end());
    let mut n = 10_000;
    while there() {
        n += 1;
        kv.put(n, n, 100_000).await.expect("a pinned extent is no reason to refuse");
    }
    assert!(matches!(reader.read(0..of.durable.end(), u64::MAX).await, Err(LogError::Moved)));
    drop(reader);
    assert!(kv.log.read_use(extent, of.epoch).await.is_none());
    kv.crash().await;
}
