//! Which legs belong together, and what of the fast one is believed.

use super::*;
use crate::{Effect, Fault, OpKind};

#[tokio::test(start_paused = true)]
async fn a_blank_pair_is_made_and_known_again() {
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
    assert_eq!((&status.fast, status.generation, status.pair), (&FastState::Clean, 2, pair));
    assert_filled(&disk, 1).await;
    let status = disk.status();
    assert_eq!((status.reads_fast, status.reads_durable, status.rebuilt_bytes), (32, 0, 0));
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
        // From the fast leg too, once it holds that.
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
async fn a_pair_without_its_fast_leg_serves_and_the_leg_is_stale_when_it_comes_back() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.close().await;
    let disk = legs.open_without().await;
    assert_eq!(disk.status().fast, FastState::Missing);
    fill(&disk, 2).await;
    assert_filled(&disk, 2).await;
    assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect_err("none").kind(), io::ErrorKind::NotFound);
    disk.close().await;

    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Stale);
    assert_filled(&disk, 2).await;
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, 3 * MIB);
    let before = disk.status().reads_fast;
    assert_filled(&disk, 2).await;
    assert_eq!(disk.status().reads_fast, before + 32);
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
async fn a_foreign_fast_leg_is_not_touched_without_the_operators_word() {
    // A file system's superblock, something at the very end, the fast leg of another pair, a damaged label.
    let other = Legs::new();
    other.open().await.close().await;
    let with = async |offset: u64| {
        let disk = MemDisk::fixed(pair::FAST_START + 3 * MIB);
        disk.write(offset, pattern(offset, 1, 9)).await.expect("write");
        disk
    };
    let damaged = copy_of(&other.fast).await;
    pair::FAST_LABELS.iter().for_each(|label| damaged.flip(label + 20, 1));
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
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.close().await;
    legs.durable.flip(pair::DURABLE_LABELS[0] + 40, 1);
    legs.fast.flip(pair::FAST_LABELS[1] + 3, 1);
    let disk = legs.open().await;
    assert_eq!((disk.status().fast, disk.status().generation), (FastState::Clean, 2));
    assert_filled(&disk, 1).await;
    assert_eq!(disk.status().reads_durable, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_saved_map_counts_and_the_rest_is_rebuilt() {
    let legs = Legs::new();
    let disk = legs.open().await;
    let half = DATA + MIB;
    for offset in (DATA..half).step_by(64 << 10) {
        disk.write(offset, pattern(offset, 16, 1)).await.expect("write");
    }
    disk.flush().await.expect("flush");
    legs.env.sleep(Duration::from_secs(3)).await;
    // Not saved any more before the end.
    for offset in (half..half + MIB).step_by(64 << 10) {
        disk.write_flush(offset, pattern(offset, 16, 1)).await.expect("write");
    }
    drop(disk);

    let disk = legs.open().await;
    assert_filled(&disk, 1).await;
    let status = disk.status();
    assert_eq!((status.reads_fast, status.reads_durable), (16, 16), "{status:#?}");
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, MIB);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_flushed_is_not_saved_as_clean() {
    let legs = Legs::new();
    let disk = legs.open().await;
    disk.write(DATA, pattern(DATA, 4, 1)).await.expect("write");
    legs.env.sleep(Duration::from_secs(3)).await;
    assert!(disk.read_copy(1, DATA, BLOCK).await.is_ok());
    drop(disk);
    let disk = legs.open().await;
    assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect_err("unknown").kind(), io::ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_goes_on_where_it_was_after_a_restart() {
    let legs = Legs::new();
    let disk = legs.open_without().await;
    fill(&disk, 1).await;
    disk.close().await;
    // A MiB in eight seconds.
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
async fn a_fast_leg_that_hangs_at_opening_delays_it_for_a_moment_and_comes_back() {
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
        // And its map counts again.
        disk.flush().await.expect("flush");
        disk.close().await;
        let disk = legs.open().await;
        assert_eq!(disk.status().fast, FastState::Clean, "{kind:?}");
        disk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_failed_while_in_use_is_stale_at_the_next_opening() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    let hold = legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold));
    disk.write(DATA, pattern(DATA, 16, 2)).await.expect("write");
    legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
    fill(&disk, 2).await;
    drop(disk);
    // The machine is switched off: what hangs never happens.
    let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
    assert!(hold > 0);
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Stale);
    assert_filled(&disk, 2).await;
    assert_eq!(disk.status().reads_fast, 0);
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
async fn a_map_that_could_not_be_saved_at_closing_does_not_count() {
    for effect in [Effect::Error(libc::EIO), Effect::Hold] {
        let legs = Legs::new();
        let disk = legs.open().await;
        fill(&disk, 1).await;
        legs.env.sleep(Duration::from_secs(3)).await;
        // Valid in the map that was saved, and not any more.
        legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Error(libc::EIO)).within(pair::FAST_START..u64::MAX));
        disk.write_flush(DATA, pattern(DATA, 16, 2)).await.expect("write");
        settle(&disk).await;
        legs.fast_faults.add(Fault::new(OpKind::Write, effect).within(0..pair::FAST_START));
        disk.close().await;
        legs.fast_faults.clear();
        let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
        let disk = legs.open().await;
        assert_eq!(disk.status().fast, FastState::Stale);
        assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_map_does_not_stand_in_for_one_that_cannot_be_read() {
    for flips in [false, true] {
        let legs = Legs::new();
        let disk = legs.open().await;
        for version in 1..4 {
            fill(&disk, version).await;
            legs.env.sleep(Duration::from_secs(3)).await;
        }
        disk.close().await;
        for slot in pair::MAP_SLOTS {
            let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
            match flips {
                true => legs.fast.flip(slot + B, 1),
                false => {
                    legs.fast_faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)).within(slot..slot + B));
                }
            }
            let disk = legs.open().await;
            assert_eq!(disk.status().fast, FastState::Rebuilding, "{slot}");
            assert_filled(&disk, 3).await;
        }
    }
}
