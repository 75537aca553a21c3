//! What is published, brought to the sessions of the partition.

use std::sync::Arc;

use super::Worker;
use crate::outgoing::{ChannelPush, Outgoing};
use crate::partition::session::{Broken, Session};
use crate::partition::subscriptions::{Next, Progress};
use crate::protocol::codes;

/// Why a session did not get a publication.
enum Lost {
    Gap,
    Broken(Broken),
}

/// What became of a publication at a session that goes on.
#[derive(PartialEq)]
enum Brought {
    Sent,
    Nothing,
    /// It cannot be said in the session's encoding.
    LeftOut,
}

impl Worker {
    /// Brings a publication to all who subscribe to its channel; at once if it is `alone`, or together with those that follow.
    pub(super) fn publication(&mut self, outgoing: &Arc<Outgoing>, alone: bool) {
        let mut lost = Vec::new();
        let (mut delivered, mut left_out) = (0, 0);
        let Self { channels, sessions, dirty, bounds, .. } = self;
        for entry in channels.entries(&outgoing.channel) {
            let Some(Some(session)) = sessions.get_mut(entry.slot as usize) else { continue };
            match bring(session, entry.at as usize, outgoing, alone, bounds.queue_bytes_max) {
                Ok(Brought::Sent) => {
                    delivered += 1;
                    if session.is_waiting() && !session.dirty {
                        session.dirty = true;
                        dirty.push(entry.slot);
                    }
                }
                Ok(Brought::Nothing) => {}
                Ok(Brought::LeftOut) => left_out += 1,
                Err(why) => lost.push((entry.slot, why)),
            }
        }
        self.inbox.counters.delivered(delivered);
        self.inbox.counters.left_out(left_out);
        for (slot, why) in lost {
            self.lost(slot, why);
        }
    }

    /// Brings what was kept while a subscription was being made.
    pub(super) fn bring_kept(&mut self, slot: u32, at: usize, kept: &[Arc<Outgoing>]) {
        let max = self.bounds.queue_bytes_max;
        for outgoing in kept {
            let Some(session) = self.session(slot) else { return };
            match bring(session, at, outgoing, false, max) {
                Ok(brought) => {
                    self.inbox.counters.delivered(u64::from(brought == Brought::Sent));
                    self.inbox.counters.left_out(u64::from(brought == Brought::LeftOut));
                }
                Err(why) => self.lost(slot, why),
            }
        }
        self.flush(slot);
    }

    fn lost(&mut self, slot: u32, why: Lost) {
        match why {
            Lost::Gap => self.end(slot, Some(codes::INSUFFICIENT_STATE)),
            Lost::Broken(broken) => self.lagging(slot, broken),
        }
    }

    /// A session that had too much kept for it: perhaps only because it was kept to be written together.
    fn lagging(&mut self, slot: u32, broken: Broken) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        if broken == Broken::Slow && session.flush() == Ok(()) && !session.is_slow(max) {
            return self.watch(slot);
        }
        self.broken(slot, broken);
    }

    pub(super) fn push(&mut self, push: &ChannelPush) {
        let listening: Vec<u32> = {
            let entries = self.channels.entries(&push.channel).iter();
            let listens = entries.filter(|entry| {
                let session = self.sessions.get(entry.slot as usize).and_then(Option::as_deref);
                let subscription = session.and_then(|session| session.subscriptions.get(entry.at as usize));
                subscription.is_some_and(|s| s.kind.join_leave && matches!(s.progress, Progress::Active(_)))
            });
            listens.map(|entry| entry.slot).collect()
        };
        for slot in listening {
            let frame = self.session(slot).and_then(|session| push.frame(session.encoding, session.deflate));
            if let Some(frame) = frame {
                self.send(slot, &frame);
            }
        }
    }
}

/// Brings a publication to one subscription of a session.
fn bring(
    session: &mut Session,
    at: usize,
    outgoing: &Arc<Outgoing>,
    alone: bool,
    queue_bytes_max: usize,
) -> Result<Brought, Lost> {
    let Some(subscription) = session.subscriptions.get_mut(at) else { return Ok(Brought::Nothing) };
    let form = match subscription.next(outgoing) {
        Next::Nothing => return Ok(Brought::Nothing),
        Next::Gap => return Err(Lost::Gap),
        Next::Goes(form) => form,
    };
    let Some(frame) = outgoing.frame(session.encoding, form, session.deflate) else {
        // Its offset is taken note of, and what follows comes: a recovery would leave it out again. Only the next difference would be to
        // what the client does not have.
        subscription.has_base = false;
        return Ok(Brought::LeftOut);
    };
    let sent = if alone { session.send(&frame, queue_bytes_max) } else { session.keep(frame, queue_bytes_max) };
    sent.map(|()| Brought::Sent).map_err(Lost::Broken)
}
