//! Messages from the server to a session.

use std::sync::Arc;

use super::Worker;
use crate::partition::subscriptions::Progress;
use crate::partition::{Place, SessionMessage, SubscribeOutcome, SubscriptionKind};
use crate::protocol::codes;
use crate::protocol::message::{Push, Reply};

impl Worker {
    pub(super) fn on_message(&mut self, slot: u32, message: SessionMessage) {
        match message {
            SessionMessage::Reply(reply) => self.reply(slot, &reply),
            SessionMessage::Answer(reply, permits) => self.replies(slot, std::slice::from_ref(&*reply), &permits),
            SessionMessage::Connected { identity, expires_ms, reply, subscribed, permits } => {
                let generation = self.generations[slot as usize];
                let turn = (self.tick as usize).wrapping_sub(1) % self.wheel.len();
                self.wheel[turn].push((slot, generation));
                if let Some(session) = self.session(slot) {
                    (session.identity, session.unconnected) = (Some(identity), None);
                    session.expires_ms = expires_ms;
                }
                for place in &subscribed {
                    self.enter_presence(slot, place);
                }
                self.replies(slot, std::slice::from_ref(&*reply), &permits);
                for place in subscribed {
                    self.activate(slot, &place);
                }
                self.await_end(slot);
            }
            SessionMessage::Subscribing { channel, attempt, kind, from_server } => {
                self.subscribing(slot, channel, attempt, kind, from_server);
            }
            SessionMessage::Subscribed(place, outcome) => self.subscribed(slot, &place, outcome),
            SessionMessage::NotSubscribed(channel, attempt) => {
                if self.place_of_attempt(slot, &channel, attempt).is_some() {
                    self.leave(slot, &channel);
                }
            }
            SessionMessage::Unsubscribed(channel, reply) => {
                self.leave(slot, &channel);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            SessionMessage::Refreshed { expires_ms, renamed, reply } => {
                let hub = self.hub.clone();
                if let Some(session) = self.session(slot) {
                    session.expires_ms = expires_ms;
                    session.refreshing = false;
                    if let Some(identity) = session.identity.as_ref().filter(|_| renamed) {
                        let active = session.subscriptions.iter().filter(|s| s.is_active());
                        active.for_each(|s| hub.set_presence(identity, &s.channel, &s.kind));
                    }
                }
                self.await_end(slot);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            SessionMessage::SubRefreshed { channel, expires_ms, info, reply } => {
                let hub = self.hub.clone();
                if let Some(session) = self.session(slot)
                    && let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.channel == channel)
                {
                    subscription.kind.expires_ms = expires_ms;
                    subscription.refreshing = false;
                    if !info.is_empty() && info != subscription.kind.info {
                        subscription.kind.info = info;
                        if let Some(identity) = session.identity.as_ref().filter(|_| subscription.is_active()) {
                            hub.set_presence(identity, &channel, &subscription.kind);
                        }
                    }
                }
                self.await_end(slot);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            SessionMessage::Ready => {
                if let Some(session) = self.session(slot) {
                    session.busy = false;
                }
                self.next_commands(slot);
            }
            SessionMessage::Disconnect(why) => self.end(slot, Some(why)),
        }
    }

    pub(super) fn place_of(&self, slot: u32, channel: &str) -> Option<usize> {
        let session = self.sessions.get(slot as usize)?.as_ref()?;
        session.subscriptions.iter().position(|s| *s.channel == *channel)
    }

    pub(super) fn leave(&mut self, slot: u32, channel: &str) {
        let Some(at) = self.place_of(slot, channel) else { return };
        if let Some(removed) = self.channels.remove(&mut self.sessions, slot, at) {
            self.inbox.counters.unsubscribed();
            let id = self.id(slot);
            let identity = self.session(slot).and_then(|session| session.identity.clone());
            self.hub.on_unsubscribed(id, identity.as_ref(), &removed.channel, &removed.kind);
        }
    }

    /// The index of a subscription, if this attempt made it.
    fn place_of_attempt(&self, slot: u32, channel: &str, attempt: u64) -> Option<usize> {
        let session = self.sessions.get(slot as usize)?.as_ref()?;
        session.subscriptions.iter().position(|s| s.attempt == attempt && *s.channel == *channel)
    }

    /// Accepts an attempt to subscribe. A session has at most one subscription to a channel, and
    /// its client and the back end may subscribe it concurrently.
    fn subscribing(
        &mut self,
        slot: u32,
        channel: Arc<str>,
        attempt: u64,
        kind: Box<SubscriptionKind>,
        from_server: bool,
    ) {
        let (id, max) = (self.id(slot), self.bounds.channels_max);
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let has = session.subscriptions.iter().any(|s| *s.channel == *channel);
        let fits = !from_server || session.identity.is_some() && session.subscriptions.len() < max;
        if has || !fits {
            // Release what the attempt took; its completion reports the reason.
            return self.hub.on_unsubscribed(id, None, &channel, &kind);
        }
        let ends = kind.expires_ms.is_some();
        self.channels.add(slot, session, channel, attempt, kind);
        if ends {
            self.await_end(slot);
        }
        self.inbox.counters.subscribed();
    }

    /// Reports the result of a subscription to the session.
    fn subscribed(&mut self, slot: u32, place: &Place, outcome: SubscribeOutcome) {
        let Some(session) = self.session(slot) else { return };
        let accepted = session.subscriptions.iter().any(|s| s.attempt == place.attempt);
        let has = session.subscriptions.iter().any(|s| s.channel == place.channel);
        let (connected, count) = (session.identity.is_some(), session.subscriptions.len());
        let (encoding, deflate) = (session.encoding, session.deflate);
        match outcome {
            SubscribeOutcome::Reply { id, answer } if accepted => {
                let Some((head, rest)) = answer.frame(encoding, id, deflate) else {
                    return self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL));
                };
                self.enter_presence(slot, place);
                self.answer(slot, [(head, Some(rest))]);
                self.activate(slot, place);
            }
            SubscribeOutcome::Reply { id, .. } => {
                // The attempt was refused, or the back end unsubscribed the session before it
                // completed.
                let error = if has { codes::ALREADY_SUBSCRIBED } else { codes::PERMISSION_DENIED };
                self.reply(slot, &Reply { id, error: Some(error.into()), ..Reply::default() });
            }
            SubscribeOutcome::Push { push, missed, permits, done } if accepted => {
                let missed = missed.into_iter().map(|publication| Push {
                    channel: place.channel.as_ref().to_owned(),
                    publication: Some(publication),
                    ..Push::default()
                });
                let reply = |push| Reply { push: Some(push), ..Reply::default() };
                let replies: Vec<Reply> = std::iter::once(*push).chain(missed).map(reply).collect();
                self.enter_presence(slot, place);
                self.replies(slot, &replies, &permits);
                self.activate(slot, place);
                // The caller may have stopped waiting.
                let _ = done.send(Ok(()));
            }
            SubscribeOutcome::Push { done, .. } => {
                let full = connected && !has && count >= self.bounds.channels_max;
                // A session that already has the channel counts as subscribed. A session that is
                // about to connect takes its subscriptions from the connect command.
                let _ = done.send(if full { Err(codes::LIMIT_EXCEEDED) } else { Ok(()) });
            }
        }
    }

    /// Adds the session to the presence of a channel, before the reply: a client that has the reply
    /// must find itself there.
    fn enter_presence(&mut self, slot: u32, place: &Place) {
        let Some(at) = self.place_of_attempt(slot, &place.channel, place.attempt) else { return };
        let Some(Some(session)) = self.sessions.get(slot as usize) else { return };
        if let Some(identity) = &session.identity {
            let subscription = &session.subscriptions[at];
            self.hub.set_presence(identity, &subscription.channel, &subscription.kind);
        }
    }

    /// The client has all publications up to the place. Delivers the kept publications, and makes
    /// the subscription active.
    fn activate(&mut self, slot: u32, place: &Place) {
        let Some(at) = self.place_of_attempt(slot, &place.channel, place.attempt) else { return };
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let subscription = &mut session.subscriptions[at];
        match std::mem::replace(&mut subscription.progress, Progress::Active(place.position.offset)) {
            // The channel began anew after the answer was made.
            Progress::Syncing(kept) if kept.is_outdated(place.position) => {
                self.end(slot, Some(codes::INSUFFICIENT_STATE));
            }
            Progress::Syncing(kept) => {
                if let Some(identity) = &session.identity {
                    self.hub.on_subscribed(identity, &subscription.channel, &subscription.kind);
                }
                self.deliver_kept(slot, at, &kept.publications);
            }
            Progress::Overrun => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
            Progress::Active(_) => {}
        }
    }
}
