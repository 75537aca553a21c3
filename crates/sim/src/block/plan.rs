//! What a seed decides for a run: the legs, the settings, and the faults in and between the lives
//! of the process.

use std::time::Duration;

use steadfast_disk::{SuperdiskOptions, SuperdiskSabotage};

use super::variants;
use crate::disk::{DiskProfile, DiskSabotage};
use crate::rng::Rng;

pub(crate) const MIB: u64 = 1 << 20;
/// Bytes of the fast leg before its data.
const FAST_START: u64 = 16 * MIB;

/// The fate of the fast leg before a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LegFate {
    /// No change.
    Kept,
    /// The leg is missing in this life.
    Missing,
    /// A blank leg takes its place.
    Blank,
    /// The leg has the content of an earlier time.
    Older,
    /// The leg is truncated.
    Smaller,
}

/// A fault of a leg while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LegFault {
    /// Requests of the fast leg fail for a while, at these rates per mille: reads, writes, flushes.
    FastErrors { lasts: Duration, per_mille: [u64; 3] },
    /// The fast leg hangs for a while.
    FastHangs { lasts: Duration },
    /// Some requests of the fast leg are slow for a while, by up to `max`.
    FastSticks { lasts: Duration, per_mille: u64, max: Duration },
    /// The fast leg is absent for a while, and returns with the same content or an older image.
    FastVanishes { lasts: Duration, older: bool },
    /// The durable leg's next flush fails.
    DurableFlush,
    /// The durable leg's next write fails.
    DurableWrite,
}

/// One life of the process.
#[derive(Debug, Clone)]
pub(crate) struct BlockLife {
    pub(crate) fast: LegFate,
    /// Whether the durable leg is restored to an image before the life.
    pub(crate) restored: bool,
    pub(crate) faults: Vec<(Duration, LegFault)>,
    /// Times at which images of the legs are taken.
    pub(crate) fast_images: Vec<Duration>,
    pub(crate) durable_images: Vec<Duration>,
    pub(crate) clients: u64,
    pub(crate) requests_each: u64,
    pub(crate) pause_max: Duration,
    /// Whether the life first reads everything, and whether it does so last.
    pub(crate) reads_first: bool,
    pub(crate) reads_last: bool,
    /// Steps after which the life is ended, unless the clients finish earlier.
    pub(crate) steps_max: Option<u64>,
    /// Whether the pair is closed cleanly.
    pub(crate) closed: bool,
    /// Whether each leg loses its power at the end.
    pub(crate) durable_cut: bool,
    pub(crate) fast_cut: bool,
}

/// Probabilities of faults and fates, per mille of the lives.
#[derive(Debug, Clone)]
pub(crate) struct Odds {
    pub(crate) missing: u64,
    pub(crate) blank: u64,
    pub(crate) older: u64,
    pub(crate) smaller: u64,
    pub(crate) restored: u64,
    pub(crate) fast_errors: u64,
    pub(crate) fast_hangs: u64,
    pub(crate) fast_sticks: u64,
    pub(crate) fast_vanishes: u64,
    pub(crate) durable_errors: u64,
    pub(crate) images: u64,
    pub(crate) closed: u64,
    pub(crate) durable_cut: u64,
    pub(crate) fast_cut: u64,
    /// A read of both legs after the life, and then of the durable leg alone.
    pub(crate) compared: u64,
    pub(crate) lives: (u64, u64),
    pub(crate) requests: (u64, u64),
}

impl Odds {
    pub(crate) const USUAL: Self = Self {
        missing: 120,
        blank: 60,
        older: 120,
        smaller: 30,
        restored: 120,
        fast_errors: 150,
        fast_hangs: 80,
        fast_sticks: 120,
        fast_vanishes: 150,
        durable_errors: 80,
        images: 500,
        closed: 250,
        durable_cut: 400,
        fast_cut: 400,
        compared: 200,
        lives: (2, 6),
        requests: (5, 60),
    };
}

/// The layout of the fast leg's bytes on its devices: chunks, round-robin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FastLayout {
    pub(crate) devices: u64,
    pub(crate) chunk_bytes: u64,
}

impl FastLayout {
    /// Which device holds the byte at `offset`.
    pub(crate) fn device_of(self, offset: u64) -> u64 {
        offset / self.chunk_bytes % self.devices
    }

    /// The offsets of each device's two labels.
    pub(crate) fn label_places(self) -> Vec<[u64; 2]> {
        let first = |device| device * self.chunk_bytes;
        (0..self.devices).map(|device| [first(device), first(device) + self.chunk_bytes / 2]).collect()
    }
}

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct BlockPlan {
    pub(crate) durable_bytes: u64,
    pub(crate) fast_bytes: u64,
    pub(crate) smaller_bytes: u64,
    pub(crate) layout: FastLayout,
    /// Number of blocks that the clients use, from 1 MiB on, and number of the hot ones among them.
    pub(crate) blocks: usize,
    pub(crate) hot: usize,
    pub(crate) durable: DiskProfile,
    pub(crate) fast: DiskProfile,
    pub(crate) options: SuperdiskOptions,
    /// Request mix per mille: writes, writes with flush, flushes, discards; the rest are reads.
    pub(crate) mix: [u64; 4],
    pub(crate) lives: Vec<BlockLife>,
}

fn profile(rng: &mut Rng, io_us: &[u64], flush_us: &[u64]) -> DiskProfile {
    DiskProfile {
        growable: false,
        prefill_pays: false,
        flush_us: *rng.pick(flush_us),
        io_us: *rng.pick(io_us),
        lazy: rng.one_in(3),
        steady: rng.one_in(3),
        pool_bytes: MIB as usize,
        read_pool_bytes: MIB as usize,
        sabotage: DiskSabotage::default(),
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn options(rng: &mut Rng, region: u64, sabotage: SuperdiskSabotage) -> SuperdiskOptions {
    SuperdiskOptions {
        fast_pending_bytes_max: *rng.pick(&[0, 16 << 10, MIB, 16 * MIB, 16 * MIB]),
        fast_write_limit: ms(*rng.pick(&[30, 200, 2000])),
        fast_read_limit: ms(*rng.pick(&[30, 200, 2000])),
        fast_errors_max: *rng.pick(&[1, 2, 64]),
        fast_retry_interval: ms(*rng.pick(&[3, 30, 300])),
        fast_open_limit: ms(*rng.pick(&[300, 2000])),
        hedge_min: ms(*rng.pick(&[1, 5])),
        hedge_max: ms(*rng.pick(&[5, 50])),
        rebuild_bytes_s: *rng.pick(&[0, 4 * MIB, 100 * MIB]),
        rebuild_settle: ms(*rng.pick(&[0, 5, 100])),
        region_bytes: region,
        dirty_bytes_max: *rng.pick(&[0, 0, 4 * region, 1 << 40]),
        take_foreign_fast: rng.one_in(2),
        sabotage,
        ..SuperdiskOptions::default()
    }
}

impl BlockPlan {
    pub(crate) fn new(rng: &mut Rng, sabotage: SuperdiskSabotage) -> Self {
        let mut odds = Odds::USUAL;
        variants::set_odds(sabotage, &mut odds);
        let region = *rng.pick(&[16 << 10, 32 << 10, 64 << 10]);
        let blocks = rng.range(8, 48);
        let durable_bytes = *rng.pick(&[3 * MIB / 2, 2 * MIB, 4 * MIB]);
        let smaller_bytes = FAST_START + MIB + rng.range(0, blocks) * 4096;
        let mut plan = Self {
            durable_bytes,
            fast_bytes: if rng.one_in(10) { smaller_bytes } else { FAST_START + durable_bytes },
            smaller_bytes,
            layout: FastLayout { devices: *rng.pick(&[1, 1, 2, 3]), chunk_bytes: *rng.pick(&[16 << 10, 64 << 10]) },
            blocks: blocks as usize,
            hot: rng.range(1, 5) as usize,
            durable: profile(rng, &[50, 200, 1000], &[100, 1000, 5000]),
            fast: profile(rng, &[20, 50, 300], &[20, 200, 2000]),
            options: options(rng, region, sabotage),
            mix: [rng.range(200, 500), rng.range(0, 100), rng.range(0, 120), *rng.pick(&[0, 20, 80])],
            lives: Vec::new(),
        };
        for _ in 0..rng.range(odds.lives.0, odds.lives.1) {
            plan.lives.push(BlockLife::new(rng, &odds));
            if rng.chance(odds.compared) {
                plan.lives.extend([BlockLife::looks(LegFate::Kept), BlockLife::looks(LegFate::Missing)]);
            }
        }
        plan.lives.extend([
            BlockLife::looks(LegFate::Kept),
            BlockLife::looks(LegFate::Missing),
            BlockLife::looks(LegFate::Kept),
        ]);
        variants::adjust(sabotage, &mut plan);
        plan
    }
}

impl BlockLife {
    /// A life that only reads everything.
    pub(crate) fn looks(fast: LegFate) -> Self {
        Self {
            fast,
            restored: false,
            faults: Vec::new(),
            fast_images: Vec::new(),
            durable_images: Vec::new(),
            clients: 0,
            requests_each: 0,
            pause_max: Duration::ZERO,
            reads_first: true,
            reads_last: false,
            steps_max: None,
            closed: false,
            durable_cut: false,
            fast_cut: false,
        }
    }

    fn new(rng: &mut Rng, odds: &Odds) -> Self {
        let dice = rng.below(1000);
        let mut sum = 0;
        let fates = [
            (odds.missing, LegFate::Missing),
            (odds.blank, LegFate::Blank),
            (odds.older, LegFate::Older),
            (odds.smaller, LegFate::Smaller),
        ];
        let mut fast = LegFate::Kept;
        for (per_mille, fate) in fates {
            if (sum..sum + per_mille).contains(&dice) {
                fast = fate;
            }
            sum += per_mille;
        }
        let images = |rng: &mut Rng| {
            let count = if rng.chance(odds.images) { rng.range(1, 3) } else { 0 };
            (0..count).map(|_| moment(rng)).collect()
        };
        Self {
            fast,
            restored: rng.chance(odds.restored),
            faults: faults(rng, odds),
            fast_images: images(rng),
            durable_images: images(rng),
            clients: rng.range(2, 6),
            requests_each: rng.range(odds.requests.0, odds.requests.1),
            pause_max: ms(*rng.pick(&[1, 20, 200])),
            reads_first: rng.one_in(2),
            reads_last: rng.one_in(2),
            steps_max: (!rng.one_in(3)).then(|| rng.range(200, 6000)),
            closed: rng.chance(odds.closed),
            durable_cut: rng.chance(odds.durable_cut),
            fast_cut: rng.chance(odds.fast_cut),
        }
    }
}

/// A random time in a life.
fn moment(rng: &mut Rng) -> Duration {
    let most = *rng.pick(&[5_000, 50_000, 500_000]);
    Duration::from_micros(rng.below(most))
}

fn faults(rng: &mut Rng, odds: &Odds) -> Vec<(Duration, LegFault)> {
    let mut faults = Vec::new();
    let lasts = |rng: &mut Rng| ms(*rng.pick(&[2, 20, 100, 500]));
    if rng.chance(odds.fast_errors) {
        let per_mille = std::array::from_fn(|_| *rng.pick(&[0, 100, 1000]));
        faults.push((moment(rng), LegFault::FastErrors { lasts: lasts(rng), per_mille }));
    }
    if rng.chance(odds.fast_hangs) {
        faults.push((moment(rng), LegFault::FastHangs { lasts: lasts(rng) }));
    }
    if rng.chance(odds.fast_sticks) {
        let (per_mille, max) = (*rng.pick(&[10, 100, 300]), ms(*rng.pick(&[10, 100, 500])));
        faults.push((moment(rng), LegFault::FastSticks { lasts: lasts(rng), per_mille, max }));
    }
    if rng.chance(odds.fast_vanishes) {
        for _ in 0..rng.range(1, 2) {
            let lasts = lasts(rng);
            faults.push((moment(rng), LegFault::FastVanishes { lasts, older: rng.one_in(2) }));
        }
    }
    if rng.chance(odds.durable_errors) {
        let which = if rng.one_in(2) { LegFault::DurableFlush } else { LegFault::DurableWrite };
        faults.push((moment(rng), which));
    }
    faults
}
