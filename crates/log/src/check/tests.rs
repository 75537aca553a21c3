//! Every flipped byte of data is found, and a valid pool has no findings.

use std::sync::Arc;

use futures::FutureExt;
use steadfast_disk::{Disk, MemDisk};

use crate::format::{EXTENTS_START, ExtentKind};
use crate::fuzzing::{Image, chunk, disk, record};
use crate::verify::{VerifiedExtents, VerifyReport, verify};

const EXTENT: u64 = 256 << 10;

fn run(disk: &MemDisk) -> VerifyReport {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    verify(&disk, |_, _| {}).now_or_never().expect("a disk in memory answers at once").expect("a pool")
}

fn records() -> Image {
    let mut image = Image::new(0, 3, ExtentKind::Commit, EXTENT, 0);
    image.frame(vec![record(1, "first", 200), record(2, "second", 3000), record(3, "empty", 0)], 0);
    image.frame(vec![record(4, "large", 70_000)], 3);
    image.frame(vec![record(5, "last", 10)], 4);
    image
}

fn bodies() -> Image {
    let mut image = Image::new(1, 4, ExtentKind::Body, EXTENT, 3);
    image.frame(vec![chunk("large/0", 66_000)], 3);
    image.frame(vec![chunk("large/1", 100)], 3);
    image
}

fn pool(extents: &[Vec<u8>]) -> MemDisk {
    let disk = disk(EXTENT, extents);
    let report = run(&disk);
    assert!(report.is_clean() && report.doubtful_total == 0, "{report:?}");
    disk
}

/// Flips bytes in the range and expects that each is found, in that extent.
fn every_flip_is_found(disk: &MemDisk, extent: u32, from: u64, len: u64, step: usize) -> VerifyReport {
    let mut last = None;
    for at in (from..from + len).step_by(step).chain([from + len - 1]) {
        let offset = EXTENTS_START + u64::from(extent) * EXTENT + at;
        let mask = 1 << (at % 8);
        disk.flip(offset, mask);
        let report = run(disk);
        assert!(!report.is_clean(), "a flip at {at} of extent {extent} was not found");
        assert!(report.damage.iter().all(|d| d.extent == extent), "{at}: {:?}", report.damage);
        disk.flip(offset, mask);
        last = Some(report);
    }
    last.expect("at least one flip")
}

#[test]
fn a_sound_pool_is_counted() {
    let report = run(&pool(&[records().seal().0, bodies().seal().0, vec![0; EXTENT as usize]]));
    let extents = VerifiedExtents { free: 1, commit_sealed: 1, body_sealed: 1, ..VerifiedExtents::default() };
    assert_eq!(report.extents, extents);
    assert_eq!((report.counts.frames, report.counts.records, report.last_lsn), (5, 7, 5));
}

#[test]
fn an_extent_that_was_sealed_empty_is_sound() {
    let empty = Image::new(1, 5, ExtentKind::Commit, EXTENT, 5);
    let report = run(&pool(&[records().seal().0, empty.seal().0]));
    assert_eq!((report.extents.commit_sealed, report.counts.records, report.last_lsn), (2, 5, 5));
}

#[test]
fn flips_in_a_sealed_extent_of_records_are_found_and_named() {
    let image = records();
    let ranges = image.record_ranges();
    let (bytes, footer_end) = image.seal();
    let disk = pool(&[bytes, bodies().seal().0]);
    every_flip_is_found(&disk, 0, 0, 128, 1);
    every_flip_is_found(&disk, 0, 4096, 400, 1);
    every_flip_is_found(&disk, 0, 4096, footer_end - 4096, 97);
    every_flip_is_found(&disk, 0, EXTENT - 4096, 128, 1);
    for ((at, len), head) in ranges.into_iter().zip(["first", "second", "empty", "large", "last"]) {
        let report = every_flip_is_found(&disk, 0, at, len, 1009);
        // The last byte of the record was the last one flipped: of its body, or of its head if it
        // has none.
        assert!(report.damage.iter().any(|d| d.heads.iter().any(|h| *h == head.as_bytes())), "{:?}", report.damage);
    }
}

#[test]
fn flips_in_a_sealed_extent_of_chunks_are_found_and_named() {
    let image = bodies();
    let ranges = image.record_ranges();
    let (bytes, _) = image.seal();
    let disk = pool(&[records().seal().0, bytes]);
    for ((at, len), head) in ranges.into_iter().zip(["large/0", "large/1"]) {
        let frame = (at - 1) / 4096 * 4096;
        every_flip_is_found(&disk, 1, frame, 112, 1);
        let report = every_flip_is_found(&disk, 1, at, len, 487);
        assert_eq!(report.damage[0].heads, vec![head.as_bytes().to_vec()]);
    }
}

#[test]
fn a_torn_tail_is_not_damage_but_what_had_been_flushed_is() {
    let image = records();
    let ranges = image.record_ranges();
    let disk = pool(&[image.leave_open()]);
    // The last frame: nothing proves that it had been flushed.
    let last = EXTENTS_START + ranges[4].0;
    disk.flip(last, 1);
    let report = run(&disk);
    assert!(report.is_clean());
    assert_eq!((report.tails.len(), report.tails[0].last_lsn), (1, 4));
    assert!(!report.tails[0].what.is_empty());
    disk.flip(last, 1);
    // The one before it: the last frame proves that it had been flushed.
    for byte in 0..112 {
        disk.flip(EXTENTS_START + 4096 + byte, 1);
        let report = run(&disk);
        assert_eq!(report.damage[0].lsns, Some((1, 4)), "{report:?}");
        disk.flip(EXTENTS_START + 4096 + byte, 1);
    }
}

#[test]
fn a_hole_is_damage_when_a_later_extent_proves_it_was_flushed() {
    let open = |durable| {
        let mut next = Image::new(1, 4, ExtentKind::Commit, EXTENT, 5);
        next.frame(vec![record(6, "next", 10)], durable);
        next.leave_open()
    };
    let disk = pool(&[records().leave_open(), open(5)]);
    let last = records().record_ranges()[4].0 / 4096 * 4096;
    disk.flip(EXTENTS_START + last, 1);
    assert_eq!(run(&disk).damage[0].lsns, Some((5, 5)));
    let disk = pool(&[records().leave_open(), open(4)]);
    disk.flip(EXTENTS_START + last, 1);
    assert!(run(&disk).is_clean());
}

#[test]
fn a_chunk_that_was_cut_off_is_doubtful_in_an_open_extent() {
    let image = bodies();
    let (at, _) = image.record_ranges()[0];
    let disk = pool(&[records().seal().0, image.leave_open()]);
    disk.flip(EXTENTS_START + EXTENT + at + 20_000, 1);
    let report = run(&disk);
    assert!(report.is_clean());
    assert_eq!((report.doubtful_total, report.doubtful[0].extent, report.doubtful[0].offset), (1, 1, 4096));
}

#[test]
fn a_bad_superblock_beside_a_good_one_is_damage_and_without_any_there_is_no_pool() {
    let disk = pool(&[records().seal().0]);
    disk.flip(20, 1);
    assert_eq!(run(&disk).damage_total, 1);
    disk.flip((512 << 10) + 20, 1);
    let shared: Arc<dyn Disk> = Arc::new(disk);
    assert!(verify(&shared, |_, _| {}).now_or_never().expect("at once").is_err());
}

#[test]
fn a_misdirected_extent_is_found() {
    let (bytes, _) = records().seal();
    let report = run(&disk(EXTENT, &[bytes.clone(), bytes]));
    assert!(report.damage.iter().any(|d| d.extent == 1 && d.what.contains("extent 0")), "{report:?}");
}

#[test]
fn a_trailer_of_an_earlier_use_does_not_count() {
    let (mut bytes, _) = records().seal();
    let newer = Image::new(0, 9, ExtentKind::Commit, EXTENT, 5);
    bytes[..4096].copy_from_slice(&newer.leave_open()[..4096]);
    let report = run(&disk(EXTENT, &[bytes]));
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.extents.commit_open, 1);
}
