//! Random failures of the fast leg, under a caller that knows what it wrote.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::{Effect, Fault, OpKind};

fn misfortune(random: &mut StdRng) -> Fault {
    let kind = [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard][random.random_range(0..4)];
    let effect = match (kind, random.random_range(0..3)) {
        (_, 0) => Effect::Hold,
        (OpKind::Write, 1) => Effect::Tear { bytes: BLOCK, errno: Some(libc::EIO) },
        _ => Effect::Error(libc::EIO),
    };
    let start = pair::FAST_START + random.random_range(0..3 * MIB / B) * B;
    let fault = Fault::new(kind, effect).times(random.random_range(1..6));
    if random.random_bool(0.5) { fault.within(start..start + random.random_range(1..64) * B) } else { fault }
}

/// Runs one life of a super-disk. No read may ever return old data, also after a crash: the caller
/// has no checksums.
async fn live(legs: &Legs, random: &mut StdRng, model: &mut [u8], seed: u64) {
    let open_faults: Vec<u64> =
        (0..random.random_range(0..2)).map(|_| legs.fast_faults.add(misfortune(random))).collect();
    let dirty_bytes_max = [0, MIB, 1 << 40][random.random_range(0..3)];
    let chaotic = SuperdiskOptions { fast_pending_bytes_max: 96 << 10, dirty_bytes_max, ..options() };
    let disk = legs.open_with(chaotic).await;
    open_faults.into_iter().for_each(|id| legs.fast_faults.remove(id));
    for _ in 0..random.random_range(20..150) {
        let block = random.random_range(0..model.len());
        let blocks = random.random_range(1..24).min(model.len() - block);
        let offset = DATA + block as u64 * B;
        match random.random_range(0..20) {
            0..8 => {
                let version = random.random::<u8>();
                let data = pattern(offset, blocks, version);
                let result = match random.random_bool(0.5) {
                    true => disk.write(offset, data).await,
                    false => disk.write_flush(offset, data).await,
                };
                result.expect("the durable leg is well");
                model[block..block + blocks].fill(version);
            }
            8..16 => {
                let bytes = disk.read(offset, blocks * BLOCK).await.expect("read");
                for (i, version) in model[block..block + blocks].iter().enumerate() {
                    let (at, part) = (offset + i as u64 * B, bytes.slice(i * BLOCK..(i + 1) * BLOCK));
                    assert!(part == pattern(at, 1, *version), "seed {seed}: {at}: {:#?}", disk.status());
                }
            }
            16 => drop(legs.fast_faults.add(misfortune(random))),
            17 => legs.fast_faults.clear(),
            18 => disk.flush().await.expect("the durable leg is well"),
            _ => legs.env.sleep(Duration::from_millis(random.random_range(0..4000))).await,
        }
    }
    if random.random_bool(0.3) {
        // Without faults the leg must become clean again, whatever happened before.
        legs.fast_faults.clear();
        legs.until(&disk, "clean or quarantined", |status| status.fast == FastState::Clean).await;
        legs.assert_legs_agree(&disk).await;
    }
    if random.random_bool(0.5) {
        // Held operations of the fast leg never run.
        drop(disk);
    } else {
        disk.flush().await.expect("the durable leg is well");
        disk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_read_is_ever_old_whatever_the_fast_leg_does() {
    // For a longer run: STEADFAST_CHAOS_SEEDS=100..5000.
    let seeds = std::env::var("STEADFAST_CHAOS_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|text| text.split_once(".."));
    let seeds = seeds.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    for seed in seeds.unwrap_or(0..60) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut legs = Legs::new();
        let mut model = vec![0u8; (2 * MIB / B) as usize];
        let disk = legs.open().await;
        fill(&disk, 0).await;
        disk.close().await;
        drop(disk);
        for _ in 0..5 {
            live(&legs, &mut random, &mut model, seed).await;
            // The next life gets the current media, without the operations that hung before.
            legs = Legs::of(copy_of(&legs.durable).await, copy_of(&legs.fast).await);
        }
    }
}
