//! Messages from the server to a session.

use std::sync::Arc;

use super::{Fanout, Worker};
use crate::partition::session::Session;
use crate::partition::subscriptions::Progress;
use crate::partition::{SessionMessage, SubscribeOutcome, SubscriptionKind, SubscriptionStart};
use crate::protocol::codes;
use crate::protocol::message::{Push, Reply};

/// A session that gets messages from the server.
pub(super) struct Recipient<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) slot: u32,
}

impl Recipient<'_> {
    fn session(&mut self) -> Option<&mut Session> {
        self.worker.session(self.slot)
    }

    pub(super) fn on_message(&mut self, message: SessionMessage) {
        let slot = self.slot;
        match message {
            SessionMessage::Reply(reply) => self.worker.reply(slot, &reply),
            SessionMessage::Answer(reply, permits) => {
                self.worker.replies(slot, std::slice::from_ref(&*reply), &permits)
            }
            SessionMessage::Connected { identity, expires_ms, reply, subscribed, permits } => {
                self.worker.begin_pings(slot);
                if let Some(session) = self.session() {
                    session.connected(identity, expires_ms);
                }
                for start in &subscribed {
                    self.enter_presence(start);
                }
                self.worker.replies(slot, std::slice::from_ref(&*reply), &permits);
                for start in subscribed {
                    self.activate(&start);
                }
                self.worker.await_end(slot);
            }
            SessionMessage::Subscribing { channel, attempt, kind, from_server } => {
                self.subscribing(channel, attempt, kind, from_server);
            }
            SessionMessage::Subscribed(start, outcome) => self.subscribed(&start, outcome),
            SessionMessage::NotSubscribed(channel, attempt) => {
                let index = self.session().and_then(|session| session.index_of_attempt(&channel, attempt));
                if index.is_some() {
                    self.leave(&channel);
                }
            }
            SessionMessage::Unsubscribed(channel, reply) => {
                self.leave(&channel);
                if let Some(reply) = reply {
                    self.worker.reply(slot, &reply);
                }
            }
            SessionMessage::Refreshed { expires_ms, renamed, reply } => {
                let hub = self.worker.hub.clone();
                if let Some(session) = self.session() {
                    session.expires_ms = expires_ms;
                    session.refreshing = false;
                    if let Some(identity) = session.identity.as_ref().filter(|_| renamed) {
                        let active = session.subscriptions.iter().filter(|s| s.is_active());
                        active.for_each(|s| hub.set_presence(identity, &s.channel, &s.kind));
                    }
                }
                self.worker.await_end(slot);
                if let Some(reply) = reply {
                    self.worker.reply(slot, &reply);
                }
            }
            SessionMessage::SubRefreshed { channel, expires_ms, info, reply } => {
                let hub = self.worker.hub.clone();
                if let Some(session) = self.session()
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
                self.worker.await_end(slot);
                if let Some(reply) = reply {
                    self.worker.reply(slot, &reply);
                }
            }
            SessionMessage::Ready => {
                if let Some(session) = self.session() {
                    session.commands.busy = false;
                }
                self.worker.next_commands(slot);
            }
            SessionMessage::Disconnect(why) => self.worker.end(slot, Some(why)),
        }
    }

    pub(super) fn leave(&mut self, channel: &str) {
        let Some(at) = self.session().and_then(|session| session.index_of(channel)) else { return };
        if let Some(removed) = self.worker.channels.remove(&mut self.worker.sessions, self.slot, at) {
            self.worker.inbox.counters.unsubscribed();
            let id = self.worker.id(self.slot);
            let identity = self.session().and_then(|session| session.identity.clone());
            self.worker.hub.on_unsubscribed(id, identity.as_ref(), &removed.channel, &removed.kind);
        }
    }

    /// Accepts an attempt to subscribe. A session has at most one subscription to a channel, and
    /// its client and the back end may subscribe it concurrently.
    fn subscribing(&mut self, channel: Arc<str>, attempt: u64, kind: Box<SubscriptionKind>, from_server: bool) {
        let (id, max) = (self.worker.id(self.slot), self.worker.bounds.channels_max);
        let Some(Some(session)) = self.worker.sessions.get_mut(self.slot as usize) else { return };
        let has = session.subscriptions.iter().any(|s| *s.channel == *channel);
        let fits = !from_server || session.identity.is_some() && session.subscriptions.len() < max;
        if has || !fits {
            // Release what the attempt took; its completion reports the reason.
            return self.worker.hub.on_unsubscribed(id, None, &channel, &kind);
        }
        let ends = kind.expires_ms.is_some();
        self.worker.channels.add(self.slot, session, channel, attempt, kind);
        if ends {
            self.worker.await_end(self.slot);
        }
        self.worker.inbox.counters.subscribed();
    }

    /// Reports the result of a subscription to the session.
    fn subscribed(&mut self, start: &SubscriptionStart, outcome: SubscribeOutcome) {
        let Some(session) = self.session() else { return };
        let accepted = session.subscriptions.iter().any(|s| s.attempt == start.attempt);
        let has = session.subscriptions.iter().any(|s| s.channel == start.channel);
        let (connected, count) = (session.identity.is_some(), session.subscriptions.len());
        let (encoding, deflate) = (session.connection.encoding, session.connection.deflate);
        match outcome {
            SubscribeOutcome::Reply { id, answer } if accepted => {
                let Some((head, rest)) = answer.frame(encoding, id, deflate) else {
                    return self.worker.end(self.slot, Some(codes::INAPPROPRIATE_PROTOCOL));
                };
                self.enter_presence(start);
                self.worker.answer(self.slot, [(head, Some(rest))]);
                self.activate(start);
            }
            SubscribeOutcome::Reply { id, .. } => {
                // The attempt was refused, or the back end unsubscribed the session before it
                // completed.
                let error = if has { codes::ALREADY_SUBSCRIBED } else { codes::PERMISSION_DENIED };
                self.worker.reply(self.slot, &Reply { id, error: Some(error.into()), ..Reply::default() });
            }
            SubscribeOutcome::Push { push, missed, permits, done } if accepted => {
                let missed = missed.into_iter().map(|publication| Push {
                    channel: start.channel.as_ref().to_owned(),
                    publication: Some(publication),
                    ..Push::default()
                });
                let reply = |push| Reply { push: Some(push), ..Reply::default() };
                let replies: Vec<Reply> = std::iter::once(*push).chain(missed).map(reply).collect();
                self.enter_presence(start);
                self.worker.replies(self.slot, &replies, &permits);
                self.activate(start);
                // The caller may have stopped waiting.
                let _ = done.send(Ok(()));
            }
            SubscribeOutcome::Push { done, .. } => {
                let full = connected && !has && count >= self.worker.bounds.channels_max;
                // A session that already has the channel counts as subscribed. A session that is
                // about to connect takes its subscriptions from the connect command.
                let _ = done.send(if full { Err(codes::LIMIT_EXCEEDED) } else { Ok(()) });
            }
        }
    }

    /// Adds the session to the presence of a channel, before the reply: a client that has the reply
    /// must find itself there.
    fn enter_presence(&mut self, start: &SubscriptionStart) {
        let Some(at) = self.session().and_then(|session| session.index_of_attempt(&start.channel, start.attempt))
        else {
            return;
        };
        let Some(Some(session)) = self.worker.sessions.get(self.slot as usize) else { return };
        if let Some(identity) = &session.identity {
            let subscription = &session.subscriptions[at];
            self.worker.hub.set_presence(identity, &subscription.channel, &subscription.kind);
        }
    }

    /// The client has all publications up to the start. Delivers the kept publications, and makes
    /// the subscription active.
    fn activate(&mut self, start: &SubscriptionStart) {
        let Some(at) = self.session().and_then(|session| session.index_of_attempt(&start.channel, start.attempt))
        else {
            return;
        };
        let Some(Some(session)) = self.worker.sessions.get_mut(self.slot as usize) else { return };
        let subscription = &mut session.subscriptions[at];
        match std::mem::replace(&mut subscription.progress, Progress::Active(start.position.offset)) {
            // The channel began anew after the answer was made.
            Progress::Syncing(kept) if kept.is_outdated(start.position) => {
                self.worker.end(self.slot, Some(codes::INSUFFICIENT_STATE));
            }
            Progress::Syncing(kept) => {
                if let Some(identity) = &session.identity {
                    self.worker.hub.on_subscribed(identity, &subscription.channel, &subscription.kind);
                }
                Fanout(self.worker).deliver_kept(self.slot, at, &kept.publications);
            }
            Progress::Overrun => self.worker.end(self.slot, Some(codes::INSUFFICIENT_STATE)),
            Progress::Active(_) => {}
        }
    }
}
