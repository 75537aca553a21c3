//! What a front knows about a channel of another node. Decision 0076 has the rules, which were
//! checked exhaustively.

use std::sync::Arc;

use steadfast_flow::has_fault;
use steadfast_store::{History, HistoryQuery, Position, Publication};

use super::tail::{HistoryBounds, Tail, bytes_of};
use crate::error::ChannelError;
use crate::frame::channels::{Watch, Watched};
use crate::sabotage::ClusterSabotage;

/// Publications, and their bytes, that may arrive before the answer to a watch.
const KEPT_MAX: usize = 1024;
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Publications that arrived before the answer to their watch.
#[derive(Default)]
struct Kept {
    publications: Vec<Arc<Publication>>,
    bytes: usize,
}

enum Phase {
    /// The home does not know that this front has subscribers.
    Unwatched,
    /// The home has not answered yet.
    Pending(Kept),
    /// Publications arrive.
    Watched,
}

/// The position of a channel, and whether its home is watched.
pub(super) struct FrontChannel {
    /// The current watch. Frames with another number are dropped.
    number: u64,
    phase: Phase,
    /// What the channel keeps; `None`: it keeps no history.
    bounds: Option<HistoryBounds>,
    /// The front has all publications up to this position. It survives the link.
    known: Option<Position>,
    tail: Tail,
    /// The tail was requested from the home since it was last empty.
    tail_requested: bool,
    /// Why the last watch failed.
    failed: Option<ChannelError>,
    sabotage: ClusterSabotage,
}

/// What a publication from the home is for the sessions.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// They have it, or get it later.
    Nothing,
    /// The next one, in this epoch.
    Deliver(u32),
    /// Publications before it are missing, or too many arrived before the answer: watch again.
    Gap,
}

/// What the answer to a watch is for the sessions, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Catchup {
    /// Sessions with a position begin anew at this one.
    pub(super) reset: Option<Position>,
    /// Publications to deliver.
    pub(super) publications: Vec<Arc<Publication>>,
    /// Their epoch.
    pub(super) epoch: u32,
}

impl FrontChannel {
    pub(super) fn new(bounds: Option<HistoryBounds>) -> Self {
        Self {
            number: 0,
            phase: Phase::Unwatched,
            bounds,
            known: None,
            tail: Tail::default(),
            tail_requested: false,
            failed: None,
            sabotage: ClusterSabotage::None,
        }
    }

    /// The channel of a front that is broken on purpose.
    pub(super) fn sabotaged(self, sabotage: ClusterSabotage) -> Self {
        Self { sabotage, ..self }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_unwatched(&self) -> bool {
        matches!(self.phase, Phase::Unwatched)
    }

    /// The position, if the channel is watched: nothing is missing up to it.
    pub(super) fn current(&self) -> Option<Position> {
        self.known.filter(|_| matches!(self.phase, Phase::Watched))
    }

    /// The last known position, also without a home.
    pub(super) fn known(&self) -> Option<Position> {
        self.known
    }

    pub(super) fn failed(&self) -> Option<ChannelError> {
        self.failed
    }

    pub(super) fn tail_bytes(&self) -> usize {
        self.tail.bytes()
    }

    /// Begins a watch.
    pub(super) fn watch(&mut self, number: u64, channel: &str) -> Watch {
        self.number = number;
        self.phase = Phase::Pending(Kept::default());
        self.failed = None;
        if has_fault(self.sabotage, ClusterSabotage::NoLastPosition) {
            self.known = None;
        }
        Watch {
            number,
            channel: channel.to_owned(),
            history: self.bounds.is_some(),
            last: self.known.filter(|_| self.bounds.is_some()).map(Into::into),
        }
    }

    /// The watch has ended, with its link or by this front.
    pub(super) fn unwatch(&mut self) {
        self.phase = Phase::Unwatched;
        self.number = 0;
    }

    /// The answer to a watch; `None` if it is of an older one.
    pub(super) fn watched(&mut self, answer: Watched) -> Option<Catchup> {
        if answer.number != self.number && !has_fault(self.sabotage, ClusterSabotage::WatchNumberIgnored) {
            return None;
        }
        let Phase::Pending(kept) = std::mem::replace(&mut self.phase, Phase::Unwatched) else { return None };
        if let Some(error) = ChannelError::from_number(answer.error) {
            self.failed = Some(error);
            self.number = 0;
            return Some(Catchup::default());
        }
        // The answer is complete with its last frame.
        let kept = if answer.more {
            self.phase = Phase::Pending(kept);
            Kept::default()
        } else {
            self.phase = Phase::Watched;
            kept
        };
        let position = Position::from(answer.position);
        let missed: Vec<_> = answer.missed.into_iter().map(|one| Arc::new(Publication::from(one))).collect();
        let mut catchup = Catchup { epoch: position.epoch, ..Catchup::default() };
        if self.known.is_some_and(|known| answer.reset || !self.is_continued(known, &missed, position)) {
            let other_epoch = self.known.is_some_and(|known| known.epoch != position.epoch);
            if !has_fault(self.sabotage, ClusterSabotage::TailOverEpoch) || !other_epoch {
                self.clear_tail();
            }
            let silent = has_fault(self.sabotage, ClusterSabotage::NoResetOnEpoch) && other_epoch;
            catchup.reset = Some(position).filter(|_| !silent);
            self.known = Some(position);
        } else {
            // The history may have been removed while this front had no watch.
            self.clear_tail();
            // Without a known position there are no missed publications.
            for publication in missed {
                self.known = Some(Position { epoch: position.epoch, offset: publication.offset });
                self.push(&publication);
                catchup.publications.push(publication);
            }
            self.known = Some(position);
        }
        for publication in kept.publications {
            let any = has_fault(self.sabotage, ClusterSabotage::KeptNotFiltered);
            if any | matches!(self.published(self.number, &publication), Arrival::Deliver(_)) {
                catchup.publications.push(publication);
            }
        }
        Some(catchup)
    }

    /// A publication of the home.
    pub(super) fn published(&mut self, number: u64, publication: &Arc<Publication>) -> Arrival {
        if number != self.number && !has_fault(self.sabotage, ClusterSabotage::WatchNumberIgnored) {
            return Arrival::Nothing;
        }
        match &mut self.phase {
            Phase::Unwatched => return Arrival::Nothing,
            Phase::Pending(_) if has_fault(self.sabotage, ClusterSabotage::EarlyDropped) => return Arrival::Nothing,
            Phase::Pending(kept) => {
                kept.bytes += bytes_of(publication);
                if kept.publications.len() == KEPT_MAX || kept.bytes > KEPT_BYTES_MAX {
                    return Arrival::Gap;
                }
                kept.publications.push(publication.clone());
                return Arrival::Nothing;
            }
            Phase::Watched => {}
        }
        let known = self.known.unwrap_or_default();
        if publication.offset == 0 {
            return Arrival::Deliver(known.epoch);
        }
        if publication.offset <= known.offset {
            return Arrival::Nothing;
        }
        if publication.offset != known.offset + 1 {
            return Arrival::Gap;
        }
        self.known = Some(Position { offset: publication.offset, ..known });
        self.push(publication);
        Arrival::Deliver(known.epoch)
    }

    fn is_continued(&self, from: Position, missed: &[Arc<Publication>], to: Position) -> bool {
        let epoch = if has_fault(self.sabotage, ClusterSabotage::OffsetOnly) { to.epoch } else { from.epoch };
        if has_fault(self.sabotage, ClusterSabotage::MissingIgnored) {
            return from.epoch == to.epoch && from.offset <= to.offset;
        }
        is_continued(Position { epoch, ..from }, missed, to)
    }

    fn push(&mut self, publication: &Arc<Publication>) {
        if let Some(bounds) = self.bounds {
            self.tail.push(publication.clone(), bounds);
        }
    }

    /// Drops the publications in memory.
    pub(super) fn clear_tail(&mut self) {
        self.tail.clear();
        self.tail_requested = false;
    }

    /// Whether to request the tail from the home; only once.
    pub(super) fn requests_tail(&mut self) -> bool {
        !std::mem::replace(&mut self.tail_requested, true)
    }

    /// Adds the newest publications, newest first, to the tail.
    pub(super) fn add_tail(&mut self, newest_first: &History) {
        let (Some(known), Some(bounds)) = (self.known, self.bounds) else { return };
        if newest_first.position.epoch == known.epoch {
            let older: Vec<_> = newest_first.publications.iter().rev().cloned().collect();
            self.tail.extend_back(&older, known.offset, bounds);
        }
    }

    /// Answers a query from memory, if that is possible.
    pub(super) fn history(&self, query: &HistoryQuery, bytes_max: usize, now_ms: u64) -> Option<History> {
        let (known, bounds) = (self.known?, self.bounds?);
        self.tail.history(query, bytes_max, known, now_ms.saturating_sub(bounds.ttl_ms))
    }
}

/// Whether the publications lead from one position to the other without a gap.
fn is_continued(from: Position, publications: &[Arc<Publication>], to: Position) -> bool {
    let offsets = publications.iter().map(|publication| publication.offset);
    from.epoch == to.epoch && from.offset <= to.offset && offsets.eq(from.offset + 1..=to.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::channels::{WirePosition, WirePublication};

    const BOUNDS: HistoryBounds = HistoryBounds { size: 100, ttl_ms: 1_000_000 };

    fn publication(offset: u64) -> Arc<Publication> {
        Arc::new(Publication { offset, time_ms: 5, body: offset.to_string().into() })
    }

    fn answer(number: u64, epoch: u32, offset: u64, reset: bool, missed: std::ops::Range<u64>) -> Watched {
        Watched {
            number,
            position: WirePosition { epoch, offset },
            reset,
            missed: missed.map(|offset| WirePublication::from(&*publication(offset))).collect(),
            more: false,
            error: 0,
        }
    }

    const NONE: std::ops::Range<u64> = 0..0;

    fn offsets(catchup: &Catchup) -> Vec<u64> {
        catchup.publications.iter().map(|publication| publication.offset).collect()
    }

    /// A watched channel at offset 5 of epoch 1.
    fn watched() -> FrontChannel {
        let mut channel = FrontChannel::new(Some(BOUNDS));
        assert_eq!(channel.watch(1, "c").last, None);
        assert_eq!(
            channel.watched(answer(1, 1, 5, false, NONE)).expect("current"),
            Catchup { epoch: 1, ..Catchup::default() }
        );
        channel
    }

    fn since(channel: &FrontChannel, offset: u64) -> Option<usize> {
        let query = HistoryQuery { since: Some(Position { epoch: 1, offset }), limit: 100, reverse: false };
        Some(channel.history(&query, usize::MAX, 10)?.publications.len())
    }

    #[test]
    fn publications_arrive_in_order_and_once() {
        let mut channel = watched();
        assert_eq!(channel.published(1, &publication(6)), Arrival::Deliver(1));
        assert_eq!(channel.published(1, &publication(6)), Arrival::Nothing, "twice");
        assert_eq!(channel.published(1, &publication(8)), Arrival::Gap);
        assert_eq!(channel.published(2, &publication(7)), Arrival::Nothing, "another watch");
        assert_eq!(channel.published(1, &publication(0)), Arrival::Deliver(1), "without history");
        assert_eq!(channel.current(), Some(Position { epoch: 1, offset: 6 }));
        assert_eq!((since(&channel, 5), since(&channel, 6), since(&channel, 4)), (Some(1), Some(0), None));
    }

    #[test]
    fn a_new_watch_continues_after_the_last_position() {
        let mut channel = watched();
        channel.unwatch();
        assert_eq!((channel.current(), channel.known()), (None, Some(Position { epoch: 1, offset: 5 })));
        assert_eq!(channel.watch(2, "c").last, Some(WirePosition { epoch: 1, offset: 5 }));
        assert_eq!(channel.published(1, &publication(6)), Arrival::Nothing, "the old watch");
        assert_eq!(channel.published(2, &publication(7)), Arrival::Nothing, "kept");
        assert_eq!(channel.published(2, &publication(8)), Arrival::Nothing, "kept");
        assert!(channel.watched(answer(1, 1, 6, false, 6..7)).is_none(), "an old answer");
        let catchup = channel.watched(answer(2, 1, 7, false, 6..8)).expect("current");
        assert_eq!((catchup.reset, offsets(&catchup)), (None, vec![6, 7, 8]));
        assert_eq!(channel.current(), Some(Position { epoch: 1, offset: 8 }));
        assert_eq!(since(&channel, 5), Some(3));
    }

    #[test]
    fn an_answer_of_several_pages_is_complete_with_the_last() {
        let mut channel = watched();
        channel.unwatch();
        channel.watch(2, "c");
        let page = Watched { more: true, ..answer(2, 1, 7, false, 6..8) };
        assert_eq!(offsets(&channel.watched(page).expect("current")), [6, 7]);
        assert_eq!((channel.current(), channel.known()), (None, Some(Position { epoch: 1, offset: 7 })));
        channel.published(2, &publication(9));
        let catchup = channel.watched(answer(2, 1, 8, false, 8..9)).expect("current");
        assert_eq!((catchup.reset, offsets(&catchup)), (None, vec![8, 9]));
        assert_eq!(channel.current(), Some(Position { epoch: 1, offset: 9 }));
    }

    #[test]
    fn what_cannot_be_continued_is_a_reset() {
        for (epoch, offset, reset, missed) in [
            (2, 5, false, NONE),
            (1, 4, false, NONE),
            (1, 8, false, 8..9),
            (1, 7, false, NONE),
            (1, 5, true, NONE),
            (1, 7, true, NONE),
        ] {
            let mut channel = watched();
            channel.published(1, &publication(6));
            channel.unwatch();
            channel.watch(2, "c");
            assert_eq!(channel.published(2, &publication(offset + 1)), Arrival::Nothing, "kept");
            let catchup = channel.watched(answer(2, epoch, offset, reset, missed)).expect("current");
            assert_eq!(catchup.reset, Some(Position { epoch, offset }));
            assert_eq!((catchup.epoch, offsets(&catchup)), (epoch, vec![offset + 1]));
            assert_eq!(channel.current(), Some(Position { epoch, offset: offset + 1 }));
            assert_eq!(since(&channel, offset), (epoch == 1).then_some(1));
            assert_eq!(since(&channel, offset - 1), None, "the tail is gone");
        }
    }

    #[test]
    fn too_many_publications_before_the_answer_are_a_gap() {
        let mut channel = watched();
        channel.unwatch();
        channel.watch(2, "c");
        for offset in 0..KEPT_MAX as u64 {
            assert_eq!(channel.published(2, &publication(6 + offset)), Arrival::Nothing);
        }
        assert_eq!(channel.published(2, &publication(7 + KEPT_MAX as u64)), Arrival::Gap);
    }

    #[test]
    fn a_failed_watch_keeps_the_position() {
        let mut channel = watched();
        channel.unwatch();
        channel.watch(2, "c");
        let failed = Watched { error: ChannelError::Busy as u32, ..answer(2, 0, 0, false, NONE) };
        assert_eq!(channel.watched(failed), Some(Catchup::default()));
        assert_eq!((channel.failed(), channel.is_unwatched()), (Some(ChannelError::Busy), true));
        assert_eq!(channel.watch(3, "c").last, Some(WirePosition { epoch: 1, offset: 5 }));
    }

    #[test]
    fn the_tail_of_the_home_completes_the_own_one() {
        let mut channel = watched();
        channel.published(1, &publication(6));
        assert!(channel.requests_tail() && !channel.requests_tail());
        let publications = [7, 6, 5, 4].map(publication).to_vec();
        channel.add_tail(&History { publications, position: Position { epoch: 1, offset: 7 }, complete: true });
        assert_eq!((since(&channel, 3), since(&channel, 2)), (Some(3), None));
        assert_eq!(channel.current(), Some(Position { epoch: 1, offset: 6 }), "7 is on its way");
        channel.clear_tail();
        assert!(channel.requests_tail());
        let other =
            History { publications: vec![publication(6)], position: Position { epoch: 2, offset: 6 }, complete: true };
        channel.add_tail(&other);
        assert_eq!(since(&channel, 5), None);
    }

    #[test]
    fn a_channel_without_history_has_no_position() {
        let mut channel = FrontChannel::new(None);
        for number in 1..3 {
            let watch = channel.watch(number, "c");
            assert_eq!((watch.history, watch.last), (false, None));
            assert_eq!(channel.watched(answer(number, 0, 0, false, NONE)).expect("current").reset, None);
            assert_eq!(channel.published(number, &publication(0)), Arrival::Deliver(0));
        }
    }
}
