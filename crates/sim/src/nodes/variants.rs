//! Broken clusters that test the simulator: it must catch each.

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

const NAMES: [(&str, Defect); 20] = [
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
    plan.channels.iter_mut().for_each(|channel| *channel = (Keeps::Both, channel.1.max(10), 3_600_000));
    plan.weights = Weights { breaks: 1, blocks: 1, lags: 0, stalls: 0, homes: 6, fronts: 0 };
    (plan.operators, plan.calm, plan.async_window) = (1, Duration::from_secs(2), Duration::from_secs(1));
}

/// Adjusts the settings so that the variant shows, and adds its defect.
pub(crate) fn adjust(variant: NodesVariant, plan: &mut NodesPlan, rng: &mut Rng) {
    match variant.0 {
        Cluster(C::TailOverEpoch | C::NoResetOnEpoch | C::OffsetOnly | C::OldAnswers)
        | Session(SessionSabotage::KeptOverReset)
        | Store(S::OffsetReused) => epochs(plan),
        Cluster(C::WatchNumberIgnored) => {
            plan.weights = Weights { breaks: 0, blocks: 0, lags: 1, stalls: 0, homes: 0, fronts: 0 };
            (plan.operators, plan.calm, plan.lag_s) = (2, Duration::from_secs(2), rng.range(12, 16));
            (plan.clients, plan.stay, plan.pause) = (2, Duration::from_secs(1), Duration::from_secs(14));
        }
        Cluster(C::FrameDropped) => {
            plan.weights = Weights { breaks: 0, blocks: 2, lags: 0, stalls: 2, homes: 0, fronts: 0 };
            (plan.outbox_bytes, plan.body_bytes, plan.operators) = (16 << 10, 3000, 2);
            plan.window_bytes = 1 << 10;
        }
        Cluster(C::KeyAtFront) => plan.keyed = 1000,
        Cluster(C::NoLastPosition | C::MissingIgnored | C::BreakUnnoticed | C::ReadBeforeWatch | C::AheadRefused) => {
            plan.operators = plan.operators.max(1);
            plan.weights.breaks = plan.weights.breaks.max(4);
        }
        Store(S::PublishBeforeFlush) => plan.weights.homes = 6,
        _ => {}
    }
    plan.operators = plan.operators.max(1);
    match variant.0 {
        Cluster(defect) => plan.cluster = defect,
        Store(defect) => plan.store = defect,
        Session(defect) => plan.session = defect,
    }
}
