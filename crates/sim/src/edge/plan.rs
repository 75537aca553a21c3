//! What a seed decides for a run: the disk, the bucket, the origin's faults, the clients, and the
//! lives.

use std::time::Duration;

use steadfast_edge::{EdgeBounds, EdgeBucket, FillMode, Fresh, OriginAddress, Retention, Sabotage};
use steadfast_net::Addresses;

use super::variants;
use crate::disk::{DiskProfile, DiskSabotage};
use crate::rng::Rng;

pub(crate) const BUCKET: &str = "media";
const MIB: u64 = 1 << 20;

/// Rates of the origin's faults, per mille of its answers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OriginRates {
    pub(crate) status: u64,
    pub(crate) unreachable: u64,
    pub(crate) hangs: u64,
    pub(crate) truncates: u64,
    pub(crate) other_range: u64,
    pub(crate) other_total: u64,
    pub(crate) ignores_range: u64,
    /// Answers that come late, some of them from a state that is long past.
    pub(crate) late: u64,
    /// Bodies that come slowly.
    pub(crate) slow: u64,
}

/// Probabilities, per mille.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EdgeOdds {
    /// Each of the rates of a life is above 0.
    pub(crate) faults: u64,
    /// A life begins with an origin that is not reachable.
    pub(crate) outage: u64,
    /// A life ends in a power cut at any step.
    pub(crate) cut: u64,
    /// A life ends in a power cut just after a purge.
    pub(crate) cut_after_purge: u64,
    /// A change at the origin is followed by a purge of the key.
    pub(crate) purge_after_change: u64,
    /// All keys have strong tags.
    pub(crate) all_strong: u64,
    pub(crate) late: u64,
    pub(crate) slow: u64,
    pub(crate) lives: (u64, u64),
}

impl EdgeOdds {
    pub(crate) const USUAL: Self = Self {
        faults: 350,
        outage: 250,
        cut: 600,
        cut_after_purge: 200,
        purge_after_change: 300,
        all_strong: 250,
        late: 500,
        slow: 500,
        lives: (1, 4),
    };
}

/// How a life ends, unless the power is cut earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EdgeEnd {
    Cut,
    Killed,
    Closed,
}

/// One life of the process.
#[derive(Debug, Clone)]
pub(crate) struct EdgeLife {
    pub(crate) rates: OriginRates,
    /// How long the origin is not reachable at first.
    pub(crate) outage: Duration,
    /// Steps after which the power is cut, unless the clients finish earlier.
    pub(crate) steps_max: Option<u64>,
    pub(crate) cut_after_purge: bool,
    pub(crate) end: EdgeEnd,
    /// How long no process runs afterwards.
    pub(crate) gap: Duration,
    pub(crate) clients: u64,
    pub(crate) requests_each: u64,
    pub(crate) pause_max: Duration,
    /// Changes at the origin, and the longest pause before one.
    pub(crate) changes: (u64, Duration),
    pub(crate) purges: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct EdgePlan {
    pub(crate) disk: DiskProfile,
    pub(crate) disk_bytes: u64,
    pub(crate) async_window: Duration,
    pub(crate) bucket: EdgeBucket,
    pub(crate) bounds: EdgeBounds,
    pub(crate) keys: u64,
    pub(crate) all_strong: bool,
    /// Whether the origin ignores `If-Match`, whatever the key.
    pub(crate) ignores_if_match: bool,
    pub(crate) purge_after_change: u64,
    /// Whether the run ends with a wait for the sweep.
    pub(crate) swept: bool,
    pub(crate) lives: Vec<EdgeLife>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn bucket(rng: &mut Rng) -> EdgeBucket {
    EdgeBucket {
        bucket: BUCKET.into(),
        origin: OriginAddress::Http { url: "http://127.0.0.1".into(), headers: Vec::new() },
        addresses: Addresses::Any,
        fill: *rng.pick(&[FillMode::Whole, FillMode::Wanted]),
        segment_bytes: 10_000,
        object_bytes_max: *rng.pick(&[1 << 20, 1 << 20, 40_000]),
        retention: Retention {
            space_bytes: *rng.pick(&[0, 0, 40_000, 120_000]),
            age: *rng.pick(&[None, None, Some(ms(500)), Some(secs(10))]),
        },
        fresh: match rng.below(8) {
            0 => Fresh::Forever,
            1..=3 => Fresh::Fallback(secs(*rng.pick(&[1, 10]))),
            _ => Fresh::Origin,
        },
        stale_if_error: secs(*rng.pick(&[0, 0, 5, 300])),
        negative: secs(*rng.pick(&[0, 1, 10])),
        timeout: secs(*rng.pick(&[1, 5])),
    }
}

impl OriginRates {
    fn new(rng: &mut Rng, odds: &EdgeOdds) -> Self {
        let mut rate = |chance, most| if rng.chance(chance) { rng.range(10, most) } else { 0 };
        Self {
            status: rate(odds.faults, 300),
            unreachable: rate(odds.faults, 300),
            hangs: rate(odds.faults, 100),
            truncates: rate(odds.faults, 300),
            other_range: rate(odds.faults, 100),
            other_total: rate(odds.faults, 100),
            ignores_range: rate(odds.faults, 200),
            late: rate(odds.late, 400),
            slow: rate(odds.slow, 500),
        }
    }
}

impl EdgeLife {
    fn new(rng: &mut Rng, odds: &EdgeOdds) -> Self {
        Self {
            rates: OriginRates::new(rng, odds),
            outage: if rng.chance(odds.outage) { secs(rng.range(1, 30)) } else { Duration::ZERO },
            steps_max: rng.chance(odds.cut).then(|| rng.range(200, 12_000)),
            cut_after_purge: rng.chance(odds.cut_after_purge),
            end: *rng.pick(&[EdgeEnd::Cut, EdgeEnd::Cut, EdgeEnd::Killed, EdgeEnd::Closed]),
            gap: ms(*rng.pick(&[0, 100, 3_000, 20_000])),
            clients: rng.range(1, 5),
            requests_each: rng.range(5, 30),
            pause_max: ms(*rng.pick(&[5, 200, 2_000])),
            changes: (rng.range(0, 25), ms(*rng.pick(&[50, 500, 3_000]))),
            purges: rng.range(0, 12),
        }
    }
}

impl EdgePlan {
    pub(crate) fn new(rng: &mut Rng, sabotage: Sabotage) -> Self {
        let mut odds = EdgeOdds::USUAL;
        variants::set_odds(sabotage, &mut odds);
        let bounds = EdgeBounds {
            fills: *rng.pick(&[2, 64]),
            origin_connections: *rng.pick(&[1, 4, 32]),
            memory_bytes: *rng.pick(&[20_000, 1 << 20]),
            sabotage,
            last_use_bytes: 64 << 10,
            waiting: *rng.pick(&[2, 1024]),
            passed: *rng.pick(&[1, 4, 64]),
            // All requests are of one client.
            client_share_percent: 100,
        };
        let disk = DiskProfile {
            growable: false,
            prefill_pays: false,
            flush_us: *rng.pick(&[50, 1000, 5000]),
            io_us: *rng.pick(&[20, 200]),
            lazy: rng.one_in(3),
            steady: rng.one_in(3),
            pool_bytes: 4 << 20,
            read_pool_bytes: 4 << 20,
            sabotage: DiskSabotage::default(),
        };
        let mut plan = Self {
            disk,
            disk_bytes: 33 * MIB,
            async_window: ms(*rng.pick(&[1, 10, 50])),
            bucket: bucket(rng),
            bounds,
            keys: rng.range(1, 4),
            all_strong: rng.chance(odds.all_strong),
            ignores_if_match: false,
            purge_after_change: odds.purge_after_change,
            swept: rng.one_in(4),
            lives: Vec::new(),
        };
        for _ in 0..rng.range(odds.lives.0, odds.lives.1) {
            plan.lives.push(EdgeLife::new(rng, &odds));
        }
        variants::adjust(sabotage, &mut plan);
        plan
    }
}
