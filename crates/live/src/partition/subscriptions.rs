//! Which sessions of a partition are subscribed to a channel.

use std::collections::HashMap;
use std::sync::Arc;

use super::SubscriptionKind;
use super::session::Session;
use crate::outgoing::Outgoing;

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
    pub(super) kind: Box<SubscriptionKind>,
    pub(super) progress: Progress,
    /// It has had a whole publication: from now on differences do.
    pub(super) has_base: bool,
    /// Its place among the channel's.
    at: u32,
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

    pub(super) fn add(&mut self, slot: u32, session: &mut Session, channel: Arc<str>, kind: Box<SubscriptionKind>) {
        let entries = self.0.entry(channel.clone()).or_default();
        let at = entries.len() as u32;
        entries.push(Entry { slot, at: session.subscriptions.len() as u32 });
        let progress = Progress::Syncing(Vec::new());
        session.subscriptions.push(Subscription { channel, kind, progress, has_base: false, at });
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
            // Nobody has heard of it.
            removed.kind.announced = false;
            removed.kind.presence = false;
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
