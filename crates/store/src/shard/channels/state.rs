//! The in-memory state of a channel in use: its position, its publications in flight to the log,
//! and its newest publications.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::record::PublicationMeta;
use super::tails::Tails;
use crate::channels::{Position, Publication};

/// Maximum number of a channel's publications in memory.
const TAIL_MAX: usize = 256;

/// Maximum bytes of a channel's publications in memory; [`Tails`] bounds all channels together.
const TAIL_BYTES_MAX: usize = 256 << 10;

/// Overhead of a publication in memory, in bytes, about.
const HELD_BYTES: usize = 128;

/// A channel in memory.
pub(crate) struct Channel {
    pub(crate) name: Arc<str>,
    pub(crate) state: Mutex<ChannelState>,
    /// Whether it was dropped from the table: a holder must look it up again.
    pub(crate) gone: AtomicBool,
}

/// A channel as loaded from the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loaded {
    pub(crate) epoch: u32,
    /// The lowest kept offset.
    pub(crate) first: u64,
    pub(crate) top: u64,
}

/// A publication in flight to the log, or in memory.
#[derive(Clone)]
pub(crate) struct HeldPublication {
    pub(crate) publication: Arc<Publication>,
    pub(crate) ttl_ms: u64,
    /// A hash of its idempotency key.
    pub(crate) key: Option<u128>,
}

impl HeldPublication {
    /// Its bytes in memory.
    fn bytes(&self) -> usize {
        HELD_BYTES + self.publication.body.len()
    }
}

/// State of a channel.
pub(crate) struct ChannelState {
    pub(crate) epoch: u32,
    /// The lowest kept offset, and the highest indexed one; `first` is `top` + 1 when no
    /// publication is kept.
    pub(crate) first: u64,
    pub(crate) top: u64,
    /// The same including submitted publications.
    pub(crate) next_first: u64,
    pub(crate) next: u64,
    /// Publications that are submitted but not yet indexed, in order.
    pub(crate) pending: VecDeque<HeldPublication>,
    /// Whether a durable record permits delivery before the flush.
    pub(crate) is_async: bool,
    /// The newest indexed publications, in order, without a gap, up to `top`.
    tail: VecDeque<HeldPublication>,
    tail_bytes: usize,
    tails: Arc<Tails>,
    /// Whether it is queued to lose its tail.
    queued: bool,
    /// Whether its tail was used since the eviction clock last passed.
    used: bool,
}

impl ChannelState {
    pub(crate) fn new(loaded: Loaded, tails: &Arc<Tails>) -> Self {
        Self {
            epoch: loaded.epoch,
            first: loaded.first,
            top: loaded.top,
            next_first: loaded.first,
            next: loaded.top,
            pending: VecDeque::new(),
            is_async: false,
            tail: VecDeque::new(),
            tail_bytes: 0,
            tails: tails.clone(),
            queued: false,
            used: false,
        }
    }

    pub(crate) fn position(&self) -> Position {
        Position { epoch: self.epoch, offset: self.top }
    }

    /// Applies an indexed record of the channel. Returns the publication to deliver, if this
    /// process published it, and the offsets that are no longer kept.
    pub(crate) fn applied(
        &mut self,
        offset: u64,
        meta: &PublicationMeta,
        moved: bool,
    ) -> (Option<HeldPublication>, std::ops::Range<u64>) {
        let held = match self.pending.front() {
            Some(held) if held.publication.offset == offset && !meta.removed => self.pending.pop_front(),
            _ => None,
        };
        if held.is_some() {
            assert!(offset > self.top, "offset {offset} is delivered after {}", self.top);
        }
        let before = self.first;
        // Moved records are applied again, perhaps the newest one too; its epoch may have ended
        // with a restart.
        if offset > self.top || offset == self.top && !moved {
            self.epoch = meta.epoch;
            self.top = offset;
            self.next = self.next.max(offset);
        }
        self.first = self.first.max(meta.floor).min(self.top + 1);
        self.next_first = self.next_first.max(self.first);
        if let Some(held) = &held {
            let last = self.tail.back().map(|last| last.publication.offset);
            debug_assert!(last.is_none_or(|last| last + 1 == offset), "a gap in memory: {offset} after {last:?}");
            self.tail_bytes += held.bytes();
            self.tails.grew(held.bytes());
            self.tail.push_back(held.clone());
            self.used = true;
        } else if meta.removed {
            self.clear_tail();
        }
        while let Some(front) = self.tail.front()
            && (self.tail.len() > TAIL_MAX || self.tail_bytes > TAIL_BYTES_MAX || front.publication.offset < self.first)
        {
            self.pop_tail();
        }
        debug_assert!(before <= self.first && self.first <= self.top + 1, "the kept range of a channel");
        (held, before..self.first)
    }

    fn pop_tail(&mut self) -> Option<HeldPublication> {
        let held = self.tail.pop_front()?;
        assert!(self.tail_bytes >= held.bytes(), "fewer bytes in memory than were counted");
        self.tail_bytes -= held.bytes();
        self.tails.shrank(held.bytes());
        Some(held)
    }

    fn clear_tail(&mut self) {
        self.tails.shrank(std::mem::take(&mut self.tail_bytes));
        // Frees the memory too: an idle channel must take none.
        self.tail = VecDeque::new();
    }

    /// Whether to queue it for eviction; if so, it counts as queued.
    pub(crate) fn try_queue(&mut self) -> bool {
        !self.tail.is_empty() && !std::mem::replace(&mut self.queued, true)
    }

    /// Evicts its tail, unless the tail was used since the last time. Returns true when it is no
    /// longer queued.
    pub(crate) fn evict(&mut self) -> bool {
        if std::mem::take(&mut self.used) {
            return false;
        }
        self.clear_tail();
        self.queued = false;
        true
    }

    /// The newest submitted publication, if it is in memory.
    pub(crate) fn newest(&self) -> Option<HeldPublication> {
        self.pending.back().or(self.tail.back()).cloned()
    }

    /// Publications up to `offset` have expired.
    pub(crate) fn forget_up_to(&mut self, offset: u64) {
        self.first = self.first.max(offset + 1).min(self.top + 1);
        self.next_first = self.next_first.max(self.first);
    }

    /// Drops expired publications from memory and moves `first` past them where it points at them.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(front) = self.tail.front()
            && front.publication.time_ms.saturating_add(front.ttl_ms) <= now_ms
        {
            let offset = front.publication.offset;
            self.pop_tail();
            // Those before it may have a longer TTL.
            if offset <= self.first {
                self.forget_up_to(offset);
            }
        }
    }

    /// The publications in memory from `from` on; `None` when an earlier one is not in memory, or
    /// one has expired.
    pub(crate) fn tail_from(&mut self, from: u64, now_ms: u64) -> Option<impl Iterator<Item = &Arc<Publication>>> {
        let begins = self.tail.front().map_or(self.top + 1, |front| front.publication.offset);
        let over = |held: &HeldPublication| held.publication.time_ms.saturating_add(held.ttl_ms) <= now_ms;
        (from >= begins && !self.tail.iter().any(over)).then(|| {
            self.used = true;
            let skip = (from - begins) as usize;
            self.tail.iter().skip(skip).map(|held| &held.publication)
        })
    }

    /// Whether it can be loaded again later without loss.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Drop for ChannelState {
    fn drop(&mut self) {
        self.clear_tail();
    }
}
