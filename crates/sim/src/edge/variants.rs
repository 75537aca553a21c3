//! Broken edges that test the simulator: it must catch each.

use std::time::Duration;

use steadfast_edge::{FillMode, Fresh, Retention, Sabotage};

use super::plan::{EdgeOdds, EdgePlan, OriginRates};

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeVariant(Sabotage);

use Sabotage as S;

const NAMES: [(&str, S); 16] = [
    ("commit-without-condition", S::CommitWithoutCondition),
    ("commit-checks-first", S::CommitChecksFirst),
    ("detached-joined", S::DetachedJoined),
    ("late-missing-remembered", S::LateMissingRemembered),
    ("reader-takes-next", S::ReaderTakesNext),
    ("tags-not-compared", S::TagsNotCompared),
    ("weak-tags-join", S::WeakTagsJoin),
    ("left-over-believed", S::LeftOverBelieved),
    ("close-is-end", S::CloseIsEnd),
    ("purge-not-durable", S::PurgeNotDurable),
    ("purge-without-flush", S::PurgeWithoutFlush),
    ("purge-ignores-fills", S::PurgeIgnoresFills),
    ("age-from-end", S::AgeFromEnd),
    ("head-beside-fill", S::HeadBesideFill),
    ("no-timeout", S::NoTimeout),
    ("no-sweep", S::NoSweep),
];

impl EdgeVariant {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, sabotage)| Self(*sabotage))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, sabotage)| *sabotage == self.0).map_or("", |(name, _)| name)
    }

    /// The variant with this name.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, sabotage)| Self(*sabotage))
    }

    pub(crate) fn sabotage(self) -> Sabotage {
        self.0
    }
}

/// Sets the probabilities of the faults that expose the variant.
pub(crate) fn set_odds(sabotage: Sabotage, odds: &mut EdgeOdds) {
    match sabotage {
        S::CommitWithoutCondition
        | S::CommitChecksFirst
        | S::DetachedJoined
        | S::LateMissingRemembered
        | S::PurgeIgnoresFills => (odds.purge_after_change, odds.late, odds.slow) = (800, 900, 900),
        S::TagsNotCompared | S::LeftOverBelieved | S::ReaderTakesNext | S::NoSweep => odds.all_strong = 1000,
        // Versions must change within a second.
        S::WeakTagsJoin => (odds.all_strong, odds.slow) = (0, 1000),
        S::PurgeNotDurable | S::PurgeWithoutFlush => {
            (odds.cut_after_purge, odds.outage, odds.purge_after_change) = (1000, 800, 800);
            (odds.cut, odds.lives) = (0, (12, 16));
        }
        S::AgeFromEnd => odds.slow = 1000,
        S::HeadBesideFill => (odds.all_strong, odds.slow, odds.purge_after_change) = (1000, 1000, 0),
        S::CloseIsEnd => (odds.faults, odds.all_strong) = (900, 0),
        _ => {}
    }
}

/// Adjusts the settings so that the variant shows.
pub(crate) fn adjust(sabotage: Sabotage, plan: &mut EdgePlan) {
    match sabotage {
        // The stale object is served while the origin fails.
        S::PurgeNotDurable | S::PurgeWithoutFlush => {
            plan.bucket.stale_if_error = Duration::from_secs(300);
            plan.async_window = Duration::from_millis(50);
            plan.keys = 1;
            (plan.bounds.waiting, plan.bounds.passed) = (1024, 64);
            if sabotage == S::PurgeWithoutFlush {
                remove_and_purge(plan);
            }
        }
        // The window is that of the last writes.
        S::CommitChecksFirst => {
            (plan.disk.io_us, plan.disk.flush_us, plan.bucket.fresh) = (5_000, 5_000, Fresh::Forever);
            plan.lives.iter_mut().for_each(|life| life.changes.1 = Duration::from_millis(50));
        }
        S::TagsNotCompared | S::WeakTagsJoin => {
            plan.ignores_if_match = true;
            plan.lives.iter_mut().for_each(|life| life.changes.1 = Duration::from_millis(200));
        }
        S::HeadBesideFill => {
            (plan.keys, plan.bucket.fresh) = (1, Fresh::Forever);
            for life in &mut plan.lives {
                (life.purges, life.changes.1) = (0, Duration::from_millis(500));
            }
        }
        S::NoSweep => {
            (plan.swept, plan.bucket.fill, plan.bucket.retention) = (true, FillMode::Wanted, Retention::default());
            plan.lives.iter_mut().for_each(|life| life.purges = 0);
        }
        S::LateMissingRemembered => plan.bucket.negative = Duration::from_secs(10),
        S::LeftOverBelieved => plan.bucket.fill = FillMode::Wanted,
        _ => {}
    }
}

/// The origin deletes objects, clients notice it, and a purge follows at once. In each second life
/// the origin is not reachable.
fn remove_and_purge(plan: &mut EdgePlan) {
    (plan.purge_after_change, plan.bucket.fresh) = (300, Fresh::Origin);
    for (at, life) in plan.lives.iter_mut().enumerate() {
        life.outage = Duration::from_secs(if at % 2 == 1 { 10 } else { 0 });
        (life.pause_max, life.changes) = (Duration::from_millis(5), (25, Duration::from_millis(50)));
        (life.requests_each, life.gap, life.rates) = (60, Duration::ZERO, OriginRates::default());
    }
}
