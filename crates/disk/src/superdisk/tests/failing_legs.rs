//! Failing legs.

use super::*;
use crate::{Effect, Fault, OpKind, Stripe, StripeOptions};

const EIO: Effect = Effect::Error(libc::EIO);

#[tokio::test(start_paused = true)]
async fn a_bad_sector_of_the_fast_leg_is_served_by_the_durable_one_and_healed() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    let bad = pair::FAST_START + DATA + 5 * B;
    let id = legs.fast_faults.add(Fault::new(OpKind::Read, EIO).within(bad..bad + 512).until_written());
    assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 1);
    assert_is(&disk.read(DATA, BLOCK).await.expect("meanwhile"), DATA, 1);
    legs.until(&disk, "healed", |status| status.healed_fast == 1).await;
    assert_eq!(legs.fast_faults.harmed(id), 0, "the fault ended when it was written");
    let before = disk.status();
    assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 1);
    assert_eq!(disk.status().reads_fast, before.reads_fast + 1);
    assert_eq!((before.fast_errors, before.heal_failures, before.fast), (1, 0, FastState::Clean));
}

#[tokio::test(start_paused = true)]
async fn a_sector_that_stays_bad_puts_its_region_into_quarantine() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    let bad = pair::FAST_START + DATA + 5 * B;
    legs.fast_faults.add(Fault::new(OpKind::Read, EIO).within(bad..bad + 512));
    for _ in 0..200 {
        assert_is(&disk.read(DATA + 5 * B, BLOCK).await.expect("read"), DATA + 5 * B, 1);
        legs.env.sleep(Duration::from_millis(200)).await;
    }
    let status = disk.status();
    assert_eq!(status.regions_quarantined, 1, "{status:#?}");
    assert!(status.fast_errors <= 10 && status.heal_failures > 0, "{status:#?}");
    assert_eq!(disk.read_copy(1, DATA + 4 * B, BLOCK).await.expect_err("out of use").kind(), io::ErrorKind::NotFound);
    assert!(disk.read_copy(1, DATA, BLOCK).await.is_ok(), "its neighbour is in use");
    assert_eq!(status.fast, FastState::Clean);
}

#[tokio::test(start_paused = true)]
async fn a_failed_fast_write_is_copied_later_without_an_error() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    let tear = Effect::Tear { bytes: BLOCK, errno: Some(libc::EIO) };
    legs.fast_faults.add(Fault::new(OpKind::Write, tear).times(1));
    disk.write(DATA, pattern(DATA, 16, 2)).await.expect("the durable leg has it");
    settle(&disk).await;
    assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 2);
    assert_eq!((disk.status().fast, disk.status().fast_errors), (FastState::Rebuilding, 1));
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().rebuilt_bytes, 64 << 10);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_durable_write_goes_to_the_caller_and_is_not_read_from_the_fast_leg() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.durable_faults.add(Fault::new(OpKind::Write, EIO).times(1));
    let error = disk.write(DATA, pattern(DATA, 1, 2)).await.expect_err("refused");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    settle(&disk).await;
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect_err("unknown").kind(), io::ErrorKind::NotFound);
    legs.durable_faults.add(Fault::new(OpKind::Flush, EIO).times(1));
    assert_eq!(disk.flush().await.expect_err("refused").raw_os_error(), Some(libc::EIO));
    assert_eq!(disk.status().durable_errors, 2);
}

#[tokio::test(start_paused = true)]
async fn a_bad_sector_of_the_durable_leg_is_read_from_the_fast_one_and_healed() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.durable_faults.add(Fault::new(OpKind::Read, EIO).within(DATA..DATA + 512).until_written());
    legs.durable.flip(DATA + 3 * B, 4);
    assert!(disk.read_copy(0, DATA, BLOCK).await.is_err());
    let good = disk.read_copy(1, DATA, 4 * BLOCK).await.expect("the other copy");
    let flushes = legs.durable.stats().flushes;
    assert_eq!(disk.heal(DATA, good).await.expect("healed"), 1);
    assert!(legs.durable.stats().flushes > flushes, "durable again");
    assert_is(&disk.read_copy(0, DATA, 4 * BLOCK).await.expect("read"), DATA, 1);
    let status = disk.status();
    assert_eq!((status.healed_durable, status.healed_fast, status.fast), (1, 0, FastState::Clean));
    assert!(disk.read_copy(1, DATA, 4 * BLOCK).await.is_ok(), "the fast leg stays in use there");
}

#[tokio::test(start_paused = true)]
async fn a_requested_copy_is_not_overwritten_from_the_other() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    // The durable leg has lost all of it, and the fast one a sector.
    legs.durable.write(DATA, vec![0; 16 * BLOCK].into()).await.expect("written");
    let bad = pair::FAST_START + DATA + 5 * B;
    legs.fast_faults.add(Fault::new(OpKind::Read, EIO).within(bad..bad + 512).until_written());
    assert!(disk.read_copy(1, DATA, 16 * BLOCK).await.is_err());
    for block in (0..16).filter(|block| *block != 5) {
        let at = DATA + block * B;
        assert_is(&disk.read_copy(1, at, BLOCK).await.expect("it has that"), at, 1);
    }
    legs.env.sleep(Duration::from_secs(10)).await;
    assert!(disk.read_copy(1, DATA + 5 * B, BLOCK).await.is_err());
    assert_is(&disk.read_copy(1, DATA + 6 * B, BLOCK).await.expect("it has that"), DATA + 6 * B, 1);
    assert_eq!(disk.status().healed_fast, 0);
}

#[tokio::test(start_paused = true)]
async fn a_durable_sector_that_cannot_be_repaired_leaves_the_good_copy_in_use() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.durable_faults.add(Fault::new(OpKind::Read, EIO).within(DATA..DATA + 512));
    assert_eq!(disk.heal(DATA, pattern(DATA, 1, 1)).await.expect_err("bad for good").raw_os_error(), Some(libc::EIO));
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert_eq!(disk.status().heal_failures, 1);
    // Both are bad: the read returns an error, and no bytes.
    let bad = pair::FAST_START + DATA;
    legs.fast_faults.add(Fault::new(OpKind::Read, EIO).within(bad..bad + 512));
    assert!(disk.read(DATA, BLOCK).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn healing_rewrites_the_copy_that_differs() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.fast.flip(pair::FAST_START + DATA + 7, 1);
    assert_ne!(disk.read(DATA, BLOCK).await.expect("read"), pattern(DATA, 1, 1), "a disk cannot tell");
    let good = disk.read_copy(0, DATA, BLOCK).await.expect("read");
    assert_eq!(disk.heal(DATA, good.clone()).await.expect("healed"), 1);
    assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect("read"), good);
    assert_eq!(disk.heal(DATA, good).await.expect("nothing to do"), 0);
    assert_eq!((disk.status().healed_fast, disk.status().healed_durable), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_vanishes_is_declared_failed_and_used_again_when_it_is_back() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        legs.fast_faults.add(Fault::new(kind, EIO));
    }
    for _ in 0..4 {
        assert_filled(&disk, 1).await;
    }
    legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
    fill(&disk, 2).await;
    let errors = disk.status().fast_errors;
    assert_filled(&disk, 2).await;
    assert_eq!(disk.status().fast_errors, errors, "it is not asked any more");
    legs.fast_faults.clear();
    legs.until_clean(&disk).await;
    assert_filled(&disk, 2).await;
    legs.assert_legs_agree(&disk).await;
}

/// Only one place is used: a vanished leg must be distinguished from a bad place without many
/// failures.
#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_vanishes_is_declared_failed_after_few_requests() {
    let everything = [OpKind::Read, OpKind::Write, OpKind::Flush];
    for (errno, kinds) in [(libc::EIO, &everything[..]), (libc::ENODEV, &everything), (libc::EROFS, &everything[1..])] {
        for write in [true, false] {
            if !write && !kinds.contains(&OpKind::Read) {
                continue;
            }
            let legs = Legs::new();
            let disk = legs.open().await;
            fill(&disk, 1).await;
            for kind in kinds {
                legs.fast_faults.add(Fault::new(*kind, Effect::Error(errno)));
            }
            if write {
                disk.write(DATA, pattern(DATA, 1, 2)).await.expect("the durable leg has it");
            }
            let (now, since) = (if write { 2 } else { 1 }, legs.env.now());
            assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, now);
            legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
            assert!(legs.env.now() - since < Duration::from_secs(2), "{:?}", legs.env.now() - since);
            assert_eq!(disk.status().regions_quarantined, 0);
            legs.fast_faults.clear();
            legs.until_clean(&disk).await;
            let before = disk.status().reads_fast;
            assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, now);
            assert_eq!((disk.status().reads_fast, disk.status().regions_quarantined), (before + 1, 0), "errno {errno}");
            legs.assert_legs_agree(&disk).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_of_which_a_disk_vanishes_is_declared_failed_wherever_its_label_is() {
    let env = env();
    let faults: Vec<_> = (0..4).map(|_| Faults::new()).collect();
    let member = |one: &Faults| Arc::new(Faulty::new(Arc::new(MemDisk::fixed(8 * MIB)), one.clone())) as Arc<dyn Disk>;
    let members: Vec<_> = faults.iter().map(member).collect();
    Stripe::format(&members, &env, &StripeOptions::default(), false).await.expect("made");
    let stripe = Stripe::open(members).await.expect("opens");
    let durable = Arc::new(MemDisk::fixed(16 * MIB));
    let disk = Superdisk::open(durable, Some(stripe), env.clone(), options()).await.expect("opens");
    fill(&disk, 1).await;
    // With chunks of 512 KiB in turn, this one is on the last disk, and the labels are on the first
    // two.
    let place = 3 * (512 << 10);
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        faults[3].add(Fault::new(kind, EIO));
    }
    assert_is(&disk.read(place, BLOCK).await.expect("read"), place, 1);
    env.sleep(Duration::from_secs(2)).await;
    let status = disk.status();
    assert!(matches!(status.fast, FastState::Failed { .. }), "{status:#?}");
    assert_eq!(status.regions_quarantined, 0);
    // The disks that still answer do not bring the leg back.
    env.sleep(Duration::from_secs(60)).await;
    assert_is(&disk.read(place, BLOCK).await.expect("read"), place, 1);
    assert_eq!(disk.status().fast_errors, status.fast_errors);
    faults[3].clear();
    env.sleep(Duration::from_secs(10)).await;
    assert_eq!(disk.status().fast, FastState::Clean);
}

/// Like a real disk: it refuses every flush after a failed one.
#[tokio::test(start_paused = true)]
async fn a_fast_leg_whose_flush_failed_is_opened_again_and_its_clean_regions_count() {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    let before = disk.status();
    legs.fast_faults.latch_flushes();
    legs.fast_faults.add(Fault::new(OpKind::Flush, EIO).times(1));
    disk.write_flush(DATA, pattern(DATA, 16, 2)).await.expect("the durable leg has it");
    assert!(matches!(disk.status().fast, FastState::Failed { .. }));
    // The reopening fails at first.
    let gone = legs.fast_faults.add(Fault::new(OpKind::Reopen, Effect::Error(libc::ENODEV)));
    legs.env.sleep(Duration::from_secs(30)).await;
    assert!(legs.fast_faults.harmed(gone) >= 4, "tried again and again");
    assert!(matches!(disk.status().fast, FastState::Failed { .. }));
    assert_is(&disk.read(DATA + MIB, BLOCK).await.expect("read"), DATA + MIB, 1);
    legs.fast_faults.clear();
    legs.until(&disk, "back", |status| status.fast == FastState::Clean).await;
    let status = disk.status();
    assert_eq!((status.fast_reopened, status.refused), (1, None));
    assert_eq!(status.rebuilt_bytes - before.rebuilt_bytes, 64 << 10, "what it has missed");
    legs.assert_legs_agree(&disk).await;
    disk.close().await;
    let disk = legs.open().await;
    assert_is(&disk.read(DATA, 16 * BLOCK).await.expect("read"), DATA, 2);
    assert_eq!(disk.status().reads_durable, 0);
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_whose_flushes_fail_again_and_again_is_taken_back_ever_more_rarely() {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    legs.fast_faults.latch_flushes();
    // Each time its two labels are flushed, and the label of the next event is not.
    for time in 0..5 {
        legs.fast_faults.add(Fault::new(OpKind::Flush, EIO).after(2 * time).times(1));
    }
    disk.write_flush(DATA, pattern(DATA, 16, 2)).await.expect("the durable leg has it");
    legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
    let mut waits = Vec::new();
    for time in 1..=5 {
        let since = legs.env.now();
        legs.until(&disk, "opened again", |status| status.fast_reopened == time).await;
        waits.push((legs.env.now() - since).as_secs());
    }
    // After the first time, the label is written a second later, with the bits that are cleared.
    assert_eq!(waits, [5, 11, 21, 31, 31]);
    legs.until_clean(&disk).await;
    legs.env.sleep(Duration::from_secs(3)).await;
    legs.assert_legs_agree(&disk).await;
    // The leg has been complete since.
    legs.fast_faults.add(Fault::new(OpKind::Flush, EIO).times(1));
    disk.write_flush(DATA, pattern(DATA, 16, 3)).await.expect("the durable leg has it");
    legs.until(&disk, "failed", |status| matches!(status.fast, FastState::Failed { .. })).await;
    let since = legs.env.now();
    legs.until(&disk, "opened again", |status| status.fast_reopened == 6).await;
    assert_eq!((legs.env.now() - since).as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_could_not_be_named_at_the_start_is_opened_again() {
    let legs = Legs::new();
    legs.fast_faults.latch_flushes();
    legs.fast_faults.add(Fault::new(OpKind::Flush, EIO).times(1));
    let disk = legs.open().await;
    assert!(matches!(disk.status().fast, FastState::Failed { .. }));
    fill(&disk, 1).await;
    legs.until_clean(&disk).await;
    assert_eq!(disk.status().fast_reopened, 1);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_hung_fast_leg_only_for_a_while() {
    let legs = Legs::new();
    let disk = legs.open().await;
    legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold));
    legs.fast_faults.add(Fault::new(OpKind::Flush, Effect::Hold));
    fill(&disk, 1).await;
    let start = legs.env.now();
    disk.close().await;
    assert!(legs.env.now() - start <= Duration::from_secs(20));
}

/// The repair's check of the label hangs, and a round that sets bits needs the label too.
#[tokio::test(start_paused = true)]
async fn a_fast_leg_that_fails_a_repair_and_then_hangs_holds_up_no_write() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.until_clean(&disk).await;
    disk.close().await;
    drop(disk);
    let disk = legs.open().await;
    disk.write(DATA, pattern(DATA, 1, 1)).await.expect("written");
    legs.until_clean(&disk).await;
    let bad = pair::FAST_START + DATA + 2 * B;
    for kind in [OpKind::Read, OpKind::Write] {
        legs.fast_faults.add(Fault::new(kind, Effect::Error(libc::EIO)).within(bad..bad + 512));
    }
    for label in FAST_LABELS {
        legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold).within(label..label + 512));
    }
    assert_is(&disk.read(DATA + 2 * B, BLOCK).await.expect("read"), DATA + 2 * B, 1);
    legs.env.sleep(Duration::from_millis(500)).await;
    let clean = DATA + MIB;
    let write = legs.env.timeout(Duration::from_secs(60), disk.write(clean, pattern(clean, 1, 3))).await;
    write.expect("in time").expect("written");
    legs.env.timeout(Duration::from_secs(60), disk.close()).await.expect("closed");
}

#[tokio::test(start_paused = true)]
async fn discards_of_a_hanging_fast_leg_are_bounded() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    let held = legs.fast_faults.add(Fault::new(OpKind::Discard, Effect::Hold));
    for n in 0..2000 {
        disk.discard(DATA + n % 16 * B, B).await.expect("discarded");
    }
    assert!(legs.fast_faults.harmed(held) <= 256);
    legs.env.sleep(Duration::from_secs(60)).await;
    assert!(matches!(disk.status().fast, FastState::Failed { .. }), "{:?}", disk.status().fast);
}
