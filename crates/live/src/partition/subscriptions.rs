//! The subscriptions of a partition, by session and by channel.

use std::collections::HashMap;
use std::sync::Arc;

use steadfast_store::Position;

use super::SubscriptionKind;
use super::session::Session;
use crate::filter;
use crate::outgoing::{Form, Outgoing};

/// Publications kept for a subscription in progress, at most.
pub(super) const KEPT_MAX: usize = 1024;

/// The state of a subscription.
pub(super) enum Progress {
    /// It is being made; the session keeps new publications.
    Syncing(Kept),
    /// More than [`KEPT_MAX`] publications arrived: the attempt fails.
    Overrun,
    /// It receives publications. The client has all up to this offset.
    Active(u64),
}

/// Publications that arrived while a subscription is being made.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) publications: Vec<Arc<Outgoing>>,
    /// The channel began anew at this position, so an answer from before is outdated.
    pub(super) reset: Option<Position>,
}

impl Kept {
    /// Whether an answer at a position was made before the channel began anew.
    pub(super) fn is_outdated(&self, answer: Position) -> bool {
        self.reset.is_some_and(|reset| reset.epoch != answer.epoch || answer.offset < reset.offset)
    }
}

/// A subscription in its session.
pub(super) struct Subscription {
    pub(super) channel: Arc<str>,
    /// The attempt that made it.
    pub(super) attempt: u64,
    pub(super) kind: Box<SubscriptionKind>,
    pub(super) progress: Progress,
    /// The back end is being asked whether to extend it.
    pub(super) refreshing: bool,
    /// The client has a whole publication, so deltas may follow.
    pub(super) has_base: bool,
    /// Its index among the entries of the channel.
    at: u32,
}

/// What to do with a publication for a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The client has it, filters it out, or gets it later.
    Nothing,
    /// The client lacks publications before it.
    Gap,
    /// Deliver it in this form.
    Deliver(Form),
}

impl Subscription {
    pub(super) fn is_active(&self) -> bool {
        matches!(self.progress, Progress::Active(_))
    }

    /// Records a publication in the channel. On [`Next::Deliver`] the caller must deliver it or end
    /// the session.
    pub(super) fn next(&mut self, outgoing: &Arc<Outgoing>) -> Next {
        let last_offset = match &mut self.progress {
            Progress::Syncing(kept) if kept.publications.len() == KEPT_MAX => {
                self.progress = Progress::Overrun;
                return Next::Nothing;
            }
            Progress::Syncing(kept) => {
                kept.publications.push(outgoing.clone());
                return Next::Nothing;
            }
            Progress::Overrun => return Next::Nothing,
            Progress::Active(last_offset) => last_offset,
        };
        let offset = outgoing.publication.offset;
        if offset > 0 {
            if offset <= *last_offset {
                return Next::Nothing;
            }
            if self.kind.positioned && offset != *last_offset + 1 {
                return Next::Gap;
            }
            *last_offset = offset;
        }
        if self.kind.filter.as_ref().is_some_and(|f| !filter::matches(f, &outgoing.publication.tags)) {
            // The client lacks the base of the next delta.
            self.has_base = false;
            return Next::Nothing;
        }
        let form = match (self.kind.delta, self.has_base) {
            (false, _) => Form::Plain,
            (true, false) => Form::Whole,
            (true, true) => Form::Delta,
        };
        self.has_base = true;
        Next::Deliver(form)
    }

    /// The channel begins anew at a position. Returns whether the subscription must end, because
    /// its client may lack publications.
    pub(super) fn reset(&mut self, position: Position) -> bool {
        match &mut self.progress {
            Progress::Syncing(kept) => *kept = Kept { publications: Vec::new(), reset: Some(position) },
            Progress::Overrun => {}
            Progress::Active(_) if self.kind.positioned => return true,
            Progress::Active(last_offset) => {
                *last_offset = position.offset;
                self.has_base = false;
            }
        }
        false
    }
}

/// An entry of a channel: the slot of the session, and the index of the subscription in it.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) slot: u32,
    pub(super) at: u32,
}

/// The channels of a partition that have subscriptions.
#[derive(Default)]
pub(super) struct ChannelIndex(HashMap<Arc<str>, Vec<Entry>>);

impl ChannelIndex {
    pub(super) fn entries(&self, channel: &str) -> &[Entry] {
        self.0.get(channel).map_or(&[], Vec::as_slice)
    }

    /// Begins a subscription. The session must not already have one to this channel, or the indexes
    /// would be wrong.
    pub(super) fn add(
        &mut self,
        slot: u32,
        session: &mut Session,
        channel: Arc<str>,
        attempt: u64,
        kind: Box<SubscriptionKind>,
    ) {
        let entries = self.0.entry(channel.clone()).or_default();
        let at = entries.len() as u32;
        entries.push(Entry { slot, at: session.subscriptions.len() as u32 });
        let progress = Progress::Syncing(Kept::default());
        session.subscriptions.push(Subscription {
            channel,
            attempt,
            kind,
            progress,
            refreshing: false,
            has_base: false,
            at,
        });
    }

    /// Removes a subscription from its session and its channel. `sessions` are all sessions of the
    /// partition.
    pub(super) fn remove(
        &mut self,
        sessions: &mut [Option<Box<Session>>],
        slot: u32,
        at: usize,
    ) -> Option<Subscription> {
        let session = sessions.get_mut(slot as usize)?.as_mut()?;
        if at >= session.subscriptions.len() {
            return None;
        }
        let mut removed = session.subscriptions.swap_remove(at);
        if !matches!(removed.progress, Progress::Active(_)) {
            // The join was not sent, so no leave is sent.
            removed.kind.announced = false;
        }
        // The last subscription of the session has moved into the free index.
        if let Some(moved) = session.subscriptions.get(at)
            && let Some(entries) = self.0.get_mut(&moved.channel)
            && let Some(entry) = entries.get_mut(moved.at as usize)
        {
            entry.at = at as u32;
        }
        let entries = self.0.get_mut(&removed.channel)?;
        entries.swap_remove(removed.at as usize);
        if entries.is_empty() {
            self.0.remove(&removed.channel);
        } else if let Some(moved) = entries.get(removed.at as usize).copied()
            && let Some(Some(other)) = sessions.get_mut(moved.slot as usize)
            && let Some(subscription) = other.subscriptions.get_mut(moved.at as usize)
        {
            // The last entry of the channel has moved into the free index.
            subscription.at = removed.at;
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::{FilterNode, Publication};

    fn subscription(kind: SubscriptionKind, progress: Progress) -> Subscription {
        Subscription {
            channel: "c".into(),
            attempt: 1,
            kind: Box::new(kind),
            progress,
            refreshing: false,
            has_base: false,
            at: 0,
        }
    }

    fn publication(offset: u64, tag: &str) -> Arc<Outgoing> {
        let tags = [("t".to_owned(), tag.to_owned())].into();
        let publication = Publication { offset, tags, ..Publication::default() };
        Arc::new(Outgoing::new("c".into(), 1, publication, None))
    }

    #[test]
    fn each_offset_is_delivered_once_and_gaps_end_positioned_subscriptions() {
        for positioned in [true, false] {
            let kind = SubscriptionKind { positioned, ..SubscriptionKind::default() };
            let mut subscription = subscription(kind, Progress::Active(5));
            assert_eq!(subscription.next(&publication(5, "")), Next::Nothing);
            assert_eq!(subscription.next(&publication(6, "")), Next::Deliver(Form::Plain));
            assert_eq!(subscription.next(&publication(6, "")), Next::Nothing);
            let after_gap = if positioned { Next::Gap } else { Next::Deliver(Form::Plain) };
            assert_eq!(subscription.next(&publication(8, "")), after_gap);
            assert_eq!(subscription.next(&publication(0, "")), Next::Deliver(Form::Plain), "without history");
        }
    }

    #[test]
    fn the_base_of_a_delta_is_a_publication_that_the_client_has() {
        let filter = FilterNode { key: "t".into(), cmp: "eq".into(), val: "yes".into(), ..FilterNode::default() };
        let kind = SubscriptionKind { delta: true, filter: Some(Box::new(filter)), ..SubscriptionKind::default() };
        let mut subscription = subscription(kind, Progress::Active(0));
        let published = [(1, "yes"), (2, "yes"), (3, "no"), (4, "yes"), (5, "yes")];
        let steps = published.map(|(offset, tag)| subscription.next(&publication(offset, tag)));
        let (whole, delta) = (|| Next::Deliver(Form::Whole), || Next::Deliver(Form::Delta));
        assert_eq!(steps, [whole(), delta(), Next::Nothing, whole(), delta()]);
    }

    #[test]
    fn a_reset_ends_positioned_subscriptions_and_outdates_those_in_progress() {
        let at = Position { epoch: 2, offset: 9 };
        let kind = |positioned| SubscriptionKind { positioned, delta: true, ..SubscriptionKind::default() };
        assert!(subscription(kind(true), Progress::Active(5)).reset(at));
        let mut other = subscription(kind(false), Progress::Active(5));
        other.next(&publication(6, ""));
        assert!(!other.reset(at));
        assert_eq!(other.next(&publication(9, "")), Next::Nothing);
        assert_eq!(other.next(&publication(10, "")), Next::Deliver(Form::Whole), "without a base");
        let mut syncing = subscription(kind(true), Progress::Syncing(Kept::default()));
        syncing.next(&publication(6, ""));
        assert!(!syncing.reset(at));
        let Progress::Syncing(kept) = &syncing.progress else { unreachable!("it is in progress") };
        assert!(kept.publications.is_empty());
        let outdated =
            [(1, 99), (2, 8), (2, 9), (2, 12)].map(|(epoch, offset)| kept.is_outdated(Position { epoch, offset }));
        assert_eq!(outdated, [true, true, false, false]);
    }

    #[test]
    fn publications_during_a_subscribe_are_kept_up_to_a_bound() {
        let mut subscription = subscription(SubscriptionKind::default(), Progress::Syncing(Kept::default()));
        for offset in 1..=KEPT_MAX as u64 {
            assert_eq!(subscription.next(&publication(offset, "")), Next::Nothing);
        }
        assert!(matches!(&subscription.progress, Progress::Syncing(kept) if kept.publications.len() == KEPT_MAX));
        assert_eq!(subscription.next(&publication(0, "")), Next::Nothing);
        assert!(matches!(subscription.progress, Progress::Overrun));
    }
}
