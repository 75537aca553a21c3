//! The periods of an archive whose states can be restored.

use std::time::Duration;

use crate::head::{Period, SegmentRun};
use crate::name::{Numbered, ObjectName};

/// The periods whose states can be restored. Each begins with a base.
#[derive(Debug, Default)]
pub(crate) struct Periods {
    /// Those that have ended, the oldest first.
    before: Vec<Period>,
    /// The newest one, with the segments that it had when it was read. `None`: there is no base.
    newest: Option<Period>,
}

impl Periods {
    pub(crate) fn new(before: Vec<Period>, newest: Period) -> Self {
        Self { before, newest: Some(newest) }
    }

    /// Those that have ended, the oldest first.
    pub(crate) fn before(&self) -> &[Period] {
        &self.before
    }

    /// When the oldest state was taken that can be restored.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        self.before.first().or(self.newest.as_ref()).map(|oldest| oldest.begin_ms)
    }

    /// When its newest base was taken.
    pub(crate) fn newest_ms(&self) -> Option<u64> {
        self.newest.as_ref().map(|newest| newest.begin_ms)
    }

    /// Ends the newest period, which has these segments.
    pub(crate) fn end(&mut self, segments: Vec<SegmentRun>) -> Option<&Period> {
        let ended = self.newest.take()?;
        self.before.push(Period { segments, ..ended });
        self.before.last()
    }

    /// Begins a period, and drops those that ended longer ago than `retention`. Returns the bases
    /// that followed them: their lists of dropped objects have what only those periods named.
    pub(crate) fn begin(&mut self, base: Numbered, begin_ms: u64, retention: Duration) -> Vec<Numbered> {
        assert!(self.newest.is_none(), "the period before has ended");
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let newest = Period { base, begin_ms, segments: Vec::new() };
        let follows = |at: usize| self.before.get(at).unwrap_or(&newest);
        let is_over = |at: &usize| follows(at + 1).begin_ms.saturating_add(retention_ms) < begin_ms;
        let over = (0..self.before.len()).take_while(is_over).count();
        let expired = (0..over).map(|at| follows(at + 1).base).collect();
        self.before.drain(..over);
        self.newest = Some(newest);
        expired
    }

    /// The documents of these periods, but for the lists of what no period here names.
    pub(crate) fn documents(&self) -> impl Iterator<Item = ObjectName> {
        let manifests =
            self.before.iter().chain(&self.newest).flat_map(|of| {
                SegmentRun::all(&of.segments).map(ObjectName::Segment).chain([ObjectName::Base(of.base)])
            });
        manifests.chain(self.lists().map(ObjectName::Dropped))
    }

    /// The bases whose lists of dropped objects have what a period here names.
    pub(crate) fn lists(&self) -> impl Iterator<Item = Numbered> {
        self.before.iter().chain(&self.newest).skip(1).map(|of| of.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_can_be_restored_until_its_end_is_too_old() {
        let by = |n| Numbered { tenure: 1, n };
        let mut periods = Periods::default();
        assert!(periods.end(Vec::new()).is_none() && periods.oldest_ms().is_none());
        let mut expired = Vec::new();
        for (n, begin_ms) in [(1, 0), (2, 1000), (3, 2000), (4, 9000), (5, 12_001)] {
            expired.push(periods.begin(by(n), begin_ms, Duration::from_secs(10)));
            if n < 5 {
                periods.end(vec![SegmentRun { first: by(n * 10), count: 2 }]);
            }
        }
        // The second period was the newest until 2,000 ms: at 12,000 ms it was still needed.
        assert_eq!(expired, [vec![], vec![], vec![], vec![], vec![by(2), by(3)]]);
        assert_eq!(periods.before().iter().map(|of| of.base).collect::<Vec<_>>(), [by(3), by(4)]);
        assert_eq!(periods.oldest_ms(), Some(2000));
        assert_eq!(periods.lists().collect::<Vec<_>>(), [by(4), by(5)]);
        let documents: Vec<_> = periods.documents().collect();
        let segments = [by(30), by(31), by(40), by(41)].map(ObjectName::Segment);
        assert!(segments.iter().all(|of| documents.contains(of)) && documents.len() == 9, "{documents:?}");
    }
}
