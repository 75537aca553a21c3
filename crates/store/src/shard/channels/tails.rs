//! A bound on what the newest publications of all of a shard's channels take in memory.
//!
//! Each channel in use keeps its newest publications ([`State`](super::state::State)), so that who comes back a moment later is answered without
//! the disk. Together they have one budget. When it is used up, the channels whose turn it is lose what they have in memory, all of it: what
//! is asked for later is read from the log, as for a channel that was just loaded. Whose turn it is goes round (the clock algorithm): a
//! channel that was published into or read from memory since it was last looked at is passed over once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::state::Channel;
use crate::status::TailsStatus;

/// Channels that are gone are let go of when there are this many more than the last time.
const SLACK: usize = 1024;

/// See the module.
pub(crate) struct Tails {
    bytes_max: u64,
    bytes: AtomicU64,
    peak: AtomicU64,
    evicted: AtomicU64,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    /// Channels with something in memory, each once.
    queue: VecDeque<Weak<Channel>>,
    /// How many there were when those that are gone were last let go of.
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
        self.bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// Gives a channel its turn, the last one. It has none.
    pub(super) fn enqueue(&self, channel: &Arc<Channel>) {
        let mut turns = self.turns.lock();
        turns.queue.push_back(Arc::downgrade(channel));
        if turns.queue.len() >= turns.tidied + SLACK.max(turns.tidied) {
            turns.queue.retain(|channel| channel.strong_count() > 0);
            turns.tidied = turns.queue.len();
        }
    }

    /// Has channels let go of what they have in memory until all of it is within the bound. Called without the lock of a channel.
    pub(super) fn evict(&self) {
        // What was gone beyond the bound is shown: it is what the process had.
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
