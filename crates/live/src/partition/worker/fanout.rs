//! Delivery of publications to the sessions of the partition.

use std::sync::Arc;

use steadfast_store::Position;

use super::{Recipient, Worker};
use crate::outgoing::{ChannelPush, Outgoing};
use crate::partition::SessionMessage;
use crate::partition::session::{Broken, Session};
use crate::partition::subscriptions::{Next, Progress};
use crate::protocol::codes;

/// Why a session did not get a publication.
enum DeliveryError {
    Gap,
    Broken(Broken),
}

/// The result of a delivery to a session that stays open.
#[derive(PartialEq)]
enum Delivery {
    Sent,
    Nothing,
    /// The encoding of the session cannot represent the data.
    Skipped,
}

/// Delivers to the subscribers of channels.
pub(super) struct Fanout<'a>(pub(super) &'a mut Worker);

impl Fanout<'_> {
    /// Delivers a publication to all subscribers of its channel: immediately if `alone`, otherwise
    /// together with the following ones.
    pub(super) fn publication(&mut self, outgoing: &Arc<Outgoing>, alone: bool) {
        let mut failed = Vec::new();
        let (mut delivered, mut skipped) = (0, 0);
        let Worker { channels, sessions, dirty, bounds, .. } = &mut *self.0;
        for entry in channels.entries(&outgoing.channel) {
            let Some(Some(session)) = sessions.get_mut(entry.slot as usize) else { continue };
            match deliver(session, entry.at as usize, outgoing, alone, bounds.queue_bytes_max) {
                Ok(Delivery::Sent) => {
                    delivered += 1;
                    if session.socket.is_waiting() && !session.dirty {
                        session.dirty = true;
                        dirty.push(entry.slot);
                    }
                }
                Ok(Delivery::Nothing) => {}
                Ok(Delivery::Skipped) => skipped += 1,
                Err(why) => failed.push((entry.slot, why)),
            }
        }
        self.0.inbox.counters.delivered(delivered);
        self.0.inbox.counters.skipped(skipped);
        for (slot, why) in failed {
            self.delivery_failed(slot, why);
        }
    }

    /// Delivers the publications that were kept while the subscription was being made.
    pub(super) fn deliver_kept(&mut self, slot: u32, at: usize, kept: &[Arc<Outgoing>]) {
        let max = self.0.bounds.queue_bytes_max;
        for outgoing in kept {
            let Some(session) = self.0.session(slot) else { return };
            match deliver(session, at, outgoing, false, max) {
                Ok(delivery) => {
                    self.0.inbox.counters.delivered(u64::from(delivery == Delivery::Sent));
                    self.0.inbox.counters.skipped(u64::from(delivery == Delivery::Skipped));
                }
                Err(why) => self.delivery_failed(slot, why),
            }
        }
        self.0.flush(slot);
    }

    fn delivery_failed(&mut self, slot: u32, why: DeliveryError) {
        match why {
            DeliveryError::Gap => self.0.end(slot, Some(codes::INSUFFICIENT_STATE)),
            DeliveryError::Broken(broken) => self.lagging(slot, broken),
        }
    }

    /// Handles a session over its queue bound. The bound may be exceeded only because frames were
    /// queued to be written together, so it first writes them.
    fn lagging(&mut self, slot: u32, broken: Broken) {
        let max = self.0.bounds.queue_bytes_max;
        let Some(session) = self.0.session(slot) else { return };
        if broken == Broken::Slow && session.socket.flush() == Ok(()) && !session.socket.is_slow(max) {
            return self.0.watch(slot);
        }
        self.0.broken(slot, broken);
    }

    /// The channel begins anew at a position. Clients whose subscriptions end subscribe again, and
    /// recover what is left.
    pub(super) fn reset(&mut self, channel: &Arc<str>, position: Position) {
        let mut ended = Vec::new();
        let Worker { channels, sessions, .. } = &mut *self.0;
        for entry in channels.entries(channel) {
            let session = sessions.get_mut(entry.slot as usize).and_then(Option::as_deref_mut);
            let subscription = session.and_then(|session| session.subscriptions.get_mut(entry.at as usize));
            if let Some(subscription) = subscription
                && subscription.reset(position)
            {
                ended.push((entry.slot, subscription.kind.server_side));
            }
        }
        for (slot, server_side) in ended {
            if server_side {
                self.0.end(slot, Some(codes::INSUFFICIENT_STATE));
            } else {
                let why = codes::UNSUBSCRIBED_INSUFFICIENT;
                Recipient { worker: self.0, slot }.on_message(SessionMessage::unsubscribed(channel.clone(), why));
            }
        }
    }

    pub(super) fn push(&mut self, push: &ChannelPush) {
        let listening: Vec<u32> = {
            let entries = self.0.channels.entries(&push.channel).iter();
            let listens = entries.filter(|entry| {
                let session = self.0.sessions.get(entry.slot as usize).and_then(Option::as_deref);
                let subscription = session.and_then(|session| session.subscriptions.get(entry.at as usize));
                subscription.is_some_and(|s| s.kind.join_leave && matches!(s.progress, Progress::Active(_)))
            });
            listens.map(|entry| entry.slot).collect()
        };
        for slot in listening {
            let frame = self
                .0
                .session(slot)
                .and_then(|session| push.frame(session.connection.encoding, session.connection.deflate));
            if let Some(frame) = frame {
                self.0.send(slot, &frame);
            }
        }
    }
}

/// Delivers a publication to one subscription of a session.
fn deliver(
    session: &mut Session,
    at: usize,
    outgoing: &Arc<Outgoing>,
    alone: bool,
    queue_bytes_max: usize,
) -> Result<Delivery, DeliveryError> {
    let Some(subscription) = session.subscriptions.get_mut(at) else { return Ok(Delivery::Nothing) };
    let form = match subscription.next(outgoing) {
        Next::Nothing => return Ok(Delivery::Nothing),
        Next::Gap => return Err(DeliveryError::Gap),
        Next::Deliver(form) => form,
    };
    let Some(frame) = outgoing.frame(session.connection.encoding, form, session.connection.deflate) else {
        // The offset is recorded and later publications are delivered, because a recovery would
        // skip it again. The client lacks only the base of the next delta.
        subscription.has_base = false;
        return Ok(Delivery::Skipped);
    };
    let sent =
        if alone { session.socket.send(&frame, queue_bytes_max) } else { session.socket.keep(frame, queue_bytes_max) };
    sent.map(|()| Delivery::Sent).map_err(DeliveryError::Broken)
}
