//! Input from and output to the sockets.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use rustix::event::epoll;
use steadfast_flow::{Permit, log_rarely};

use super::Worker;
use crate::answer::held;
use crate::partition::session::{Watched, would_block};
use crate::partition::{CommandSource, QueuedCommand};
use crate::protocol::Malformed;
use crate::protocol::codec::encode_reply;
use crate::protocol::codes;
use crate::protocol::message::Reply;
use crate::session::ConnectionInfo;
use crate::websocket;

/// Publish commands of a session that are executed together.
const PUBLISH_BATCH_MAX: usize = 64;

impl Worker {
    pub(super) fn ready(&mut self, slot: u32, flags: epoll::EventFlags, buffer: &mut [u8]) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(slot);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        // Stop after a few reads, so that other sessions get their turn.
        for _ in 0..4 {
            let Some(session) = self.session(slot).filter(|session| session.watched.readable) else { return };
            match (&session.socket).read(buffer) {
                Ok(0) => return self.end(slot, None),
                Ok(len) => {
                    self.read(slot, &mut buffer[..len]);
                    if len < buffer.len() {
                        return;
                    }
                }
                Err(e) if would_block(&e) => return,
                Err(_) => return self.end(slot, None),
            }
        }
    }

    pub(super) fn read(&mut self, slot: u32, bytes: &mut [u8]) {
        let Some(session) = self.session(slot) else { return };
        session.lives();
        if self.take_in(slot, bytes) {
            self.next_commands(slot);
        }
    }

    /// Decodes received and kept bytes. Returns whether the session stays open.
    fn take_in(&mut self, slot: u32, bytes: &mut [u8]) -> bool {
        let max = self.bounds.message_bytes_max;
        let Some(session) = self.session(slot) else { return false };
        let (pings, end) = session.take_in(bytes, max);
        for payload in pings {
            self.send(slot, &websocket::pong(&payload));
        }
        if let Some(why) = end {
            if why != codes::BAD_PROTOCOL {
                // Start the commands that precede the end.
                self.begin_commands(slot);
            }
            self.end(slot, Some(why));
            return false;
        }
        true
    }

    /// Starts the next commands, unless some are in flight.
    pub(super) fn next_commands(&mut self, slot: u32) {
        let kept = self.session(slot).is_some_and(|session| session.has_kept());
        if kept && !self.take_in(slot, &mut []) {
            return;
        }
        self.begin_commands(slot);
        self.watch(slot);
    }

    fn begin_commands(&mut self, slot: u32) {
        let (id, now, rate) = (self.id(slot), self.hub.now_ms(), self.bounds.publish_rate);
        let queue_max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        // While the client has unread answers, its next commands wait.
        if !session.busy && !session.commands.is_empty() && !session.owes_reading(queue_max) {
            let publishes = session.commands.iter().take_while(|queued| queued.command.publish.is_some()).count();
            let count = publishes.clamp(1, PUBLISH_BATCH_MAX);
            let mut commands: Vec<QueuedCommand> = session.commands.drain(..count).collect();
            if session.commands.is_empty() {
                session.commands = VecDeque::new();
            }
            for queued in &mut commands {
                queued.subscriptions = session.subscriptions.len();
                queued.over_rate = queued.command.publish.is_some() && !session.may_publish(now, rate);
                let channel = queued.command.channel();
                let found = session.subscriptions.iter().find(|s| channel == Some(&*s.channel));
                queued.subscribed = found.map(|subscription| subscription.kind.server_side);
            }
            session.busy = true;
            let source = match &session.identity {
                Some(identity) => CommandSource::Known(identity.clone()),
                None => {
                    let (encoding, transport, deflate) = (session.encoding, session.transport, session.deflate);
                    let (headers, name) = std::mem::take(&mut session.request);
                    let (address, frame_pings) = (session.address.clone(), session.frame_pings);
                    let info =
                        ConnectionInfo { encoding, transport, deflate, headers, session: name, address, frame_pings };
                    CommandSource::New(info)
                }
            };
            self.hub.carry_out(id, source, commands);
        }
    }

    /// Registers the socket for the events that the session needs.
    pub(super) fn watch(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return };
        let wanted = Watched { readable: session.takes_more(), writable: session.is_waiting() };
        if wanted == session.watched {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, wanted.readable);
        flags.set(epoll::EventFlags::OUT, wanted.writable);
        // epoll always reports a hang-up: edge-triggered while nothing is read, so that it is
        // reported once.
        flags.set(epoll::EventFlags::ET, !wanted.readable);
        match epoll::modify(&self.epoll, &session.socket, epoll::EventData::new_u64(u64::from(slot)), flags) {
            Ok(()) => {
                if wanted.writable != session.watched.writable {
                    self.inbox.counters.queues(wanted.writable);
                }
                session.watched = wanted;
            }
            Err(error) => {
                log_rarely!(warn, %error, "the socket of a session cannot be registered with epoll: the session is closed");
                self.end(slot, Some(codes::SERVER_ERROR));
            }
        }
    }

    // Output.

    pub(super) fn send(&mut self, slot: u32, frame: &Bytes) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        match session.send(frame, max) {
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    /// Writes frames for this session alone. A frame may have two parts, of which sessions may
    /// share the second.
    pub(super) fn answer(&mut self, slot: u32, frames: impl IntoIterator<Item = (Bytes, Option<Bytes>)>) {
        let max = self.bounds.queue_bytes_max;
        let Some(session) = self.session(slot) else { return };
        match session.answer(frames, max).and_then(|()| session.flush()) {
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    pub(super) fn reply(&mut self, slot: u32, reply: &Reply) {
        self.replies(slot, std::slice::from_ref(reply), &[]);
    }

    /// Writes replies. Their frames hold the permits until they are written.
    pub(super) fn replies(&mut self, slot: u32, replies: &[Reply], permits: &[Arc<Permit>]) {
        let Some(session) = self.session(slot) else { return };
        let (encoding, deflate) = (session.encoding, session.deflate);
        let frame = |reply| {
            let mut payload = Vec::new();
            encode_reply(encoding, reply, &mut payload)?;
            let compressed = deflate.and_then(|deflate| websocket::compressed(encoding, deflate, &payload));
            Ok((held(compressed.unwrap_or_else(|| websocket::message(encoding, &payload)), permits), None))
        };
        let frames: Result<Vec<_>, Malformed> = replies.iter().map(frame).collect();
        match frames {
            Ok(frames) => self.answer(slot, frames),
            Err(_) => self.end(slot, Some(codes::INAPPROPRIATE_PROTOCOL)),
        }
    }

    pub(super) fn flush(&mut self, slot: u32) {
        let Some(session) = self.session(slot) else { return };
        match session.flush() {
            // Commands may have waited for the client to read.
            Ok(()) if !session.commands.is_empty() => self.next_commands(slot),
            Ok(()) => self.watch(slot),
            Err(broken) => self.broken(slot, broken),
        }
    }

    pub(super) fn write_dirty(&mut self) {
        for slot in std::mem::take(&mut self.dirty) {
            if let Some(session) = self.session(slot) {
                session.dirty = false;
                self.flush(slot);
            }
        }
    }
}
