//! What time brings: pings, what they were not answered with, and the ends of sessions and subscriptions.

use std::net::Shutdown;

use super::{LINGER_MS, Mark, Worker};
use crate::protocol::codec::ping;
use crate::protocol::codes;
use crate::protocol::message::{Push, Reply, Unsubscribe};
use crate::websocket;

impl Worker {
    pub(super) fn tick(&mut self) {
        let (now, wall) = (self.hub.now_ms(), self.hub.wall_ms());
        let turn = self.tick as usize % self.wheel.len();
        self.tick += 1;
        let queued = if self.inbox.counters.has_queues() { self.queues(now) } else { 0 };
        self.inbox.counters.set_queued(queued);
        // Before the next pings: an answer to the last one is no answer to these.
        let pong_ms = self.bounds.pong_ms;
        while let Some(&(due, mark)) = self.pongs.front().filter(|(due, _)| *due <= now) {
            self.pongs.pop_front();
            let Some(session) = self.marked(mark).filter(|session| session.owes_pong(due)) else { continue };
            if session.is_waiting() {
                // The ping is behind what it is reading: whether it reads is looked at elsewhere.
                session.lives();
                let due = session.pinged(now + pong_ms);
                self.pongs.extend(due.map(|due| (due, mark)));
            } else {
                self.end(mark.0, Some(codes::NO_PONG));
            }
        }
        self.look_at_ends(wall);
        let mut marks = std::mem::take(&mut self.wheel[turn]);
        marks.retain(|mark| self.ping(*mark, now));
        self.wheel[turn].append(&mut marks);
        while let Some(&(_, mark)) = self.stale.front().filter(|(due, _)| *due <= now) {
            self.stale.pop_front();
            if self.marked(mark).is_some_and(|session| session.who.is_none()) {
                self.end(mark.0, Some(codes::STALE));
            }
        }
        self.hub.tick();
        self.lingering.retain_mut(|(due, session)| {
            if session.is_waiting() {
                if session.flush().is_err() {
                    return false;
                }
                if !session.is_waiting() {
                    let _ = session.socket.shutdown(Shutdown::Write);
                    *due = now + LINGER_MS;
                }
            }
            now < *due
        });
    }

    /// Looks at the sessions for which something waits: bytes of that. One that has taken too little for too long is ended.
    fn queues(&mut self, now: u64) -> u64 {
        let (mut queued, mut stalled) = (0, Vec::new());
        for (slot, session) in (0u32..).zip(&mut self.sessions) {
            let Some(session) = session.as_deref_mut().filter(|session| session.is_waiting()) else { continue };
            if session.is_stalled(now, &self.bounds) {
                stalled.push(slot);
            }
            queued += session.waiting_bytes() as u64;
        }
        for slot in stalled {
            self.end(slot, Some(codes::SLOW));
        }
        queued
    }

    /// Asks the back end about what is over, where it decides that.
    fn ask_back_end(&mut self, mark: Mark, over: impl Fn(Option<u64>) -> bool) {
        let (id, hub, refreshes) = (self.id(mark.0), self.hub.clone(), self.bounds.refreshes);
        let Some(session) = self.marked(mark) else { return };
        let Some(who) = session.who.clone() else { return };
        if refreshes && !session.refreshing && over(session.expires_ms) {
            session.refreshing = true;
            hub.refresh(id, who.clone());
        }
        for subscription in &mut session.subscriptions {
            if subscription.kind.refreshed && !subscription.refreshing && over(subscription.kind.expires_ms) {
                subscription.refreshing = true;
                hub.sub_refresh(id, who.clone(), subscription.channel.clone());
            }
        }
    }

    /// Has a session looked at when something of it is over next.
    pub(super) fn await_end(&mut self, slot: u32) {
        let Some(Some(session)) = self.sessions.get_mut(slot as usize) else { return };
        let (due, mark) = (session.next_end(&self.bounds), (slot, session.generation));
        if let Some(before) = std::mem::replace(&mut session.due, due) {
            self.ends.remove(&(before, mark));
        }
        if let Some(due) = due {
            self.ends.insert((due, mark));
        }
    }

    fn look_at_ends(&mut self, wall: u64) {
        let later = self.ends.split_off(&(wall + 1, (0, 0)));
        for (_, mark) in std::mem::replace(&mut self.ends, later) {
            if let Some(session) = self.marked(mark) {
                session.due = None;
                self.over(mark, wall);
                self.await_end(mark.0);
            }
        }
    }

    /// Ends what is over: a session, or subscriptions of it.
    fn over(&mut self, mark: Mark, wall: u64) {
        let (slot, grace, sub_grace) = (mark.0, self.bounds.expired_ms, self.bounds.expired_sub_ms);
        let over = |ends: Option<u64>, grace: u64| ends.is_some_and(|ends| ends.saturating_add(grace) <= wall);
        self.ask_back_end(mark, |ends| over(ends, 0));
        let Some(session) = self.marked(mark) else { return };
        if over(session.expires_ms, grace) && !session.refreshing {
            return self.end(slot, Some(codes::SESSION_EXPIRED));
        }
        let expired = session.subscriptions.iter().filter(|s| over(s.kind.expires_ms, sub_grace) && !s.refreshing);
        for channel in expired.map(|s| s.channel.clone()).collect::<Vec<_>>() {
            self.leave(slot, &channel);
            let (code, reason) = codes::UNSUBSCRIBED_EXPIRED;
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
            self.reply(slot, &Reply { push: Some(push), ..Reply::default() });
        }
    }

    /// Whether the session is still there.
    fn ping(&mut self, mark: Mark, now: u64) -> bool {
        let slot = mark.0;
        let pong_ms = self.bounds.pong_ms;
        let Some(session) = self.marked(mark) else { return false };
        let due = session.pinged(now + pong_ms);
        let frame = websocket::message(session.encoding, ping(session.encoding));
        self.pongs.extend(due.map(|due| (due, mark)));
        self.send(slot, &frame);
        true
    }
}
