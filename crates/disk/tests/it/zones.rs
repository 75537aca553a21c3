//! Zones: allowed operations succeed, and all others are refused.

use std::io::ErrorKind;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use steadfast_disk::{BLOCK, Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind, ZoneState, Zoned, ZonedOptions};

const B: u64 = BLOCK as u64;
/// A conventional area of 2 blocks and zones of 4, of which 2 may be open.
const OPTIONS: ZonedOptions =
    ZonedOptions { zone_bytes: 4 * B, zone_capacity_bytes: 0, conventional_bytes: 2 * B, open_zones_max: 2 };
const ZONE: [u64; 4] = [2 * B, 6 * B, 10 * B, 14 * B];

fn filled(byte: u8, blocks: usize) -> Bytes {
    vec![byte; blocks * BLOCK].into()
}

async fn zoned(below: &MemDisk) -> Arc<Zoned> {
    Zoned::open(Arc::new(below.clone()), OPTIONS).await.expect("opens")
}

async fn refused(disk: &Zoned, offset: u64, blocks: usize, why: &str) {
    let error = disk.write(offset, filled(9, blocks)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn a_zone_is_written_in_order_and_once() {
    let disk = zoned(&MemDisk::fixed(20 * B)).await;
    assert_eq!((disk.len(), disk.geometry().zones.map(|zones| zones.zone_bytes)), (18 * B, Some(4 * B)));
    refused(&disk, ZONE[0] + B, 1, "write pointer, which is at 8192").await;
    disk.write(ZONE[0], filled(1, 2)).await.expect("in order");
    refused(&disk, ZONE[0], 1, "write pointer").await;
    refused(&disk, ZONE[0] + 2 * B, 3, "crosses a zone boundary").await;
    disk.write_flush(ZONE[0] + 2 * B, filled(2, 2)).await.expect("to the end");
    refused(&disk, ZONE[0], 1, "full").await;
    let zone = disk.zone(ZONE[0] + B).expect("a zone");
    assert_eq!((zone.start, zone.len, zone.write_pointer, zone.state), (ZONE[0], 4 * B, ZONE[1], ZoneState::Full));
    disk.reset_zone(ZONE[0]).await.expect("reset");
    assert_eq!(disk.read(ZONE[0], 4 * BLOCK).await.expect("read"), filled(0, 4), "what is not written reads as zeros");
    disk.write(ZONE[0], filled(3, 1)).await.expect("from the start again");
    assert_eq!(disk.zone(ZONE[0]).expect("a zone").state, ZoneState::Open);
}

#[tokio::test]
async fn the_conventional_area_is_written_anywhere() {
    let disk = zoned(&MemDisk::fixed(20 * B)).await;
    disk.write(B, filled(1, 1)).await.expect("anywhere");
    disk.write(0, filled(2, 2)).await.expect("and again");
    refused(&disk, B, 2, "crosses a zone boundary").await;
    assert_eq!(disk.zone(B), None);
    disk.reset_zone(0).await.expect("nothing to reset");
    assert_eq!(disk.read(0, 2 * BLOCK).await.expect("read"), filled(2, 2));
}

#[tokio::test]
async fn no_more_zones_are_open_than_may_be() {
    let disk = zoned(&MemDisk::fixed(20 * B)).await;
    disk.write(ZONE[0], filled(1, 1)).await.expect("the first");
    disk.write(ZONE[1], filled(1, 1)).await.expect("the second");
    refused(&disk, ZONE[2], 4, "limit of 2 open zones").await;
    disk.write(ZONE[0] + B, filled(1, 3)).await.expect("fills the first");
    disk.write(ZONE[2], filled(1, 1)).await.expect("room for a third");
    refused(&disk, ZONE[3], 1, "limit of 2 open zones").await;
    disk.finish_zone(ZONE[1]).await.expect("finished");
    refused(&disk, ZONE[1] + B, 1, "full").await;
    disk.write(ZONE[3], filled(1, 1)).await.expect("room again");
    disk.reset_zone(ZONE[2]).await.expect("reset");
    disk.reset_zone(ZONE[1]).await.expect("reset");
    disk.write(ZONE[1], filled(1, 1)).await.expect("room again");
}

#[tokio::test]
async fn a_zone_takes_one_write_at_a_time() {
    let (below, faults) = (MemDisk::fixed(20 * B), Faults::new());
    let faulty = Faulty::new(Arc::new(below), faults.clone());
    let disk = Zoned::open(Arc::new(faulty), OPTIONS).await.expect("opens");
    faults.add(Fault::new(OpKind::Write, Effect::Hold).times(1));
    let mut first = disk.write(ZONE[0], filled(1, 1));
    assert!(futures::poll!(&mut first).is_pending());
    refused(&disk, ZONE[0] + B, 1, "another write to the zone is in flight").await;
    assert!(disk.reset_zone(ZONE[0]).await.is_err(), "nor is it reset meanwhile");
    disk.write(ZONE[1], filled(1, 1)).await.expect("another zone");
    assert_eq!(disk.refused(), 2);
}

#[tokio::test]
async fn pointers_are_recovered_after_a_flush() {
    let below = MemDisk::fixed(20 * B);
    let disk = zoned(&below).await;
    disk.write(ZONE[0], filled(1, 4)).await.expect("write");
    disk.write_flush(ZONE[1], filled(2, 1)).await.expect("write");
    disk.write(ZONE[1] + B, filled(3, 1)).await.expect("not flushed");
    let disk = zoned(&below).await;
    let states = ZONE.map(|start| disk.zone(start).expect("a zone").state);
    assert_eq!(states, [ZoneState::Full, ZoneState::Open, ZoneState::Empty, ZoneState::Empty]);
    assert_eq!(disk.zone(ZONE[1]).expect("a zone").write_pointer, ZONE[1] + B);
    disk.write(ZONE[1] + B, filled(4, 1)).await.expect("continues there");
    disk.flush().await.expect("flush");
    // One copy of the table is torn: the other one is valid.
    below.flip(18 * B + 40, 1);
    let disk = zoned(&below).await;
    assert_eq!(disk.zone(ZONE[0]).expect("a zone").state, ZoneState::Full);
}

#[tokio::test]
async fn a_zone_with_a_failed_write_waits_for_its_reset() {
    let (below, faults) = (MemDisk::fixed(20 * B), Faults::new());
    let faulty = Faulty::new(Arc::new(below), faults.clone());
    let disk = Zoned::open(Arc::new(faulty), OPTIONS).await.expect("opens");
    faults.add(Fault::new(OpKind::Write, Effect::Error(libc::EIO)).times(1));
    let error = disk.write(ZONE[0], filled(1, 1)).await.expect_err("fails");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(disk.zone(ZONE[0]).expect("a zone").state, ZoneState::Failed);
    refused(&disk, ZONE[0] + B, 1, "has failed").await;
    disk.reset_zone(ZONE[0]).await.expect("reset");
    disk.write(ZONE[0], filled(1, 1)).await.expect("works again");
}

#[tokio::test]
async fn sizes_that_do_not_fit_are_refused() {
    let open =
        async |bytes, options| Zoned::open(Arc::new(MemDisk::fixed(bytes)), options).await.map(|disk| disk.len());
    assert!(open(7 * B, OPTIONS).await.is_err(), "no room for the table");
    assert_eq!(open(8 * B, OPTIONS).await.expect("one zone"), 6 * B);
    assert!(open(80 * B, ZonedOptions { zone_bytes: 1000, ..OPTIONS }).await.is_err());
    assert!(open(80 * B, ZonedOptions { zone_bytes: 0, ..OPTIONS }).await.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Against a model of the rules: the same writes are allowed, and reads return what was written
    /// since the last reset.
    #[test]
    fn zones_follow_their_rules(steps in prop::collection::vec((0u64..18, 1usize..5, 1u8..255, 0u8..8), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let below = MemDisk::fixed(20 * B);
            let mut disk = zoned(&below).await;
            let mut bytes = [0u8; 18];
            let mut pointers = [0u64; 4];
            for (block, blocks, byte, how) in steps {
                let zone = block.checked_sub(2).map(|b| (b / 4) as usize);
                let blocks = blocks.min(18 - block as usize);
                match (how, zone) {
                    (0, Some(zone)) => {
                        disk.reset_zone(ZONE[zone]).await.expect("reset");
                        pointers[zone] = 0;
                        bytes[2 + zone * 4..6 + zone * 4].fill(0);
                    }
                    (1, _) => {
                        disk.flush().await.expect("flush");
                        disk = zoned(&below).await;
                    }
                    _ => {
                        let last = (block + blocks as u64 - 1).checked_sub(2).map(|b| (b / 4) as usize);
                        let open = pointers.iter().filter(|p| (1..4).contains(*p)).count();
                        let allowed = zone == last && zone.is_none_or(|zone| {
                            block == 2 + zone as u64 * 4 + pointers[zone] && (pointers[zone] > 0 || open < 2)
                        });
                        let result = disk.write(block * B, filled(byte, blocks)).await;
                        assert_eq!(result.is_ok(), allowed, "{block} {blocks} {pointers:?}: {result:?}");
                        if allowed {
                            bytes[block as usize..block as usize + blocks].fill(byte);
                            if let Some(zone) = zone {
                                pointers[zone] += blocks as u64;
                            }
                        }
                    }
                }
                let got = disk.read(0, 18 * BLOCK).await.expect("read");
                assert!(got.chunks(BLOCK).zip(bytes).all(|(block, byte)| block.iter().all(|b| *b == byte)));
            }
        });
    }
}
