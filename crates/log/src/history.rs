//! Histories of a log. They keep state derived from one history from being applied to another.
//!
//! A pool that is restored from a copy and then written to reuses LSNs and epochs of the abandoned
//! history. So each opening of the log draws a random number. The headers of extents that it takes
//! into use name it, with the openings before it: see [`Lineage`]. A position in the log is an LSN
//! together with the number of the opening that committed it.

use std::collections::HashMap;

use crate::Lsn;
use crate::format::{Lineage, Opening};

/// The lineage in an extent's header.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExtentLineage {
    pub(crate) epoch: u64,
    pub(crate) in_use: bool,
    pub(crate) lineage: Lineage,
}

/// The history of a log, as far as its extents record it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Newest first.
    known: Vec<Opening>,
    recycled_lsn: Lsn,
    /// Set if no extent records a lineage: no build with histories has opened the pool yet.
    unrecorded: bool,
}

impl History {
    pub(crate) fn new(extents: &[ExtentLineage], recycled_lsn: Lsn) -> Self {
        let recorded = || extents.iter().filter(|t| t.lineage.0[0].id != 0);
        let unknown = Self { known: Vec::new(), recycled_lsn, unrecorded: recorded().next().is_none() };
        let Some(newest) = recorded().max_by_key(|t| t.epoch) else { return unknown };
        let last_epoch = recorded().map(|t| t.epoch).max().unwrap_or(0);
        if extents.iter().any(|t| t.in_use && t.epoch > last_epoch) {
            // A build without histories has written to the pool.
            return unknown;
        }
        let mut before: HashMap<u64, Opening> = HashMap::new();
        for t in recorded() {
            let openings: Vec<Opening> = t.lineage.openings().collect();
            before.extend(openings.windows(2).map(|pair| (pair[0].id, pair[1])));
        }
        let mut known = vec![newest.lineage.0[0]];
        while let Some(last) = known.last()
            && let Some(next) = before.get(&last.id).filter(|next| next.after < last.after)
        {
            known.push(*next);
        }
        Self { known, recycled_lsn, unrecorded: false }
    }

    /// The opening that wrote to the pool last; 0 if unknown.
    pub fn newest(&self) -> u64 {
        self.known.first().map_or(0, |opening| opening.id)
    }

    /// Checks that state derived from all records up to `lsn`, which the opening `of` committed,
    /// continues in this history.
    ///
    /// # Errors
    /// The reason if it does not.
    pub fn check_continues(&self, lsn: Lsn, of: u64) -> Result<(), &'static str> {
        if lsn < self.recycled_lsn {
            return Err("it is older than the oldest change that the pool still has");
        }
        if of == 0 && self.unrecorded {
            // Both are older than histories. The index knows which records the log has lost, so it
            // is kept. This opening records a history from now on.
            return Ok(());
        }
        let Some(at) = self.known.iter().position(|opening| of != 0 && opening.id == of) else {
            return Err("it does not belong to a known history of the pool");
        };
        let ended = at.checked_sub(1).is_some_and(|next| lsn > self.known[next].after);
        if ended || lsn <= self.known[at].after {
            return Err("it belongs to another history of the pool, abandoned when the pool was restored from a copy");
        }
        Ok(())
    }

    /// The lineage of new headers when the log continues after `last`, the start of any copying.
    /// `drawn` are two random numbers.
    pub(crate) fn begin(&self, drawn: [u64; 2], last: Lsn) -> Lineage {
        let mut openings = vec![Opening { id: drawn[0] | 1, after: last }];
        openings.extend(self.known.iter().filter(|opening| opening.after < last));
        if openings.len() == 1 && last > 0 {
            // Stands for all commits of builds without histories.
            openings.push(Opening { id: drawn[1] | 1, after: 0 });
        }
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(openings).for_each(|(slot, opening)| *slot = opening);
        lineage
    }

    /// The lineage in the headers so far.
    pub(crate) fn lineage(&self) -> Lineage {
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(&self.known).for_each(|(slot, opening)| *slot = *opening);
        lineage
    }
}

/// The opening that committed the record `lsn`; 0 if unknown.
pub(crate) fn committed_by(lineage: &Lineage, lsn: Lsn) -> u64 {
    lineage.openings().find(|opening| opening.after < lsn).map_or(0, |opening| opening.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(epoch: u64, openings: &[(u64, Lsn)]) -> ExtentLineage {
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(openings).for_each(|(slot, &(id, after))| *slot = Opening { id, after });
        ExtentLineage { epoch, in_use: true, lineage }
    }

    #[test]
    fn a_position_is_identified_by_its_opening() {
        let history = History::new(
            &[
                extent(1, &[(1, 0)]),
                extent(2, &[(3, 100), (1, 0)]),
                extent(7, &[(9, 900), (7, 500), (5, 200)]),
                extent(5, &[(5, 200), (3, 100), (1, 0)]),
            ],
            60,
        );
        assert_eq!(history.check_continues(70, 1), Ok(()));
        assert_eq!(history.check_continues(100, 1), Ok(()));
        assert!(history.check_continues(101, 1).is_err(), "it continued elsewhere");
        assert!(history.check_continues(50, 1).is_err(), "recycled since");
        assert!(history.check_continues(300, 4).is_err(), "never heard of");
        assert!(history.check_continues(300, 0).is_err(), "says nothing");
        assert!(history.check_continues(150, 5).is_err(), "before it began");
        assert_eq!(history.check_continues(5000, 9), Ok(()), "how far the last one came is not known here");
        let next = history.begin([20, 22], 950);
        assert_eq!(next.0.map(|o| (o.id, o.after)), [(21, 950), (9, 900), (7, 500)]);
        assert_eq!((committed_by(&next, 951), committed_by(&next, 950), committed_by(&next, 3)), (21, 9, 0));
        // Opening 9 continued from 900. Records from 880 on may not have been durable and are
        // rewritten, so 9 has none of its own.
        let again = history.begin([20, 22], 880);
        assert_eq!(again.0.map(|o| (o.id, o.after)), [(21, 880), (7, 500), (5, 200)]);
        let later = History::new(
            &[extent(7, &[(9, 900), (7, 500), (5, 200)]), extent(8, &[(21, 880), (7, 500), (5, 200)])],
            60,
        );
        assert_eq!(later.check_continues(890, 21), Ok(()), "the newest is that with the highest epoch");
        assert!(later.check_continues(890, 7).is_err(), "it lies elsewhere now");
        let idle = history.begin([20, 22], 900);
        assert_eq!(idle.0.map(|o| (o.id, o.after)), [(21, 900), (7, 500), (5, 200)], "9 has committed nothing");
    }

    #[test]
    fn what_older_builds_wrote_has_no_history_but_gets_one() {
        let old = History::new(&[extent(3, &[])], 0);
        assert_eq!(old.check_continues(10, 0), Ok(()), "as it was before");
        assert!(old.check_continues(10, 7).is_err(), "the pool was put back to a time before histories");
        let lineage = old.begin([4, 6], 10);
        assert_eq!(lineage.openings().map(|o| (o.id, o.after)).collect::<Vec<_>>(), [(5, 10), (7, 0)]);
        assert_eq!(committed_by(&lineage, 10), 7);
        // A history is not trusted if a build without histories wrote in between.
        let between = History::new(&[extent(3, &[(5, 10), (7, 0)]), extent(4, &[])], 0);
        assert!(between.check_continues(10, 7).is_err());
        assert!(between.check_continues(10, 0).is_err(), "an index of such a build, beside a pool that has a history");
    }
}
