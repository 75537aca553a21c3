//! The commands of a session that wait, decoded or not.

use std::collections::VecDeque;

use crate::partition::QueuedCommand;
use crate::protocol::Encoding;
use crate::protocol::codec::next_command;
use crate::protocol::codes::{self, Disconnected};
use crate::protocol::message::Command;
use crate::websocket::{Incoming, Reader};

/// Decoded commands that a session may queue. A decoded command takes much more memory than its
/// bytes, so further commands stay undecoded.
pub(super) const COMMANDS_MAX: usize = 128;

/// Publish commands of a session that are executed together.
const PUBLISH_BATCH_MAX: usize = 64;

/// The commands of a session that wait until those in flight complete.
pub(in crate::partition) struct CommandQueue {
    encoding: Encoding,
    reader: Reader,
    /// The undecoded rest of a message, while the queue is full.
    rest: Vec<u8>,
    /// The reader may hold whole messages, because the queue was full.
    held: bool,
    queued: VecDeque<QueuedCommand>,
    /// Whether the session is connected: its first command must be connect, and no other one.
    connected: bool,
    /// Commands are in flight.
    pub(in crate::partition) busy: bool,
    /// A second, and the number of publications in it.
    published: (u64, u32),
}

impl CommandQueue {
    /// The commands of a session that is about to connect.
    pub(in crate::partition) fn new(encoding: Encoding, compressed: bool) -> Self {
        Self {
            encoding,
            reader: Reader::new(compressed),
            rest: Vec::new(),
            held: false,
            queued: VecDeque::new(),
            connected: false,
            busy: false,
            published: (0, 0),
        }
    }

    /// The session is connected: it may send other commands.
    pub(in crate::partition) fn connected(&mut self) {
        self.connected = true;
    }

    /// Whether no decoded command waits.
    pub(in crate::partition) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Takes the next commands: several publications, or one other command. Those of a session with
    /// more than `rate` publications in this second are marked.
    pub(in crate::partition) fn take_next(&mut self, now_ms: u64, rate: u32) -> Vec<QueuedCommand> {
        let publishes = self.queued.iter().take_while(|queued| queued.command.publish.is_some()).count();
        let count = publishes.clamp(1, PUBLISH_BATCH_MAX);
        let mut commands: Vec<QueuedCommand> = self.queued.drain(..count).collect();
        if self.queued.is_empty() {
            self.queued = VecDeque::new();
        }
        for queued in &mut commands {
            queued.over_rate = queued.command.publish.is_some() && !self.may_publish(now_ms, rate);
        }
        commands
    }

    /// Whether another command may be queued. An unconnected session may have only its connect
    /// command.
    fn has_room(&self) -> bool {
        match self.connected {
            true => self.queued.len() < COMMANDS_MAX,
            false => self.queued.is_empty() && !self.busy,
        }
    }

    /// Whether to read from the socket: not while received bytes wait for the command queue.
    pub(in crate::partition) fn takes_more(&self) -> bool {
        !self.held && self.rest.is_empty() && self.has_room()
    }

    /// Whether to decode kept bytes now.
    pub(in crate::partition) fn has_kept(&self) -> bool {
        (self.held || !self.rest.is_empty()) && self.has_room() && self.queued.len() <= COMMANDS_MAX / 2
    }

    /// Decodes the kept bytes and then `bytes`, until the command queue is full, and keeps the rest
    /// undecoded. Returns the payloads of transport pings, and the reason if the session must end.
    pub(in crate::partition) fn take_in(
        &mut self,
        bytes: &mut [u8],
        message_max: usize,
    ) -> (Vec<Vec<u8>>, Option<Disconnected>) {
        let mut pings = Vec::new();
        let rest = std::mem::take(&mut self.rest);
        if self.decode(rest).is_err() {
            return (pings, Some(codes::BAD_PROTOCOL));
        }
        if !self.has_room() {
            self.held |= !bytes.is_empty();
            self.reader.keep(bytes);
            return (pings, None);
        }
        let mut end = None;
        let mut reader = std::mem::take(&mut self.reader);
        let fed = reader.feed(bytes, message_max, |incoming| {
            match incoming {
                Incoming::Message(message) => {
                    if self.decode(message).is_err() {
                        end = Some(codes::BAD_PROTOCOL);
                    }
                }
                Incoming::Ping(payload) => pings.push(payload),
                Incoming::Close => end = Some(codes::CONNECTION_CLOSED),
            }
            end.is_none() && self.has_room()
        });
        self.reader = reader;
        self.held = !self.has_room();
        if let (Err(violation), None) = (fed, &end) {
            let reason = "the frame is invalid or too large".into();
            end = Some(Disconnected { code: violation.code(), reason });
        }
        (pings, end)
    }

    /// Decodes the commands of a message, until the command queue is full.
    fn decode(&mut self, message: Vec<u8>) -> Result<(), ()> {
        let mut rest = &message[..];
        while !rest.is_empty() {
            if !self.has_room() {
                self.rest = rest.to_vec();
                break;
            }
            let Some(command) = next_command(self.encoding, &mut rest).map_err(drop)? else { break };
            // An empty command is a pong.
            if command == Command::default() {
                continue;
            }
            // The first command must be connect, and connect must not be repeated.
            let begins = !self.connected;
            if begins != command.connect.is_some() || command.id == 0 && command.send.is_none() {
                return Err(());
            }
            self.queued.push_back(QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false });
        }
        Ok(())
    }

    /// Counts a publication; `false` if the session already made `rate` publications in this
    /// second. 0: no limit.
    fn may_publish(&mut self, now_ms: u64, rate: u32) -> bool {
        if rate == 0 {
            return true;
        }
        let second = now_ms / 1000;
        if self.published.0 != second {
            self.published = (second, 0);
        }
        self.published.1 = self.published.1.saturating_add(1);
        self.published.1 <= rate
    }

    /// Releases the commands and received bytes.
    pub(in crate::partition) fn clear(&mut self) {
        (self.queued, self.rest, self.reader) = (VecDeque::new(), Vec::new(), Reader::new(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket;

    fn queue(connected: bool) -> CommandQueue {
        let mut queue = CommandQueue::new(Encoding::Json, false);
        if connected {
            queue.connected();
        }
        queue
    }

    /// Frames with `commands` commands in all, `in_each` in each.
    fn frames(commands: u32, in_each: usize) -> Vec<u8> {
        let ids: Vec<u32> = (1..=commands).collect();
        let line = |id: &u32| format!("{{\"id\":{id},\"ping\":{{}}}}\n{{}}\n");
        let message = |ids: &[u32]| ids.iter().map(line).collect::<String>();
        ids.chunks(in_each).flat_map(|ids| websocket::from_client(Encoding::Json, message(ids).as_bytes())).collect()
    }

    #[test]
    fn commands_above_the_bound_stay_undecoded_and_keep_their_order() {
        for in_each in [1, 7, 500, 2000] {
            let mut commands = queue(true);
            let mut bytes = [frames(2000, in_each), websocket::from_client(Encoding::Json, b"nonsense")].concat();
            let mut found = Vec::new();
            let mut come = &mut bytes[..];
            let end = loop {
                let end = commands.take_in(std::mem::take(&mut come), 1 << 16).1;
                assert!(commands.queued.len() <= COMMANDS_MAX, "{} in frames of {in_each}", commands.queued.len());
                assert_eq!(commands.takes_more(), commands.queued.len() < COMMANDS_MAX);
                // Taking one makes space for one more.
                found.extend(commands.queued.pop_front().map(|queued| queued.command.id));
                if end.is_some() {
                    break end;
                }
            };
            found.extend(commands.queued.iter().map(|queued| queued.command.id));
            assert!(found.iter().copied().eq(1..=2000), "in order, each once: {found:?}");
            assert_eq!(end, Some(codes::BAD_PROTOCOL));
        }
    }

    #[test]
    fn an_unconnected_session_has_one_command() {
        let mut commands = queue(false);
        let connect = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
        let mut bytes = [connect, frames(2000, 1)].concat();
        assert_eq!(commands.take_in(&mut bytes, 1 << 16), (Vec::new(), None));
        assert_eq!(commands.queued.len(), 1);
        assert!(!commands.takes_more());
        (commands.busy, commands.queued) = (true, VecDeque::new());
        assert_eq!(commands.take_in(&mut [], 1 << 16), (Vec::new(), None));
        assert!(commands.queued.is_empty() && !commands.takes_more());
        commands.busy = false;
        commands.connected();
        assert_eq!(commands.take_in(&mut [], 1 << 16), (Vec::new(), None));
        assert_eq!(commands.queued.len(), COMMANDS_MAX);
        // The first command must be connect, and connect must not be repeated.
        for first in [&br#"{"id":1,"ping":{}}"#[..], br#"{"connect":{}}"#] {
            let mut bytes = websocket::from_client(Encoding::Json, first);
            assert_eq!(queue(false).take_in(&mut bytes, 1 << 16).1, Some(codes::BAD_PROTOCOL));
        }
        let mut again = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
        assert_eq!(queue(true).take_in(&mut again, 1 << 16).1, Some(codes::BAD_PROTOCOL));
    }
}
