use std::future::Future;

use super::*;
use crate::executor::End;
use crate::platter::{FaultRates, SECTOR};
use crate::rng::Rng;
use crate::trace::Trace;

const MIB: u64 = 1 << 20;

fn profile() -> DiskProfile {
    DiskProfile {
        growable: false,
        prefill_pays: false,
        flush_us: 500,
        io_us: 50,
        lazy: false,
        steady: false,
        pool_bytes: 1 << 20,
        read_pool_bytes: 1 << 20,
        sabotage: DiskSabotage::default(),
    }
}

/// Runs `test` on a disk of 1 MiB, then cuts the power; returns what is on the medium.
fn after_cut<F>(seed: u64, profile: DiskProfile, rates: FaultRates, test: impl FnOnce(SimDisk) -> F) -> Vec<u8>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut rng = Rng::new(seed);
    let device: Device = Arc::new(Mutex::new(Platter::new(rng.fork(), MIB, MIB)));
    device.lock().rates = rates;
    device.lock().faults_left = 1;
    let executor = Executor::new(rng.fork(), Duration::ZERO, Trace::new(10, false));
    let disk = SimDisk::new(device.clone(), executor.clone(), profile);
    let end = executor.run(test(disk), 100_000, Duration::from_secs(100));
    assert!(matches!(end, End::Done(())), "{end:?}");
    device.lock().cut();
    executor.shut_down();
    device.lock().peek(0, MIB as usize)
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK])
}

#[test]
fn flushed_writes_survive_and_others_tear_at_sectors() {
    let mut kinds = [0; 3];
    for seed in 0..100 {
        let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
            disk.write(0, block(1)).await.expect("written");
            disk.flush().await.expect("flushed");
            disk.write(BLOCK as u64, block(2)).await.expect("written");
            assert_eq!(disk.read(BLOCK as u64, BLOCK).await.expect("read"), block(2));
        });
        assert!(image[..BLOCK].iter().all(|&b| b == 1));
        let sectors: Vec<u8> = image[BLOCK..2 * BLOCK]
            .chunks(SECTOR)
            .map(|sector| {
                assert!(sector.iter().all(|&b| b == sector[0]), "a sector is whole");
                sector[0]
            })
            .collect();
        let there = sectors.iter().filter(|&&b| b == 2).count();
        kinds[if there == 0 { 0 } else { 1 + usize::from(there == sectors.len()) }] += 1;
    }
    assert!(kinds.iter().all(|&n| n > 5), "none, torn, all: {kinds:?}");
}

#[test]
fn a_flush_covers_only_what_had_completed_when_it_started() {
    let lost = (0..100)
        .filter(|&seed| {
            let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
                let write = disk.write(0, block(1));
                disk.flush().await.expect("flushed");
                write.await.expect("written");
            });
            image[..BLOCK].iter().any(|&b| b != 1)
        })
        .count();
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_later_flushed_write_wins_over_an_earlier_one() {
    for seed in 0..50 {
        let image = after_cut(seed, profile(), FaultRates::default(), |disk| async move {
            disk.write(0, block(1)).await.expect("written");
            disk.write(0, block(2)).await.expect("written");
            disk.flush().await.expect("flushed");
        });
        assert!(image[..BLOCK].iter().all(|&b| b == 2));
    }
}

#[test]
fn a_failed_flush_is_not_made_good_by_the_next() {
    let rates = FaultRates { flush_eio: 1_000_000, ..FaultRates::default() };
    let lost = (0..100)
        .filter(|&seed| {
            let image = after_cut(seed, profile(), rates, |disk| async move {
                disk.write(0, block(1)).await.expect("written");
                let error = disk.flush().await.expect_err("fails once");
                assert_eq!(error.raw_os_error(), Some(EIO));
                disk.flush().await.expect_err("refused until the disk is reopened");
                disk.reopen().await.expect("reopened");
                disk.flush().await.expect("does not cover earlier writes");
            });
            image[..BLOCK].iter().any(|&b| b != 1)
        })
        .count();
    assert!(lost > 50, "{lost}");
}

#[test]
fn sabotage_loses_what_was_acknowledged() {
    for sabotage in [
        DiskSabotage { skip_flush: true, ..DiskSabotage::default() },
        DiskSabotage { early_ack: true, ..DiskSabotage::default() },
    ] {
        let lost = (0..50)
            .filter(|&seed| {
                let profile = DiskProfile { sabotage, ..profile() };
                let image = after_cut(seed, profile, FaultRates::default(), |disk| async move {
                    disk.write_flush(0, block(1)).await.expect("flushed");
                });
                image[..BLOCK].iter().any(|&b| b != 1)
            })
            .count();
        assert!(lost > 10, "{sabotage:?}: {lost}");
    }
}

#[test]
fn a_growable_disk_needs_a_reservation_and_can_be_full() {
    let mut rng = Rng::new(1);
    let device: Device = Arc::new(Mutex::new(Platter::new(rng.fork(), MIB, 0)));
    device.lock().room_bytes = MIB / 2;
    let executor = Executor::new(rng.fork(), Duration::ZERO, Trace::new(10, false));
    let disk = SimDisk::new(device.clone(), executor.clone(), DiskProfile { growable: true, ..profile() });
    let end = executor.run(
        async move {
            assert_eq!(disk.write(0, block(1)).await.expect_err("no space yet").kind(), io::ErrorKind::UnexpectedEof);
            disk.reserve(MIB / 2).await.expect("space");
            disk.write(0, block(1)).await.expect("written");
            assert_eq!(disk.reserve(MIB).await.expect_err("full").kind(), io::ErrorKind::StorageFull);
            assert_eq!(disk.len(), MIB / 2);
        },
        1000,
        Duration::from_secs(10),
    );
    assert!(matches!(end, End::Done(())), "{end:?}");
}
