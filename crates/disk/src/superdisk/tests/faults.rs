//! Five ways in which a super-disk that saved its map too late silently returned old blocks to a
//! caller without checksums.

use super::*;
use crate::{Effect, Fault, OpKind};

/// A closed pair that holds version 1.
async fn base() -> Legs {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    disk.close().await;
    legs
}

/// The state after a power cut: hanging operations never run.
async fn after_a_cut(legs: &Legs) -> Legs {
    Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await)
}

/// Every block equals the durable leg's, now and after the rebuild of the fast leg.
async fn assert_right(legs: &Legs) {
    assert_right_with(legs, SuperdiskOptions { compare_at_open: Some((DATA, 3 * MIB)), ..options() }).await;
}

async fn assert_right_with(legs: &Legs, options: SuperdiskOptions) {
    let disk = legs.open_with(options).await;
    for _ in 0..2 {
        for offset in (DATA..disk.len()).step_by(BLOCK) {
            let right = legs.durable.read(offset, BLOCK).await.expect("read");
            assert!(disk.read(offset, BLOCK).await.expect("read") == right, "at {offset}: {:#?}", disk.status());
        }
        legs.until_clean(&disk).await;
    }
    assert!(disk.status().reads_fast > 0);
}

#[tokio::test(start_paused = true)]
async fn killed_after_a_flush_while_the_fast_leg_still_writes() {
    let legs = base().await;
    let disk = legs.open_with(clearing()).await;
    legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold).within(pair::FAST_START..u64::MAX));
    disk.write_flush(DATA, pattern(DATA, 1, 2)).await.expect("write");
    assert_right(&after_a_cut(&legs).await).await;
}

#[tokio::test(start_paused = true)]
async fn killed_after_a_flush_when_the_fast_leg_has_refused_a_write() {
    for within in [0..u64::MAX, pair::FAST_START..u64::MAX] {
        let legs = base().await;
        let disk = legs.open_with(clearing()).await;
        legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Error(libc::EIO)).within(within));
        disk.write_flush(DATA, pattern(DATA, 1, 2)).await.expect("write");
        assert_right(&after_a_cut(&legs).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_fast_leg_is_restored_to_an_image_of_the_same_opening() {
    for close in [false, true] {
        let legs = base().await;
        let disk = legs.open_with(clearing()).await;
        let image = copy_of(&legs.fast).await;
        disk.write_flush(DATA, pattern(DATA, 1, 2)).await.expect("write");
        settle(&disk).await;
        if close {
            disk.close().await;
        }
        assert_right(&Legs::of(copy_of(&legs.durable).await, image)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_fast_leg_is_restored_to_an_image_without_its_last_unflushed_writes() {
    let legs = base().await;
    let disk = legs.open_with(clearing()).await;
    let before = copy_of(&legs.fast).await;
    disk.write_flush(DATA, pattern(DATA, 1, 2)).await.expect("write");
    // A round clears the bit. An image of that moment may lack data that the round's flush of the
    // fast leg covers.
    let held = legs.fast_faults.add(Fault::new(OpKind::Flush, Effect::Hold));
    let flushing = |legs: &Legs| legs.fast_faults.harmed(held) > 0;
    while !flushing(&legs) {
        legs.env.sleep(Duration::from_millis(10)).await;
    }
    let image = copy_of(&legs.fast).await;
    let old = before.read(pair::FAST_START + DATA, BLOCK).await.expect("read");
    image.write(pair::FAST_START + DATA, old).await.expect("write");
    legs.fast_faults.remove(held);
    disk.close().await;
    // Without the samples, which would detect this image.
    assert_right_with(&Legs::of(copy_of(&legs.durable).await, image), options()).await;
}

#[tokio::test(start_paused = true)]
async fn the_durable_leg_is_restored_from_a_snapshot_of_the_same_opening() {
    for close in [false, true] {
        let legs = base().await;
        let disk = legs.open_with(clearing()).await;
        let snapshot = copy_of(&legs.durable).await;
        disk.write_flush(DATA, pattern(DATA, 1, 2)).await.expect("write");
        settle(&disk).await;
        if close {
            disk.close().await;
        }
        assert_right(&Legs::of(snapshot, copy_of(&legs.fast).await)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_durable_leg_is_written_elsewhere_and_returned() {
    // Its beginning, its end, and the block that was written last, as a file system would write
    // them.
    let last = DATA + MIB + 5 * B;
    for place in [DATA + B, 3 * MIB - B, last] {
        let legs = base().await;
        let disk = legs.open_with(clearing()).await;
        disk.write_flush(last, pattern(last, 1, 1)).await.expect("write");
        legs.env.sleep(Duration::from_secs(3)).await;
        disk.close().await;
        legs.durable.write(place, pattern(place, 1, 9)).await.expect("write");
        assert_right(&after_a_cut(&legs).await).await;
    }
    // If the durable leg is unchanged, the fast leg counts.
    let legs = base().await;
    assert_right(&legs).await;
    assert_eq!(
        legs.open_with(SuperdiskOptions { compare_at_open: Some((DATA, 3 * MIB)), ..options() }).await.status().refused,
        None
    );
}

#[tokio::test(start_paused = true)]
async fn bad_sectors_in_the_samples_do_not_discard_the_fast_leg() {
    let compared = || SuperdiskOptions { compare_at_open: Some((DATA, 3 * MIB)), ..options() };
    let bad = |legs: &Legs, blocks: u64| {
        let begin = pair::FAST_START + DATA;
        for at in (begin..begin + blocks * B).step_by(BLOCK) {
            legs.fast_faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)).within(at..at + B).until_written());
        }
    };
    let legs = base().await;
    bad(&legs, 3);
    let disk = legs.open_with(compared()).await;
    assert_eq!(disk.status().refused, None);
    disk.close().await;
    assert_right(&legs).await;
    // The other blocks of the same piece still show that the durable leg was written elsewhere.
    let legs = base().await;
    bad(&legs, 3);
    legs.durable.write(DATA + 3 * B, pattern(DATA + 3 * B, 1, 9)).await.expect("write");
    assert_right(&legs).await;
    // A fast leg with too many bad blocks does not count.
    let legs = base().await;
    bad(&legs, 300);
    assert!(legs.open_with(compared()).await.status().refused.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_read_of_a_fast_leg_that_fails_meanwhile_does_not_count() {
    let legs = base().await;
    let disk = legs.open_with(options()).await;
    let old = legs.fast.read(pair::FAST_START + DATA, BLOCK).await.expect("read");
    let new = pattern(DATA, 1, 2);
    disk.write_flush(DATA, new.clone()).await.expect("write");
    settle(&disk).await;
    let block = pair::FAST_START + DATA..pair::FAST_START + DATA + B;
    let held = legs.fast_faults.add(Fault::new(OpKind::Read, Effect::Hold).within(block));
    let read = disk.read(DATA, BLOCK);
    tokio::pin!(read);
    assert!(futures::poll!(&mut read).is_pending());
    // The flush of a round fails, and the leg drops its unflushed data.
    legs.fast_faults.add(Fault::new(OpKind::Flush, Effect::Error(libc::EIO)));
    let clean = 2 * MIB;
    disk.write(clean, pattern(clean, 1, 2)).await.expect("write");
    legs.fast.write(pair::FAST_START + DATA, old).await.expect("write");
    legs.fast_faults.remove(held);
    assert!(read.await.expect("read") == new);
}
