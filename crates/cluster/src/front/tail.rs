//! The newest publications of a channel in the memory of a front.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfast_store::{History, HistoryQuery, Position, Publication};

/// Maximum number of publications of a channel.
pub(super) const TAIL_MAX: usize = 256;

/// Maximum bytes of publications of a channel.
pub(super) const TAIL_BYTES_MAX: usize = 256 << 10;

/// Overhead of a publication in memory, bytes, about.
const EACH_BYTES: usize = 128;

pub(super) fn bytes_of(publication: &Publication) -> usize {
    EACH_BYTES + publication.body.len()
}

/// What a channel keeps, from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Number of publications.
    pub size: u64,
    /// Time that a publication is kept, milliseconds.
    pub ttl_ms: u64,
}

/// The newest publications, in order and without a gap, up to the position of the channel.
#[derive(Default)]
pub(super) struct Tail {
    publications: VecDeque<Arc<Publication>>,
    bytes: usize,
}

impl Tail {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds the publication after the newest one.
    pub(super) fn push(&mut self, publication: Arc<Publication>, bounds: HistoryBounds) {
        self.bytes += bytes_of(&publication);
        self.publications.push_back(publication);
        self.shrink(bounds);
    }

    fn shrink(&mut self, bounds: HistoryBounds) {
        let most = TAIL_MAX.min(usize::try_from(bounds.size).unwrap_or(usize::MAX));
        while self.publications.len() > most || self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.publications.pop_front() else { return };
            assert!(self.bytes >= bytes_of(&oldest), "fewer bytes in memory than were counted");
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// The offset of the oldest publication; the next one of the channel if there is none.
    fn begins(&self, top: u64) -> u64 {
        self.publications.front().map_or(top + 1, |oldest| oldest.offset)
    }

    /// Adds publications before the oldest one. `older` is in order, without a gap.
    pub(super) fn extend_back(&mut self, older: &[Arc<Publication>], top: u64, bounds: HistoryBounds) {
        for publication in older.iter().rev() {
            if publication.offset + 1 == self.begins(top) {
                self.bytes += bytes_of(publication);
                self.publications.push_front(publication.clone());
            }
        }
        self.shrink(bounds);
    }

    /// The publications after `offset`, up to the position; `None` if one is not in memory.
    pub(super) fn after(&self, offset: u64, top: u64) -> Option<impl Iterator<Item = &Arc<Publication>>> {
        let begins = self.begins(top);
        (offset <= top && offset + 1 >= begins).then(|| self.publications.iter().skip((offset + 1 - begins) as usize))
    }

    /// Answers a query from memory. `None`: only the home can, because a publication is not in
    /// memory or has expired, or because the position is not of this channel's past.
    pub(super) fn history(
        &self,
        query: &HistoryQuery,
        bytes_max: usize,
        position: Position,
        oldest_ms: u64,
    ) -> Option<History> {
        let since = query.since.filter(|since| !query.reverse && since.epoch == position.epoch)?;
        let mut found: Vec<_> = self.after(since.offset, position.offset)?.cloned().collect();
        if found.iter().any(|publication| publication.time_ms <= oldest_ms) {
            return None;
        }
        let mut bytes = 0;
        let fits = found.iter().take_while(|publication| {
            let first = bytes == 0;
            bytes += publication.body.len();
            first || bytes <= bytes_max
        });
        let most = fits.count().min(query.limit);
        found.truncate(most);
        Some(History { publications: found, position, complete: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: HistoryBounds = HistoryBounds { size: 1000, ttl_ms: 1000 };

    fn publication(offset: u64, bytes: usize) -> Arc<Publication> {
        Arc::new(Publication { offset, time_ms: 100 + offset, body: vec![0; bytes].into() })
    }

    fn tail(offsets: std::ops::RangeInclusive<u64>) -> Tail {
        let mut tail = Tail::default();
        offsets.for_each(|offset| tail.push(publication(offset, 10), BOUNDS));
        tail
    }

    fn since(tail: &Tail, offset: u64, limit: usize, bytes_max: usize, oldest_ms: u64) -> Option<Vec<u64>> {
        let query = HistoryQuery { since: Some(Position { epoch: 1, offset }), limit, reverse: false };
        let history = tail.history(&query, bytes_max, Position { epoch: 1, offset: 9 }, oldest_ms)?;
        assert!(history.complete);
        Some(history.publications.iter().map(|publication| publication.offset).collect())
    }

    #[test]
    fn it_answers_what_it_has_without_a_gap() {
        let tail = tail(5..=9);
        assert_eq!(since(&tail, 4, 10, 1000, 0), Some(vec![5, 6, 7, 8, 9]));
        assert_eq!(since(&tail, 9, 10, 1000, 0), Some(vec![]));
        assert_eq!(since(&tail, 3, 10, 1000, 0), None, "4 is not in memory");
        assert_eq!(since(&tail, 10, 10, 1000, 0), None, "ahead of the channel");
        assert_eq!(since(&tail, 4, 2, 1000, 0), Some(vec![5, 6]));
        assert_eq!(since(&tail, 4, 10, 25, 0), Some(vec![5, 6]));
        assert_eq!(since(&tail, 4, 10, 5, 0), Some(vec![5]), "at least one");
        assert_eq!(since(&tail, 4, 10, 1000, 105), None, "5 has expired");
        assert_eq!(since(&tail, 5, 10, 1000, 105), Some(vec![6, 7, 8, 9]));
        let other = HistoryQuery { since: Some(Position { epoch: 2, offset: 9 }), limit: 1, reverse: false };
        assert!(tail.history(&other, 10, Position { epoch: 1, offset: 9 }, 0).is_none());
        let reverse = HistoryQuery { since: None, limit: 1, reverse: true };
        assert!(tail.history(&reverse, 10, Position { epoch: 1, offset: 9 }, 0).is_none());
    }

    #[test]
    fn an_empty_tail_knows_that_nothing_follows_the_position() {
        assert_eq!(since(&Tail::default(), 9, 10, 10, 0), Some(vec![]));
        assert_eq!(since(&Tail::default(), 8, 10, 10, 0), None);
    }

    #[test]
    fn it_is_bounded_and_grows_backwards_without_a_gap() {
        let mut tail = tail(1..=TAIL_MAX as u64 + 5);
        assert_eq!((tail.publications.len(), tail.begins(0)), (TAIL_MAX, 6));
        assert_eq!(tail.bytes(), TAIL_MAX * (EACH_BYTES + 10));
        let small = HistoryBounds { size: 3, ttl_ms: 1000 };
        tail.push(publication(TAIL_MAX as u64 + 6, 10), small);
        assert_eq!(tail.publications.len(), 3);
        let mut tail = Tail::default();
        tail.extend_back(&[publication(3, 1), publication(4, 1)], 5, BOUNDS);
        assert_eq!(tail.begins(5), 6, "5 is missing");
        tail.extend_back(&[publication(3, 1), publication(4, 1), publication(5, 1), publication(6, 1)], 5, BOUNDS);
        assert_eq!((tail.begins(5), tail.publications.len()), (3, 3));
        tail.push(publication(6, TAIL_BYTES_MAX - EACH_BYTES), BOUNDS);
        assert_eq!((tail.publications.len(), tail.bytes()), (1, TAIL_BYTES_MAX));
    }
}
