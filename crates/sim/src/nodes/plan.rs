//! What a seed decides for a run: the nodes, the channels, the network, and the faults.

use std::time::Duration;

use steadfast_cluster::{ClusterSabotage, HistoryBounds};
use steadfast_store::StoreSabotage;

use super::variants::{self, NodesVariant, SessionSabotage};
use crate::disk::{DiskProfile, DiskSabotage};
use crate::rng::Rng;

/// How a channel stores its publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// It has no history.
    Nothing,
    /// Each publication is durable before its answer.
    Sync,
    /// Some publications are answered before they are durable.
    Both,
    /// All publications are answered before they are durable.
    Async,
}

/// A channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChannelRule {
    pub(crate) home: usize,
    pub(crate) keeps: Keeps,
    pub(crate) size: u64,
    pub(crate) ttl_ms: u64,
    /// Its subscribers are members.
    pub(crate) members: bool,
}

impl ChannelRule {
    /// What the channel keeps.
    pub(crate) fn bounds(&self) -> Option<HistoryBounds> {
        (self.keeps != Keeps::Nothing).then_some(HistoryBounds { size: self.size, ttl_ms: self.ttl_ms })
    }
}

/// Probabilities of the faults, as weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weights {
    /// Connections break.
    pub(crate) breaks: u64,
    /// One direction is blocked.
    pub(crate) blocks: u64,
    /// The delay of one direction rises.
    pub(crate) lags: u64,
    /// A node stops reading its links.
    pub(crate) stalls: u64,
    /// A home restarts.
    pub(crate) homes: u64,
    /// A node that is no home restarts.
    pub(crate) fronts: u64,
}

/// The nodes, their channels, and the network.
#[derive(Debug, Clone)]
pub(crate) struct ClusterShape {
    pub(crate) homes: usize,
    pub(crate) nodes: usize,
    pub(crate) disk: DiskProfile,
    pub(crate) disk_bytes: u64,
    pub(crate) async_window: Duration,
    pub(crate) outbox_bytes: u64,
    pub(crate) tail_bytes: u64,
    /// Homes keep no publications in memory: they read them from the disk.
    pub(crate) cold: bool,
    pub(crate) window_bytes: usize,
    pub(crate) latency_us: u64,
    /// Kind, size and time to live of each channel. Its home follows from the roster.
    pub(crate) channels: Vec<(Keeps, u64, u64)>,
    /// Channels whose subscribers are members: those with a number below it.
    pub(crate) members: usize,
}

/// The clients and publishers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserPlan {
    pub(crate) clients: u64,
    pub(crate) publishers: u64,
    /// Longest pause of a publisher, and of a client between two subscriptions.
    pub(crate) pause: Duration,
    /// Longest time that a client stays.
    pub(crate) stay: Duration,
    pub(crate) body_bytes: u64,
    pub(crate) clears: bool,
    /// Share of publications with a key, per mille.
    pub(crate) keyed: u64,
}

/// The faults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodesFaults {
    pub(crate) operators: u64,
    /// Longest pause of an operator between two faults.
    pub(crate) calm: Duration,
    pub(crate) weights: Weights,
    /// Longest delay that a lag reaches.
    pub(crate) lag_s: u64,
}

/// The deliberate defects.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defects {
    pub(crate) cluster: ClusterSabotage,
    pub(crate) store: StoreSabotage,
    pub(crate) session: SessionSabotage,
}

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct NodesPlan {
    pub(crate) shape: ClusterShape,
    pub(crate) users: UserPlan,
    pub(crate) faults: NodesFaults,
    /// Two homes get each other's disks between the rounds.
    pub(crate) swaps: bool,
    /// How often the cluster is busy, and comes to its rest.
    pub(crate) rounds: u64,
    /// How long the cluster is busy each time.
    pub(crate) lasts: Duration,
    pub(crate) defects: Defects,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl NodesPlan {
    pub(crate) fn new(rng: &mut Rng, variant: Option<NodesVariant>) -> Self {
        let disk = DiskProfile {
            growable: false,
            prefill_pays: false,
            flush_us: *rng.pick(&[50, 1000, 20_000]),
            io_us: *rng.pick(&[20, 200, 2000]),
            lazy: rng.one_in(3),
            steady: rng.one_in(3),
            pool_bytes: 4 << 20,
            read_pool_bytes: 4 << 20,
            sabotage: DiskSabotage::default(),
        };
        let homes = rng.range(1, 2) as usize;
        let mut weight = |most| if rng.one_in(3) { 0 } else { rng.range(1, most) };
        let weights = Weights {
            breaks: weight(6),
            blocks: weight(4),
            lags: weight(2),
            stalls: weight(3),
            homes: weight(4),
            fronts: weight(2),
        };
        let async_too = rng.one_in(2);
        let mut channel = || {
            let keeps = match rng.below(6) {
                0 => Keeps::Nothing,
                1 | 2 if async_too => Keeps::Both,
                3 if async_too => Keeps::Async,
                _ => Keeps::Sync,
            };
            (keeps, *rng.pick(&[1, 3, 10, 100, 1000]), *rng.pick(&[3_600_000, 3_600_000, 3_600_000, 5_000]))
        };
        let channels = (0..4).map(|_| channel()).collect::<Vec<_>>();
        let shape = ClusterShape {
            homes,
            nodes: homes + rng.range(1, 3) as usize,
            disk,
            disk_bytes: 129 << 20,
            async_window: ms(*rng.pick(&[1, 50, 1000])),
            outbox_bytes: *rng.pick(&[16 << 10, 64 << 10, 4 << 20]),
            tail_bytes: *rng.pick(&[0, 2000, 64 << 10]),
            window_bytes: *rng.pick(&[1 << 10, 64 << 10]),
            latency_us: *rng.pick(&[50, 1000, 20_000, 200_000]),
            channels: channels[..rng.range(1, 4) as usize].to_vec(),
            members: 0,
            cold: false,
        };
        let users = UserPlan {
            clients: rng.range(2, 6),
            publishers: rng.range(1, 3),
            pause: ms(*rng.pick(&[20, 300, 2000])),
            stay: ms(*rng.pick(&[100, 2000, 15_000])),
            body_bytes: *rng.pick(&[20, 200, 3000]),
            clears: rng.one_in(4),
            keyed: *rng.pick(&[0, 300, 1000]),
        };
        let (operators, calm) = (rng.range(0, 3), ms(*rng.pick(&[200, 2000, 6000])));
        let faults = NodesFaults { operators, calm, weights, lag_s: rng.range(1, 14) };
        let mut plan = Self {
            shape,
            users,
            faults,
            swaps: homes > 1 && variant.is_none(),
            rounds: rng.range(1, 4),
            lasts: Duration::from_secs(*rng.pick(&[2, 5, 10, 20])),
            defects: Defects::default(),
        };
        plan.shape.members = rng.below(4) as usize;
        plan.shape.cold = plan.shape.tail_bytes == 0 && variant.is_none();
        if let Some(variant) = variant {
            variants::adjust(variant, &mut plan, rng);
        }
        plan
    }
}
