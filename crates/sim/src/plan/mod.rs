//! What a seed decides before the run: the machine, the settings, the faults, and the end of each
//! life.

mod archive;
mod disks;
mod types;

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::BLOCK;
use steadfast_log::{CompactionOptions, Durability, FormatOptions, LogOptions, ScrubOptions};
use steadfast_store::{Mirrored, StoreOptions};

use crate::disk::DiskProfile;
use crate::platter::FaultRates;
use crate::rng::Rng;
use crate::variants::Variant;

pub(crate) use archive::ArchivePlan;
pub use types::FaultClass;
pub(crate) use types::{
    Change, ChannelPlan, DiskLife, DiskPlan, FastFate, FastPlan, Finish, IndexFate, IndexFaults, IndexPlan, Life, Mix,
    MovePlan, OncePlan, SaturatingPlan, Unreadable,
};

/// The name of the first bucket.
pub(crate) const FIRST: &str = "first";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) fault_class: FaultClass,
    pub(crate) lives: Vec<Life>,
    pub(crate) clients: u64,
    pub(crate) requests_each: u64,
    /// Whether all objects are deleted at the end, which must free space.
    pub(crate) drain: bool,
    pub(crate) keys: u64,
    /// Number of keys that seldom change: the first of `keys`. Short-lived records lie among
    /// theirs.
    pub(crate) cold_keys: u64,
    pub(crate) buckets: Vec<Durability>,
    pub(crate) small_max: u64,
    pub(crate) large_max: u64,
    pub(crate) large_per_mille: u64,
    pub(crate) think_us_max: u64,
    pub(crate) index: IndexPlan,
    pub(crate) disks: Vec<DiskPlan>,
    /// The changes of the pool's disks, if any.
    pub(crate) moves: Option<MovePlan>,
    /// The archive, if the run has one.
    pub(crate) archive: Option<ArchivePlan>,
    /// The use of channels, if any.
    pub(crate) channels: Option<ChannelPlan>,
    /// The saturating clients, if the run has no other clients.
    pub(crate) saturating: Option<SaturatingPlan>,
    /// Keys that are used once, at the end, if any.
    pub(crate) once: Option<OncePlan>,
    /// Whether [`Variant::ListWithoutMissing`] is active.
    pub(crate) lists_without_missing: bool,
    pub(crate) format: FormatOptions,
    pub(crate) store: StoreOptions,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, variant: Option<Variant>, all_zoned: bool) -> Self {
        // A separate generator, so that the plan for several disks does not change the plan of one
        // disk.
        let mut several = rng.clone().fork();
        let fault_class = fault_class_of(variant, rng);
        // This loss shows only if the index is rebuilt between the drop of the delete record and
        // the drop of the record that it hides.
        let tombstones =
            matches!(variant, Some(Variant::EarlyTombstones | Variant::OlderIndex | Variant::ForeignIndex));
        let heavy = rng.one_in(3) && !tombstones;
        // Small short-lived objects. Delete records must be kept as long as the records that they
        // hide.
        let churn = !heavy && (tombstones || rng.one_in(4));
        let lives = lives_of(rng, tombstones, churn);
        let growable = fault_class == FaultClass::Full || rng.one_in(2);
        // Small, so that space runs out and extents are reused within a run.
        let (extent_bytes, extents) = match (heavy, rng.below(3)) {
            (true, 0) => (MIB, rng.range(12, 28)),
            (true, _) => (256 * KIB, rng.range(24, 64)),
            (false, 0) => (MIB, rng.range(8, 24)),
            (false, _) => (256 * KIB, rng.range(10, 24)),
        };
        let mut plan = Self {
            fault_class,
            lives,
            clients: rng.range(1, 8),
            requests_each: rng.range(10, if heavy { 90 } else { 50 }),
            drain: variant.is_none() && fault_class == FaultClass::None && rng.one_in(3),
            keys: rng.range(3, 16),
            cold_keys: 0,
            buckets: (0..rng.range(1, 2))
                .map(|_| if rng.one_in(4) { Durability::Async } else { Durability::Sync })
                .collect(),
            small_max: *rng.pick(&[300, 4 * KIB, 12 * KIB]),
            large_max: if heavy { 400 * KIB } else { *rng.pick(&[60 * KIB, 200 * KIB]) },
            large_per_mille: if heavy { 600 } else { rng.range(50, 300) },
            think_us_max: *rng.pick(&[0, 100, 3_000]),
            index: IndexPlan { files: rng.one_in(24), faults: false },
            disks: vec![first_disk(rng, fault_class, growable, MIB + extents * extent_bytes)],
            moves: None,
            archive: None,
            channels: None,
            saturating: None,
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
        plan.add_faults(rng);
        plan.add_extras(variant, all_zoned, (extent_bytes, extents), rng, &mut several);
        if let Some(variant) = variant {
            variant.apply(&mut plan);
        }
        plan
    }

    /// Adds what only some runs have: fast legs, more disks, channels, mirrored buckets,
    /// zones and faults of the index. `extents` are the size and number of the extents.
    fn add_extras(
        &mut self,
        variant: Option<Variant>,
        all_zoned: bool,
        (extent_bytes, extents): (u64, u64),
        rng: &mut Rng,
        several: &mut Rng,
    ) {
        let fault_class = self.fault_class;
        let paired = variant.map_or_else(|| rng.one_in(2), Variant::is_of_pairs) && !all_zoned;
        if paired {
            self.add_fast_leg(0, rng);
        }
        if variant.map_or_else(|| several.one_in(3), Variant::is_of_pools) && !all_zoned {
            self.spread(several, extent_bytes, variant.is_some());
            // Keys that move between damaged media prove nothing.
            let damaging = matches!(fault_class, FaultClass::Rot | FaultClass::Misplaced | FaultClass::LyingFlush);
            if !damaging && variant.map_or_else(|| several.one_in(3), Variant::is_of_moves) {
                self.change_disks(several, extent_bytes);
            }
        }
        let mut channels_rng = several.fork();
        let damaging = matches!(fault_class, FaultClass::Rot | FaultClass::Misplaced | FaultClass::LyingFlush);
        if !damaging && variant.map_or_else(|| channels_rng.one_in(4), Variant::is_of_channels) {
            self.channels = Some(ChannelPlan::new(&mut channels_rng));
        }
        if !damaging && variant.map_or_else(|| channels_rng.one_in(4), |variant| variant == Variant::EventsTrimmed) {
            // An event of an asynchronous change may arrive although the change is lost later.
            self.buckets[0] = Durability::Sync;
            self.store.mirrored = Arc::new([Mirrored { bucket: FIRST.into(), prefix: String::new() }]);
            self.store.events_max = *channels_rng.pick(&[3, 50, 1000]);
        }
        // Decided last, so that the plans of other runs do not depend on zones.
        let zoned = variant.map_or_else(|| rng.one_in(4), Variant::is_of_zones) || all_zoned;
        if zoned && !paired && self.disks.len() == 1 && fault_class != FaultClass::Full {
            self.cut_into_zones(rng, extent_bytes, extents);
        }
        let mut hardships = several.fork();
        let mut memory = several.fork();
        if variant.is_none() && memory.one_in(4) {
            self.spare_memory(&mut memory);
        }
        if !damaging && variant.map_or_else(|| hardships.one_in(6), Variant::is_of_indexes) {
            self.add_index_faults(&mut hardships);
        }
        let mut archived = several.fork();
        let fit = fault_class == FaultClass::None && self.moves.is_none();
        let fit = fit && self.disks.iter().all(|disk| disk.fast.is_none() && disk.zones.is_none());
        if fit && variant.map_or_else(|| archived.one_in(2), Variant::is_of_archives) {
            self.follow(&mut archived);
        }
        let alone =
            fault_class == FaultClass::None && !paired && self.disks.len() == 1 && self.disks[0].zones.is_none();
        let alone = alone && self.archive.is_none() && self.channels.is_none() && self.store.mirrored.is_empty();
        if alone && variant.map_or_else(|| hardships.one_in(2), |variant| variant == Variant::LateFlush) {
            self.never_pause(&mut hardships);
        } else if alone && variant.is_none() && hardships.one_in(2) {
            self.use_once();
        }
    }

    /// Adds an archive, and lives that begin with a restore from it.
    fn follow(&mut self, rng: &mut Rng) {
        self.archive = Some(ArchivePlan::new(rng));
        let more: Vec<_> = self.lives.iter().take(2).cloned().collect();
        self.lives.extend(more);
        for (number, life) in self.lives.iter_mut().enumerate() {
            life.disks.iter_mut().for_each(|fate| (fate.missing, fate.dies) = (false, None));
            life.from_archive = number > 0 && rng.one_in(2);
            life.restored &= !life.from_archive;
        }
    }

    /// Gives each disk memory for a few reads, so that tasks that hold a part of it while they wait
    /// for more meet each other.
    fn spare_memory(&mut self, rng: &mut Rng) {
        let bytes = *rng.pick(&[1, 2, 4, 16, 64]) * BLOCK;
        for disk in &mut self.disks {
            disk.profile.read_pool_bytes = bytes;
            if let Some(fast) = &mut disk.fast {
                fast.disk.read_pool_bytes = bytes;
            }
        }
    }

    /// Adds the faults of the only disk.
    fn add_faults(&mut self, rng: &mut Rng) {
        let disk = &mut self.disks[0];
        disk.faults = rng.range(1, 4);
        match self.fault_class {
            FaultClass::None | FaultClass::Full | FaultClass::Death => {}
            FaultClass::ReadErrors => {
                disk.rates.read_eio = 30_000;
                disk.faults = rng.range(1, 12);
            }
            FaultClass::WriteErrors => {
                disk.rates.write_eio = if rng.one_in(2) { 8_000 } else { 0 };
                disk.rates.flush_eio = if disk.rates.write_eio == 0 || rng.one_in(2) { 15_000 } else { 0 };
                disk.faults = rng.range(1, 2);
            }
            FaultClass::Rot => {
                for life in &mut self.lives {
                    life.disks[0].flips = rng.below(3);
                }
            }
            FaultClass::Misplaced => {
                disk.rates.lost_write = if rng.one_in(2) { 10_000 } else { 0 };
                disk.rates.misdirected_write = if disk.rates.lost_write == 0 { 10_000 } else { 0 };
            }
            FaultClass::LyingFlush => {
                disk.rates.lying_flush = 100_000;
                disk.faults = rng.range(1, 40);
            }
        }
    }
}

/// Draws the class of faults.
fn fault_class_of(variant: Option<Variant>, rng: &mut Rng) -> FaultClass {
    match (variant, rng.below(100)) {
        // A broken variant must be caught without any other fault.
        (Some(_), _) | (None, 0..=59) => FaultClass::None,
        (None, 60..=66) => FaultClass::ReadErrors,
        (None, 67..=76) => FaultClass::WriteErrors,
        (None, 77..=83) => FaultClass::Full,
        (None, 84..=90) => FaultClass::Rot,
        (None, 91..=95) => FaultClass::Misplaced,
        (None, _) => FaultClass::LyingFlush,
    }
}

/// Draws the lives and their ends.
fn lives_of(rng: &mut Rng, tombstones: bool, churn: bool) -> Vec<Life> {
    (0..if tombstones { 6 } else { rng.range(2, 4) })
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
            restored: false,
            from_archive: false,
            index_faults: IndexFaults::default(),
            disks: vec![DiskLife::CALM],
        })
        .collect()
}

/// Draws the properties of the first disk.
fn first_disk(rng: &mut Rng, fault_class: FaultClass, growable: bool, capacity_bytes: u64) -> DiskPlan {
    DiskPlan {
        capacity_bytes,
        rates: FaultRates::default(),
        faults: 0,
        squeezed: fault_class == FaultClass::Full,
        profile: DiskProfile {
            growable,
            prefill_pays: growable && rng.one_in(2),
            flush_us: *rng.pick(&[50, 500, 5_000]),
            io_us: *rng.pick(&[10, 80, 400]),
            lazy: rng.one_in(2),
            steady: false,
            pool_bytes: 24 << 20,
            read_pool_bytes: 24 << 20,
            sabotage: crate::disk::DiskSabotage::default(),
        },
        fast: None,
        zones: None,
    }
}

/// Draws the settings of the store.
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
        // Its assertions hold whatever happens.
        followed: true,
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
        // Smaller than most channels, so that reads come from memory and from the log.
        channel_tail_bytes: 8 * KIB,
        ..StoreOptions::default()
    }
}
