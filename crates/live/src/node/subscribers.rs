//! The channels with subscribers on this node.

use std::sync::Arc;

use steadfast_cluster::{Channel, HistoryBounds};
use steadfast_store::Position;

use super::announce::Announcements;
use super::{LiveChannel, Node, refusal};
use crate::config::NamespaceOptions;
use crate::partition::{SessionId, WorkerEvent};
use crate::protocol::codes::ClientError;

/// Milliseconds of a duration in the configuration.
pub(super) fn history_ttl_ms(options: &NamespaceOptions) -> u64 {
    u64::try_from(options.history_ttl.0.as_millis()).unwrap_or(u64::MAX)
}

impl Node {
    /// The channel at its home.
    pub(crate) fn channel(&self, name: &str) -> Result<Channel, ClientError> {
        let part = self.channels.part(name).lock();
        if let Some(channel) = part.get(name).and_then(|live| live.channel.clone()) {
            return Ok(channel);
        }
        drop(part);
        self.homes.open(name).map_err(refusal)
    }

    /// Waits until publications of a channel that keeps no history arrive here.
    pub(crate) async fn watched(&self, name: &str) -> Result<(), ClientError> {
        let channel = self.channels.part(name).lock().get(name).and_then(|live| live.channel.clone());
        match channel {
            Some(remote @ Channel::Remote(_)) => remote.position().await.map(drop).map_err(refusal),
            _ => Ok(()),
        }
    }

    /// Adds a subscriber. From now on its partition receives the channel's publications.
    pub(crate) fn join(
        &self,
        session: SessionId,
        channel: &str,
        options: &NamespaceOptions,
    ) -> Result<Arc<str>, ClientError> {
        let mut part = self.channels.part(channel).lock();
        if !part.contains_key(channel) {
            let name: Arc<str> = channel.into();
            let ttl_ms = history_ttl_ms(options);
            let bounds = options.has_history().then_some(HistoryBounds { size: options.history_size, ttl_ms });
            let attachment = self.homes.attach(&name, bounds);
            let opened = match options.has_history() || attachment.is_some() {
                true => Some(self.homes.open(channel).map_err(refusal)?),
                false => None,
            };
            let live = LiveChannel {
                channel: opened,
                _attachment: attachment,
                subscribers: vec![0; self.inboxes.len()].into(),
                total: 0,
                last: None,
                delta: !options.allowed_delta_types.is_empty(),
                answers: Vec::new(),
                announcements: Announcements::default(),
            };
            part.insert(name, live);
        }
        let name = part.get_key_value(channel).map(|(name, _)| name.clone()).unwrap_or_else(|| channel.into());
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] += 1;
            live.total += 1;
        }
        Ok(name)
    }

    /// Whether the channel has subscribers, so that it can be used without an index read.
    pub(crate) fn is_in_use(&self, channel: &str) -> bool {
        self.channels.part(channel).lock().contains_key(channel)
    }

    /// Removes a subscriber: the inverse of [`Node::join`].
    pub(crate) fn leave(&self, session: SessionId, channel: &str) {
        let mut part = self.channels.part(channel).lock();
        if let Some(live) = part.get_mut(channel) {
            live.subscribers[usize::from(session.partition)] -= 1;
            live.total -= 1;
            if live.total == 0 {
                part.remove(channel);
            }
        }
    }

    /// The channels with subscribers that match `wanted`, with their numbers of subscribers.
    pub fn channels(&self, wanted: impl Fn(&str) -> bool) -> Vec<(Arc<str>, usize)> {
        let mut found = Vec::new();
        for part in self.channels.parts() {
            let part = part.lock();
            found.extend(part.iter().filter(|(name, _)| wanted(name)).map(|(name, live)| (name.clone(), live.total)));
        }
        found
    }

    /// A channel begins anew at a position, because publications may be missing.
    pub(crate) fn reset_channel(&self, channel: &Arc<str>, position: Position) {
        let mut part = self.channels.part(channel).lock();
        let Some(live) = part.get_mut(channel) else { return };
        live.answers.clear();
        live.last = None;
        // Under the lock, as publications are.
        for (inbox, subscribers) in self.inboxes.iter().zip(&live.subscribers) {
            if *subscribers > 0 {
                inbox.send(WorkerEvent::Reset(channel.clone(), position));
            }
        }
    }
}
