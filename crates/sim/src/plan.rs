//! What a seed decides before anything runs: the machine, the settings, the faults, and how each life ends.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::{SuperdiskOptions, ZonedOptions};
use steadfast_log::{CompactionOptions, Durability, FormatOptions, LogOptions, ScrubOptions};
use steadfast_store::{Mirrored, StoreOptions};

use crate::array::{FastFate, FastPlan};
use crate::channels::ChannelPlan;
use crate::disk::DiskProfile;
use crate::indexes::{IndexFate, IndexTrouble};
use crate::members::MovePlan;
use crate::once::OncePlan;
use crate::platter::FaultRates;
use crate::rng::Rng;
use crate::tireless::TirelessPlan;
use crate::variants::Variant;

/// The name of the first bucket.
pub(crate) const FIRST: &str = "first";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What goes wrong beside power cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Nothing.
    None,
    /// Reads fail now and then.
    ReadErrors,
    /// A write or flush fails.
    WriteErrors,
    /// The disk fills up, and has room again later.
    Full,
    /// Bits flip on the medium, between lives.
    Rot,
    /// The disk acknowledges writes that go nowhere, or elsewhere.
    Misplaced,
    /// The disk acknowledges flushes that do nothing. Not promised to lose nothing, but never to give wrong bytes.
    LyingFlush,
    /// One disk of several fails altogether while it is in use.
    Death,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The store is closed.
    Clean,
    /// The power is cut after that many steps: perhaps while it still recovers.
    Cut(u64),
    /// The power is cut that many steps after the clients have begun.
    CutAtWork(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) finish: Finish,
    pub(crate) index: IndexFate,
    /// Before it, all disks are put back to what they were after an earlier one; the index is not.
    pub(crate) back: bool,
    /// How reads of the index fail in it.
    pub(crate) trouble: IndexTrouble,
    /// What becomes of each disk before it.
    pub(crate) disks: Vec<DiskLife>,
}

/// What becomes of a disk before and in a life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskLife {
    /// Bits that flip before it.
    pub(crate) flips: u64,
    /// What becomes of the fast leg before it.
    pub(crate) fast: FastFate,
    /// Bits of the durable leg that flip before it, if the fast leg is known to hold everything: all of that must heal.
    pub(crate) covered_flips: u64,
    /// It is not there in this life.
    pub(crate) missing: bool,
    /// It fails so long after the clients have begun.
    pub(crate) dies: Option<Duration>,
}

impl DiskLife {
    /// Nothing happens to it.
    pub(crate) const CALM: Self = Self { flips: 0, fast: FastFate::Kept, covered_flips: 0, missing: false, dies: None };
}

/// A disk of the pool.
#[derive(Debug, Clone)]
pub(crate) struct DiskPlan {
    pub(crate) capacity_bytes: u64,
    /// What strikes it while clients work.
    pub(crate) rates: FaultRates,
    pub(crate) faults: u64,
    /// It fills up for a while.
    pub(crate) squeezed: bool,
    pub(crate) profile: DiskProfile,
    /// The fast leg, where it is a super-disk.
    pub(crate) fast: Option<FastPlan>,
    /// How it is cut into zones that are written in order, where it is.
    pub(crate) zones: Option<ZonedOptions>,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) trouble: Trouble,
    pub(crate) lives: Vec<Life>,
    pub(crate) clients: u64,
    pub(crate) requests_each: u64,
    /// At the end all objects are deleted, which must make room.
    pub(crate) drain: bool,
    pub(crate) keys: u64,
    /// So many of them, the first, seldom change: what else comes and goes lies beside them.
    pub(crate) cold_keys: u64,
    pub(crate) buckets: Vec<Durability>,
    pub(crate) small_max: u64,
    pub(crate) large_max: u64,
    pub(crate) large_per_mille: u64,
    pub(crate) think_us_max: u64,
    pub(crate) lsm: bool,
    pub(crate) disks: Vec<DiskPlan>,
    /// How disks come and go in the middle of it, where they do.
    pub(crate) moves: Option<MovePlan>,
    /// What a keeper of snapshots does in each life; 0: there is none.
    pub(crate) snapshots: u64,
    /// How channels are used, where they are.
    pub(crate) channels: Option<ChannelPlan>,
    /// Indexes are put back, torn or not to be read.
    pub(crate) indexes_suffer: bool,
    /// Clients that never pause, where nobody else asks for anything.
    pub(crate) tireless: Option<TirelessPlan>,
    /// Keys that are used once, at the end.
    pub(crate) once: Option<OncePlan>,
    /// See [`Variant::ListWithoutMissing`].
    pub(crate) lists_without_missing: bool,
    pub(crate) format: FormatOptions,
    pub(crate) store: StoreOptions,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, variant: Option<Variant>, all_zoned: bool) -> Self {
        // Apart, so that what one disk goes through is the same whatever several would.
        let mut several = rng.clone().fork();
        let trouble = match (variant, rng.below(100)) {
            // A broken variant must be caught where nothing else is wrong.
            (Some(_), _) | (None, 0..=59) => Trouble::None,
            (None, 60..=66) => Trouble::ReadErrors,
            (None, 67..=76) => Trouble::WriteErrors,
            (None, 77..=83) => Trouble::Full,
            (None, 84..=90) => Trouble::Rot,
            (None, 91..=95) => Trouble::Misplaced,
            (None, _) => Trouble::LyingFlush,
        };
        // What this variant loses is seen only where the index is made anew, after the delete is gone and before what it hid is.
        let tombstones = matches!(
            variant,
            Some(Variant::EarlyTombstones | Variant::BlindFilters | Variant::OlderIndex | Variant::ForeignIndex)
        );
        let heavy = rng.one_in(3) && !tombstones;
        // Small objects that come and go: deletes must be kept as long as what they hide.
        let churn = !heavy && (tombstones || rng.one_in(4));
        let lives = (0..if tombstones { 6 } else { rng.range(2, 4) })
            .map(|_| Life {
                finish: match rng.below(10) {
                    0..=1 => Finish::Clean,
                    2..=3 => Finish::Cut(rng.below(400)),
                    4..=6 => Finish::CutAtWork(rng.range(10, 1_500)),
                    _ => Finish::CutAtWork(rng.range(10, 12_000)),
                },
                index: if tombstones || rng.one_in(if churn { 2 } else { 4 }) {
                    IndexFate::Deleted
                } else {
                    IndexFate::Kept
                },
                back: false,
                trouble: IndexTrouble::default(),
                disks: vec![DiskLife::CALM],
            })
            .collect::<Vec<_>>();
        let growable = trouble == Trouble::Full || rng.one_in(2);
        // Small, so that space runs out and extents are used again within a run.
        let (extent_bytes, extents) = match (heavy, rng.below(3)) {
            (true, 0) => (MIB, rng.range(12, 28)),
            (true, _) => (256 * KIB, rng.range(24, 64)),
            (false, 0) => (MIB, rng.range(8, 24)),
            (false, _) => (256 * KIB, rng.range(10, 24)),
        };
        let mut plan = Self {
            trouble,
            lives,
            clients: rng.range(1, 8),
            requests_each: rng.range(10, if heavy { 90 } else { 50 }),
            drain: variant.is_none() && trouble == Trouble::None && rng.one_in(3),
            keys: rng.range(3, 16),
            cold_keys: 0,
            buckets: (0..rng.range(1, 2))
                .map(|_| if rng.one_in(4) { Durability::Async } else { Durability::Sync })
                .collect(),
            small_max: *rng.pick(&[300, 4 * KIB, 12 * KIB]),
            large_max: if heavy { 400 * KIB } else { *rng.pick(&[60 * KIB, 200 * KIB]) },
            large_per_mille: if heavy { 600 } else { rng.range(50, 300) },
            think_us_max: *rng.pick(&[0, 100, 3_000]),
            lsm: rng.one_in(24),
            disks: vec![DiskPlan {
                capacity_bytes: MIB + extents * extent_bytes,
                rates: FaultRates::default(),
                faults: 0,
                squeezed: trouble == Trouble::Full,
                profile: DiskProfile {
                    growable,
                    prefill_pays: growable && rng.one_in(2),
                    flush_us: *rng.pick(&[50, 500, 5_000]),
                    io_us: *rng.pick(&[10, 80, 400]),
                    lazy: rng.one_in(2),
                    steady: false,
                    pool_bytes: 24 << 20,
                    sabotage: crate::disk::DiskSabotage::default(),
                },
                fast: None,
                zones: None,
            }],
            moves: None,
            snapshots: 0,
            channels: None,
            indexes_suffer: false,
            tireless: None,
            once: None,
            lists_without_missing: false,
            format: FormatOptions { extent_bytes: Some(extent_bytes), ..FormatOptions::default() },
            store: store_options(rng),
        };
        if churn {
            plan.keys = 16;
            plan.requests_each = rng.range(50, 150);
            plan.small_max = *rng.pick(&[4 * KIB, 12 * KIB]);
            plan.large_per_mille = 10;
            plan.store.inline_max_bytes = 14_000;
        }
        plan.add_trouble(rng);
        let paired = variant.map_or_else(|| rng.one_in(2), Variant::is_of_pairs) && !all_zoned;
        if paired {
            plan.add_fast_leg(0, rng);
        }
        if variant.map_or_else(|| several.one_in(3), Variant::is_of_pools) && !all_zoned {
            plan.spread(&mut several, extent_bytes, variant.is_some());
            // Keys that move from one damaged medium to another prove nothing.
            let damaging = matches!(trouble, Trouble::Rot | Trouble::Misplaced | Trouble::LyingFlush);
            if !damaging && variant.map_or_else(|| several.one_in(3), Variant::is_of_moves) {
                plan.change_disks(&mut several, extent_bytes);
            }
        }
        let mut kept = several.fork();
        let mut heard = several.fork();
        let damaging = matches!(trouble, Trouble::Rot | Trouble::Misplaced | Trouble::LyingFlush);
        if !damaging && variant.map_or_else(|| kept.one_in(6), Variant::is_of_snapshots) {
            plan.snapshots = kept.range(2, 8);
        }
        if !damaging && variant.map_or_else(|| heard.one_in(4), Variant::is_of_channels) {
            plan.channels = Some(ChannelPlan::new(&mut heard));
        }
        if !damaging && variant.map_or_else(|| heard.one_in(4), |variant| variant == Variant::EventsTrimmed) {
            // Asynchronous changes may be told of and lost.
            plan.buckets[0] = Durability::Sync;
            plan.store.mirrored = Arc::new([Mirrored { bucket: FIRST.into(), prefix: String::new() }]);
            plan.store.events_max = *heard.pick(&[3, 50, 1000]);
        }
        // Decided last, so that other runs are as they were before there were zones.
        let zoned = variant.map_or_else(|| rng.one_in(4), Variant::is_of_zones) || all_zoned;
        if zoned && !paired && plan.disks.len() == 1 && trouble != Trouble::Full {
            plan.cut_into_zones(rng, extent_bytes, extents);
        }
        let mut hardships = several.fork();
        if !damaging && variant.map_or_else(|| hardships.one_in(6), Variant::is_of_indexes) {
            plan.strike_indexes(&mut hardships);
        }
        let alone = trouble == Trouble::None && !paired && plan.disks.len() == 1 && plan.disks[0].zones.is_none();
        let alone = alone && plan.channels.is_none() && plan.snapshots == 0 && plan.store.mirrored.is_empty();
        if alone && variant.map_or_else(|| hardships.one_in(2), |variant| variant == Variant::LateFlush) {
            plan.never_pause(&mut hardships);
        } else if alone && variant.is_none() && hardships.one_in(2) {
            plan.use_once();
        }
        if let Some(variant) = variant {
            variant.apply(&mut plan);
        }
        plan
    }

    fn add_trouble(&mut self, rng: &mut Rng) {
        let disk = &mut self.disks[0];
        disk.faults = rng.range(1, 4);
        match self.trouble {
            Trouble::None | Trouble::Full | Trouble::Death => {}
            Trouble::ReadErrors => {
                disk.rates.read_eio = 30_000;
                disk.faults = rng.range(1, 12);
            }
            Trouble::WriteErrors => {
                disk.rates.write_eio = if rng.one_in(2) { 8_000 } else { 0 };
                disk.rates.flush_eio = if disk.rates.write_eio == 0 || rng.one_in(2) { 15_000 } else { 0 };
                disk.faults = rng.range(1, 2);
            }
            Trouble::Rot => {
                for life in &mut self.lives {
                    life.disks[0].flips = rng.below(3);
                }
            }
            Trouble::Misplaced => {
                disk.rates.lost_write = if rng.one_in(2) { 10_000 } else { 0 };
                disk.rates.misdirected_write = if disk.rates.lost_write == 0 { 10_000 } else { 0 };
            }
            Trouble::LyingFlush => {
                disk.rates.lying_flush = 100_000;
                disk.faults = rng.range(1, 40);
            }
        }
    }
}

impl Plan {
    fn cut_into_zones(&mut self, rng: &mut Rng, extent_bytes: u64, extents: u64) {
        // Without space that may be written anywhere, the superblocks take two zones, and keep them open.
        let sequential_only = rng.one_in(3);
        let unused = if rng.one_in(3) { 64 * KIB } else { 0 };
        let zones = ZonedOptions {
            zone_bytes: extent_bytes + unused,
            zone_capacity_bytes: extent_bytes,
            conventional_bytes: if sequential_only { 0 } else { MIB },
            // The fewest that the log takes, a few more, as many as devices have, and no limit.
            open_zones_max: if sequential_only { *rng.pick(&[7, 8, 14, 0]) } else { *rng.pick(&[5, 6, 14, 0]) },
        };
        let count = extents + if sequential_only { 2 } else { 0 };
        // With room for the table of write pointers.
        let disk = &mut self.disks[0];
        disk.capacity_bytes = zones.conventional_bytes + count * zones.zone_bytes + 8 * KIB;
        disk.profile.growable = false;
        disk.profile.prefill_pays = false;
        disk.zones = Some(zones);
    }

    fn add_fast_leg(&mut self, disk: usize, rng: &mut Rng) {
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
            pictures: rng.one_in(2),
        });
        // It reads both legs: pass after pass would be most of what such a run does.
        let scrub = &mut self.store.log.scrub;
        scrub.interval = scrub.interval.max(Duration::from_millis(500));
        let calm = self.is_calm(disk);
        for life in &mut self.lives {
            life.disks[disk].fast = match rng.below(20) {
                0..=9 => FastFate::Kept,
                10..=12 => FastFate::Gone,
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
        // Closed well and complete, so that what the durable leg loses then can only come from the fast one.
        if calm && rng.one_in(2) {
            self.lives.iter_mut().for_each(|life| life.finish = Finish::Clean);
        }
    }

    /// Makes it a pool of several disks, of which one or more are missing at some starts, and one has the trouble.
    fn spread(&mut self, rng: &mut Rng, extent_bytes: u64, broken: bool) {
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
        if self.trouble == Trouble::None && !broken && rng.one_in(5) {
            self.trouble = Trouble::Death;
            self.drain = false;
        }
        let struck = rng.below(count as u64) as usize;
        self.strike(struck);
        for life in &mut self.lives {
            if self.trouble == Trouble::Death && rng.one_in(2) {
                life.disks[struck].dies = Some(Duration::from_micros(rng.below(200_000)));
            }
        }
        // The first start makes the pool, with all of its disks.
        for life in self.lives.iter_mut().skip(1) {
            // One of them is there at least.
            let (incomplete, kept) = (rng.one_in(2), rng.below(count as u64) as usize);
            for (at, disk) in life.disks.iter_mut().enumerate() {
                disk.missing = incomplete && at != kept && rng.one_in(count as u64);
            }
        }
    }

    /// Lets the first disk's trouble be another's.
    fn strike(&mut self, struck: usize) {
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

    /// Whether nothing strikes the fast leg of a disk while it is in use.
    pub(crate) fn is_calm(&self, disk: usize) -> bool {
        let rates = |r: &FaultRates| {
            r.read_eio + r.write_eio + r.flush_eio + r.lost_write + r.misdirected_write + r.lying_flush + r.hang == 0
        };
        let calm = |fast: &FastPlan| rates(&fast.rates) && fast.rot_every.is_none() && fast.disk.io_us <= 50;
        self.trouble == Trouble::None && self.disks[disk].fast.as_ref().is_some_and(calm)
    }
}

fn store_options(rng: &mut Rng) -> StoreOptions {
    let chunk = *rng.pick(&[16 * KIB, 32 * KIB, 64 * KIB]) as usize;
    let log = LogOptions {
        frame_bytes_max: *rng.pick(&[16 * KIB, 64 * KIB, 256 * KIB]) as usize,
        pending_bytes_max: rng.range(2, 8) * MIB,
        pending_reserve_bytes_max: rng.range(1, 4) * MIB,
        async_window: Duration::from_millis(*rng.pick(&[1, 10, 50])),
        gather: !rng.one_in(4),
        prefill_ahead_bytes: 256 * KIB,
        body_writes_max: rng.range(1, 8) as usize,
        chunk_bytes_max: 64 * KIB as usize,
        apply_queue_max: rng.range(1, 16) as usize,
        compaction: CompactionOptions {
            bytes_s: *rng.pick(&[0, MIB, 64 * MIB]),
            dead_percent_min: rng.range(10, 50) as u32,
            interval: Duration::from_millis(*rng.pick(&[5, 20, 100])),
            ..CompactionOptions::default()
        },
        scrub: ScrubOptions {
            bytes_s: *rng.pick(&[0, 16 * MIB]),
            interval: Duration::from_millis(*rng.pick(&[50, 500, 5_000])),
            ..ScrubOptions::default()
        },
        ..LogOptions::default()
    };
    StoreOptions {
        log,
        inline_max_bytes: *rng.pick(&[1_000, 4_000, 8_000, 14_000]),
        chunk_bytes: chunk,
        chunks_in_flight_max: rng.range(1, 4) as usize,
        write_wait: Duration::from_secs(5),
        read_piece_bytes: 64 * KIB as u32,
        read_ahead_pieces: rng.range(1, 4) as usize,
        read_ahead_bytes_max: MIB,
        cache_bytes: if rng.one_in(2) { 0 } else { 2 * MIB },
        index_cache_bytes: MIB,
        memtable_bytes_max: *rng.pick(&[4 * KIB, 20 * KIB, MIB]),
        checkpoint_log_bytes: *rng.pick(&[32 * KIB, 128 * KIB, MIB]),
        part_min_bytes: 0,
        // Less than most channels have: what is read comes from memory and from the log.
        channel_tail_bytes: 8 * KIB,
        ..StoreOptions::default()
    }
}
