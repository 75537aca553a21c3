//! What the server says to a session.

use super::Worker;
use crate::partition::ToSession;
use crate::partition::subscriptions::Progress;
use crate::protocol::codes;

impl Worker {
    pub(super) fn told(&mut self, slot: u32, what: ToSession) {
        match what {
            ToSession::Reply(reply) => self.reply(slot, &reply),
            ToSession::Connected { who, expires_ms, reply, subscribed } => {
                let generation = self.generations[slot as usize];
                let turn = (self.tick as usize).wrapping_sub(1) % self.wheel.len();
                self.wheel[turn].push((slot, generation));
                if let Some(session) = self.session(slot) {
                    session.who = Some(who);
                    session.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
                for (channel, offset) in subscribed {
                    self.activate(slot, &channel, offset);
                }
            }
            ToSession::Subscribing(channel, kind) => {
                if let Some(Some(session)) = self.sessions.get_mut(slot as usize) {
                    self.channels.add(slot, session, channel, kind);
                    self.inbox.counters.subscribed();
                }
            }
            ToSession::Subscribed { channel, offset, id, answer } => {
                let frame = self.session(slot).and_then(|session| answer.frame(session.encoding, id));
                let Some((head, rest)) = frame else { return self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)) };
                self.send_both(slot, head, rest);
                self.activate(slot, &channel, offset);
            }
            ToSession::Unsubscribed(channel, reply) => {
                self.leave(slot, &channel);
                if let Some(reply) = reply {
                    self.reply(slot, &reply);
                }
            }
            ToSession::Refreshed(expires_ms, reply) => {
                if let Some(session) = self.session(slot) {
                    session.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
            }
            ToSession::SubRefreshed(channel, expires_ms, reply) => {
                if let Some(session) = self.session(slot)
                    && let Some(subscription) = session.subscriptions.iter_mut().find(|s| s.channel == channel)
                {
                    subscription.kind.expires_ms = expires_ms;
                }
                self.reply(slot, &reply);
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

    /// The client has been told of all up to `offset`: what has been kept follows, and then what comes.
    fn activate(&mut self, slot: u32, channel: &str, offset: u64) {
        let Some(at) = self.place_of(slot, channel) else { return };
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let subscription = &mut session.subscriptions[at];
        match std::mem::replace(&mut subscription.progress, Progress::Active(offset)) {
            Progress::Syncing(kept) => {
                if let (Some(who), true) =
                    (session.who.clone(), subscription.kind.announced || subscription.kind.presence)
                {
                    self.hub.came(&who, &subscription.channel, &subscription.kind);
                }
                self.bring_kept(slot, at, &kept);
            }
            Progress::Overrun => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
            Progress::Active(_) => {}
        }
    }
}
