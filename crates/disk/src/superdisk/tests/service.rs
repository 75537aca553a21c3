//! Reads and writes of healthy or slow legs.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::{Effect, Fault, OpKind};

#[tokio::test(start_paused = true)]
async fn new_data_is_readable_from_the_fast_leg_without_a_copy() {
    let legs = Legs::new();
    let disk = legs.open().await;
    for (i, offset) in (DATA..DATA + MIB).step_by(3 * BLOCK).take(50).enumerate() {
        disk.write_flush(offset, pattern(offset, 3, 1)).await.expect("write");
        assert_is(&disk.read(offset, 3 * BLOCK).await.expect("read"), offset, 1);
        settle(&disk).await;
        assert_is(&disk.read(offset, 3 * BLOCK).await.expect("read"), offset, 1);
        assert!(disk.status().reads_fast > i as u64, "{:#?}", disk.status());
    }
    let status = disk.status();
    assert_eq!((status.rebuilt_bytes, status.skipped_fast_writes), (0, 0));
    // The rest of the last region follows.
    legs.until_clean(&disk).await;
    assert!(disk.status().rebuilt_bytes < 16 << 10);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_complete_with_the_durable_leg_and_not_before() {
    let legs = Legs::new();
    let disk = legs.open().await;
    legs.fast_slow.set(Slowness {
        write: Duration::from_secs(1),
        flush: Duration::from_secs(1),
        ..Slowness::default()
    });
    let start = legs.env.now();
    disk.write_flush(DATA, pattern(DATA, 1, 1)).await.expect("write");
    disk.flush().await.expect("flush");
    assert_eq!(legs.env.now(), start, "the fast leg delays nothing");
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert_eq!(disk.status().reads_durable, 1, "not read from a leg that does not have it yet");
    legs.durable_slow.set(Slowness {
        write: Duration::from_secs(2),
        flush: Duration::from_secs(3),
        ..Slowness::default()
    });
    legs.fast_slow.set(Slowness::default());
    disk.write_flush(DATA + B, pattern(DATA, 1, 1)).await.expect("write");
    assert_eq!(legs.env.now() - start, Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn the_sabotaged_variant_acknowledges_without_the_durable_leg() {
    for (sabotage, flushed) in [(SuperdiskSabotage::None, true), (SuperdiskSabotage::AckOnFast, false)] {
        let legs = Legs::new();
        let disk = legs.open_with(SuperdiskOptions { sabotage, ..options() }).await;
        let before = legs.durable.stats().flushes;
        disk.write_flush(DATA, pattern(DATA, 1, 1)).await.expect("write");
        disk.flush().await.expect("flush");
        assert_eq!(legs.durable.stats().flushes > before, flushed, "{sabotage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_read_is_answered_by_the_durable_leg() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.fast_slow.set(Slowness { read: Duration::from_secs(1), ..Slowness::default() });
    let start = legs.env.now();
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert!(legs.env.now() - start <= options().hedge_max + Duration::from_millis(2));
    let status = disk.status();
    assert_eq!((status.reads_hedged, status.hedges_won, status.fast_overdue), (1, 1, 1));
    // The late answer is awaited in the background, and is not an error.
    legs.until(&disk, "returned", |status| status.fast_overdue == 0).await;
    assert_eq!((disk.status().fast_errors, disk.status().fast), (0, FastState::Clean));
}

#[tokio::test(start_paused = true)]
async fn the_first_good_answer_wins_a_hedged_read() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.fast_slow.set(Slowness { read: Duration::from_millis(80), ..Slowness::default() });
    legs.durable_slow.set(Slowness { read: Duration::from_secs(2), ..Slowness::default() });
    let start = legs.env.now();
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert!(legs.env.now() - start < Duration::from_millis(100));
    assert_eq!((disk.status().reads_hedged, disk.status().hedges_won), (1, 0));
    // One leg fails, the other is late: the late one's answer counts.
    legs.durable_faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)).times(1));
    legs.durable_slow.set(Slowness::default());
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_hung_fast_leg_wait_only_at_first_and_it_is_declared_failed() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    let start = legs.env.now();
    legs.fast_faults.add(Fault::new(OpKind::Read, Effect::Hold));
    for _ in 0..100 {
        assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    }
    let late = options().hedge_max * options().fast_overdue_max;
    assert!(legs.env.now() - start <= late + Duration::from_millis(20), "{:?}", legs.env.now() - start);
    legs.until(&disk, "failed", |status| matches!(&status.fast, FastState::Failed { why } if why.contains("read")))
        .await;
    legs.fast_faults.clear();
    legs.until_clean(&disk).await;
    let before = disk.status().reads_fast;
    assert_filled(&disk, 1).await;
    assert_eq!(disk.status().reads_fast, before + 32);
}

#[tokio::test(start_paused = true)]
async fn kept_bytes_hold_no_memory_of_a_leg() {
    let legs = Legs::new();
    let disk = legs.open_with(SuperdiskOptions { fast_overdue_max: 0, ..options() }).await;
    fill(&disk, 1).await;
    let used = || (legs.durable.buffers_for_reads().used_bytes(), legs.fast.buffers_for_reads().used_bytes());
    let from_durable = disk.read_kept(DATA, 16 * BLOCK).await.expect("read");
    legs.durable_faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)));
    // The fast leg counts as overdue, but a slow answer is better than none.
    let from_fast = disk.read_kept(DATA, 16 * BLOCK).await.expect("read");
    assert_is(&from_fast, DATA, 1);
    assert_eq!(from_fast, from_durable);
    assert_eq!(used(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hung_fast_leg_costs_bounded_memory_and_no_time() {
    let legs = Legs::new();
    let limited = SuperdiskOptions { fast_pending_bytes_max: 100 << 10, ..options() };
    let disk = legs.open_with(limited.clone()).await;
    let start = legs.env.now();
    legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold));
    fill(&disk, 1).await;
    assert_eq!(legs.env.now(), start);
    let status = disk.status();
    assert_eq!((status.pending_bytes, status.skipped_fast_writes), (64 << 10, 31), "{status:#?}");
    assert_filled(&disk, 1).await;
    legs.until(&disk, "failed", |status| matches!(&status.fast, FastState::Failed { why } if why.contains("write")))
        .await;
    fill(&disk, 2).await;
    assert!(disk.status().pending_bytes <= limited.fast_pending_bytes_max);
    // The leg returns, and the earlier write arrives last.
    legs.fast_faults.clear();
    legs.until_clean(&disk).await;
    assert_filled(&disk, 2).await;
    legs.assert_legs_agree(&disk).await;
    assert_eq!(disk.status().pending_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_past_a_newer_one_of_the_same_place_does_no_harm() {
    let legs = Legs::new();
    let disk = legs.open().await;
    let hold = legs.fast_faults.add(Fault::new(OpKind::Write, Effect::Hold).times(1));
    disk.write(DATA, pattern(DATA, 2, 1)).await.expect("write");
    settle(&disk).await;
    assert_eq!(legs.fast_faults.harmed(hold), 1);
    disk.write(DATA + B, pattern(DATA + B, 2, 2)).await.expect("write");
    legs.fast_faults.remove(hold);
    legs.until_clean(&disk).await;
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    assert_is(&disk.read(DATA + B, 2 * BLOCK).await.expect("read"), DATA + B, 2);
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_caller_drops_it_is_tracked_to_its_end() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    legs.durable_slow.set(Slowness { write: Duration::from_secs(10), ..Slowness::default() });
    {
        let mut write = disk.write(DATA, pattern(DATA, 4, 2));
        assert!(futures::poll!(&mut write).is_pending());
    }
    legs.env.sleep(Duration::from_secs(5)).await;
    // The fast leg has the write, the durable leg does not yet: the range is neither read from the
    // fast leg nor copied.
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 1);
    legs.env.sleep(Duration::from_secs(6)).await;
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 2);
    legs.until_clean(&disk).await;
    legs.assert_legs_agree(&disk).await;
}

#[tokio::test(start_paused = true)]
async fn discarded_space_is_no_longer_read_from_the_fast_leg() {
    let legs = Legs::new();
    let disk = legs.open().await;
    fill(&disk, 1).await;
    disk.discard(DATA, MIB).await.expect("discard");
    assert_eq!(disk.read_copy(1, DATA, BLOCK).await.expect_err("gone").kind(), io::ErrorKind::NotFound);
    disk.write(DATA, pattern(DATA, 4, 2)).await.expect("write");
    legs.until_clean(&disk).await;
    assert_is(&disk.read(DATA, BLOCK).await.expect("read"), DATA, 2);
    legs.assert_legs_agree(&disk).await;
}

/// Many callers and slow legs during a full rebuild: every read returns the last write.
#[tokio::test(start_paused = true)]
async fn a_rebuild_never_races_with_foreground_writes() {
    for seed in 0..20 {
        let legs = Legs::new();
        let disk = legs.open_without().await;
        fill(&disk, 0).await;
        disk.close().await;
        let ms = |n| Duration::from_millis(n);
        legs.fast_slow.set(Slowness { read: ms(1), write: ms(7), ..Slowness::default() });
        legs.durable_slow.set(Slowness { read: ms(3), write: ms(2), ..Slowness::default() });
        let eager = SuperdiskOptions { rebuild_settle: Duration::ZERO, rebuild_bytes_s: 0, ..options() };
        let disk = legs.open_with(eager).await;
        let caller = |lane: u64| {
            let disk = disk.clone();
            let env = legs.env.clone();
            async move {
                let mut random = StdRng::seed_from_u64(seed * 10 + lane);
                // Lanes share regions, but no blocks.
                let places: Vec<u64> = (0..32).map(|i| DATA + (i * 4 + lane) * B).collect();
                let mut versions = vec![0u8; places.len()];
                for _ in 0..300 {
                    let i = random.random_range(0..places.len());
                    if random.random_bool(0.5) {
                        versions[i] += 1;
                        disk.write(places[i], pattern(places[i], 1, versions[i])).await.expect("write");
                    } else {
                        let bytes = disk.read(places[i], BLOCK).await.expect("read");
                        assert_is(&bytes, places[i], versions[i]);
                    }
                    env.sleep(ms(random.random_range(0..8))).await;
                }
            }
        };
        futures::future::join_all((0..4).map(caller)).await;
        legs.until_clean(&disk).await;
        legs.assert_legs_agree(&disk).await;
    }
}
