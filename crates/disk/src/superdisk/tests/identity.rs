//! Tests whether legs belong together, and which content of the fast leg is trusted.

use super::*;
use crate::{Effect, Fault, OpKind};

#[tokio::test(start_paused = true)]
async fn a_blank_pair_is_created_and_recognised() {
    let legs = Legs::new();
    let disk = legs.open().await;
    assert_eq!((disk.status().fast, disk.status().generation), (FastState::Clean, 1));
    fill(&disk, 1).await;
    assert_filled(&disk, 1).await;
    disk.close().await;
    let pair = disk.status().pair;
    drop(disk);

    let disk = legs.open().await;
    let status = disk.status();
    assert_eq!((status.refused, status.generation, status.pair), (None, 2, pair));
    assert_filled(&disk, 1).await;
    let status = disk.status();
    assert_eq!((status.reads_fast, status.reads_durable, status.dirty_bytes), (32, 0, MIB));
    // Regions that were never written may differ, and are copied once.
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, MIB);
    disk.close().await;
    drop(disk);

    let disk = legs.open().await;
    assert_eq!((disk.status().fast, disk.status().dirty_bytes), (FastState::Clean, 0));
}

#[tokio::test(start_paused = true)]
async fn the_durable_leg_alone_holds_everything_at_the_same_offsets() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 3).await;
    assert_eq!((disk.len(), disk.geometry()), (legs.durable.len(), legs.durable.geometry()));
    for offset in (DATA..disk.len()).step_by(64 << 10) {
        assert_is(&legs.durable.read(offset, 16 * BLOCK).await.expect("read"), offset, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_labels_read_as_zeros_and_cannot_be_written() {
    let legs = Legs::new();
    let disk = legs.open().await;
    for _ in 0..2 {
        assert!(disk.read(0, MIB as usize).await.expect("read").iter().all(|b| *b == 0));
        assert!(disk.read_copy(0, 256 << 10, BLOCK).await.expect("read").iter().all(|b| *b == 0));
        // Also from the fast leg, once it holds that range.
        disk.read(0, BLOCK).await.expect("read");
        legs.env.sleep(Duration::from_secs(1)).await;
        legs.until_clean(&disk).await;
    }
    assert!(disk.status().reads_fast > 0);
    let error = disk.write(256 << 10, pattern(0, 1, 0)).await.expect_err("a label");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    disk.write(0, pattern(0, 1, 7)).await.expect("beside them");
    assert!(Superdisk::is_paired(&(Arc::new(legs.durable.clone()) as Arc<dyn Disk>)).await.expect("reads"));
}

#[tokio::test(start_paused = true)]
async fn a_pair_without_its_fast_leg_serves_and_what_was_written_meanwhile_is_rebuilt() {
    for (blocks, rebuilt) in [(16, 64 << 10), (512, 2 * MIB)] {
        let legs = Legs::new();
        let disk = legs.open().await;
        fill(&disk, 1).await;
        disk.read(0, MIB as usize).await.expect("read");
        legs.until_clean(&disk).await;
        disk.close().await;
        let disk = legs.open_without().await;
        assert_eq!(disk.status().fast, FastState::Missing);
        disk.write(DATA, pattern(DATA, blocks, 2)).await.expect("write");
        assert_is(&disk.read(DATA, blocks * BLOCK).await.expect("read"), DATA, 2);
        assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect_err("none").kind(), io::ErrorKind::NotFound);
        disk.close().await;

        let disk = legs.open().await;
        assert_eq!((disk.status().fast, disk.status().dirty_bytes), (FastState::Rebuilding, rebuilt));
        assert_is(&disk.read(DATA, blocks * BLOCK).await.expect("read"), DATA, 2);
        legs.until_clean(&disk).await;
        assert_eq!(disk.status().rebuilt_bytes, rebuilt);
        let before = disk.status().reads_durable;
        assert_is(&disk.read(DATA, blocks * BLOCK).await.expect("read"), DATA, 2);
        assert_eq!(disk.status().reads_durable, before);
        legs.assert_legs_agree(&disk).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_of_last_week_is_rebuilt_and_trusting_it_would_show() {
    for trusting in [false, true] {
        let legs = Legs::new();
        let disk = legs.open().await;
        fill(&disk, 1).await;
        disk.close().await;
        let old = copy_of(&legs.fast).await;
        let disk = legs.open().await;
        fill(&disk, 2).await;
        disk.close().await;

        let legs = Legs::of(legs.durable.clone(), old);
        let sabotage = if trusting { SuperdiskSabotage::TrustStale } else { SuperdiskSabotage::None };
        let disk = legs.open_with(SuperdiskOptions { sabotage, ..options() }).await;
        let bytes = disk.read(DATA, 16 * BLOCK).await.expect("read");
        assert_is(&bytes, DATA, if trusting { 1 } else { 2 });
        assert_is(&disk.read_copy(0, DATA, BLOCK).await.expect("read"), DATA, if trusting { 1 } else { 2 });
        if !trusting {
            assert_eq!(disk.status().fast, FastState::Stale);
            legs.until_clean(&disk).await;
            legs.assert_legs_agree(&disk).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_zeroed_fast_leg_is_filled_again() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.close().await;
    let legs = Legs::of(legs.durable.clone(), MemDisk::fixed(pair::FAST_START + 3 * MIB));
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Rebuilding);
    assert_filled(&disk, 1).await;
    legs.until_clean(&disk).await;
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_fast_leg_is_not_touched_without_permission() {
    // A file system's superblock, data at the very end, the fast leg of another pair, a damaged
    // label.
    let other = Legs::new();
    other.open().await.close().await;
    let with = async |offset: u64| {
        let disk = MemDisk::fixed(pair::FAST_START + 3 * MIB);
        disk.write(offset, pattern(offset, 1, 9)).await.expect("write");
        disk
    };
    let damaged = copy_of(&other.fast).await;
    FAST_LABELS.iter().for_each(|label| damaged.flip(label + 20, 1));
    let end = pair::FAST_START + 3 * MIB - B;
    for foreign in [with(0).await, with(64 << 10).await, with(end).await, copy_of(&other.fast).await, damaged] {
        let before = copy_of(&foreign).await;
        let legs = Legs::of(MemDisk::fixed(3 * MIB), foreign);
        let disk = legs.open().await;
        assert!(matches!(disk.status().fast, FastState::Foreign { .. }), "{:?}", disk.status().fast);
        fill(&disk, 1).await;
        assert_filled(&disk, 1).await;
        disk.close().await;
        let len = before.len() as usize;
        assert_eq!(legs.fast.read(0, len).await.expect("read"), before.read(0, len).await.expect("read"));
        let disk = legs.open_with(SuperdiskOptions { take_foreign_fast: true, ..options() }).await;
        assert_eq!(disk.status().fast, FastState::Rebuilding);
        legs.until_clean(&disk).await;
        legs.assert_legs_agree(&disk).await;
    }
}

#[tokio::test(start_paused = true)]
async fn swapped_legs_and_a_durable_leg_that_holds_something_else_are_refused() {
    let legs = Legs::new();
    legs.open().await.close().await;
    let swapped = Legs::of(legs.fast.clone(), legs.durable.clone());
    let error = swapped.try_open(options()).await.map(drop).expect_err("swapped");
    assert!(error.to_string().contains("swap"), "{error}");

    let legs = Legs::new();
    for label in pair::DURABLE_LABELS {
        legs.durable.write(label, pattern(0, 1, 5)).await.expect("write");
    }
    let error = legs.try_open(options()).await.map(drop).expect_err("something else");
    assert!(error.to_string().contains("not Steadfast's"), "{error}");
    assert_is(&legs.durable.read(pair::DURABLE_LABELS[0], BLOCK).await.expect("read"), 0, 5);
}

#[tokio::test(start_paused = true)]
async fn one_good_copy_of_a_label_is_enough() {
    let mut counted = Vec::new();
    for (durable, fast) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let legs = Legs::new();
        let disk = legs.open().await;
        fill(&disk, 1).await;
        disk.close().await;
        legs.durable.flip(pair::DURABLE_LABELS[durable] + 40, 1);
        legs.fast.flip(FAST_LABELS[fast] + 3, 1);
        let disk = legs.open().await;
        assert_filled(&disk, 1).await;
        let status = disk.status();
        assert_eq!(status.generation, 2);
        counted.push(status.refused.is_none());
        legs.until_clean(&disk).await;
        legs.assert_legs_agree(&disk).await;
    }
    // Where the newest label is damaged, the other leg may seem to be of another time.
    assert!(counted.contains(&true), "{counted:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_clean_regions_count_and_the_rest_is_rebuilt() {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    let half = DATA + MIB;
    for offset in (half..half + MIB).step_by(64 << 10) {
        disk.write_flush(offset, pattern(offset, 16, 2)).await.expect("write");
    }
    settle(&disk).await;
    drop(disk);

    for _ in 0..2 {
        let disk = legs.open().await;
        for (offset, version) in [(DATA, 1), (half, 2)] {
            for offset in (offset..offset + MIB).step_by(64 << 10) {
                assert_is(&disk.read(offset, 16 * BLOCK).await.expect("read"), offset, version);
            }
        }
        let status = disk.status();
        assert_eq!((status.reads_fast, status.reads_durable), (16, 16), "{status:#?}");
        // A second crash during the rebuild changes nothing.
        drop(disk);
    }
    let disk = legs.open().await;
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, 2 * MIB);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn dirty_bytes_are_bounded_and_the_least_recently_written_are_cleared() {
    let legs = Legs::new();
    let disk = legs.open_with(SuperdiskOptions { dirty_bytes_max: MIB + (512 << 10), ..options() }).await;
    for offset in (DATA..disk.len()).step_by(64 << 10) {
        disk.write(offset, pattern(offset, 16, 1)).await.expect("write");
        legs.env.sleep(Duration::from_millis(10)).await;
    }
    legs.until(&disk, "cleared", |status| status.dirty_bytes <= status.dirty_bytes_max).await;
    legs.env.sleep(Duration::from_secs(60)).await;
    let dirty = disk.status().dirty_bytes;
    assert!(dirty > MIB && dirty <= MIB + (512 << 10), "only the excess above the limit: {dirty}");
    // The regions that were written first are clean: after a crash they are read from the fast leg.
    drop(disk);
    let disk = legs.open().await;
    assert!(disk.read_copy(1, DATA, BLOCK).await.is_ok());
    let last = disk.len() - B;
    assert_eq!(disk.read_copy(1, last, BLOCK).await.expect_err("dirty").kind(), io::ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_continues_after_a_restart() {
    let legs = Legs::new();
    let disk = legs.open_without().await;
    fill(&disk, 1).await;
    disk.close().await;
    // One MiB in eight seconds.
    let slow = || SuperdiskOptions { rebuild_bytes_s: 128 << 10, ..options() };
    let disk = legs.open_with(slow()).await;
    legs.until(&disk, "half done", |status| status.rebuilt_bytes > MIB).await;
    let status = disk.status();
    assert!(status.regions_clean >= 64 && status.regions_to_rebuild > 0 && status.rebuild_bytes_s > 0, "{status:#?}");
    assert!(status.rebuild_bytes_s <= 160 << 10, "throttled: {}", status.rebuild_bytes_s);
    disk.close().await;
    let done = disk.status().rebuilt_bytes;
    let disk = legs.open_with(slow()).await;
    assert_eq!(disk.status().fast, FastState::Rebuilding);
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, 3 * MIB - done);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_hangs_at_opening_delays_it_briefly_and_returns() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.close().await;
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        let start = legs.env.now();
        legs.fast_faults.add(Fault::new(kind, Effect::Hold));
        let disk = legs.open().await;
        assert!(legs.env.now() - start <= options().fast_open_limit + Duration::from_millis(50));
        assert!(matches!(disk.status().fast, FastState::Failed { .. }));
        fill(&disk, 2).await;
        assert_filled(&disk, 2).await;
        legs.fast_faults.clear();
        legs.until_clean(&disk).await;
        assert_filled(&disk, 2).await;
        legs.assert_legs_agree(&disk).await;
        // The map counts again.
        disk.flush().await.expect("flush");
        disk.close().await;
        let disk = legs.open().await;
        assert_eq!(disk.status().fast, FastState::Clean, "{kind:?}");
        disk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_leg_missed_that_failed_while_in_use_is_rebuilt_at_the_next_opening() {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold));
    let start = legs.env.now();
    disk.write(DATA, pattern(DATA, 16, 2)).await.expect("write");
    assert!(legs.env.now() - start <= options().fast_write_limit + Duration::from_millis(50), "it waits for a label");
    assert!(matches!(disk.status().fast, FastState::Failed { .. }));
    let start = legs.env.now();
    disk.write(DATA + MIB, pattern(DATA + MIB, 16, 2)).await.expect("write");
    assert_eq!(legs.env.now(), start, "not again");
    drop(disk);
    // After the power cut, hanging operations never run.
    let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
    let disk = legs.open().await;
    let status = disk.status();
    assert_eq!((status.fast, status.refused, status.dirty_bytes), (FastState::Rebuilding, None, MIB + (128 << 10)));
    for offset in (DATA..disk.len()).step_by(64 << 10) {
        let version = if offset == DATA || offset == DATA + MIB { 2 } else { 1 };
        assert_is(&disk.read(offset, 16 * BLOCK).await.expect("read"), offset, version);
    }
    assert_eq!(disk.status().reads_durable, 2);
}

#[tokio::test(start_paused = true)]
async fn files_grow_together_and_a_small_fast_leg_holds_what_fits() {
    let legs = Legs::of(MemDisk::growable(64 * MIB), MemDisk::growable(pair::FAST_START + 2 * MIB));
    let disk = legs.open().await;
    assert_eq!(disk.len(), MIB);
    disk.reserve(3 * MIB).await.expect("room");
    assert_eq!((disk.len(), legs.durable.len()), (3 * MIB, 3 * MIB));
    legs.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(legs.fast.len(), pair::FAST_START + 2 * MIB);
    fill(&disk, 1).await;
    legs.until_clean(&disk).await;
    assert_filled(&disk, 1).await;
    let status = disk.status();
    assert_eq!((status.reads_fast, status.reads_durable), (16, 16), "{status:#?}");
    assert_eq!(disk.reserve(65 * MIB).await.expect_err("full").raw_os_error(), Some(libc::ENOSPC));
}

#[tokio::test(start_paused = true)]
async fn bits_that_could_not_be_cleared_at_closing_stay_set() {
    for effect in [Effect::Error(libc::EIO), Effect::Hold] {
        let legs = Legs::new();
        let disk = legs.open_with(clearing()).await;
        fill(&disk, 1).await;
        legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
        disk.write_flush(DATA, pattern(DATA, 16, 2)).await.expect("write");
        settle(&disk).await;
        legs.fast_faults.add(Fault::new(OpKind::Write, effect).within(0..pair::FAST_START));
        disk.close().await;
        legs.fast_faults.clear();
        let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
        let disk = legs.open().await;
        assert_eq!(disk.status().dirty_bytes, MIB + (64 << 10));
        assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 2);
        assert_is(&disk.read(DATA + MIB, 16 * BLOCK).await.expect("read"), DATA + MIB, 1);
        assert_eq!((disk.status().reads_fast, disk.status().reads_durable), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_was_forgotten_is_filled_anew() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.close().await;
    let (durable, fast): (Arc<dyn Disk>, Arc<dyn Disk>) = (Arc::new(legs.durable.clone()), Arc::new(legs.fast.clone()));
    let labels = Superdisk::labels(&durable, Some(&fast)).await.expect("read").expect("a durable leg");
    assert_eq!((labels.refused, labels.dirty_bytes, labels.generation), (None, MIB, 1));
    // Written elsewhere, at a place without samples.
    legs.durable.write(DATA + 5 * B, pattern(0, 1, 9)).await.expect("write");
    assert!(Superdisk::forget_fast(&durable).await.expect("written"));
    let labels = Superdisk::labels(&durable, Some(&fast)).await.expect("read").expect("a durable leg");
    assert!(labels.fast.is_none() && labels.refused.is_some(), "{labels:?}");
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Stale);
    assert_eq!(disk.read(DATA + 5 * B, BLOCK).await.expect("read"), pattern(0, 1, 9));
    assert!(!Superdisk::forget_fast(&fast).await.expect("no durable leg"));
}
