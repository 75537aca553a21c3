//! Stripes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use steadfast_disk::{
    BLOCK, Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind, Slow, Slowness, Stripe, StripeOptions,
};
use steadfast_flow::Env;

const B: u64 = BLOCK as u64;
const MIB: u64 = 1 << 20;

fn members(sizes: &[u64]) -> Vec<Arc<dyn Disk>> {
    sizes.iter().map(|size| Arc::new(MemDisk::fixed(*size)) as Arc<dyn Disk>).collect()
}

async fn format(members: &[Arc<dyn Disk>], chunk_bytes: u64) {
    Stripe::format(members, &Env::tokio(), &StripeOptions { chunk_bytes }, false).await.expect("made");
}

async fn made(members: &[Arc<dyn Disk>], chunk_bytes: u64) -> Arc<dyn Disk> {
    format(members, chunk_bytes).await;
    Stripe::open(members.to_vec()).await.expect("opens")
}

async fn refusal(members: &[Arc<dyn Disk>]) -> String {
    let error = Stripe::open(members.to_vec()).await.map(drop).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    error.to_string()
}

fn filled(byte: u8, blocks: usize) -> Bytes {
    vec![byte; blocks * BLOCK].into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        count in 1usize..6,
        chunk in 0u32..4,
        steps in prop::collection::vec((0u64..96, 1usize..24, any::<u8>(), 0u8..4), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let members = members(&vec![MIB + 128 * B; count]);
            let disk = made(&members, B << chunk).await;
            assert_eq!(disk.len(), 128 * B * count as u64);
            let mut model = vec![0u8; 128 * count];
            for (at, blocks, byte, how) in steps {
                let blocks = blocks.min(model.len() - at as usize);
                // Each block has a different byte.
                let data: Vec<u8> = (0..blocks).flat_map(|i| [byte.wrapping_add(i as u8); BLOCK]).collect();
                match how {
                    0 => disk.write(at * B, data.into()).await.expect("write"),
                    1 => disk.write_flush(at * B, data.into()).await.expect("write"),
                    _ => {
                        let got = disk.read(at * B, blocks * BLOCK).await.expect("read");
                        let expected = &model[at as usize..at as usize + blocks];
                        assert!(got.chunks(BLOCK).zip(expected).all(|(block, byte)| block.iter().all(|b| b == byte)));
                        continue;
                    }
                }
                (0..blocks).for_each(|i| model[at as usize + i] = byte.wrapping_add(i as u8));
            }
            // After a reopening, everything is present.
            drop(disk);
            let disk = Stripe::open(members).await.expect("opens");
            let got = disk.read(0, model.len() * BLOCK).await.expect("read");
            assert!(got.chunks(BLOCK).zip(&model).all(|(block, byte)| block.iter().all(|b| b == byte)));
        });
    }
}

#[tokio::test]
async fn wrong_order_missing_and_foreign_members_are_refused() {
    let four = members(&[2 * MIB; 4]);
    format(&four, 64 << 10).await;
    let swapped = [&four[0], &four[2], &four[1], &four[3]].map(Arc::clone);
    assert!(refusal(&swapped).await.contains("given at place 1"));
    let missing = refusal(&four[..3]).await;
    assert!(missing.contains("has 4 members") && missing.contains("[3]"), "{missing}");
    let other = members(&[2 * MIB; 4]);
    format(&other, 64 << 10).await;
    let mixed = [&four[0], &four[1], &other[2], &four[3]].map(Arc::clone);
    assert!(refusal(&mixed).await.contains("belongs to stripe"));
    let blank = [four[0].clone(), members(&[2 * MIB]).remove(0), four[2].clone(), four[3].clone()];
    assert!(refusal(&blank).await.contains("no label"));
    let twice = [&four[0], &four[0], &four[2], &four[3]].map(Arc::clone);
    let error = Stripe::open(twice.to_vec()).await.map(drop).expect_err("refused");
    assert!(error.to_string().contains("twice"), "{error}");
    assert!(Stripe::is_member(&four[1]).await.expect("reads") && !Stripe::is_member(&blank[1]).await.expect("reads"));
}

#[tokio::test]
async fn disks_that_hold_something_are_not_taken_without_force() {
    let two = members(&[2 * MIB; 2]);
    two[1].write(64 << 10, filled(1, 1)).await.expect("write");
    let (env, options) = (Env::tokio(), StripeOptions::default());
    let error = Stripe::format(&two, &env, &options, false).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    Stripe::format(&two, &env, &options, true).await.expect("forced");
    let error = Stripe::format(&two, &env, &options, false).await.expect_err("refused");
    assert!(error.to_string().contains("a member of a stripe"), "{error}");
}

#[tokio::test]
async fn one_good_label_is_enough() {
    let disks = [MemDisk::fixed(2 * MIB), MemDisk::fixed(2 * MIB)];
    let two: Vec<Arc<dyn Disk>> = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    format(&two, 64 << 10).await;
    disks[0].flip(33, 1);
    disks[1].flip((512 << 10) + 2, 1);
    Stripe::open(two.clone()).await.expect("opens");
    disks[0].flip((512 << 10) + 40, 1);
    assert!(refusal(&two).await.contains("damaged"));
}

#[tokio::test]
async fn the_smallest_member_counts() {
    let disk = made(&members(&[4 * MIB, 3 * MIB + 5 * B, 9 * MIB]), 64 << 10).await;
    assert_eq!((disk.len(), disk.geometry().capacity_bytes), (6 * MIB, 6 * MIB));
    disk.write(6 * MIB - B, filled(1, 1)).await.expect("the last block");
    assert_eq!(disk.write(6 * MIB, filled(1, 1)).await.expect_err("past it").kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.read(6 * MIB - B, 2 * BLOCK).await.expect_err("past it").kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn files_grow_together_or_not_at_all() {
    let disks = [MemDisk::growable(8 * MIB), MemDisk::growable(3 * MIB)];
    let two: Vec<Arc<dyn Disk>> = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    let disk = made(&two, 64 << 10).await;
    assert_eq!((disk.len(), disk.geometry().capacity_bytes, disk.geometry().growable), (0, 4 * MIB, true));
    disk.reserve(MIB + 1).await.expect("room");
    assert_eq!(disk.len(), MIB + (128 << 10));
    assert_eq!(disk.reserve(5 * MIB).await.expect_err("full").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(disk.len(), MIB + (128 << 10));
    disk.reserve(4 * MIB).await.expect("just enough");
    assert_eq!(disk.len(), 4 * MIB);
}

#[tokio::test]
async fn only_members_that_were_written_are_flushed_and_a_failed_flush_stays_failed() {
    let disks = [MemDisk::fixed(2 * MIB), MemDisk::fixed(2 * MIB), MemDisk::fixed(2 * MIB)];
    let faults = Faults::new();
    let faulty = Faulty::new(Arc::new(disks[1].clone()), faults.clone());
    let three: [Arc<dyn Disk>; 3] = [Arc::new(disks[0].clone()), Arc::new(faulty), Arc::new(disks[2].clone())];
    let disk = made(&three, 4 * B).await;
    // Writes from before the opening may not be durable.
    disk.flush().await.expect("all of them");
    let flushes = || disks.each_ref().map(|disk| disk.stats().flushes);
    let start = flushes();
    let since = || std::array::from_fn::<u64, 3, _>(|i| flushes()[i] - start[i]);
    disk.write_flush(0, filled(1, 1)).await.expect("one member");
    assert_eq!(since(), [1, 0, 0]);
    disk.flush().await.expect("nothing to do");
    assert_eq!(since(), [1, 0, 0]);
    disk.write(4 * B, filled(1, 8)).await.expect("two members");
    disk.write_flush(0, filled(1, 1)).await.expect("makes all of it durable");
    assert_eq!(since(), [2, 1, 1]);
    disk.write(4 * B, filled(2, 1)).await.expect("write");
    faults.add(Fault::new(OpKind::Flush, Effect::Error(libc::EIO)).times(2));
    disk.flush().await.expect_err("fails");
    disk.write_flush(0, filled(1, 1)).await.expect_err("what came before is not durable");
    disk.flush().await.expect("the disk works again");
    assert_eq!(since()[1], 2);
}

#[tokio::test]
async fn what_was_written_before_it_was_opened_is_flushed_by_the_first_flush() {
    let disks = [MemDisk::fixed(2 * MIB), MemDisk::fixed(2 * MIB)];
    let two: [Arc<dyn Disk>; 2] = [Arc::new(disks[0].clone()), Arc::new(disks[1].clone())];
    format(&two, 4 * B).await;
    for by_a_write in [false, true] {
        let disk = Stripe::open(two.to_vec()).await.expect("opens");
        let before = disks.each_ref().map(|disk| disk.stats().flushes);
        match by_a_write {
            true => disk.write_flush(0, filled(1, 1)).await.expect("written"),
            false => disk.flush().await.expect("flushed"),
        }
        let after = disks.each_ref().map(|disk| disk.stats().flushes);
        assert!(after.iter().zip(before).all(|(after, before)| *after > before), "{before:?} {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn members_work_concurrently() {
    let slowness = Slowness { read: Duration::from_secs(1), write: Duration::from_secs(1), ..Slowness::default() };
    let below = members(&[2 * MIB; 4]);
    format(&below, 4 * B).await;
    let slow = |disk| Arc::new(Slow::new(disk, Env::tokio(), slowness)) as Arc<dyn Disk>;
    let disk = Stripe::open(below.into_iter().map(slow).collect()).await.expect("opens");
    let start = tokio::time::Instant::now();
    disk.write(0, filled(1, 16)).await.expect("write");
    disk.read(0, 16 * BLOCK).await.expect("read");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_discard_reaches_its_blocks_and_no_others() {
    let disk = made(&members(&[2 * MIB; 3]), 2 * B).await;
    disk.write(0, filled(7, 64)).await.expect("write");
    disk.discard(3 * B, 20 * B).await.expect("discard");
    let got = disk.read(0, 64 * BLOCK).await.expect("read");
    let gone: Vec<usize> = (0..64).filter(|i| got[i * BLOCK] == 0).collect();
    assert_eq!(gone, (3..23).collect::<Vec<_>>());
}
