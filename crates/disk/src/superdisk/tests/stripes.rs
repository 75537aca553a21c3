//! Fast legs of several devices, one of which was replaced or restored to an earlier time.

use super::*;
use crate::{Effect, Fault, OpKind, Stripe, StripeOptions};

const DEVICES: usize = 3;
/// Offset of the first data block of each device.
const PLACES: [u64; DEVICES] = [2 * MIB, 2 * MIB + (512 << 10), MIB];

/// A pair whose fast leg is a stripe.
struct Striped {
    env: Env,
    durable: MemDisk,
    devices: Vec<MemDisk>,
    faults: Vec<Faults>,
}

impl Striped {
    fn of(durable: MemDisk, devices: Vec<MemDisk>) -> Self {
        let faults = devices.iter().map(|_| Faults::new()).collect();
        Self { env: env(), durable, devices, faults }
    }

    fn members(&self) -> Vec<Arc<dyn Disk>> {
        let member = |(disk, faults): (&MemDisk, &Faults)| -> Arc<dyn Disk> {
            Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone()))
        };
        self.devices.iter().zip(&self.faults).map(member).collect()
    }

    async fn format(&self) {
        Stripe::format(&self.members(), &self.env, &StripeOptions::default(), true).await.expect("made");
    }

    async fn open(&self) -> Arc<Superdisk> {
        let stripe = Stripe::open(self.members()).await.expect("a stripe");
        let durable = Arc::new(self.durable.clone());
        Superdisk::open(durable, Some(stripe), self.env.clone(), clearing()).await.expect("opens")
    }

    async fn copy(&self) -> Self {
        let mut devices = Vec::new();
        for device in &self.devices {
            devices.push(copy_of(device).await);
        }
        Self::of(copy_of(&self.durable).await, devices)
    }

    async fn until(&self, disk: &Superdisk, what: &str, condition: impl Fn(&SuperdiskStatus) -> bool) {
        for _ in 0..60_000 {
            if condition(&disk.status()) {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("never {what}: {:#?}", disk.status());
    }
}

/// A pair with version 1 everywhere, and all of it clean.
async fn in_use() -> (Striped, Arc<Superdisk>) {
    let pair = Striped::of(MemDisk::fixed(4 * MIB), (0..DEVICES).map(|_| MemDisk::fixed(8 * MIB)).collect());
    pair.format().await;
    let disk = pair.open().await;
    fill(&disk, 1).await;
    pair.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
    (pair, disk)
}

#[tokio::test(start_paused = true)]
async fn a_leg_with_one_restored_device_counts_for_nothing() {
    for (device, closed) in (0..DEVICES).flat_map(|device| [(device, false), (device, true)]) {
        let (pair, disk) = in_use().await;
        let older = copy_of(&pair.devices[device]).await;
        // Only that device misses a write.
        disk.write_flush(PLACES[device], pattern(PLACES[device], 1, 2)).await.expect("write");
        pair.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
        if closed {
            disk.close().await;
        }
        drop(disk);
        let mut pair = pair.copy().await;
        pair.devices[device] = older;
        let disk = pair.open().await;
        assert_eq!(disk.status().fast, FastState::Stale, "{device} {closed}");
        assert_is(&disk.read(PLACES[device], BLOCK).await.expect("read"), PLACES[device], 2);
        pair.until(&disk, "clean", |status| status.fast == FastState::Clean).await;
        disk.close().await;
        drop(disk);
        let disk = pair.open().await;
        assert_eq!((disk.status().fast, disk.status().refused), (FastState::Clean, None));
        let before = disk.status().reads_fast;
        assert_is(&disk.read(PLACES[device], BLOCK).await.expect("read"), PLACES[device], 2);
        assert_eq!(disk.status().reads_fast, before + 1);
    }
}

/// The durable leg and all devices but one are restored; the remaining one has the later writes.
#[tokio::test(start_paused = true)]
async fn a_leg_with_one_device_newer_than_the_durable_leg_counts_for_nothing() {
    for (device, place) in PLACES.into_iter().enumerate() {
        let (pair, disk) = in_use().await;
        let mut older = pair.copy().await;
        disk.write_flush(place, pattern(place, 1, 2)).await.expect("write");
        settle(&disk).await;
        drop(disk);
        older.devices[device] = copy_of(&pair.devices[device]).await;
        let disk = older.open().await;
        assert_eq!(disk.status().fast, FastState::Stale, "{device}");
        assert_is(&disk.read(place, BLOCK).await.expect("read"), place, 1);
    }
}

/// The power fails when only some of the devices have the event of a round.
#[tokio::test(start_paused = true)]
async fn a_leg_whose_devices_are_one_event_apart_counts() {
    for device in 0..DEVICES {
        let (pair, disk) = in_use().await;
        // The label of this device is never written.
        pair.faults[device].add(Fault::new(OpKind::Write, Effect::Hold).within(0..MIB + (512 << 10)));
        let write = disk.write_flush(PLACES[0], pattern(PLACES[0], 1, 2));
        assert!(pair.env.timeout(Duration::from_secs(1), write).await.is_none(), "the round waits for the label");
        drop(disk);
        let pair = pair.copy().await;
        let disk = pair.open().await;
        assert_eq!(disk.status().refused, None, "{device}");
        fill(&disk, 3).await;
        assert_filled(&disk, 3).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_replaced_while_the_leg_has_failed_is_noticed() {
    for (device, relabelled) in (0..DEVICES).flat_map(|device| [(device, false), (device, true)]) {
        let (pair, disk) = in_use().await;
        let older = pair.devices[device].read(0, 8 * MIB as usize).await.expect("read");
        fill(&disk, 2).await;
        pair.until(&disk, "cleared", |status| status.dirty_bytes == MIB).await;
        pair.faults[device].latch_flushes();
        pair.faults[device].add(Fault::new(OpKind::Flush, Effect::Error(libc::EIO)).times(1));
        disk.write_flush(PLACES[device], pattern(PLACES[device], 1, 3)).await.expect("write");
        assert!(matches!(disk.status().fast, FastState::Failed { .. }));
        // Blank, or with the earlier content of the device.
        let bytes = if relabelled { older } else { vec![0; 8 * MIB as usize].into() };
        pair.devices[device].write(0, bytes).await.expect("write");
        pair.env.sleep(Duration::from_secs(60)).await;
        let status = disk.status();
        match relabelled {
            true => assert!(status.refused.is_some(), "{status:#?}"),
            false => assert!(matches!(&status.fast, FastState::Failed { why } if why.contains("no label of a stripe"))),
        }
        assert_is(&disk.read(PLACES[device], BLOCK).await.expect("read"), PLACES[device], 3);
        let other = PLACES[device] + (32 << 10);
        assert_is(&disk.read(other, BLOCK).await.expect("read"), other, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_of_too_many_disks_is_no_fast_leg() {
    let mut pair = Striped::of(MemDisk::fixed(4 * MIB), (0..33).map(|_| MemDisk::fixed(2 * MIB)).collect());
    pair.format().await;
    let disk = pair.open().await;
    let state = disk.status().fast;
    assert!(matches!(&state, FastState::Failed { why } if why.contains("too many disks")), "{state:?}");
    fill(&disk, 1).await;
    disk.close().await;
    drop(disk);
    pair.devices.pop();
    pair.faults.pop();
    pair.format().await;
    let disk = pair.open().await;
    assert!(matches!(disk.status().fast, FastState::Rebuilding), "{:#?}", disk.status());
    assert_filled(&disk, 1).await;
}
