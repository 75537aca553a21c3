//! A file as a disk: reopening, latencies and requests in flight.

use super::*;

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK])
}

#[tokio::test]
async fn a_disk_whose_flush_failed_is_flushed_again_once_it_has_been_opened_again() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("disk");
    for io in [IoMode::Auto, IoMode::Threads] {
        let options = DiskOptions { create: true, io, ..DiskOptions::default() };
        let inner = Arc::new(FileDisk::open_inner(&path, &options).expect("opens").0);
        let disk: Arc<dyn Disk> = Arc::new(FileDisk(inner.clone()));
        disk.reserve(1 << 20).await.expect("room");
        disk.write_flush(0, block(1)).await.expect("written");
        inner.counters.latch(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(disk.flush().await.expect_err("latched").raw_os_error(), Some(libc::EIO));
        disk.write(0, block(2)).await.expect("it may be written");
        // While the file is missing, requests are refused and no new file is created.
        std::fs::rename(&path, folder.path().join("away")).expect("renamed");
        assert_eq!(disk.reopen().await.expect_err("gone").kind(), io::ErrorKind::NotFound);
        assert!(disk.read(0, BLOCK).await.is_err() && disk.reserve(2 << 20).await.is_err() && !path.exists());
        assert_eq!((disk.len(), disk.stats().in_flight), (1 << 20, 0));
        // Another file is at the path.
        std::fs::write(&path, [0; BLOCK]).expect("made");
        assert_eq!(disk.reopen().await.expect_err("shorter").kind(), io::ErrorKind::InvalidData);
        std::fs::rename(folder.path().join("away"), &path).expect("renamed");
        let (reads, again) = (disk.read(0, BLOCK), [disk.reopen(), disk.reopen()]);
        for again in join_all(again).await {
            again.expect("opened again");
        }
        assert_eq!(reads.await.expect("read"), block(2));
        disk.write_flush(BLOCK as u64, block(3)).await.expect("flushed");
        disk.reserve(2 << 20).await.expect("room");
        assert!(FileDisk::open(&path, &DiskOptions { lock_wait: Duration::ZERO, ..options }).is_err(), "locked");
        drop((disk, inner));
        std::fs::remove_file(&path).expect("removed");
    }
}

#[tokio::test]
async fn reads_writes_and_flushes_are_measured_each_by_itself() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    for io in [IoMode::Auto, IoMode::Threads] {
        let options = DiskOptions { create: true, io, ..DiskOptions::default() };
        let disk = FileDisk::open(folder.path().join(format!("{io:?}")), &options).expect("opens");
        disk.reserve(1 << 20).await.expect("room");
        let counts = || {
            let Latencies { read_us, write_us, flush_us } = disk.latencies().expect("measured");
            [read_us.count, write_us.count, flush_us.count]
        };
        assert_eq!(counts(), [0; 3]);
        disk.write(0, block(1)).await.expect("written");
        assert_eq!(counts(), [0, 1, 0]);
        disk.flush().await.expect("flushed");
        assert_eq!(counts(), [0, 1, 1]);
        disk.write_flush(0, block(2)).await.expect("written");
        assert_eq!(counts(), [0, 2, 2], "a write and its flush are two");
        disk.read(0, BLOCK).await.expect("read");
        assert_eq!(counts(), [1, 2, 2]);
        disk.read(2 << 20, BLOCK).await.expect_err("past the end");
        let (latencies, stats) = (disk.latencies().expect("measured"), disk.stats());
        assert_eq!((stats.reads, stats.writes, stats.flushes), (1, 2, 2), "one that fails has no latency");
        assert_eq!((stats.read_bytes, stats.write_bytes), (BLOCK as u64, 2 * BLOCK as u64));
        assert_eq!(latencies.flush_us.sum, stats.flush_us);
        assert!(latencies.read_us.max > 0 && latencies.read_us.max <= latencies.read_us.sum, "{latencies:?}");
    }
}

#[tokio::test]
async fn opening_again_waits_for_what_is_in_flight() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("disk");
    let disk = FileDisk::open(&path, &DiskOptions { create: true, ..DiskOptions::default() }).expect("opens");
    disk.reserve(4 << 20).await.expect("room");
    let writes = (0..200).map(|i| disk.write(i * BLOCK as u64, block(i as u8)));
    let (written, again) = futures::join!(join_all(writes), disk.reopen());
    again.expect("opened again");
    disk.flush().await.expect("flushed");
    // Each block is either written, or refused and absent.
    for (i, written) in written.iter().enumerate() {
        let there = disk.read((i * BLOCK) as u64, BLOCK).await.expect("read") == block(i as u8);
        assert!(i == 0 || there == written.is_ok(), "{i}: {written:?}");
    }
    assert!(written.iter().any(Result::is_ok));
}

#[tokio::test]
async fn reads_that_get_no_memory_are_as_old_as_a_read_that_hangs() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let options = DiskOptions { create: true, read_pool_bytes: BLOCK, ..DiskOptions::default() };
    let disk = FileDisk::open(folder.path().join("disk"), &options).expect("opens");
    disk.reserve(1 << 20).await.expect("room");
    let held = disk.read(0, BLOCK).await.expect("read");
    assert_eq!(disk.stats().oldest_read_ms, 0);
    let mut waits = disk.read(0, BLOCK);
    assert!(futures::poll!(&mut waits).is_pending());
    while disk.stats().oldest_read_ms < 20 {
        tokio::task::yield_now().await;
    }
    drop(held);
    waits.await.expect("read");
    assert_eq!(disk.stats().oldest_read_ms, 0);
}
