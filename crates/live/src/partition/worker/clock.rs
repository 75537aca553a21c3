//! Timed work: pings, missing pongs, and expiries of sessions and subscriptions.

use super::{LINGER_MS, Mark, Recipient, Worker};
use crate::protocol::codec::ping;
use crate::protocol::codes;
use crate::protocol::message::{Push, Reply, Unsubscribe};
use crate::websocket;

/// The timed work of a worker.
pub(super) struct Clock<'a>(pub(super) &'a mut Worker);

impl Clock<'_> {
    pub(super) fn tick(&mut self) {
        let (now, wall) = (self.0.hub.now_ms(), self.0.hub.wall_ms());
        let turn = self.0.tick as usize % self.0.wheel.len();
        self.0.tick += 1;
        self.end_without_lease();
        let queued = if self.0.inbox.counters.has_queues() { self.queues(now) } else { 0 };
        self.0.inbox.counters.set_queued(queued);
        // Check pongs before sending the next pings, so that an old pong does not answer a new
        // ping.
        let pong_ms = self.0.bounds.pong_ms;
        while let Some(&(due, mark)) = self.0.pongs.front().filter(|(due, _)| *due <= now) {
            self.0.pongs.pop_front();
            let Some(session) = self.0.marked(mark).filter(|session| session.owes_pong(due)) else { continue };
            if session.socket.is_waiting() {
                // The ping is queued behind bytes that the client still has to read; the stall
                // check covers that.
                session.lives();
                let due = session.pinged(now + pong_ms);
                self.0.pongs.extend(due.map(|due| (due, mark)));
            } else {
                self.0.end(mark.0, Some(codes::NO_PONG));
            }
        }
        self.check_expiries(wall);
        let mut marks = std::mem::take(&mut self.0.wheel[turn]);
        marks.retain(|mark| self.ping(*mark, now));
        self.0.wheel[turn].append(&mut marks);
        while let Some(&(_, mark)) = self.0.stale.front().filter(|(due, _)| *due <= now) {
            self.0.stale.pop_front();
            if self.0.marked(mark).is_some_and(|session| session.identity.is_none()) {
                self.0.end(mark.0, Some(codes::STALE));
            }
        }
        self.0.hub.tick();
        self.0.lingering.retain_mut(|(due, session)| {
            if session.socket.is_waiting() {
                if session.socket.flush().is_err() {
                    return false;
                }
                if !session.socket.is_waiting() {
                    session.socket.shut_down();
                    *due = now + LINGER_MS;
                }
            }
            now < *due
        });
    }

    /// Ends all sessions after the lease of the server, which they share: another one may serve.
    fn end_without_lease(&mut self) {
        if self.0.sessions.iter().flatten().next().is_none_or(|first| first.socket.may_answer()) {
            return;
        }
        for slot in 0..self.0.sessions.len() as u32 {
            if self.0.session(slot).is_some() {
                self.0.end(slot, None);
            }
        }
    }

    /// Checks the sessions with queued bytes, ends the stalled ones, and returns the queued bytes.
    fn queues(&mut self, now: u64) -> u64 {
        let (mut queued, mut stalled) = (0, Vec::new());
        for (slot, session) in (0u32..).zip(&mut self.0.sessions) {
            let Some(session) = session.as_deref_mut().filter(|session| session.socket.is_waiting()) else { continue };
            if session.socket.is_stalled(now, &self.0.bounds) {
                stalled.push(slot);
            }
            queued += session.socket.waiting_bytes() as u64;
        }
        for slot in stalled {
            self.0.end(slot, Some(codes::SLOW));
        }
        queued
    }

    /// Asks the back end about the expired session and subscriptions that it decides about.
    fn request_refreshes(&mut self, mark: Mark, has_expired: impl Fn(Option<u64>) -> bool) {
        let (id, hub, refreshes) = (self.0.id(mark.0), self.0.hub.clone(), self.0.bounds.refreshes);
        let Some(session) = self.0.marked(mark) else { return };
        let Some(identity) = session.identity.clone() else { return };
        if refreshes && !session.refreshing && has_expired(session.expires_ms) {
            session.refreshing = true;
            hub.refresh(id, identity.clone());
        }
        for subscription in &mut session.subscriptions {
            if subscription.kind.refreshed && !subscription.refreshing && has_expired(subscription.kind.expires_ms) {
                subscription.refreshing = true;
                hub.sub_refresh(id, identity.clone(), subscription.channel.clone());
            }
        }
    }

    fn check_expiries(&mut self, wall: u64) {
        let later = self.0.ends.split_off(&(wall + 1, (0, 0)));
        for (_, mark) in std::mem::replace(&mut self.0.ends, later) {
            if let Some(session) = self.0.marked(mark) {
                session.due = None;
                self.end_expired(mark, wall);
                self.0.await_end(mark.0);
            }
        }
    }

    /// Ends an expired session, or its expired subscriptions.
    fn end_expired(&mut self, mark: Mark, wall: u64) {
        let (slot, grace, sub_grace) = (mark.0, self.0.bounds.expired_ms, self.0.bounds.expired_sub_ms);
        let has_expired = |ends: Option<u64>, grace: u64| ends.is_some_and(|ends| ends.saturating_add(grace) <= wall);
        self.request_refreshes(mark, |ends| has_expired(ends, 0));
        let Some(session) = self.0.marked(mark) else { return };
        if has_expired(session.expires_ms, grace) && !session.refreshing {
            return self.0.end(slot, Some(codes::SESSION_EXPIRED));
        }
        let expired =
            session.subscriptions.iter().filter(|s| has_expired(s.kind.expires_ms, sub_grace) && !s.refreshing);
        for channel in expired.map(|s| s.channel.clone()).collect::<Vec<_>>() {
            Recipient { worker: self.0, slot }.leave(&channel);
            let (code, reason) = codes::UNSUBSCRIBED_EXPIRED;
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
            self.0.reply(slot, &Reply { push: Some(push), ..Reply::default() });
        }
    }

    /// Pings the session; `false` if it no longer exists.
    fn ping(&mut self, mark: Mark, now: u64) -> bool {
        let slot = mark.0;
        let pong_ms = self.0.bounds.pong_ms;
        let Some(session) = self.0.marked(mark) else { return false };
        let due = session.pinged(now + pong_ms);
        let frame = match session.connection.frame_pings {
            true => websocket::ping(),
            false => websocket::message(session.connection.encoding, ping(session.connection.encoding)),
        };
        self.0.pongs.extend(due.map(|due| (due, mark)));
        self.0.send(slot, &frame);
        true
    }
}
