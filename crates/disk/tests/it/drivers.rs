//! One suite for both drivers.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::{aligned, at, folder, open, options, pattern, with_each};
use bytes::Bytes;
use futures::future::join_all;
use proptest::prelude::*;
use steadfast_disk::{BLOCK, Disk, DiskOptions, FileDisk, IoMode};

#[tokio::test]
async fn what_was_written_is_read() {
    with_each(64, |disk| async move {
        let (a, b) = (pattern(1, 3), pattern(2, 2));
        disk.write(at(1), aligned(&disk, &a).await).await.expect("write");
        disk.write_flush(at(10), aligned(&disk, &b).await).await.expect("write and flush");
        disk.flush().await.expect("flush");
        assert_eq!(disk.read(at(1), a.len()).await.expect("read"), a);
        assert_eq!(disk.read(at(10), b.len()).await.expect("read"), b);
        assert_eq!(disk.read(at(5), BLOCK).await.expect("read"), vec![0; BLOCK], "reserved space reads as zeros");
        assert!(disk.read(0, 0).await.expect("nothing").is_empty());
        disk.write(0, Bytes::new()).await.expect("nothing");
        let stats = disk.stats();
        assert_eq!((stats.writes, stats.write_bytes), (2, 5 * BLOCK as u64));
        assert_eq!((stats.reads, stats.read_bytes), (3, 6 * BLOCK as u64));
        assert_eq!((stats.flushes, stats.errors, stats.in_flight, stats.copied_bytes), (2, 0, 0, 0));
    })
    .await;
}

#[tokio::test]
async fn memory_that_is_not_aligned_is_copied() {
    with_each(64, |disk| async move {
        let data = pattern(3, 5);
        let odd = Bytes::from([&[0u8], &data[..]].concat()).slice(1..);
        let odd = if (odd.as_ptr() as usize).is_multiple_of(512) { Bytes::from(data.clone()).slice(..) } else { odd };
        disk.write(at(2), odd).await.expect("write");
        assert_eq!(disk.read(at(2), data.len()).await.expect("read"), data);
        assert_eq!(disk.stats().copied_bytes, data.len() as u64);
        assert_eq!(disk.stats().pool_used_bytes, 0);
    })
    .await;
}

#[tokio::test]
async fn what_the_contract_forbids_is_refused() {
    with_each(4, |disk| async move {
        let block = aligned(&disk, &pattern(1, 1)).await;
        assert_eq!(disk.read(1, BLOCK).await.expect_err("misaligned").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.read(0, 100).await.expect_err("misaligned").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.write(512, block.clone()).await.expect_err("misaligned").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.read(at(3), 2 * BLOCK).await.expect_err("past the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            disk.read(u64::MAX / BLOCK as u64 * BLOCK as u64, BLOCK).await.expect_err("overflow").kind(),
            ErrorKind::UnexpectedEof
        );
        assert_eq!(disk.write(at(4), block.clone()).await.expect_err("past the end").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.write_flush(at(4), block).await.expect_err("past the end").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.discard(at(3), at(2)).await.expect_err("past the end").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.read(0, 1 << 40).await.expect_err("past the end").kind(), ErrorKind::UnexpectedEof);
    })
    .await;
}

#[tokio::test]
async fn requests_larger_than_one_io_are_split() {
    with_each(2048, |disk| async move {
        let data = pattern(4, 1500);
        let flushes = disk.stats().flushes;
        disk.write_flush(at(7), aligned(&disk, &data).await).await.expect("write");
        assert_eq!(disk.stats().flushes, flushes + 1);
        assert_eq!(disk.stats().writes, 6, "pieces of 1 MiB");
        assert!(disk.read(at(7), data.len()).await.expect("read") == data);
        disk.write(at(8), Bytes::from(data.clone()).slice(..1200 * BLOCK)).await.expect("unaligned and large");
        assert!(disk.read(at(8), 1200 * BLOCK).await.expect("read") == data[..1200 * BLOCK]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_a_time_keep_the_bound() {
    with_each(1024, |disk| async move {
        let bound = disk.stats().queue_depth;
        let tasks = (0..512usize).map(|i| {
            let disk = disk.clone();
            tokio::task::unconstrained(async move {
                let data = pattern(i as u64, 2);
                let buf = aligned(&disk, &data).await;
                if i % 3 == 0 {
                    disk.write_flush(at(2 * i), buf).await.expect("write and flush");
                } else {
                    disk.write(at(2 * i), buf).await.expect("write");
                }
                assert!(disk.stats().in_flight <= bound);
                assert_eq!(disk.read(at(2 * i), data.len()).await.expect("read"), data);
            })
        });
        join_all(tasks).await;
        let stats = disk.stats();
        assert_eq!((stats.writes, stats.reads, stats.in_flight, stats.pool_used_bytes), (512, 512, 0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_request_continues_when_its_future_is_dropped() {
    with_each(512, |disk| async move {
        let data = pattern(9, 100);
        for i in 0..4 {
            let buf = aligned(&disk, &data).await;
            let mut write = disk.write_flush(at(100 * i), buf);
            let mut read = disk.read(0, 100 * BLOCK);
            // One poll submits both to the driver, where they are rarely complete already; then
            // they are dropped.
            let _ = (futures::poll!(&mut write), futures::poll!(&mut read));
        }
        while disk.stats().in_flight > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.stats().pool_used_bytes, 0);
        for i in 0..4 {
            assert!(disk.read(at(100 * i), data.len()).await.expect("read") == data);
        }
    })
    .await;
}

#[tokio::test]
async fn dropping_the_disk_ends_it_and_frees_its_lock() {
    for mode in crate::common::MODES {
        let folder = folder();
        let path = folder.path().join("pool");
        let Some(disk) = open(&path, &options(mode)) else { continue };
        disk.reserve(at(256)).await.expect("room");
        let data = pattern(5, 256);
        let mut write = disk.write(0, aligned(&disk, &data).await);
        let _ = futures::poll!(&mut write);
        drop((write, disk));
        let again =
            open(&path, &DiskOptions { lock_wait: std::time::Duration::ZERO, ..options(mode) }).expect("not locked");
        assert_eq!(again.len(), at(256));
        assert!(again.read(0, 256 * BLOCK).await.expect("read") == data, "what was in flight was finished");
    }
}

#[tokio::test]
async fn a_file_has_one_owner() {
    let folder = folder();
    let path = folder.path().join("pool");
    let quick = DiskOptions { lock_wait: std::time::Duration::ZERO, ..options(IoMode::Threads) };
    let Some(disk) = open(&path, &quick) else { return };
    let error = FileDisk::open(&path, &quick).err().expect("locked");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    drop(disk);
    FileDisk::open(&path, &quick).expect("free again");
}

#[test]
fn opening_reports_the_cause() {
    let folder = folder();
    let missing = DiskOptions { create: false, ..options(IoMode::Threads) };
    let error = FileDisk::open(folder.path().join("none"), &missing).err().expect("not there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("none"), "{error}");
    assert!(FileDisk::open(folder.path(), &missing).is_err(), "a folder");
    assert!(FileDisk::open("/dev/null", &missing).is_err(), "a character device");
}

#[test]
fn a_new_file_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("pool");
    let Some(_disk) = open(&path, &options(IoMode::Threads)) else { return };
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_file_grows_up_to_its_limit() {
    let folder = folder();
    let path = folder.path().join("pool");
    let options = DiskOptions { file_limit_bytes: Some(at(16)), ..options(IoMode::Auto) };
    let Some(disk) = open(&path, &options) else { return };
    assert!(disk.is_empty() && disk.geometry().growable);
    assert_eq!(disk.geometry().capacity_bytes, at(16));
    disk.reserve(at(3) + 1).await.expect("room");
    assert_eq!(disk.len(), at(4), "whole blocks");
    disk.reserve(at(2)).await.expect("nothing to do");
    assert_eq!(disk.len(), at(4));
    assert_eq!(disk.reserve(at(17)).await.expect_err("over the limit").kind(), ErrorKind::StorageFull);
    assert_eq!(disk.len(), at(4));
    disk.reserve(at(16)).await.expect("up to the limit");
    assert_eq!(std::fs::metadata(&path).expect("there").len(), at(16));
    drop(disk);
    assert_eq!(open(&path, &options).expect("again").len(), at(16));
}

#[tokio::test]
async fn reserved_space_is_allocated_also_after_a_sparse_copy() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    let path = folder.path().join("pool");
    std::fs::File::create(&path).and_then(|f| f.set_len(at(64))).expect("a sparse file");
    let Some(disk) = open(&path, &options(IoMode::Auto)) else { return };
    assert_eq!(disk.len(), at(64));
    assert!(std::fs::metadata(&path).expect("there").blocks() * 512 >= at(64));
}

#[tokio::test]
async fn discard_frees_space_of_a_file_only_when_enabled() {
    use std::os::unix::fs::MetadataExt;
    for punch_holes in [false, true] {
        let folder = folder();
        let path = folder.path().join("pool");
        let Some(disk) = open(&path, &DiskOptions { punch_holes, ..options(IoMode::Auto) }) else { return };
        disk.reserve(at(64)).await.expect("room");
        disk.write_flush(0, pattern(1, 64).into()).await.expect("write");
        disk.discard(at(16), at(32)).await.expect("discard");
        let kept = std::fs::metadata(&path).expect("there").blocks() * 512 >= at(64);
        assert_eq!(kept, !punch_holes);
        assert_eq!(disk.len(), at(64));
    }
}

#[tokio::test]
async fn a_disk_that_is_only_read_is_never_changed() {
    let folder = folder();
    let path = folder.path().join("pool");
    let data = pattern(6, 8);
    std::fs::write(&path, &data).expect("a file");
    for mode in crate::common::MODES {
        let Some(disk) = open(&path, &DiskOptions { read_only: true, ..options(mode) }) else { continue };
        assert!(disk.read(0, data.len()).await.expect("read") == data);
        let refused = [
            disk.write(0, pattern(7, 1).into()).await,
            disk.write_flush(0, pattern(7, 1).into()).await,
            disk.reserve(at(9)).await,
            disk.discard(0, at(1)).await,
        ];
        for result in refused {
            assert_eq!(result.expect_err("refused").kind(), ErrorKind::ReadOnlyFilesystem);
        }
    }
    let none = FileDisk::open(folder.path().join("none"), &DiskOptions { read_only: true, ..options(IoMode::Auto) });
    assert_eq!(none.err().expect("not created").kind(), ErrorKind::NotFound);
    assert!(std::fs::read(&path).expect("there") == data);
}

#[derive(Debug, Clone)]
enum Step {
    Write { block: usize, blocks: usize, seed: u64, flush: bool, odd: bool },
    Read { block: usize, blocks: usize },
    Grow { blocks: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..96usize, 1..9usize, any::<u64>(), prop::bool::weighted(0.2), any::<bool>())
        .prop_map(|(block, blocks, seed, flush, odd)| Step::Write { block, blocks, seed, flush, odd });
    let read = (0..96usize, 1..17usize).prop_map(|(block, blocks)| Step::Read { block, blocks });
    let grow = (0..96usize).prop_map(|blocks| Step::Grow { blocks });
    prop::collection::vec(prop_oneof![4 => write, 4 => read, 1 => grow], 1..40)
}

/// Runs the steps on a disk and on a `Vec`, which must agree.
async fn follow(disk: Arc<dyn Disk>, steps: &[Step]) {
    let mut model = vec![0u8; disk.len() as usize];
    for step in steps {
        match *step {
            Step::Write { block, blocks, seed, flush, odd } => {
                let data = pattern(seed, blocks);
                let bytes = if odd { Bytes::from(data.clone()) } else { aligned(&disk, &data).await };
                let done = if flush { disk.write_flush(at(block), bytes) } else { disk.write(at(block), bytes) }.await;
                match model.get_mut(block * BLOCK..(block + blocks) * BLOCK) {
                    Some(place) => {
                        done.expect("write");
                        place.copy_from_slice(&data);
                    }
                    None => assert_eq!(done.expect_err("past the end").kind(), ErrorKind::InvalidInput),
                }
            }
            Step::Read { block, blocks } => {
                let got = disk.read(at(block), blocks * BLOCK).await;
                match model.get(block * BLOCK..(block + blocks) * BLOCK) {
                    Some(place) => assert!(got.expect("read") == place),
                    None => assert_eq!(got.expect_err("past the end").kind(), ErrorKind::UnexpectedEof),
                }
            }
            Step::Grow { blocks } => {
                disk.reserve(at(blocks)).await.expect("room");
                model.resize(model.len().max(blocks * BLOCK), 0);
            }
        }
        assert_eq!(disk.len(), model.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_disk_is_a_vec(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(with_each(8, |disk| {
            let steps = steps.clone();
            async move { follow(disk, &steps).await }
        }));
        runtime.block_on(async {
            let disk = Arc::new(steadfast_disk::MemDisk::growable(at(200)));
            disk.reserve(at(8)).await.expect("room");
            follow(disk, &steps).await;
        });
    }
}
