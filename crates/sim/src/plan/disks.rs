//! The disks of a plan: zoned devices, fast legs and pools of several disks.

use std::time::Duration;

use steadfast_disk::{SuperdiskOptions, ZonedOptions};

use super::{DiskLife, DiskPlan, FastFate, FastPlan, FaultClass, Finish, KIB, MIB, Plan};
use crate::disk::DiskProfile;
use crate::platter::FaultRates;
use crate::rng::Rng;

impl Plan {
    /// Turns the only disk into a zoned device.
    pub(super) fn cut_into_zones(&mut self, rng: &mut Rng, extent_bytes: u64, extents: u64) {
        // Without conventional space, the superblocks take two zones and keep them open.
        let sequential_only = rng.one_in(3);
        let unused = if rng.one_in(3) { 64 * KIB } else { 0 };
        let zones = ZonedOptions {
            zone_bytes: extent_bytes + unused,
            zone_capacity_bytes: extent_bytes,
            conventional_bytes: if sequential_only { 0 } else { MIB },
            // The minimum of the log, slightly more, a typical device limit, and no limit.
            open_zones_max: if sequential_only { *rng.pick(&[7, 8, 14, 0]) } else { *rng.pick(&[5, 6, 14, 0]) },
        };
        let count = extents + if sequential_only { 2 } else { 0 };
        // Includes space for the table of write pointers.
        let disk = &mut self.disks[0];
        disk.capacity_bytes = zones.conventional_bytes + count * zones.zone_bytes + 8 * KIB;
        disk.profile.growable = false;
        disk.profile.prefill_pays = false;
        disk.zones = Some(zones);
    }

    /// Adds a fast leg to a disk, with its faults and its fate in each life.
    pub(super) fn add_fast_leg(&mut self, disk: usize, rng: &mut Rng) {
        let mut rates = FaultRates::default();
        let (mut rot_every, mut slow) = (None, 1);
        match rng.below(10) {
            0 => rates.read_eio = 20_000,
            1 => {
                rates.write_eio = 10_000;
                rates.flush_eio = 10_000;
            }
            2 => rates.lost_write = 20_000,
            3 => rates.misdirected_write = 10_000,
            4 => rates.lying_flush = 300_000,
            5 => rates.hang = 5_000,
            6 => slow = 100,
            7 => rot_every = Some(Duration::from_micros(rng.range(500, 20_000))),
            _ => {}
        }
        let options = SuperdiskOptions {
            fast_pending_bytes_max: *rng.pick(&[64 * KIB, MIB, 8 * MIB]),
            fast_write_limit: Duration::from_millis(*rng.pick(&[50, 1_000, 5_000])),
            fast_read_limit: Duration::from_millis(*rng.pick(&[50, 1_000, 5_000])),
            fast_errors_max: rng.range(2, 64) as u32,
            fast_retry_interval: Duration::from_millis(*rng.pick(&[100, 5_000])),
            rebuild_bytes_s: *rng.pick(&[0, 4 * MIB, 64 * MIB]),
            rebuild_settle: Duration::from_millis(*rng.pick(&[0, 10, 1_000])),
            region_bytes: *rng.pick(&[64 * KIB, 256 * KIB]),
            dirty_bytes_max: *rng.pick(&[0, 1 << 20, 1 << 40]),
            ..SuperdiskOptions::default()
        };
        let members = if rng.one_in(4) { 2 } else { 1 };
        self.disks[disk].fast = Some(FastPlan {
            members,
            disk: DiskProfile {
                growable: false,
                prefill_pays: false,
                flush_us: slow * *rng.pick(&[20, 500]),
                io_us: slow * *rng.pick(&[5, 50]),
                lazy: rng.one_in(2),
                ..self.disks[disk].profile
            },
            chunk_bytes: *rng.pick(&[16 * KIB, 64 * KIB, 512 * KIB]),
            options,
            rates,
            faults: rng.range(1, 60),
            rot_every,
            takes_images: rng.one_in(2),
        });
        // The scrub reads both legs. Frequent passes would dominate such a run.
        let scrub = &mut self.store.log.scrub;
        scrub.interval = scrub.interval.max(Duration::from_millis(500));
        let calm = self.is_calm(disk);
        for life in &mut self.lives {
            life.disks[disk].fast = match rng.below(20) {
                0..=9 => FastFate::Kept,
                10..=12 => FastFate::Missing,
                13 => FastFate::Blank,
                14..=16 => FastFate::Older,
                17 if members > 1 => FastFate::Mixed,
                _ => FastFate::Rotten(rng.range(1, 60)),
            };
            if calm && rng.one_in(2) {
                life.disks[disk].fast = FastFate::Kept;
                life.disks[disk].covered_flips = rng.range(1, 20);
            }
        }
        // A clean close with a complete fast leg: only the fast leg can then supply what the
        // durable leg loses.
        if calm && rng.one_in(2) {
            self.lives.iter_mut().for_each(|life| life.finish = Finish::Clean);
        }
    }

    /// Turns the plan into a pool of several disks. Some starts lack one or more of them, and one
    /// disk gets the faults.
    pub(super) fn spread(&mut self, rng: &mut Rng, extent_bytes: u64, broken: bool) {
        let count = rng.range(2, 4) as usize;
        for disk in 1..count {
            let growable = rng.one_in(2);
            let first = &self.disks[0].profile;
            let profile = DiskProfile {
                growable,
                prefill_pays: growable && rng.one_in(2),
                flush_us: *rng.pick(&[50, 500, first.flush_us]),
                io_us: *rng.pick(&[10, 80, first.io_us]),
                lazy: rng.one_in(2),
                ..*first
            };
            let extents = if extent_bytes == MIB { rng.range(8, 16) } else { rng.range(8, 20) };
            self.disks.push(DiskPlan {
                capacity_bytes: MIB + extents * extent_bytes,
                rates: FaultRates::default(),
                faults: 0,
                squeezed: false,
                profile,
                fast: None,
                zones: None,
            });
            self.lives.iter_mut().for_each(|life| life.disks.push(DiskLife::CALM));
            if rng.one_in(4) {
                self.add_fast_leg(disk, rng);
            }
        }
        if self.fault_class == FaultClass::None && !broken && rng.one_in(5) {
            self.fault_class = FaultClass::Death;
            self.drain = false;
        }
        let struck = rng.below(count as u64) as usize;
        self.move_faults(struck);
        for life in &mut self.lives {
            if self.fault_class == FaultClass::Death && rng.one_in(2) {
                life.disks[struck].dies = Some(Duration::from_micros(rng.below(200_000)));
            }
        }
        // The first start creates the pool, with all of its disks.
        for life in self.lives.iter_mut().skip(1) {
            // At least one disk stays present.
            let (incomplete, kept) = (rng.one_in(2), rng.below(count as u64) as usize);
            for (at, disk) in life.disks.iter_mut().enumerate() {
                disk.missing = incomplete && at != kept && rng.one_in(count as u64);
            }
        }
    }

    /// Moves the first disk's faults to another disk.
    fn move_faults(&mut self, struck: usize) {
        if struck == 0 {
            return;
        }
        let (first, others) = self.disks.split_at_mut(1);
        let (first, other) = (&mut first[0], &mut others[struck - 1]);
        std::mem::swap(&mut first.rates, &mut other.rates);
        std::mem::swap(&mut first.faults, &mut other.faults);
        std::mem::swap(&mut first.squeezed, &mut other.squeezed);
        other.profile.growable |= other.squeezed;
        self.lives.iter_mut().for_each(|life| {
            life.disks[struck].flips = std::mem::take(&mut life.disks[0].flips);
        });
    }

    /// Whether no fault strikes the fast leg of a disk while it is in use.
    pub(crate) fn is_calm(&self, disk: usize) -> bool {
        let rates = |r: &FaultRates| {
            r.read_eio + r.write_eio + r.flush_eio + r.lost_write + r.misdirected_write + r.lying_flush + r.hang == 0
        };
        let calm = |fast: &FastPlan| rates(&fast.rates) && fast.rot_every.is_none() && fast.disk.io_us <= 50;
        self.fault_class == FaultClass::None && self.disks[disk].fast.as_ref().is_some_and(calm)
    }
}
