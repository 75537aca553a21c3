//! A thousand bad places on either leg, under a caller that verifies its reads.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::{Effect, Fault, OpKind};

/// A caller with checksums, like the log: tries the copies in turn and heals the bad ones.
async fn verified_read(disk: &Superdisk, offset: u64, blocks: usize) -> Bytes {
    let right = pattern(offset, blocks, 1);
    if let Ok(bytes) = disk.read(offset, blocks * BLOCK).await
        && bytes == right
    {
        return bytes;
    }
    for copy in 0..disk.copies() {
        if let Ok(bytes) = disk.read_copy(copy, offset, blocks * BLOCK).await
            && bytes == right
        {
            disk.heal(offset, bytes.clone()).await.expect("healed");
            return bytes;
        }
    }
    panic!("no good copy of {offset}: {:#?}", disk.status());
}

/// A thousand random sectors of the data, at most one per block.
fn places(len: u64, random: &mut StdRng) -> Vec<u64> {
    let mut blocks: Vec<u64> = (DATA / B..len / B).collect();
    blocks.shuffle(random);
    blocks.into_iter().take(1000).map(|block| block * B + random.random_range(0..8) * 512).collect()
}

/// A reader with checksums finds a damaged range of the durable leg while another reader repairs
/// it.
#[tokio::test(start_paused = true)]
async fn a_range_in_repair_is_read_after_the_repair() {
    let legs = Legs::new();
    let disk = legs.open_with(clearing()).await;
    fill(&disk, 1).await;
    legs.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    legs.durable.flip(DATA + 5, 1);
    legs.durable_slow.set(Slowness { flush: Duration::from_millis(20), ..Slowness::default() });
    let repair = disk.heal(DATA, pattern(DATA, 4, 1));
    let read = async {
        legs.env.sleep(Duration::from_millis(1)).await;
        disk.read_copy(1, DATA, BLOCK).await
    };
    let (repaired, read) = tokio::join!(repair, read);
    assert_eq!(repaired.expect("repaired"), 1);
    assert_is(&read.expect("read"), DATA, 1);
}

async fn damaged(on_fast: bool, flips: bool) {
    let mut random = StdRng::seed_from_u64(u64::from(on_fast) * 2 + u64::from(flips));
    let legs = Legs::of(MemDisk::fixed(8 * MIB), MemDisk::fixed(pair::FAST_START + 8 * MIB));
    // With reads of several blocks, a region gets more strikes than its share of repeated failures.
    let disk = legs.open_with(SuperdiskOptions { region_bytes: 64 << 10, ..options() }).await;
    fill(&disk, 1).await;
    assert_eq!(disk.status().regions_clean, 112);
    let places = places(disk.len(), &mut random);
    assert_eq!(places.len(), 1000);
    let (medium, faults, shift) = match on_fast {
        true => (&legs.fast, &legs.fast_faults, pair::FAST_START),
        false => (&legs.durable, &legs.durable_faults, 0),
    };
    for place in &places {
        if flips {
            medium.flip(shift + place + random.random_range(0..512), 1 << random.random_range(0..8));
        } else {
            let range = shift + place..shift + place + 512;
            faults.add(Fault::new(OpKind::Read, Effect::Error(libc::EIO)).within(range).until_written());
        }
    }
    // Reads of all sizes, everything at least once. A scrub verifies the durable leg, copy by copy.
    let mut offsets: Vec<u64> = (DATA..disk.len()).step_by(4 * BLOCK).collect();
    offsets.shuffle(&mut random);
    for offset in offsets {
        let blocks = random.random_range(1..=4);
        for (at, blocks) in [(offset, blocks), (offset, 4)] {
            assert_is(&verified_read(&disk, at, blocks).await, at, 1);
        }
        if !on_fast {
            let copy = disk.read_copy(0, offset, 4 * BLOCK).await;
            if copy.is_err() || copy.is_ok_and(|bytes| bytes != pattern(offset, 4, 1)) {
                let good = disk.read_copy(1, offset, 4 * BLOCK).await.expect("the fast leg is good");
                assert_is(&good, offset, 1);
                disk.heal(offset, good).await.expect("healed");
            }
        }
        // Sometimes the background repairs run.
        if random.random_bool(0.1) {
            legs.env.sleep(Duration::from_millis(1)).await;
        }
    }
    legs.until_clean(&disk).await;
    // The durable leg served the neighbours of ranges in repair, so everything is read again until
    // nothing is bad.
    for offset in (DATA..disk.len()).step_by(4 * BLOCK) {
        assert_is(&verified_read(&disk, offset, 4).await, offset, 1);
    }
    legs.until_clean(&disk).await;
    let status = disk.status();
    let healed = if on_fast { status.healed_fast } else { status.healed_durable };
    assert!(healed > 300, "{status:#?}");
    assert_eq!((status.heal_failures, status.regions_quarantined, status.regions_clean), (0, 0, 112), "{status:#?}");
    // Every byte of both legs is right again, and no sector is bad.
    for (medium, shift) in [(&legs.durable_top, 0), (&legs.fast_top, pair::FAST_START)] {
        for offset in (DATA..disk.len()).step_by(64 << 10) {
            let bytes = medium.read(shift + offset, 16 * BLOCK).await.expect("no bad sector is left");
            assert_is(&bytes, offset, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_bad_sectors_of_the_fast_leg_are_healed() {
    damaged(true, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_flips_on_the_fast_leg_are_healed() {
    damaged(true, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_bad_sectors_of_the_durable_leg_are_healed() {
    damaged(false, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_flips_on_the_durable_leg_are_healed() {
    damaged(false, true).await;
}
