//! A disk of two copies: damage on one is healed from the other, and stale data on one does no
//! harm.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::{BLOCK, Disk};

use super::harness::{Opened, format, open, open_with, options, record};
use super::twin::Twin;
use crate::format::{EXTENTS_START, SUPERBLOCK_OFFSETS};
use crate::{Durability, Location, LogError, LogOptions, Priority, ScrubOptions, verify};

const EXTENT: u64 = 1 << 20;
const B: u64 = BLOCK as u64;

/// Ten frames of a block each in extent 0; sealed, or as a crash leaves it.
async fn ten(sealed: bool) -> Twin {
    let disk = Twin::new(8 * EXTENT);
    format(&disk, EXTENT).await;
    let first = open(&disk).await;
    for n in 0..10 {
        first.put(n, 100).await;
    }
    if sealed {
        first.log.close().await.expect("closes");
    }
    disk
}

/// Offsets of the structures of [`ten`]. The frames are in the blocks 1 to 10.
const HEADER: u64 = EXTENTS_START;
const FRAME: u64 = EXTENTS_START + 5 * B;
const FOOTER: u64 = EXTENTS_START + 11 * B;
const TRAILER: u64 = EXTENTS_START + EXTENT - B;

/// A flipped bit, or an unreadable block.
#[derive(Debug, Clone, Copy)]
enum DamageKind {
    Flip,
    Unreadable,
}

fn damage(disk: &Twin, copy: usize, at: u64, kind: DamageKind) {
    match kind {
        DamageKind::Flip => disk.flip(copy, at + 40),
        DamageKind::Unreadable => disk.unreadable(copy, at),
    }
}

async fn is_clean(disk: &Twin) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = verify(&disk, |_, _| {}).await.expect("a pool");
    assert!(report.is_clean(), "{:#?}", report.damage);
}

#[tokio::test]
async fn recovery_heals_the_first_copy_from_the_second() {
    for kind in [DamageKind::Flip, DamageKind::Unreadable] {
        for (sealed, at) in
            [(false, HEADER), (true, HEADER), (false, FRAME), (true, FOOTER), (true, TRAILER), (false, FRAME + 5 * B)]
        {
            let disk = ten(sealed).await;
            damage(&disk, 0, at, kind);
            let second = open(&disk).await;
            let report = &second.report;
            let what = format!("{kind:?} {at} sealed {sealed}: {report:?}");
            assert_eq!(second.lsns(), (1..=10).collect::<Vec<_>>(), "{what}");
            assert_eq!(second.check_all().await, 10, "{what}");
            assert!(!report.read_only && report.damage.is_empty() && report.cut.is_empty(), "{what}");
            assert_eq!((report.healed_total, report.healed.len()), (1, 1), "{what}");
            assert_eq!(second.log.status().heal.healed, [1, 0], "{what}");
            assert!(disk.agree(at, BLOCK).await, "{what}");
            assert_eq!(second.put(10, 10).await, 11);
            second.log.close().await.expect("closes");
            is_clean(&disk).await;
        }
    }
}

#[tokio::test]
async fn a_superblock_is_healed_from_either_place_and_either_copy() {
    let disk = ten(true).await;
    for at in SUPERBLOCK_OFFSETS {
        disk.unreadable(0, at);
    }
    let second = open(&disk).await;
    assert_eq!(second.check_all().await, 10);
    for at in SUPERBLOCK_OFFSETS {
        assert!(disk.agree(at, BLOCK).await);
    }
    for copy in 0..2 {
        for at in SUPERBLOCK_OFFSETS {
            disk.unreadable(copy, at);
        }
    }
    let memory = Arc::new(super::harness::Memory::default());
    let opened = crate::Log::open(Arc::new(disk), steadfast_flow::Env::tokio(), options(), memory).await;
    assert!(matches!(opened, Err(LogError::Open(what)) if what.contains("no pool")));
}

#[tokio::test]
async fn what_is_bad_on_both_copies_is_named() {
    let disk = ten(false).await;
    disk.flip(0, FRAME + 200);
    disk.flip(1, FRAME + 300);
    let second = open(&disk).await;
    assert!(second.report.read_only);
    assert_eq!((second.report.damage[0].extent, second.report.damage[0].offset), (Some(0), 5 * B));
    assert_eq!(second.lsns(), vec![1, 2, 3, 4, 6, 7, 8, 9, 10], "the rest is served");
}

#[tokio::test]
async fn a_frame_that_only_the_second_copy_has_whole_is_kept_and_durable() {
    // The last frame was being written at the power cut: the first copy has lost it.
    let disk = ten(false).await;
    let last = EXTENTS_START + 10 * B;
    disk.copies[0].write(last, vec![0; BLOCK].into()).await.expect("writes");
    let second = open(&disk).await;
    assert_eq!(second.lsns().len(), 10, "{:?}", second.report);
    assert_eq!(second.report.healed_total, 1);
    second.check_all().await;
    drop(second);
    // The second copy is gone at the next start.
    disk.absent(0, 8 * EXTENT);
    let third = open(&disk).await;
    assert_eq!(third.lsns().len(), 10, "{:?}", third.report);
    third.check_all().await;
}

#[tokio::test]
async fn a_later_frame_on_the_second_copy_alone_proves_corruption() {
    let disk = ten(false).await;
    let (eighth, ninth) = (EXTENTS_START + 8 * B, EXTENTS_START + 9 * B);
    // The eighth frame was acknowledged, as the ninth proves.
    disk.flip(0, eighth + 200);
    disk.flip(1, eighth + 200);
    for at in [ninth, ninth + B] {
        disk.copies[0].write(at, vec![0; BLOCK].into()).await.expect("writes");
    }
    let second = open(&disk).await;
    assert!(second.report.read_only, "{:?}", second.report);
    assert_eq!(second.report.damage[0].offset, 8 * B);
    assert_eq!(second.lsns(), vec![1, 2, 3, 4, 5, 6, 7, 9, 10]);
}

#[tokio::test]
async fn a_stale_second_copy_loses_nothing_and_adds_nothing() {
    // A stale copy: from before the extent was used, from the middle of it, or of another epoch.
    for blank in [0u64, 1, 4, 9] {
        let disk = ten(false).await;
        let stale = disk.fork().await;
        let second = open(&disk).await;
        for n in 10..20 {
            second.put(n, 200).await;
        }
        second.log.close().await.expect("closes");
        // The second copy as it was then, with the first blocks never written.
        let old = stale.copies[1].read(0, 8 << 20).await.expect("reads").to_vec();
        let mut old = old;
        for block in 0..blank {
            let at = (EXTENTS_START + block * B) as usize;
            old[at..at + BLOCK].fill(0);
        }
        disk.copies[1].write(0, old.into()).await.expect("writes");
        for _ in 0..2 {
            let third = open(&disk).await;
            assert_eq!(third.lsns(), (1..=20).collect::<Vec<_>>(), "{blank}: {:?}", third.report);
            assert!(third.report.damage.is_empty() && !third.report.read_only, "{:?}", third.report);
            third.check_all().await;
        }
        is_clean(&disk).await;
    }
}

#[tokio::test]
async fn a_header_of_an_earlier_use_does_not_stand_in() {
    let disk = ten(true).await;
    let header = disk.copies[1].read(HEADER, BLOCK).await.expect("reads");
    // The next use of the extent, as recycling and taking produce it.
    let second = open(&disk).await;
    let epoch = second.log.shared.extents.all()[0].epoch;
    let recycled = second.log.shared.extents.recycle(0, epoch, false).await;
    assert!(matches!(recycled, Ok(true)));
    let first_use = second.log.shared.extents.all()[0].epoch;
    second.log.close().await.expect("closes");
    // Copy 0 has lost the header; copy 1 has the one of the first use. Frames and trailer are still
    // those of the first use.
    disk.flip(0, HEADER + 40);
    disk.copies[1].write(HEADER, header).await.expect("writes");
    let third = open(&disk).await;
    assert_eq!(third.log.shared.extents.all()[0].epoch, first_use);
    drop(third);
    // A trailer of a later epoch on copy 0 proves that the header is old.
    let all = disk.copies[0].read(EXTENTS_START, EXTENT as usize).await.expect("reads");
    let trailer = crate::format::Trailer::decode(&all[(EXTENT - B) as usize..], EXTENT).expect("a trailer");
    let id = crate::format::ExtentId { epoch: epoch + 100, ..trailer.id };
    let later = crate::format::Trailer { id, ..trailer };
    disk.copies[0].write(TRAILER, later.encode().to_vec().into()).await.expect("writes");
    disk.flip(0, HEADER + 40);
    let fourth = open(&disk).await;
    assert_eq!(fourth.log.shared.extents.all()[0].epoch, epoch + 100);
    assert_eq!(fourth.report.healed_total, 0, "{:?}", fourth.report);
}

/// A body in chunks, with their locations.
async fn chunks(opened: &Opened, count: usize) -> Vec<Location> {
    let mut places = Vec::new();
    for n in 0..count {
        let room = opened.log.reserve(150_000, Priority::Write, Duration::from_secs(10)).await.expect("room");
        let mut chunk = opened.log.chunk(150_000).await.expect("a chunk");
        chunk.put(&super::harness::body(n as u64, 150_000));
        places.push(opened.log.write_chunk(&room, "whose".into(), chunk).await.expect("written"));
    }
    opened.submit(vec![record(99, 10)], Durability::Sync).await.expect("accepted").await.expect("commits");
    places
}

async fn healed(opened: &Opened, which: usize, count: u64) {
    for _ in 0..10_000 {
        if opened.log.status().heal.healed[which] >= count {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("not healed: {:?}", opened.log.status().heal);
}

#[tokio::test]
async fn a_read_heals_the_copy_that_was_bad() {
    for kind in [DamageKind::Flip, DamageKind::Unreadable] {
        let disk = Twin::new(8 * EXTENT);
        format(&disk, EXTENT).await;
        let opened = open(&disk).await;
        for n in 0..20 {
            opened.put(n, 30_000).await;
        }
        let places = chunks(&opened, 3).await;
        let known = opened.memory.records.lock()[7].location;
        let at = |l: &Location| EXTENTS_START + u64::from(l.extent) * EXTENT + u64::from(l.offset);
        let bad = [at(&known) / B * B + 3 * B, at(&places[1]) / B * B + 20 * B];
        for at in bad {
            damage(&disk, 1, at, kind);
        }
        opened.check_all().await;
        assert_eq!(opened.log.read(places[1], 0..150_000).await.expect("reads"), super::harness::body(1, 150_000));
        healed(&opened, 1, 2).await;
        for at in bad {
            assert!(disk.agree(at, BLOCK).await, "{kind:?}");
        }
        // Each copy is bad in another part of one chunk.
        damage(&disk, 1, bad[1], kind);
        damage(&disk, 0, bad[1] - 17 * B, kind);
        assert_eq!(opened.log.read(places[1], 0..150_000).await.expect("reads"), super::harness::body(1, 150_000));
        assert_eq!(opened.log.read(places[1], 50_000..140_001).await.expect("reads").len(), 90_001);
        damage(&disk, 0, bad[1] - B, kind);
        let lost = opened.log.read(places[1], 0..150_000).await;
        assert!(matches!(lost, Err(LogError::Damaged { .. } | LogError::Read { .. })), "{lost:?}");
    }
}

pub(super) fn scrubbing() -> LogOptions {
    let scrub = ScrubOptions { enabled: true, bytes_s: 0, interval: Duration::from_millis(1), window: None };
    LogOptions { scrub, ..options() }
}

pub(super) async fn two_passes(opened: &Opened) -> crate::ScrubStatus {
    let begun = opened.log.status().scrub.passes;
    while opened.log.status().scrub.passes < begun + 2 {
        steadfast_flow::Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    opened.log.status().scrub
}

#[tokio::test]
async fn the_scrub_heals_every_structure_on_either_copy_and_reports_what_is_bad_on_both() {
    let disk = Twin::new(12 * EXTENT);
    format(&disk, EXTENT).await;
    let first = open(&disk).await;
    for n in 0..10 {
        first.put(n, 100).await;
    }
    let chunk = chunks(&first, 2).await[1];
    first.log.close().await.expect("closes");
    let body_extent = EXTENTS_START + u64::from(chunk.extent) * EXTENT;
    let chunk_at = body_extent + u64::from(chunk.offset) / B * B + 10 * B;
    assert_eq!(chunk.extent, 1, "the records are in extent 0");
    // Footer and trailer of the records lie as in `ten`, one frame later.
    let places = [HEADER, FRAME, FOOTER + B, TRAILER, body_extent, chunk_at, body_extent + EXTENT - B];
    for kind in [DamageKind::Flip, DamageKind::Unreadable] {
        for copy in 0..2 {
            let disk = disk.fork().await;
            let opened = open_with(Arc::new(disk.clone()), 0, scrubbing()).await;
            let before = two_passes(&opened).await;
            assert_eq!((before.damaged, before.healed, before.healed_copies), (0, 0, [0, 0]));
            for at in places {
                damage(&disk, copy, at, kind);
            }
            let after = two_passes(&opened).await;
            assert_eq!((after.damaged, after.healed), (0, 2), "{kind:?} on {copy}: {after:?}");
            assert_eq!(after.healed_copies[copy], places.len() as u64, "{kind:?} on {copy}: {after:?}");
            assert_eq!(after.healed_copies[1 - copy], 0);
            for at in places {
                assert!(disk.agree(at, BLOCK).await, "{kind:?} {at}");
            }
            // Both copies bad: reported, with the affected record only.
            disk.flip(0, FRAME + 130);
            disk.flip(1, FRAME + 131);
            disk.flip(0, chunk_at);
            disk.unreadable(1, chunk_at);
            let after = two_passes(&opened).await;
            assert_eq!(after.damaged, 2, "{after:?}");
            assert!(after.damage.iter().all(|d| d.records == 1 && d.heads.len() == 1), "{after:?}");
            opened.log.close().await.expect("closes");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_rewritten_is_served_and_reported() {
    let disk = ten(true).await;
    disk.worn(0, FRAME);
    let opened = open_with(Arc::new(disk.clone()), 0, scrubbing()).await;
    assert_eq!(opened.check_all().await, 10);
    let after = two_passes(&opened).await;
    assert_eq!(after.damaged, 1, "{after:?}");
    assert!(after.damage[0].what.contains("good on another copy"), "{after:?}");
    assert!(opened.log.status().heal.failed > 0);
    opened.check_all().await;
}

#[tokio::test]
async fn the_scrub_passes_over_what_the_second_copy_does_not_have() {
    let disk = ten(true).await;
    disk.absent(EXTENTS_START, EXTENT / 2);
    let opened = open_with(Arc::new(disk.clone()), 0, scrubbing()).await;
    let after = two_passes(&opened).await;
    assert_eq!((after.damaged, after.healed), (0, 0));
    assert!(after.records >= 20);
    disk.flip(0, FRAME + 130);
    let after = two_passes(&opened).await;
    assert_eq!(after.damaged, 1, "{after:?}");
}

#[tokio::test]
async fn a_neighbour_in_the_same_block_is_not_healed_to_death() {
    // Three small records in one frame and one block. Each copy is bad in another of them, so that
    // no copy has the frame whole.
    let disk = Twin::new(8 * EXTENT);
    format(&disk, EXTENT).await;
    let opened = open(&disk).await;
    let batch = (0..3).map(|n| record(n, 500)).collect();
    opened.submit(batch, Durability::Sync).await.expect("accepted").await.expect("commits");
    let records = opened.memory.records.lock().clone();
    let at = |n: usize| EXTENTS_START + u64::from(records[n].location.offset) + 100;
    disk.flip(0, at(0));
    disk.flip(1, at(2));
    for _ in 0..3 {
        assert_eq!(opened.check_all().await, 3);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(opened.log.status().heal.healed, [0, 0]);
}

#[tokio::test]
async fn the_scrub_verifies_what_is_open_and_heals_it_from_either_copy() {
    let disk = Twin::new(12 * EXTENT);
    format(&disk, EXTENT).await;
    let opened = open_with(Arc::new(disk.clone()), 0, scrubbing()).await;
    for n in 0..10 {
        opened.put(n, 100).await;
    }
    let chunk = chunks(&opened, 2).await[1];
    let commit = opened.memory.records.lock()[4].location;
    let start = |at: &crate::Location| EXTENTS_START + u64::from(at.extent) * EXTENT;
    let in_chunk = start(&chunk) + u64::from(chunk.offset) / B * B + 10 * B;
    let in_frame = start(&commit) + u64::from(commit.offset) / B * B;
    let state = opened.log.status().extents;
    assert_eq!((state.sealed_commit, state.sealed_body), (0, 0), "all of it is open");
    let before = two_passes(&opened).await;
    assert_eq!((before.damaged, before.healed_copies), (0, [0, 0]), "{before:?}");
    assert!(before.extents_total >= 2 && before.records >= 12, "{before:?}");
    for copy in 0..2 {
        for at in [in_chunk, in_frame, start(&chunk), start(&commit)] {
            damage(&disk, copy, at, DamageKind::Flip);
        }
        let after = two_passes(&opened).await;
        assert_eq!((after.damaged, after.healed_copies[copy]), (0, 4), "copy {copy}: {after:?}");
    }
    // Writes continue meanwhile. Damage on both copies is reported once, with the affected record
    // if known.
    for copy in 0..2 {
        damage(&disk, copy, in_chunk, DamageKind::Flip);
        damage(&disk, copy, in_frame, DamageKind::Flip);
    }
    let mut puts = 10;
    let begun = opened.log.status().scrub.passes;
    while opened.log.status().scrub.passes < begun + 3 {
        opened.put(puts, 5_000).await;
        puts += 1;
    }
    let lost = opened.log.status().scrub;
    assert_eq!(
        (lost.damaged, lost.healed_copies),
        (2, [4, 4]),
        "once each, also when the extents are full by now: {lost:?}"
    );
    assert!(lost.damage.iter().any(|d| d.heads.len() == 1 && d.extent == chunk.extent), "{lost:?}");
    assert!(lost.damage.iter().any(|d| d.extent == commit.extent), "{lost:?}");
}

#[tokio::test]
async fn a_scrub_pass_starts_and_stops_on_request() {
    let disk = Twin::new(12 * EXTENT);
    format(&disk, EXTENT).await;
    // Not scheduled; and slow, so that the pass is still running at the stop.
    let scrub = ScrubOptions { enabled: false, bytes_s: 1 << 20, interval: Duration::from_millis(1), window: None };
    let opened = open_with(Arc::new(disk.clone()), 0, LogOptions { scrub, ..options() }).await;
    for n in 0..4 {
        opened.put(n, 200_000).await;
    }
    chunks(&opened, 8).await;
    let until = |what: fn(&crate::ScrubStatus) -> bool| {
        let log = opened.log.clone();
        async move {
            while !what(&log.status().scrub) {
                steadfast_flow::Env::tokio().sleep(Duration::from_millis(1)).await;
            }
            log.status().scrub
        }
    };
    assert_eq!(opened.log.status().scrub.passes, 0);
    opened.log.scrub(crate::ScrubRequest::Start).expect("open");
    let running = until(|scrub| scrub.running).await;
    assert!(running.extents_total > 0 && running.expected_end_ms > running.started_ms, "{running:?}");
    opened.log.scrub(crate::ScrubRequest::Stop).expect("open");
    let stopped = until(|scrub| !scrub.running).await;
    assert_eq!((stopped.passes, stopped.stopped), (0, 1), "{stopped:?}");
    opened.log.close().await.expect("closes");
    assert!(opened.log.scrub(crate::ScrubRequest::Start).is_err());
}
