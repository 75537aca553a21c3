//! Legs restored to an earlier time, and interrupted rounds.

use super::*;
use crate::{Effect, Fault, OpKind};

/// A pair in use, with version 1 on both legs, and all of it clean.
async fn in_use() -> (Legs, Arc<Superdisk>) {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    (legs, disk)
}

/// Opens the two legs. The fast leg's content must be refused, and `version` must be read
/// everywhere, also without that leg.
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
async fn a_durable_leg_restored_to_an_earlier_time_of_this_opening_refuses_its_fast_leg() {
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
async fn a_durable_leg_copied_at_any_time_never_reads_newer_data() {
    // Copied and stopped at any time: between rounds, and during them.
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
            // Neither older nor newer: the caller has no checksums.
            let bytes = disk.read(offset, 16 * BLOCK).await.expect("read");
            let right = pattern(offset, 16, if offset < half { 2 } else { 1 });
            assert!(bytes == right, "{copied} {stopped}: at {offset}");
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
async fn a_refused_fast_leg_never_counts_again() {
    // The durable leg is restored and continues without the fast leg until its events reach those
    // of the fast leg.
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
    // The fast leg is present immediately.
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
    // The fast leg becomes complete, and the pair is stopped.
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
async fn stopped_in_the_middle_of_a_round_the_pair_belongs_together() {
    let bits = pair::INTENT_BITS;
    for (durable, place) in [
        (true, pair::DURABLE_LABELS[0]),
        (true, pair::DURABLE_LABELS[1]),
        (true, bits),
        (false, FAST_LABELS[0]),
        (false, FAST_LABELS[1]),
    ] {
        // The rounds that set bits, and the one that clears them.
        for wait in [0, 50, 1600] {
            let (legs, disk) = in_use().await;
            let faults = if durable { &legs.durable_faults } else { &legs.fast_faults };
            let hold = Fault::new(OpKind::Write, Effect::Hold).within(place..place + B);
            let end = DATA + 2 * MIB - 16 * B;
            let write = disk.write_flush(end, pattern(end, 16, 2));
            let env = legs.env.clone();
            if wait == 0 {
                faults.add(hold);
                assert!(durable || env.timeout(Duration::from_secs(1), write).await.is_none() || wait == 0);
            } else {
                write.await.expect("write");
                faults.add(hold);
                env.sleep(Duration::from_millis(wait)).await;
            }
            drop(disk);
            let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
            let disk = legs.open().await;
            assert_eq!(disk.status().refused, None, "{durable} {place} {wait}");
            let durable_has = legs.durable.read(end, 16 * BLOCK).await.expect("read");
            assert!(disk.read(end, 16 * BLOCK).await.expect("read") == durable_has, "{durable} {place} {wait}");
            for offset in (DATA..end).step_by(64 << 10) {
                assert_is(&disk.read(offset, 16 * BLOCK).await.expect("read"), offset, 1);
            }
            assert!(disk.status().reads_fast >= 30, "{durable} {place} {wait}: {:#?}", disk.status());
            legs.until_clean(&disk).await;
            legs.assert_legs_agree(&disk).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_returns_in_use_as_an_older_image_counts_for_nothing() {
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

/// Both legs are restored to one time. Later the fast leg alone is restored to an image of the
/// abandoned history.
#[tokio::test(start_paused = true)]
async fn a_fast_leg_of_an_abandoned_history_counts_for_nothing() {
    // The images of the first time are taken after a clean stop, or from a pair in use.
    for stopped in [true, false] {
        let (legs, disk) = in_use().await;
        let first = |legs: &Legs| (legs.durable.clone(), legs.fast.clone());
        let ((durable, fast), disk) = match stopped {
            true => {
                disk.close().await;
                drop(disk);
                let (durable, fast) = first(&legs);
                ((copy_of(&durable).await, copy_of(&fast).await), legs.open_with(clearing()).await)
            }
            false => {
                let (durable, fast) = first(&legs);
                ((copy_of(&durable).await, copy_of(&fast).await), disk)
            }
        };
        let block = DATA + MIB;
        disk.write_flush(DATA, pattern(DATA, 1, 7)).await.expect("write");
        settle(&disk).await;
        drop(disk);
        let abandoned = copy_of(&legs.fast).await;
        for (rounds, returns) in [(0, false), (1, false), (2, false), (3, false), (1, true), (3, true)] {
            let legs = Legs::of(copy_of(&durable).await, copy_of(&fast).await);
            if returns {
                // The opening finds no fast leg; it appears a little later.
                legs.fast_faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)));
            }
            let disk = legs.open_with(clearing()).await;
            if returns {
                legs.fast_faults.clear();
                legs.until_clean(&disk).await;
            }
            assert_eq!(disk.status().refused, None);
            for round in 0..rounds {
                let place = block + round * (64 << 10);
                disk.write_flush(place, pattern(place, 1, 8)).await.expect("write");
                settle(&disk).await;
            }
            drop(disk);
            let legs = Legs::of(copy_of(&legs.durable).await, copy_of(&abandoned).await);
            let disk = legs.open().await;
            assert_eq!(disk.status().fast, FastState::Stale, "{stopped} {rounds} {returns}");
            assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
            for round in 0..rounds {
                let place = block + round * (64 << 10);
                assert_is(&disk.read(place, BLOCK).await.expect("read"), place, 8);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pair_with_labels_of_an_earlier_version_is_opened_and_its_fast_leg_is_stale() {
    for version in [1u32, 2] {
        opens_with_labels_of(version).await;
    }
}

async fn opens_with_labels_of(version: u32) {
    let (legs, disk) = in_use().await;
    disk.close().await;
    drop(disk);
    for (medium, places) in [(&legs.durable, pair::DURABLE_LABELS), (&legs.fast, FAST_LABELS)] {
        for place in places {
            let mut label = medium.read(place, BLOCK).await.expect("read").to_vec();
            label[8..16].copy_from_slice(&u64::from(version).to_le_bytes());
            label[if version == 1 { 72 } else { 120 }..124].fill(0);
            let crc = crate::label::crc32c(&label[..124]);
            label[124..128].copy_from_slice(&crc.to_le_bytes());
            medium.write(place, label.into()).await.expect("written");
        }
    }
    // Without its fast leg at first.
    let without = Legs::of(copy_of(&legs.durable).await, legs.fast.clone());
    let disk = without.open_without().await;
    fill(&disk, 2).await;
    disk.close().await;
    assert_refused(&without.durable, &legs.fast, 2).await;
    assert_refused(&legs.durable, &legs.fast, 1).await;
}
