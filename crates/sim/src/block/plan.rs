//! What a seed decides of a run: the legs, the settings, and what happens in and between the lives of the process.

use std::time::Duration;

use steadfast_disk::{SuperdiskOptions, SuperdiskSabotage};

use super::variants;
use crate::disk::{DiskProfile, DiskSabotage};
use crate::rng::Rng;

pub(crate) const MIB: u64 = 1 << 20;
/// What the fast leg has in front of its data.
const FAST_START: u64 = 16 * MIB;

/// What becomes of the fast leg before a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing.
    Kept,
    /// It is not there in this life.
    Missing,
    /// A blank one is in its place.
    Blank,
    /// It is as it was at an earlier time.
    Older,
    /// Its end has been cut off.
    Smaller,
}

/// What happens to a leg while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The fast leg's requests fail for a while, so many in 1,000 of each kind: reads, writes, flushes.
    FastErrors { lasts: Duration, per_mille: [u64; 3] },
    /// The fast leg does nothing for a while.
    FastHangs { lasts: Duration },
    /// Some of the fast leg's requests take up to so long, for a while.
    FastSticks { lasts: Duration, per_mille: u64, max: Duration },
    /// The fast leg is away for a while, and comes back as it was or as an older image.
    FastVanishes { lasts: Duration, older: bool },
    /// The durable leg's next flush fails.
    DurableFlush,
    /// The durable leg's next write fails.
    DurableWrite,
}

/// One life of the process.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) fast: Fate,
    /// The durable leg is put back to an image before it.
    pub(crate) restored: bool,
    pub(crate) troubles: Vec<(Duration, Trouble)>,
    /// When images of the legs are taken.
    pub(crate) fast_images: Vec<Duration>,
    pub(crate) durable_images: Vec<Duration>,
    pub(crate) clients: u64,
    pub(crate) requests_each: u64,
    pub(crate) pause_max: Duration,
    /// Everything is read first, and last.
    pub(crate) reads_first: bool,
    pub(crate) reads_last: bool,
    /// Ended after so many steps, if the clients have not finished before.
    pub(crate) steps_max: Option<u64>,
    /// The pair is closed in order.
    pub(crate) closed: bool,
    /// Which legs lose their power at the end.
    pub(crate) durable_cut: bool,
    pub(crate) fast_cut: bool,
}

/// How likely things are, in 1/1,000 of the lives; of pauses, of the requests.
#[derive(Debug, Clone)]
pub(crate) struct Likely {
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
    /// After a life both legs are read, and then the durable leg alone.
    pub(crate) compared: u64,
    pub(crate) lives: (u64, u64),
    pub(crate) requests: (u64, u64),
}

impl Likely {
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

/// How the fast leg's bytes lie on its devices: chunk by chunk in turn.
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

    /// Where each device has its two labels.
    pub(crate) fn label_places(self) -> Vec<[u64; 2]> {
        let first = |device| device * self.chunk_bytes;
        (0..self.devices).map(|device| [first(device), first(device) + self.chunk_bytes / 2]).collect()
    }
}

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) durable_bytes: u64,
    pub(crate) fast_bytes: u64,
    pub(crate) smaller_bytes: u64,
    pub(crate) layout: FastLayout,
    /// Blocks that the clients use, from 1 MiB on, and those of them that they use most.
    pub(crate) blocks: usize,
    pub(crate) hot: usize,
    pub(crate) durable: DiskProfile,
    pub(crate) fast: DiskProfile,
    pub(crate) options: SuperdiskOptions,
    /// How often requests are what, in 1,000: writes, writes with flush, flushes, discards; the others are reads.
    pub(crate) mix: [u64; 4],
    pub(crate) lives: Vec<Life>,
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

impl Plan {
    pub(crate) fn new(rng: &mut Rng, sabotage: SuperdiskSabotage) -> Self {
        let mut likely = Likely::USUAL;
        variants::likely(sabotage, &mut likely);
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
        for _ in 0..rng.range(likely.lives.0, likely.lives.1) {
            plan.lives.push(Life::new(rng, &likely));
            if rng.chance(likely.compared) {
                plan.lives.extend([Life::looks(Fate::Kept), Life::looks(Fate::Missing)]);
            }
        }
        plan.lives.extend([Life::looks(Fate::Kept), Life::looks(Fate::Missing), Life::looks(Fate::Kept)]);
        variants::adjust(sabotage, &mut plan);
        plan
    }
}

impl Life {
    /// A life in which everything is read and nothing else happens.
    pub(crate) fn looks(fast: Fate) -> Self {
        Self {
            fast,
            restored: false,
            troubles: Vec::new(),
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

    fn new(rng: &mut Rng, likely: &Likely) -> Self {
        let dice = rng.below(1000);
        let mut sum = 0;
        let fates = [
            (likely.missing, Fate::Missing),
            (likely.blank, Fate::Blank),
            (likely.older, Fate::Older),
            (likely.smaller, Fate::Smaller),
        ];
        let mut fast = Fate::Kept;
        for (per_mille, fate) in fates {
            if (sum..sum + per_mille).contains(&dice) {
                fast = fate;
            }
            sum += per_mille;
        }
        let images = |rng: &mut Rng| {
            let count = if rng.chance(likely.images) { rng.range(1, 3) } else { 0 };
            (0..count).map(|_| moment(rng)).collect()
        };
        Self {
            fast,
            restored: rng.chance(likely.restored),
            troubles: troubles(rng, likely),
            fast_images: images(rng),
            durable_images: images(rng),
            clients: rng.range(2, 6),
            requests_each: rng.range(likely.requests.0, likely.requests.1),
            pause_max: ms(*rng.pick(&[1, 20, 200])),
            reads_first: rng.one_in(2),
            reads_last: rng.one_in(2),
            steps_max: (!rng.one_in(3)).then(|| rng.range(200, 6000)),
            closed: rng.chance(likely.closed),
            durable_cut: rng.chance(likely.durable_cut),
            fast_cut: rng.chance(likely.fast_cut),
        }
    }
}

/// Some moment of a life.
fn moment(rng: &mut Rng) -> Duration {
    let most = *rng.pick(&[5_000, 50_000, 500_000]);
    Duration::from_micros(rng.below(most))
}

fn troubles(rng: &mut Rng, likely: &Likely) -> Vec<(Duration, Trouble)> {
    let mut troubles = Vec::new();
    let lasts = |rng: &mut Rng| ms(*rng.pick(&[2, 20, 100, 500]));
    if rng.chance(likely.fast_errors) {
        let per_mille = std::array::from_fn(|_| *rng.pick(&[0, 100, 1000]));
        troubles.push((moment(rng), Trouble::FastErrors { lasts: lasts(rng), per_mille }));
    }
    if rng.chance(likely.fast_hangs) {
        troubles.push((moment(rng), Trouble::FastHangs { lasts: lasts(rng) }));
    }
    if rng.chance(likely.fast_sticks) {
        let (per_mille, max) = (*rng.pick(&[10, 100, 300]), ms(*rng.pick(&[10, 100, 500])));
        troubles.push((moment(rng), Trouble::FastSticks { lasts: lasts(rng), per_mille, max }));
    }
    if rng.chance(likely.fast_vanishes) {
        for _ in 0..rng.range(1, 2) {
            let lasts = lasts(rng);
            troubles.push((moment(rng), Trouble::FastVanishes { lasts, older: rng.one_in(2) }));
        }
    }
    if rng.chance(likely.durable_errors) {
        let which = if rng.one_in(2) { Trouble::DurableFlush } else { Trouble::DurableWrite };
        troubles.push((moment(rng), which));
    }
    troubles
}
