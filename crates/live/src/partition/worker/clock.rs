//! Timed work: pings, missing pongs, and expiries of sessions and subscriptions.

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
        // Check pongs before sending the next pings, so that an old pong does not answer a new
        // ping.
        let pong_ms = self.bounds.pong_ms;
        while let Some(&(due, mark)) = self.pongs.front().filter(|(due, _)| *due <= now) {
            self.pongs.pop_front();
            let Some(session) = self.marked(mark).filter(|session| session.owes_pong(due)) else { continue };
            if session.is_waiting() {
                // The ping is queued behind bytes that the client still has to read; the stall
                // check covers that.
                session.lives();
                let due = session.pinged(now + pong_ms);
                self.pongs.extend(due.map(|due| (due, mark)));
            } else {
                self.end(mark.0, Some(codes::NO_PONG));
            }
        }
        self.check_expiries(wall);
        let mut marks = std::mem::take(&mut self.wheel[turn]);
        marks.retain(|mark| self.ping(*mark, now));
        self.wheel[turn].append(&mut marks);
        while let Some(&(_, mark)) = self.stale.front().filter(|(due, _)| *due <= now) {
            self.stale.pop_front();
            if self.marked(mark).is_some_and(|session| session.identity.is_none()) {
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

    /// Checks the sessions with queued bytes, ends the stalled ones, and returns the queued bytes.
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

    /// Asks the back end about the expired session and subscriptions that it decides about.
    fn request_refreshes(&mut self, mark: Mark, has_expired: impl Fn(Option<u64>) -> bool) {
        let (id, hub, refreshes) = (self.id(mark.0), self.hub.clone(), self.bounds.refreshes);
        let Some(session) = self.marked(mark) else { return };
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

    /// Schedules the check of the next expiry of a session.
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

    fn check_expiries(&mut self, wall: u64) {
        let later = self.ends.split_off(&(wall + 1, (0, 0)));
        for (_, mark) in std::mem::replace(&mut self.ends, later) {
            if let Some(session) = self.marked(mark) {
                session.due = None;
                self.end_expired(mark, wall);
                self.await_end(mark.0);
            }
        }
    }

    /// Ends an expired session, or its expired subscriptions.
    fn end_expired(&mut self, mark: Mark, wall: u64) {
        let (slot, grace, sub_grace) = (mark.0, self.bounds.expired_ms, self.bounds.expired_sub_ms);
        let has_expired = |ends: Option<u64>, grace: u64| ends.is_some_and(|ends| ends.saturating_add(grace) <= wall);
        self.request_refreshes(mark, |ends| has_expired(ends, 0));
        let Some(session) = self.marked(mark) else { return };
        if has_expired(session.expires_ms, grace) && !session.refreshing {
            return self.end(slot, Some(codes::SESSION_EXPIRED));
        }
        let expired =
            session.subscriptions.iter().filter(|s| has_expired(s.kind.expires_ms, sub_grace) && !s.refreshing);
        for channel in expired.map(|s| s.channel.clone()).collect::<Vec<_>>() {
            self.leave(slot, &channel);
            let (code, reason) = codes::UNSUBSCRIBED_EXPIRED;
            let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
            let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
            self.reply(slot, &Reply { push: Some(push), ..Reply::default() });
        }
    }

    /// Pings the session; `false` if it no longer exists.
    fn ping(&mut self, mark: Mark, now: u64) -> bool {
        let slot = mark.0;
        let pong_ms = self.bounds.pong_ms;
        let Some(session) = self.marked(mark) else { return false };
        let due = session.pinged(now + pong_ms);
        let frame = match session.frame_pings {
            true => websocket::ping(),
            false => websocket::message(session.encoding, ping(session.encoding)),
        };
        self.pongs.extend(due.map(|due| (due, mark)));
        self.send(slot, &frame);
        true
    }
}
