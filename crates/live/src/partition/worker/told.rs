//! What the server says to a session.

use std::sync::Arc;

use super::Worker;
use crate::partition::subscriptions::Progress;
use crate::partition::{Place, SubscriptionKind, ToSession, Told};
use crate::protocol::codes;
use crate::protocol::message::{Push, Reply};

impl Worker {
    pub(super) fn told(&mut self, slot: u32, what: ToSession) {
        match what {
            ToSession::Reply(reply) => self.reply(slot, &reply),
            ToSession::Answer(reply, permits) => self.replies(slot, std::slice::from_ref(&*reply), &permits),
            ToSession::Connected { who, expires_ms, reply, subscribed, permits } => {
                let generation = self.generations[slot as usize];
                let turn = (self.tick as usize).wrapping_sub(1) % self.wheel.len();
                self.wheel[turn].push((slot, generation));
                if let Some(session) = self.session(slot) {
                    (session.who, session.unconnected) = (Some(who), None);
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
            ToSession::Subscribing { channel, attempt, kind, unasked } => {
                self.subscribing(slot, channel, attempt, kind, unasked);
            }
            ToSession::Subscribed(place, told) => self.subscribed(slot, &place, told),
            ToSession::NotSubscribed(channel, attempt) => {
                if self.place_of_attempt(slot, &channel, attempt).is_some() {
                    self.leave(slot, &channel);
                }
            }
            ToSession::Unsubscribed(channel, reply) => {
                self.leave(slot, &channel);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            ToSession::Refreshed { expires_ms, renamed, reply } => {
                let hub = self.hub.clone();
                if let Some(session) = self.session(slot) {
                    session.expires_ms = expires_ms;
                    session.refreshing = false;
                    if let Some(who) = session.who.as_ref().filter(|_| renamed) {
                        let told = session.subscriptions.iter().filter(|s| s.is_active());
                        told.for_each(|subscription| hub.set_presence(who, &subscription.channel, &subscription.kind));
                    }
                }
                self.await_end(slot);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            ToSession::SubRefreshed { channel, expires_ms, info, reply } => {
                let hub = self.hub.clone();
                if let Some(session) = self.session(slot)
                    && let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.channel == channel)
                {
                    subscription.kind.expires_ms = expires_ms;
                    subscription.refreshing = false;
                    if !info.is_empty() && info != subscription.kind.info {
                        subscription.kind.info = info;
                        if let Some(who) = session.who.as_ref().filter(|_| subscription.is_active()) {
                            hub.set_presence(who, &channel, &subscription.kind);
                        }
                    }
                }
                self.await_end(slot);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            ToSession::Ready => {
                if let Some(session) = self.session(slot) {
                    session.busy = false;
                }
                self.next_commands(slot);
            }
            ToSession::Disconnect(why) => self.end(slot, Some(why)),
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
            let who = self.session(slot).and_then(|session| session.who.clone());
            self.hub.left(id, who.as_ref(), &removed.channel, &removed.kind);
        }
    }

    /// The place of a subscription, if it is this attempt that made it.
    fn place_of_attempt(&self, slot: u32, channel: &str, attempt: u64) -> Option<usize> {
        let session = self.sessions.get(slot as usize)?.as_ref()?;
        session.subscriptions.iter().position(|s| s.attempt == attempt && *s.channel == *channel)
    }

    /// Lets an attempt to subscribe in. A session has a channel once, whoever subscribes it: its client and the back end may do so at a time.
    fn subscribing(&mut self, slot: u32, channel: Arc<str>, attempt: u64, kind: Box<SubscriptionKind>, unasked: bool) {
        let (id, max) = (self.id(slot), self.bounds.channels_max);
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let has = session.subscriptions.iter().any(|s| *s.channel == *channel);
        let fits = !unasked || session.who.is_some() && session.subscriptions.len() < max;
        if has || !fits {
            // What the attempt took is given back; its end is told why.
            return self.hub.left(id, None, &channel, &kind);
        }
        let ends = kind.expires_ms.is_some();
        self.channels.add(slot, session, channel, attempt, kind);
        if ends {
            self.await_end(slot);
        }
        self.inbox.counters.subscribed();
    }

    /// Tells a session that it is subscribed, or why it is not.
    fn subscribed(&mut self, slot: u32, place: &Place, told: Told) {
        let Some(session) = self.session(slot) else { return };
        let let_in = session.subscriptions.iter().any(|s| s.attempt == place.attempt);
        let has = session.subscriptions.iter().any(|s| s.channel == place.channel);
        let (connected, count) = (session.who.is_some(), session.subscriptions.len());
        let (encoding, deflate) = (session.encoding, session.deflate);
        match told {
            Told::Reply { id, answer } if let_in => {
                let Some((head, rest)) = answer.frame(encoding, id, deflate) else {
                    return self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL));
                };
                self.enter_presence(slot, place);
                self.answer(slot, [(head, Some(rest))]);
                self.activate(slot, place);
            }
            Told::Reply { id, .. } => {
                // Not let in, or unsubscribed by the back end before it was made.
                let error = if has { codes::ALREADY_SUBSCRIBED } else { codes::PERMISSION_DENIED };
                self.reply(slot, &Reply { id, error: Some(error.into()), ..Reply::default() });
            }
            Told::Push { push, missed, permits, done } if let_in => {
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
                // Who asked may have stopped waiting.
                let _ = done.send(Ok(()));
            }
            Told::Push { done, .. } => {
                let full = connected && !has && count >= self.bounds.channels_max;
                // One that has the channel is as it was wanted; one that was about to connect comes after what was asked.
                let _ = done.send(if full { Err(codes::LIMIT_EXCEEDED) } else { Ok(()) });
            }
        }
    }

    /// Puts the session into the presence of a channel. A client that has the reply finds itself there.
    fn enter_presence(&mut self, slot: u32, place: &Place) {
        let Some(at) = self.place_of_attempt(slot, &place.channel, place.attempt) else { return };
        let Some(Some(session)) = self.sessions.get(slot as usize) else { return };
        if let Some(who) = &session.who {
            let subscription = &session.subscriptions[at];
            self.hub.set_presence(who, &subscription.channel, &subscription.kind);
        }
    }

    /// The client has been told of all up to the place: what has been kept follows, and then what comes.
    fn activate(&mut self, slot: u32, place: &Place) {
        let Some(at) = self.place_of_attempt(slot, &place.channel, place.attempt) else { return };
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let subscription = &mut session.subscriptions[at];
        match std::mem::replace(&mut subscription.progress, Progress::Active(place.offset)) {
            Progress::Syncing(kept) => {
                if let Some(who) = &session.who {
                    self.hub.joined(who, &subscription.channel, &subscription.kind);
                }
                self.bring_kept(slot, at, &kept);
            }
            Progress::Overrun => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
            Progress::Active(_) => {}
        }
    }
}
