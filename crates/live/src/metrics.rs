//! What the live door tells of itself: for status and metrics.
//!
//! Each worker counts for its own partition, so that counting costs no shared cache line; who asks adds up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::{FlowStatus, SlowStatus};

use crate::partition::Transport;
use crate::protocol::Encoding;
use crate::protocol::codes;
use crate::proxy::ProxyStatus;

/// Counters of a partition.
#[derive(Default)]
pub(crate) struct Counters {
    sessions: [[AtomicU64; Transport::ALL.len()]; Encoding::ALL.len()],
    subscriptions: AtomicU64,
    deliveries: AtomicU64,
    left_out: AtomicU64,
    queued_sessions: AtomicU64,
    queued_bytes: AtomicU64,
    /// By close code; 0 for those that the client or the network ended.
    ended: Mutex<BTreeMap<u16, u64>>,
}

impl Counters {
    pub(crate) fn opened(&self, encoding: Encoding, transport: Transport) {
        self.sessions[encoding as usize][transport as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn ended(&self, encoding: Encoding, transport: Transport, code: u16) {
        self.sessions[encoding as usize][transport as usize].fetch_sub(1, Relaxed);
        *self.ended.lock().entry(code).or_default() += 1;
    }

    pub(crate) fn subscribed(&self) {
        self.subscriptions.fetch_add(1, Relaxed);
    }

    pub(crate) fn unsubscribed(&self) {
        self.subscriptions.fetch_sub(1, Relaxed);
    }

    pub(crate) fn delivered(&self, publications: u64) {
        self.deliveries.fetch_add(publications, Relaxed);
    }

    pub(crate) fn left_out(&self, publications: u64) {
        self.left_out.fetch_add(publications, Relaxed);
    }

    /// A socket takes no more for now, or takes it again.
    pub(crate) fn queues(&self, begins: bool) {
        if begins {
            self.queued_sessions.fetch_add(1, Relaxed);
        } else {
            self.queued_sessions.fetch_sub(1, Relaxed);
        }
    }

    pub(crate) fn has_queues(&self) -> bool {
        self.queued_sessions.load(Relaxed) > 0
    }

    /// Bytes that wait for sockets, as of the last look.
    pub(crate) fn set_queued(&self, bytes: u64) {
        self.queued_bytes.store(bytes, Relaxed);
    }
}

/// Commands that were refused, by error code.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<u32, u64>>);

impl Refusals {
    pub(crate) fn count(&self, code: u32) {
        *self.0.lock().entry(code).or_default() += 1;
    }
}

/// Sessions of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionsOf {
    /// `json` or `protobuf`.
    pub encoding: &'static str,
    /// How they are connected.
    pub transport: &'static str,
    /// How many there are.
    pub sessions: u64,
}

/// How often a code was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CodeCount {
    /// The protocol's.
    pub code: u32,
    /// How often.
    pub count: u64,
}

/// A bound that is not one of `flow`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SimpleBound {
    /// Its name.
    pub name: &'static str,
    /// The bound, in bytes.
    pub limit: u64,
    /// How much is taken now.
    pub used: u64,
    /// How many callers were refused.
    pub refused: u64,
}

/// How the live door is.
#[derive(Debug, Clone, Serialize)]
pub struct LiveStatus {
    /// Sessions, before and after their connect command.
    pub sessions: u64,
    /// The same by encoding and transport.
    pub sessions_by: Vec<SessionsOf>,
    /// Users with sessions.
    pub users: usize,
    /// Subscriptions of all sessions.
    pub subscriptions: u64,
    /// Channels with subscribers.
    pub channels: usize,
    /// Publications that were accepted since the start.
    pub publications: u64,
    /// Publications times sessions that got them.
    pub deliveries: u64,
    /// Publications times sessions that were not told of them: they speak JSON, and the data is none.
    pub publications_left_out: u64,
    /// Sessions whose sockets take nothing more for now.
    pub queued_sessions: u64,
    /// Bytes that wait for them, as of a quarter of a second ago at most.
    pub queued_bytes: u64,
    /// Sessions that were ended because they did not read.
    pub slow: u64,
    /// Commands, and requests to the API, that took long.
    pub slow_requests: Vec<SlowStatus>,
    /// Sessions that have ended, by close code; 0: the client or the network ended it.
    pub ended: Vec<CodeCount>,
    /// Commands that were refused, by error code.
    pub refused: Vec<CodeCount>,
    /// Publications on their way to the partitions.
    pub backlog: SimpleBound,
    /// What is asked of the back end.
    pub proxies: Vec<ProxyStatus>,
    /// The gates of the door.
    pub gates: Vec<FlowStatus>,
}

/// What the partitions have counted, together. The rest is for the node to fill in.
pub(crate) struct Sums {
    pub(crate) sessions_by: Vec<SessionsOf>,
    pub(crate) subscriptions: u64,
    pub(crate) deliveries: u64,
    pub(crate) left_out: u64,
    pub(crate) queued_sessions: u64,
    pub(crate) queued_bytes: u64,
    pub(crate) ended: Vec<CodeCount>,
}

impl Sums {
    pub(crate) fn of<'a>(partitions: impl Iterator<Item = &'a Counters> + Clone) -> Self {
        let sum = |field: fn(&Counters) -> &AtomicU64| partitions.clone().map(|c| field(c).load(Relaxed)).sum();
        let mut sessions_by = Vec::new();
        for encoding in Encoding::ALL {
            for transport in Transport::ALL {
                let of = |c: &Counters| c.sessions[encoding as usize][transport as usize].load(Relaxed);
                let sessions = partitions.clone().map(of).sum();
                sessions_by.push(SessionsOf { encoding: encoding.name(), transport: transport.name(), sessions });
            }
        }
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        for counters in partitions.clone() {
            for (code, count) in counters.ended.lock().iter() {
                *ended.entry(u32::from(*code)).or_default() += count;
            }
        }
        Self {
            sessions_by,
            subscriptions: sum(|c| &c.subscriptions),
            deliveries: sum(|c| &c.deliveries),
            left_out: sum(|c| &c.left_out),
            queued_sessions: sum(|c| &c.queued_sessions),
            queued_bytes: sum(|c| &c.queued_bytes),
            ended: counts(&ended),
        }
    }

    pub(crate) fn slow(&self) -> u64 {
        let slow = u32::from(codes::SLOW.code);
        self.ended.iter().filter(|ended| ended.code == slow).map(|ended| ended.count).sum()
    }
}

fn counts(map: &BTreeMap<u32, u64>) -> Vec<CodeCount> {
    map.iter().map(|(code, count)| CodeCount { code: *code, count: *count }).collect()
}

impl Refusals {
    pub(crate) fn counts(&self) -> Vec<CodeCount> {
        counts(&self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_are_added_up() {
        let partitions = [Counters::default(), Counters::default()];
        for counters in &partitions {
            counters.opened(Encoding::Json, Transport::WebSocket);
            counters.opened(Encoding::Protobuf, Transport::WebSocket);
            counters.opened(Encoding::Protobuf, Transport::WebSocket);
            counters.subscribed();
            counters.delivered(3);
            counters.ended(Encoding::Protobuf, Transport::WebSocket, codes::SLOW.code);
        }
        partitions[0].ended(Encoding::Json, Transport::WebSocket, 0);
        partitions[0].unsubscribed();
        partitions[1].queues(true);
        partitions[1].set_queued(77);
        let sums = Sums::of(partitions.iter());
        let of = |encoding: &str| -> u64 {
            sums.sessions_by.iter().filter(|by| by.encoding == encoding).map(|by| by.sessions).sum()
        };
        assert_eq!((of("json"), of("protobuf")), (1, 2));
        assert_eq!((sums.subscriptions, sums.deliveries, sums.slow()), (1, 6, 2));
        assert_eq!((sums.queued_sessions, sums.queued_bytes), (1, 77));
        assert_eq!(sums.ended, [CodeCount { code: 0, count: 1 }, CodeCount { code: 3008, count: 2 }]);
    }
}
