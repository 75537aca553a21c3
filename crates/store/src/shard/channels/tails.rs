//! A bound on the memory of the newest publications of all of a shard's channels.
//!
//! Each channel in use keeps its newest publications
//! ([`ChannelState`](super::state::ChannelState)), so a subscriber that reconnects shortly after is
//! answered without the disk. All channels share one budget. When it is used up, channels are
//! evicted in turn: each loses its whole tail, and later requests read the log, as for a channel
//! that was just loaded. The order is the clock algorithm: a channel that was published into or
//! read from memory since the last round is passed over once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::state::Channel;
use crate::status::TailsStatus;

/// Dropped channels are removed from the queue when there are this many more than the last time.
const SLACK: usize = 1024;

/// The newest publications of all channels in memory, up to a bound in bytes.
pub(crate) struct Tails {
    bytes_max: u64,
    bytes: AtomicU64,
    peak: AtomicU64,
    evicted: AtomicU64,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    /// Channels with publications in memory, each once.
    queue: VecDeque<Weak<Channel>>,
    /// Length of the queue after dropped channels were last removed.
    tidied: usize,
}

impl Tails {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let zero = AtomicU64::default;
        Self { bytes_max, bytes: zero(), peak: zero(), evicted: zero(), turns: Mutex::default() }
    }

    pub(crate) fn status(&self) -> TailsStatus {
        TailsStatus {
            name: "store_channel_tails",
            limit: self.bytes_max,
            used: self.bytes.load(Relaxed),
            peak: self.peak.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }

    pub(super) fn grew(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn shrank(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes as u64, Relaxed);
        assert!(before >= bytes as u64, "fewer bytes in memory than were counted");
    }

    /// Queues a channel, last. It must not be queued yet.
    pub(crate) fn enqueue(&self, channel: &Arc<Channel>) {
        let mut turns = self.turns.lock();
        turns.queue.push_back(Arc::downgrade(channel));
        if turns.queue.len() >= turns.tidied + SLACK.max(turns.tidied) {
            turns.queue.retain(|channel| channel.strong_count() > 0);
            turns.tidied = turns.queue.len();
        }
    }

    /// Evicts channels until the memory is within the bound. Called without a channel's lock.
    pub(crate) fn evict(&self) {
        // The peak includes the excess before eviction: the process had that memory.
        self.peak.fetch_max(self.bytes.load(Relaxed), Relaxed);
        while self.bytes.load(Relaxed) > self.bytes_max {
            let Some(channel) = self.turns.lock().queue.pop_front() else { return };
            let Some(channel) = channel.upgrade() else { continue };
            if channel.state.lock().evict() {
                self.evicted.fetch_add(1, Relaxed);
            } else {
                self.turns.lock().queue.push_back(Arc::downgrade(&channel));
            }
        }
    }
}
