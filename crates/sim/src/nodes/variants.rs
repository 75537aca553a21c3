//! Broken clusters that test the simulator: it must catch each.
//!
//! Not among them, because they are harmless with fixed homes:
//!
//! - A home that adds a list of members to those that it knows: the list names the leaves, too.
//! - An older link that replaces a newer one: it closes that one, and the next link sends a list.
//! - Acknowledgements without a lease: a home has no successor.

use std::time::Duration;

use steadfast_cluster::ClusterSabotage as C;
use steadfast_store::StoreSabotage as S;

use super::plan::{Keeps, NodesPlan, Weights};
use crate::rng::Rng;

/// Defects of the sessions above the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SessionSabotage {
    /// No defect.
    #[default]
    None,
    /// A session gets publications only when its request is answered.
    JoinsLate,
    /// A session that subscribes continues over a reset.
    KeptOverReset,
}

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodesVariant(Defect);

/// The layer with the defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    Cluster(C),
    Store(S),
    Session(SessionSabotage),
}

use Defect::{Cluster, Session, Store};

const NAMES: [(&str, Defect); 26] = [
    ("read-before-watch", Cluster(C::ReadBeforeWatch)),
    ("watch-number-ignored", Cluster(C::WatchNumberIgnored)),
    ("no-last-position", Cluster(C::NoLastPosition)),
    ("tail-over-epoch", Cluster(C::TailOverEpoch)),
    ("no-reset-on-epoch", Cluster(C::NoResetOnEpoch)),
    ("early-dropped", Cluster(C::EarlyDropped)),
    ("unwatch-lost", Cluster(C::UnwatchLost)),
    ("offset-only", Cluster(C::OffsetOnly)),
    ("kept-not-filtered", Cluster(C::KeptNotFiltered)),
    ("old-answers", Cluster(C::OldAnswers)),
    ("ahead-refused", Cluster(C::AheadRefused)),
    ("missing-ignored", Cluster(C::MissingIgnored)),
    ("break-unnoticed", Cluster(C::BreakUnnoticed)),
    ("frame-dropped", Cluster(C::FrameDropped)),
    ("key-at-front", Cluster(C::KeyAtFront)),
    ("keys-forgotten", Cluster(C::KeysForgotten)),
    ("no-snapshot", Cluster(C::NoSnapshot)),
    ("forgotten-leaves", Cluster(C::ForgottenLeaves)),
    ("announced-forever", Cluster(C::AnnouncedForever)),
    ("early-members-forgotten", Cluster(C::EarlyMembersForgotten)),
    ("pool-unchecked", Cluster(C::PoolUnchecked)),
    ("publish-before-flush", Store(S::PublishBeforeFlush)),
    ("fan-out-order", Store(S::FanOutOrder)),
    ("offset-reused", Store(S::OffsetReused)),
    ("joins-late", Session(SessionSabotage::JoinsLate)),
    ("kept-over-reset", Session(SessionSabotage::KeptOverReset)),
];

impl NodesVariant {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, defect)| Self(*defect))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, defect)| *defect == self.0).map_or("", |(name, _)| name)
    }

    /// The variant with this name.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, defect)| Self(*defect))
    }
}

/// Home restarts only, in channels with asynchronous publications: epochs change.
fn epochs(plan: &mut NodesPlan) {
    plan.shape.channels.iter_mut().for_each(|channel| *channel = (Keeps::Async, channel.1.max(10), 3_600_000));
    plan.faults.weights = Weights { breaks: 1, blocks: 1, lags: 0, stalls: 0, homes: 6, fronts: 0 };
    (plan.faults.operators, plan.faults.calm, plan.shape.async_window) =
        (1, Duration::from_secs(2), Duration::from_secs(1));
}

/// Clients often return, and only the home has what they lack, on a slow network.
fn asks_home(plan: &mut NodesPlan, size: u64, pause: Duration) {
    plan.shape.channels = vec![(Keeps::Async, size, 3_600_000)];
    (plan.shape.latency_us, plan.shape.tail_bytes) = (200_000, 0);
    (plan.users.clients, plan.users.stay, plan.users.pause) = (6, pause, pause);
    plan.users.clears = false;
}

/// Few clients, each of which is a member, and links that are often down.
fn members(plan: &mut NodesPlan) {
    plan.shape.members = plan.shape.channels.len();
    plan.faults.weights = Weights { breaks: 1, blocks: 4, lags: 0, stalls: 0, homes: 1, fronts: 0 };
    (plan.faults.operators, plan.faults.calm) = (3, Duration::from_secs(2));
    (plan.users.clients, plan.users.publishers, plan.users.pause) = (2, 1, Duration::from_secs(2));
    (plan.users.stay, plan.lasts) = (Duration::from_secs(15), Duration::from_secs(20));
}

/// Reads from a cold and slow disk take long, and publications are rare.
fn slow_reads(plan: &mut NodesPlan) {
    plan.faults.weights = Weights { breaks: 3, blocks: 0, lags: 0, stalls: 0, homes: 3, fronts: 0 };
    (plan.shape.disk.io_us, plan.shape.disk.steady, plan.rounds) = (20_000, false, 4);
    (plan.faults.operators, plan.faults.calm, plan.users.publishers) = (2, Duration::from_secs(1), 3);
    (plan.users.pause, plan.users.clears) = (Duration::from_millis(300), false);
    plan.shape.channels.iter_mut().for_each(|channel| *channel = (Keeps::Sync, 100, 3_600_000));
}

/// Many rests after publications that fronts read from the disk. The next publication would repair
/// a lost one, so the last one before a rest must be lost.
fn last_publications(plan: &mut NodesPlan) {
    (plan.rounds, plan.lasts, plan.faults.calm) = (10, Duration::from_secs(2), Duration::from_millis(500));
    // Publishers repeat at once what a restart of the home left open.
    (plan.shape.tail_bytes, plan.shape.cold, plan.users.keyed) = (0, true, 1000);
    (plan.faults.weights.breaks, plan.shape.disk.io_us) = (6, 50_000);
    plan.users.stay = plan.users.stay.min(Duration::from_secs(2));
}

/// Adjusts the settings so that the variant shows, and adds its defect.
pub(crate) fn adjust(variant: NodesVariant, plan: &mut NodesPlan, rng: &mut Rng) {
    plan.shape.members = 0;
    match variant.0 {
        Cluster(C::TailOverEpoch | C::NoResetOnEpoch | C::OffsetOnly) | Store(S::OffsetReused) => epochs(plan),
        // Subscriptions wait for a question while publications arrive.
        Session(SessionSabotage::KeptOverReset) => {
            epochs(plan);
            asks_home(plan, 1, Duration::from_millis(300));
            (plan.shape.latency_us, plan.users.publishers) = (20_000, 2);
            (plan.users.stay, plan.shape.homes, plan.shape.nodes) = (Duration::from_millis(50), 1, 2);
            plan.lasts = Duration::from_secs(20);
        }
        // Several clients at one position lack more than the history, and share a question.
        Cluster(C::OldAnswers) => {
            plan.faults.weights = Weights { breaks: 0, blocks: 0, lags: 0, stalls: 0, homes: 1, fronts: 0 };
            (plan.faults.operators, plan.faults.calm) = (1, Duration::from_secs(1));
            (plan.shape.homes, plan.shape.nodes, plan.shape.disk.io_us) = (1, 2, 20_000);
            asks_home(plan, 1000, Duration::from_secs(1));
            (plan.shape.latency_us, plan.users.publishers, plan.users.body_bytes) = (1000, 6, 3000);
            (plan.rounds, plan.lasts) = (8, Duration::from_secs(5));
        }
        Cluster(C::WatchNumberIgnored) => {
            plan.faults.weights = Weights { breaks: 0, blocks: 0, lags: 1, stalls: 0, homes: 0, fronts: 0 };
            (plan.faults.operators, plan.faults.calm, plan.faults.lag_s) =
                (2, Duration::from_secs(2), rng.range(12, 16));
            (plan.users.clients, plan.users.stay, plan.users.pause) =
                (2, Duration::from_secs(1), Duration::from_secs(14));
        }
        Cluster(C::FrameDropped) => {
            plan.faults.weights = Weights { breaks: 0, blocks: 2, lags: 0, stalls: 2, homes: 0, fronts: 0 };
            (plan.shape.outbox_bytes, plan.users.body_bytes, plan.faults.operators) = (16 << 10, 3000, 2);
            plan.shape.window_bytes = 1 << 10;
        }
        Cluster(C::EarlyDropped | C::KeptNotFiltered) => {
            slow_reads(plan);
            if variant.0 == Cluster(C::EarlyDropped) {
                last_publications(plan);
            }
        }
        Cluster(C::PoolUnchecked) => {
            (plan.shape.homes, plan.shape.nodes, plan.rounds, plan.swaps) = (2, 3, 4, true);
        }
        Cluster(C::KeyAtFront) => plan.users.keyed = 1000,
        Cluster(C::KeysForgotten) => {
            (plan.users.keyed, plan.users.publishers, plan.faults.weights.homes) = (1000, 3, 6);
        }
        Cluster(C::NoLastPosition | C::MissingIgnored | C::BreakUnnoticed | C::ReadBeforeWatch | C::AheadRefused) => {
            plan.faults.operators = plan.faults.operators.max(1);
            plan.faults.weights.breaks = plan.faults.weights.breaks.max(4);
        }
        Cluster(C::NoSnapshot | C::ForgottenLeaves) => members(plan),
        Cluster(C::EarlyMembersForgotten) => {
            members(plan);
            plan.faults.weights.homes = 6;
        }
        Cluster(C::AnnouncedForever) => {
            members(plan);
            plan.faults.weights = Weights { breaks: 0, blocks: 1, lags: 0, stalls: 0, homes: 0, fronts: 0 };
            (plan.faults.operators, plan.faults.calm) = (3, Duration::from_millis(500));
            (plan.shape.homes, plan.shape.nodes) = (1, 2);
        }
        Store(S::PublishBeforeFlush) => plan.faults.weights.homes = 6,
        _ => {}
    }
    plan.faults.operators = plan.faults.operators.max(1);
    match variant.0 {
        Cluster(defect) => plan.defects.cluster = defect,
        Store(defect) => plan.defects.store = defect,
        Session(defect) => plan.defects.session = defect,
    }
}
