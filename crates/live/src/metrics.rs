//! Counters of the live door for status and metrics.
//!
//! Each worker counts for its own partition, so that workers share no cache line; the reader adds
//! up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::{FlowStatus, SlowStatus};

use crate::protocol::codes;
use crate::protocol::{Encoding, Transport};

/// The status of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// The event that it forwards.
    pub event: &'static str,
    /// Name of the proxy.
    pub proxy: String,
    /// Number of requests sent.
    pub requests: u64,
    /// Number of failed requests.
    pub failures: u64,
    /// Number of requests in flight.
    pub in_flight: u64,
    /// Number of events refused because the proxy was full.
    pub refused: u64,
}

/// Counters of a partition.
#[derive(Default)]
pub(crate) struct Counters {
    sessions: [[AtomicU64; Transport::ALL.len()]; Encoding::ALL.len()],
    subscriptions: AtomicU64,
    deliveries: AtomicU64,
    skipped: AtomicU64,
    queued_sessions: AtomicU64,
    queued_bytes: AtomicU64,
    /// Ended sessions by close code; 0: the client or the network ended the session.
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

    pub(crate) fn skipped(&self, publications: u64) {
        self.skipped.fetch_add(publications, Relaxed);
    }

    /// Counts a socket that starts or stops queueing output.
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

    /// Sets the bytes queued for sockets at the last stall check.
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
    /// Name of the transport.
    pub transport: &'static str,
    /// Number of sessions.
    pub sessions: u64,
}

/// A code and its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CodeCount {
    /// The code in the protocol.
    pub code: u32,
    /// Number of times.
    pub count: u64,
}

/// A bound that is not a gate or budget of `flow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SimpleBound {
    /// Name of the bound.
    pub name: &'static str,
    /// The bound, in bytes.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of refused callers.
    pub refused: u64,
}

/// The status of the live door.
#[derive(Debug, Clone, Serialize)]
pub struct LiveStatus {
    /// Number of sessions, connected or not.
    pub sessions: u64,
    /// Number of sessions by encoding and transport.
    pub sessions_by: Vec<SessionsOf>,
    /// Number of users with sessions.
    pub users: usize,
    /// Number of subscriptions of all sessions.
    pub subscriptions: u64,
    /// Number of channels with subscribers.
    pub channels: usize,
    /// Publications accepted since the start.
    pub publications: u64,
    /// Deliveries of publications to sessions.
    pub deliveries: u64,
    /// Deliveries skipped because the session uses JSON and the data is not JSON.
    pub publications_skipped: u64,
    /// Sessions with queued output.
    pub queued_sessions: u64,
    /// Queued bytes, at most a quarter of a second old.
    pub queued_bytes: u64,
    /// Sessions ended because their clients read too slowly.
    pub slow: u64,
    /// Slow commands and slow API requests.
    pub slow_requests: Vec<SlowStatus>,
    /// Ended sessions by close code; 0: the client or the network ended the session.
    pub ended: Vec<CodeCount>,
    /// Refused commands by error code.
    pub refused: Vec<CodeCount>,
    /// Publications queued for the partitions.
    pub backlog: SimpleBound,
    /// The proxies to the back end.
    pub proxies: Vec<ProxyStatus>,
    /// The gates and budgets of the live door.
    pub gates: Vec<FlowStatus>,
}

/// The sum of the counters of all partitions. The node adds the other figures.
pub(crate) struct Sums {
    pub(crate) sessions_by: Vec<SessionsOf>,
    pub(crate) subscriptions: u64,
    pub(crate) deliveries: u64,
    pub(crate) skipped: u64,
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
            skipped: sum(|c| &c.skipped),
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
