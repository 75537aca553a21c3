//! Which history a log has, so that what was derived from another one is not taken for its own.
//!
//! A pool that is restored from a copy and written to uses LSNs, and epochs of extents, again that the abandoned history used, too. So each
//! opening of the log draws a number, and the headers of the extents that it takes into use name it, with the ones before it: see
//! [`Lineage`]. A place in the log is an LSN together with the number of the opening that committed it.

use std::collections::HashMap;

use crate::Lsn;
use crate::format::{Lineage, Opening};

/// What a header says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    pub(crate) epoch: u64,
    pub(crate) in_use: bool,
    pub(crate) lineage: Lineage,
}

/// The history of a log, as far as its extents tell it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Newest first.
    known: Vec<Opening>,
    recycled_lsn: Lsn,
    /// No extent says anything: no build has opened the pool yet that knows of histories.
    silent: bool,
}

impl History {
    pub(crate) fn new(told: &[Told], recycled_lsn: Lsn) -> Self {
        let tell = || told.iter().filter(|t| t.lineage.0[0].id != 0);
        let unknown = Self { known: Vec::new(), recycled_lsn, silent: tell().next().is_none() };
        let Some(newest) = tell().max_by_key(|t| t.epoch) else { return unknown };
        let last_epoch = tell().map(|t| t.epoch).max().unwrap_or(0);
        if told.iter().any(|t| t.in_use && t.epoch > last_epoch) {
            // Written to by a build that says nothing of it.
            return unknown;
        }
        let mut before: HashMap<u64, Opening> = HashMap::new();
        for t in tell() {
            let openings: Vec<Opening> = t.lineage.openings().collect();
            before.extend(openings.windows(2).map(|pair| (pair[0].id, pair[1])));
        }
        let mut known = vec![newest.lineage.0[0]];
        while let Some(last) = known.last()
            && let Some(next) = before.get(&last.id).filter(|next| next.after < last.after)
        {
            known.push(*next);
        }
        Self { known, recycled_lsn, silent: false }
    }

    /// The opening that wrote to the pool last; 0 when that is not known.
    pub fn newest(&self) -> u64 {
        self.known.first().map_or(0, |opening| opening.id)
    }

    /// Whether what was derived from all records up to `lsn`, which the opening `of` has committed, can go on from there.
    ///
    /// # Errors
    /// Why not.
    pub fn goes_on(&self, lsn: Lsn, of: u64) -> Result<(), &'static str> {
        if lsn < self.recycled_lsn {
            return Err("it is older than what the pool still knows the changes of");
        }
        if of == 0 && self.silent {
            // Both are from before histories were told apart. What the index knows is the witness of what the log has lost, so it is
            // not given up for that; this opening tells its history from now on.
            return Ok(());
        }
        let Some(at) = self.known.iter().position(|opening| of != 0 && opening.id == of) else {
            return Err("it is not known to be of this history of the pool");
        };
        let ended = at.checked_sub(1).is_some_and(|next| lsn > self.known[next].after);
        if ended || lsn <= self.known[at].after {
            return Err(
                "it is of another history of the pool, which was abandoned when the pool was restored from a copy",
            );
        }
        Ok(())
    }

    /// What the headers say from now on, when the log goes on behind `last`, from where on it is copied if it is; with two numbers drawn at
    /// random.
    pub(crate) fn begin(&self, drawn: [u64; 2], last: Lsn) -> Lineage {
        let mut openings = vec![Opening { id: drawn[0] | 1, after: last }];
        openings.extend(self.known.iter().filter(|opening| opening.after < last));
        if openings.len() == 1 && last > 0 {
            // All that was committed by builds that said nothing of it.
            openings.push(Opening { id: drawn[1] | 1, after: 0 });
        }
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(openings).for_each(|(slot, opening)| *slot = opening);
        lineage
    }

    /// What they said until now.
    pub(crate) fn lineage(&self) -> Lineage {
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(&self.known).for_each(|(slot, opening)| *slot = *opening);
        lineage
    }
}

/// The opening that has committed the record `lsn`; 0 when that is not known.
pub(crate) fn committed_by(lineage: &Lineage, lsn: Lsn) -> u64 {
    lineage.openings().find(|opening| opening.after < lsn).map_or(0, |opening| opening.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(epoch: u64, openings: &[(u64, Lsn)]) -> Told {
        let mut lineage = Lineage::default();
        lineage.0.iter_mut().zip(openings).for_each(|(slot, &(id, after))| *slot = Opening { id, after });
        Told { epoch, in_use: true, lineage }
    }

    #[test]
    fn a_place_is_known_by_who_committed_it() {
        let history = History::new(
            &[
                told(1, &[(1, 0)]),
                told(2, &[(3, 100), (1, 0)]),
                told(7, &[(9, 900), (7, 500), (5, 200)]),
                told(5, &[(5, 200), (3, 100), (1, 0)]),
            ],
            60,
        );
        assert_eq!(history.goes_on(70, 1), Ok(()));
        assert_eq!(history.goes_on(100, 1), Ok(()));
        assert!(history.goes_on(101, 1).is_err(), "it went on elsewhere");
        assert!(history.goes_on(50, 1).is_err(), "recycled since");
        assert!(history.goes_on(300, 4).is_err(), "never heard of");
        assert!(history.goes_on(300, 0).is_err(), "says nothing");
        assert!(history.goes_on(150, 5).is_err(), "before it began");
        assert_eq!(history.goes_on(5000, 9), Ok(()), "how far the last one came is not known here");
        let next = history.begin([20, 22], 950);
        assert_eq!(next.0.map(|o| (o.id, o.after)), [(21, 950), (9, 900), (7, 500)]);
        assert_eq!((committed_by(&next, 951), committed_by(&next, 950), committed_by(&next, 3)), (21, 9, 0));
        // 9 went on from 900, and what may not have been durable is written again from 880 on: 9 has nothing to itself.
        let again = history.begin([20, 22], 880);
        assert_eq!(again.0.map(|o| (o.id, o.after)), [(21, 880), (7, 500), (5, 200)]);
        let later =
            History::new(&[told(7, &[(9, 900), (7, 500), (5, 200)]), told(8, &[(21, 880), (7, 500), (5, 200)])], 60);
        assert_eq!(later.goes_on(890, 21), Ok(()), "the newest is that with the highest epoch");
        assert!(later.goes_on(890, 7).is_err(), "it lies elsewhere now");
        let idle = history.begin([20, 22], 900);
        assert_eq!(idle.0.map(|o| (o.id, o.after)), [(21, 900), (7, 500), (5, 200)], "9 has committed nothing");
    }

    #[test]
    fn what_older_builds_wrote_has_no_history_but_gets_one() {
        let old = History::new(&[told(3, &[])], 0);
        assert_eq!(old.goes_on(10, 0), Ok(()), "as it was before");
        assert!(old.goes_on(10, 7).is_err(), "the pool was put back to a time before histories");
        let lineage = old.begin([4, 6], 10);
        assert_eq!(lineage.openings().map(|o| (o.id, o.after)).collect::<Vec<_>>(), [(5, 10), (7, 0)]);
        assert_eq!(committed_by(&lineage, 10), 7);
        // One that was written to by such a build in between is not believed.
        let between = History::new(&[told(3, &[(5, 10), (7, 0)]), told(4, &[])], 0);
        assert!(between.goes_on(10, 7).is_err());
        assert!(between.goes_on(10, 0).is_err(), "an index of such a build, beside a pool that has a history");
    }
}
