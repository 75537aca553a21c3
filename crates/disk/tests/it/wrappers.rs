//! The fault-injecting and slow disks.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind, Slow, Slowness};
use steadfast_flow::Env;

const B: u64 = BLOCK as u64;

fn faulty() -> (Faulty, Faults, MemDisk) {
    let (disk, faults) = (MemDisk::fixed(16 * B), Faults::new());
    (Faulty::new(Arc::new(disk.clone()), faults.clone()), faults, disk)
}

fn filled(byte: u8, blocks: usize) -> Bytes {
    vec![byte; blocks * BLOCK].into()
}

#[tokio::test]
async fn errors_hit_their_range_their_turn_and_their_number() {
    let (disk, faults, _) = faulty();
    let id = faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)).within(2 * B..3 * B).after(1).times(2));
    disk.read(0, BLOCK).await.expect("elsewhere");
    disk.read(0, 4 * BLOCK).await.expect("the one that passes");
    for _ in 0..2 {
        assert_eq!(disk.read(2 * B, BLOCK).await.expect_err("harmed").raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(faults.harmed(id), 2);
    disk.read(2 * B, BLOCK).await.expect("no more");
}

#[tokio::test]
async fn a_full_disk_is_distinguished() {
    let (disk, faults, below) = faulty();
    faults.add(Fault::new(OpKind::Reserve, Effect::Error(libc::ENOSPC)));
    let id = faults.add(Fault::new(OpKind::Write, Effect::Error(libc::ENOSPC)));
    assert_eq!(disk.reserve(B).await.expect_err("full").kind(), ErrorKind::StorageFull);
    assert_eq!(disk.write_flush(0, filled(1, 1)).await.expect_err("full").kind(), ErrorKind::StorageFull);
    assert_eq!(below.stats().writes, 0);
    faults.remove(id);
    disk.write_flush(0, filled(1, 1)).await.expect("room again");
}

#[tokio::test]
async fn flush_faults_hit_both_ways_to_flush() {
    let (disk, faults, below) = faulty();
    let id = faults.add(Fault::new(OpKind::Flush, Effect::Error(libc::EIO)));
    disk.flush().await.expect_err("flush");
    disk.write_flush(0, filled(1, 1)).await.expect_err("flush of a write");
    assert_eq!((below.stats().flushes, below.stats().writes), (0, 1), "the write itself was done");
    faults.remove(id);
    faults.add(Fault::new(OpKind::Flush, Effect::Lie));
    disk.flush().await.expect("a lie");
    assert_eq!(below.stats().flushes, 0);
}

#[tokio::test]
async fn a_flip_changes_one_byte_of_what_is_read() {
    let (disk, faults, _) = faulty();
    disk.write(B, filled(7, 2)).await.expect("write");
    faults.add(Fault::new(OpKind::Read, Effect::Flip { offset: 2 * B + 5, mask: 0x80 }));
    let got = disk.read(B, 2 * BLOCK).await.expect("read");
    let wrong: Vec<usize> = (0..got.len()).filter(|i| got[*i] != 7).collect();
    assert_eq!((wrong, got[BLOCK + 5]), (vec![BLOCK + 5], 0x87));
    assert_eq!(disk.read(B, BLOCK).await.expect("not in it"), filled(7, 1));
    assert_eq!(disk.read(4 * B, BLOCK).await.expect("past it"), filled(0, 1));
}

#[tokio::test]
async fn writes_are_torn_lost_and_misdirected() {
    let (disk, faults, below) = faulty();
    disk.write(0, filled(1, 2)).await.expect("write");
    let tear = Effect::Tear { bytes: BLOCK + 512, errno: Some(libc::EIO) };
    faults.add(Fault::new(OpKind::Write, tear).times(1));
    faults.add(Fault::new(OpKind::Write, Effect::Lie).times(1));
    faults.add(Fault::new(OpKind::Write, Effect::Misdirect { to: 8 * B }).times(1));
    disk.write(0, filled(2, 2)).await.expect_err("torn");
    let torn = below.read(0, 2 * BLOCK).await.expect("read");
    assert!(torn[..BLOCK + 512].iter().all(|b| *b == 2) && torn[BLOCK + 512..].iter().all(|b| *b == 1));
    disk.write(4 * B, filled(3, 1)).await.expect("lost");
    assert_eq!(below.read(4 * B, BLOCK).await.expect("read"), filled(0, 1));
    disk.write(4 * B, filled(4, 1)).await.expect("misdirected");
    assert_eq!(below.read(4 * B, BLOCK).await.expect("read"), filled(0, 1));
    assert_eq!(below.read(8 * B, BLOCK).await.expect("read"), filled(4, 1));
}

#[tokio::test]
async fn a_held_operation_continues_when_released() {
    let (disk, faults, below) = faulty();
    let id = faults.add(Fault::new(OpKind::Flush, Effect::Hold));
    let mut flush = disk.flush();
    assert!(futures::poll!(&mut flush).is_pending());
    faults.add(Fault::new(OpKind::Read, Effect::Hold));
    faults.remove(id);
    flush.await.expect("let go");
    assert_eq!(below.stats().flushes, 1);
    let mut read = disk.read(0, BLOCK);
    assert!(futures::poll!(&mut read).is_pending());
    faults.clear();
    read.await.expect("let go");
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_takes_its_time_and_no_more() {
    let env = Env::tokio();
    let slowness = Slowness { flush: Duration::from_secs(2), bytes_per_s: Some(B), ..Slowness::default() };
    let slow = Slow::new(Arc::new(MemDisk::fixed(64 * B)), env, slowness);
    let handle = slow.handle();
    let started = tokio::time::Instant::now();
    slow.write_flush(0, filled(1, 3)).await.expect("write");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5100), "{took:?}");
    handle.set(Slowness::default());
    let started = tokio::time::Instant::now();
    slow.write_flush(0, filled(2, 3)).await.expect("write");
    assert_eq!(slow.read(0, BLOCK).await.expect("read"), filled(2, 1));
    assert!(started.elapsed() < Duration::from_millis(10));
}
