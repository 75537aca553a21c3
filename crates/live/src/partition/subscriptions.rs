//! Which sessions of a partition are subscribed to a channel.

use std::collections::HashMap;
use std::sync::Arc;

use super::SubscriptionKind;
use super::session::Session;
use crate::filter;
use crate::outgoing::{Form, Outgoing};

/// Publications that are kept for a subscription which is being made, at most.
pub(super) const KEPT_MAX: usize = 1024;

/// How far a subscription is.
pub(super) enum Progress {
    /// It is being made; what is published meanwhile is kept.
    Syncing(Vec<Arc<Outgoing>>),
    /// More was published than is kept: it cannot be made now.
    Overrun,
    /// It gets what is published. Up to this offset it has all.
    Active(u64),
}

/// A subscription, as its session has it.
pub(super) struct Subscription {
    pub(super) channel: Arc<str>,
    /// The attempt that made it.
    pub(super) attempt: u64,
    pub(super) kind: Box<SubscriptionKind>,
    pub(super) progress: Progress,
    /// The back end is asked whether it goes on.
    pub(super) refreshing: bool,
    /// It has had a whole publication: from now on differences do.
    pub(super) has_base: bool,
    /// Its place among the channel's.
    at: u32,
}

/// What becomes of a publication at a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The client has it, does not want it, or gets it later.
    Nothing,
    /// The client lacks what came before it.
    Gap,
    /// It goes to the client, in this form.
    Goes(Form),
}

impl Subscription {
    pub(super) fn is_active(&self) -> bool {
        matches!(self.progress, Progress::Active(_))
    }

    /// Takes note of a publication in the channel. Whoever is told that it goes must bring it to the client or end the session.
    pub(super) fn next(&mut self, outgoing: &Arc<Outgoing>) -> Next {
        let told = match &mut self.progress {
            Progress::Syncing(kept) if kept.len() == KEPT_MAX => {
                self.progress = Progress::Overrun;
                return Next::Nothing;
            }
            Progress::Syncing(kept) => {
                kept.push(outgoing.clone());
                return Next::Nothing;
            }
            Progress::Overrun => return Next::Nothing,
            Progress::Active(told) => told,
        };
        let offset = outgoing.publication.offset;
        if offset > 0 {
            if offset <= *told {
                return Next::Nothing;
            }
            if self.kind.positioned && offset != *told + 1 {
                return Next::Gap;
            }
            *told = offset;
        }
        if self.kind.filter.as_ref().is_some_and(|f| !filter::matches(f, &outgoing.publication.tags)) {
            // The next difference would be to what the client does not have.
            self.has_base = false;
            return Next::Nothing;
        }
        let form = match (self.kind.delta, self.has_base) {
            (false, _) => Form::Plain,
            (true, false) => Form::Whole,
            (true, true) => Form::Delta,
        };
        self.has_base = true;
        Next::Goes(form)
    }
}

/// A channel's subscription: the session's place, and its place in the session.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) slot: u32,
    pub(super) at: u32,
}

/// The channels of a partition that have subscriptions.
#[derive(Default)]
pub(super) struct Channels(HashMap<Arc<str>, Vec<Entry>>);

impl Channels {
    pub(super) fn entries(&self, channel: &str) -> &[Entry] {
        self.0.get(channel).map_or(&[], Vec::as_slice)
    }

    /// Begins a subscription. The session must not have one to this channel: its places would get mixed up.
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
        let progress = Progress::Syncing(Vec::new());
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

    /// Takes a subscription out of its session and its channel. `sessions` are all of the partition.
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
            // No join was sent, so no leave is.
            removed.kind.announced = false;
        }
        // The last one of the session has taken its place there.
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
            // The last one of the channel has taken its place here.
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
    fn what_the_client_has_comes_once_and_a_gap_only_to_who_does_not_care() {
        for positioned in [true, false] {
            let kind = SubscriptionKind { positioned, ..SubscriptionKind::default() };
            let mut subscription = subscription(kind, Progress::Active(5));
            assert_eq!(subscription.next(&publication(5, "")), Next::Nothing);
            assert_eq!(subscription.next(&publication(6, "")), Next::Goes(Form::Plain));
            assert_eq!(subscription.next(&publication(6, "")), Next::Nothing);
            let after_gap = if positioned { Next::Gap } else { Next::Goes(Form::Plain) };
            assert_eq!(subscription.next(&publication(8, "")), after_gap);
            assert_eq!(subscription.next(&publication(0, "")), Next::Goes(Form::Plain), "without history");
        }
    }

    #[test]
    fn a_difference_is_to_what_the_client_has() {
        let filter = FilterNode { key: "t".into(), cmp: "eq".into(), val: "yes".into(), ..FilterNode::default() };
        let kind = SubscriptionKind { delta: true, filter: Some(Box::new(filter)), ..SubscriptionKind::default() };
        let mut subscription = subscription(kind, Progress::Active(0));
        let published = [(1, "yes"), (2, "yes"), (3, "no"), (4, "yes"), (5, "yes")];
        let goes = published.map(|(offset, tag)| subscription.next(&publication(offset, tag)));
        let (whole, delta) = (|| Next::Goes(Form::Whole), || Next::Goes(Form::Delta));
        assert_eq!(goes, [whole(), delta(), Next::Nothing, whole(), delta()]);
    }

    #[test]
    fn what_comes_while_it_is_being_made_is_kept_up_to_a_bound() {
        let mut subscription = subscription(SubscriptionKind::default(), Progress::Syncing(Vec::new()));
        for offset in 1..=KEPT_MAX as u64 {
            assert_eq!(subscription.next(&publication(offset, "")), Next::Nothing);
        }
        assert!(matches!(&subscription.progress, Progress::Syncing(kept) if kept.len() == KEPT_MAX));
        assert_eq!(subscription.next(&publication(0, "")), Next::Nothing);
        assert!(matches!(subscription.progress, Progress::Overrun));
    }
}
