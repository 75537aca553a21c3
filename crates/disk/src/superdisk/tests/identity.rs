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

/// A pair in use, with version 1 saved on both legs.
async fn in_use() -> (Legs, Arc<Superdisk>) {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    (legs, disk)
}

/// Opens the two, and finds that nothing of the fast leg counts, and that `version` is read everywhere, also without it.
async fn assert_refused(durable: &MemDisk, fast: &MemDisk, version: u8) {
    let legs = Legs::of(copy_of(durable).await, copy_of(fast).await);
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Stale);
    assert_filled(&disk, version).await;
    assert_eq!(disk.status().reads_fast, 0);
    legs.until_clean(&disk).await;
    legs.assert_legs_agree(&disk).await;
    assert_filled(&disk, version).await;
    disk.close().await;
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Clean, "and from then on it counts");
    assert_filled(&disk, version).await;
    disk.close().await;
    let disk = legs.open_without().await;
    assert_filled(&disk, version).await;
}

#[tokio::test(start_paused = true)]
async fn a_durable_leg_put_back_to_an_earlier_time_of_this_opening_is_given_nothing_of_its_fast_leg() {
    for close in [false, true] {
        let (legs, disk) = in_use().await;
        let snapshot = copy_of(&legs.durable).await;
        fill(&disk, 2).await;
        legs.env.sleep(Duration::from_secs(5)).await;
        if close {
            disk.close().await;
        }
        drop(disk);
        assert_refused(&snapshot, &legs.fast, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whenever_the_durable_leg_was_copied_and_the_machine_stopped_it_is_given_nothing_newer() {
    // Copied and stopped at any time: between the savings of the map, and in the middle of them.
    for (copied, stopped) in (0..12).flat_map(|copied| (0..8).map(move |stopped| (copied * 130, stopped * 170))) {
        let (legs, disk) = in_use().await;
        let half = DATA + MIB;
        for offset in (DATA..half).step_by(64 << 10) {
            disk.write(offset, pattern(offset, 16, 2)).await.expect("write");
        }
        disk.flush().await.expect("flush");
        legs.env.sleep(Duration::from_millis(copied)).await;
        let snapshot = copy_of(&legs.durable).await;
        for offset in (0..32).rev().map(|i| DATA + (i << 16)) {
            disk.write_flush(offset, pattern(offset, 16, 3)).await.expect("write");
            legs.env.sleep(Duration::from_millis(1)).await;
        }
        legs.env.sleep(Duration::from_millis(stopped)).await;
        drop(disk);
        let legs = Legs::of(snapshot, copy_of(&legs.fast).await);
        let disk = legs.open().await;
        for offset in (DATA..DATA + 2 * MIB).step_by(64 << 10) {
            // As old as it may be, never newer: an older block is found by its checksum, a newer one is not.
            let bytes = disk.read(offset, 16 * BLOCK).await.expect("read");
            assert!(bytes != pattern(offset, 16, 3), "{copied} {stopped}: at {offset}");
            assert_is(
                &disk.read_copy(0, offset, 16 * BLOCK).await.expect("read"),
                offset,
                if offset < half { 2 } else { 1 },
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_image_of_the_fast_leg_from_this_opening_is_stale() {
    for close in [false, true] {
        let (legs, disk) = in_use().await;
        let old = copy_of(&legs.fast).await;
        fill(&disk, 2).await;
        legs.env.sleep(Duration::from_secs(5)).await;
        disk.flush().await.expect("flush");
        if close {
            disk.close().await;
        }
        drop(disk);
        assert_refused(&legs.durable, &old, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_was_refused_counts_for_no_time_any_more() {
    // The durable leg is put back, lives on without the fast leg, and its events come to where the fast leg's are.
    let (legs, disk) = in_use().await;
    let snapshot = copy_of(&legs.durable).await;
    fill(&disk, 2).await;
    legs.env.sleep(Duration::from_secs(5)).await;
    drop(disk);
    let abandoned = copy_of(&legs.fast).await;
    let legs = Legs::of(snapshot, MemDisk::fixed(pair::FAST_START + 3 * MIB));
    for version in 3..7 {
        let disk = legs.open().await;
        fill(&disk, version).await;
        legs.env.sleep(Duration::from_secs(5)).await;
        disk.close().await;
    }
    assert_refused(&legs.durable, &abandoned, 6).await;
    // Or it was there at once, and its own older maps are still on it.
    let (legs, disk) = in_use().await;
    for version in 2..9 {
        fill(&disk, version).await;
        legs.env.sleep(Duration::from_secs(3)).await;
    }
    let snapshot = copy_of(&legs.durable).await;
    fill(&disk, 9).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    drop(disk);
    let legs = Legs::of(snapshot, copy_of(&legs.fast).await);
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Stale);
    // Its first map is saved, and it is stopped.
    legs.until_clean(&disk).await;
    disk.flush().await.expect("flush");
    legs.env.sleep(Duration::from_millis(2500)).await;
    drop(disk);
    let disk = legs.open().await;
    assert_filled(&disk, 8).await;
    legs.until_clean(&disk).await;
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn stopped_between_the_writes_of_an_event_the_pair_belongs_together() {
    for (kind, place) in [
        // The durable leg does not get the event; the fast leg not the map; the durable leg is not told that it has it.
        (0, pair::DURABLE_LABELS[0]),
        (0, pair::DURABLE_LABELS[1]),
        (1, pair::MAP_SLOTS[0]),
        (1, pair::MAP_SLOTS[1]),
        (2, pair::DURABLE_LABELS[0]),
    ] {
        let (legs, disk) = in_use().await;
        let faults = if kind == 1 { &legs.fast_faults } else { &legs.durable_faults };
        let mut hold = Fault::new(OpKind::Write, Effect::Hold).within(place..place + B);
        if kind == 2 {
            hold = hold.after(1);
        }
        faults.add(hold);
        // The last part of the data was not valid before, so that there is something to save.
        let end = DATA + 2 * MIB - 16 * B;
        disk.write_flush(end, pattern(end, 16, 1)).await.expect("write");
        legs.env.sleep(Duration::from_millis(1600)).await;
        drop(disk);
        let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
        let disk = legs.open().await;
        assert_ne!(disk.status().fast, FastState::Stale, "{kind} {place}");
        assert_filled(&disk, 1).await;
        assert!(disk.status().reads_fast >= 30, "{kind} {place}: {:#?}", disk.status());
        legs.until_clean(&disk).await;
        legs.assert_legs_agree(&disk).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_comes_back_while_in_use_as_an_older_image_counts_for_nothing() {
    let (legs, disk) = in_use().await;
    let old = copy_of(&legs.fast).await;
    fill(&disk, 2).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    let fault = legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Error(libc::EIO)));
    fill(&disk, 3).await;
    legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
    for offset in (0..old.len()).step_by(64 << 10) {
        legs.fast.write(offset, old.read(offset, 64 << 10).await.expect("read")).await.expect("write");
    }
    legs.fast_faults.remove(fault);
    legs.until(&disk, "back", |status| !matches!(status.fast, FastState::Failed { .. })).await;
    assert_filled(&disk, 3).await;
    legs.until_clean(&disk).await;
    legs.assert_legs_agree(&disk).await;
    assert!(disk.status().reads_fast > 0);
}

/// The label of a build from before events.
fn without_events(identity: pair::Identity) -> pair::Identity {
    pair::Identity { event: 0, cleared_at: 0, ..identity }
}

#[tokio::test(start_paused = true)]
async fn a_pair_from_before_events_is_opened_and_has_them_from_then_on() {
    let (legs, disk) = in_use().await;
    disk.close().await;
    drop(disk);
    // Labels and maps as they were written before: events zero, and no name in the map's head.
    let (durable, fast) =
        (Arc::new(legs.durable.clone()) as Arc<dyn Disk>, Arc::new(legs.fast.clone()) as Arc<dyn Disk>);
    let Ok(Found::Label(label)) = pair::find_durable(&durable).await else { panic!("a label") };
    let label = without_events(label);
    label.write_durable(&durable).await.expect("written");
    label.write_fast(&fast).await.expect("written");
    for slot in pair::MAP_SLOTS {
        let mut head = legs.fast.read(slot, BLOCK).await.expect("read").to_vec();
        head[32..48].fill(0);
        head[80..88].fill(0);
        let crc = crate::label::crc32c(&head[..124]);
        head[124..128].copy_from_slice(&crc.to_le_bytes());
        legs.fast.write(slot, head.into()).await.expect("written");
    }
    let old = copy_of(&legs.fast).await;
    let disk = legs.open().await;
    assert_eq!(disk.status().fast, FastState::Clean);
    assert_filled(&disk, 1).await;
    assert_eq!(disk.status().reads_durable, 0);
    let snapshot = copy_of(&legs.durable).await;
    fill(&disk, 2).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    disk.close().await;
    assert_refused(&snapshot, &legs.fast, 1).await;
    assert_refused(&legs.durable, &old, 2).await;
}
