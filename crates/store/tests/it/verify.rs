//! The offline verification knows which chunks a record needs.

use std::sync::Arc;

use crate::common::{BUCKET, bytes_of};
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log, VerifyReport, verify, verify_named};
use steadfast_store::{BucketSettings, IndexKind, Names, Store, named_chunks};

async fn check(disk: &Arc<dyn Disk>) -> (VerifyReport, Names) {
    let mut names = Names::default();
    let named = |head: &[u8], body: &[u8]| {
        names.learn(head);
        named_chunks(head, body)
    };
    let report = verify_named(disk, named, |_, _| {}).await.expect("a pool");
    (report, names)
}

#[tokio::test]
async fn a_chunk_in_an_open_extent_that_a_record_names_must_be_whole() {
    let mem = MemDisk::growable(64 << 20);
    let disk: Arc<dyn Disk> = Arc::new(mem.clone());
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    let (store, _) =
        Store::open(disk.clone(), IndexKind::memory(), Env::tokio(), crate::common::options()).await.expect("open");
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    let data = bytes_of(1, 30_000);
    crate::common::put(&store, "large", &data).await;
    let (report, _) = check(&disk).await;
    assert!(report.is_clean() && report.extents.body_open == 1, "{report:#?}");

    // The body of a chunk begins at a block.
    let mut places = 0..disk.len() / BLOCK as u64;
    let at = loop {
        let at = places.next().expect("it is somewhere") * BLOCK as u64;
        if disk.read(at, BLOCK).await.expect("readable")[..] == data[..BLOCK] {
            break at;
        }
    };
    mem.flip(at + 100, 1);
    assert_eq!(verify(&disk, |_, _| {}).await.expect("a pool").doubtful_total, 1);
    let (report, names) = check(&disk).await;
    assert_eq!((report.damage_total, report.doubtful_total), (1, 1), "{report:#?}");
    assert_eq!(names.describe(&report.damage[0].heads[0]), format!("object {BUCKET}/large"));
    mem.flip(at + 100, 1);

    // No header remains to show that there was one.
    for byte in 0..64 {
        mem.flip(at - BLOCK as u64 + byte, 0xff);
    }
    let (report, _) = check(&disk).await;
    assert_eq!(report.damage_total, 1, "{report:#?}");
}
