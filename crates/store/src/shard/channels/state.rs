//! A channel as it is held in memory while it is in use: where it stands, what is on its way to the log, and its newest publications.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::record::PublicationMeta;
use super::tails::Tails;
use crate::channels::{Position, Publication};

/// How many publications of a channel are kept in memory, at most,
const TAIL_MAX: usize = 256;

/// and how many bytes of them; of all channels together, [`Tails`] says.
const TAIL_BYTES_MAX: usize = 256 << 10;

/// What a publication in memory takes beside its body, about.
const HELD_BYTES: usize = 128;

/// See the module.
pub(crate) struct Channel {
    pub(crate) name: Arc<str>,
    pub(crate) state: Mutex<State>,
    /// It was let go of: whoever still has it looks it up again.
    pub(crate) gone: AtomicBool,
}

/// What the index says of a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loaded {
    pub(crate) epoch: u32,
    /// The lowest offset that counts.
    pub(crate) first: u64,
    pub(crate) top: u64,
}

/// A publication that is on its way to the log, or in memory.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) publication: Arc<Publication>,
    pub(crate) ttl_ms: u64,
}

impl Held {
    /// What it takes in memory.
    fn bytes(&self) -> usize {
        HELD_BYTES + self.publication.body.len()
    }
}

/// Where a channel stands.
pub(crate) struct State {
    pub(crate) epoch: u32,
    /// The lowest offset that is kept, and the highest that is in the index; `first` is one more than `top` where nothing is kept.
    pub(crate) first: u64,
    pub(crate) top: u64,
    /// The same with what has been submitted.
    pub(crate) next_first: u64,
    pub(crate) next: u64,
    /// What has been submitted and is not in the index yet, in order.
    pub(crate) pending: VecDeque<Held>,
    /// A record that says so is durable: publications may be delivered before they are flushed.
    pub(crate) is_async: bool,
    /// The newest publications that are in the index, in order, without a gap, up to `top`.
    tail: VecDeque<Held>,
    tail_bytes: usize,
    tails: Arc<Tails>,
    /// Its turn to lose its tail comes.
    queued: bool,
    /// Its tail was used since its turn came last.
    used: bool,
}

impl State {
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

    /// A record of the channel is in the index now. What is to be delivered, if it was published by this process; and the offsets that
    /// are no longer kept.
    pub(crate) fn applied(
        &mut self,
        offset: u64,
        meta: &PublicationMeta,
        moved: bool,
    ) -> (Option<Held>, std::ops::Range<u64>) {
        let held = match self.pending.front() {
            Some(held) if held.publication.offset == offset && !meta.removed => self.pending.pop_front(),
            _ => None,
        };
        let before = self.first;
        // Records that were moved come again, perhaps the newest too: the epoch that it names may have ended with a restart.
        if offset > self.top || offset == self.top && !moved {
            self.epoch = meta.epoch;
            self.top = offset;
            self.next = self.next.max(offset);
        }
        self.first = self.first.max(meta.floor).min(self.top + 1);
        self.next_first = self.next_first.max(self.first);
        if let Some(held) = &held {
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
        (held, before..self.first)
    }

    fn pop_tail(&mut self) -> Option<Held> {
        let held = self.tail.pop_front()?;
        self.tail_bytes -= held.bytes();
        self.tails.shrank(held.bytes());
        Some(held)
    }

    fn clear_tail(&mut self) {
        self.tails.shrank(std::mem::take(&mut self.tail_bytes));
        // With its room: a channel that nobody publishes into takes nothing.
        self.tail = VecDeque::new();
    }

    /// Whether it is to be given a turn to lose its tail; it has one then.
    pub(crate) fn wants_turn(&mut self) -> bool {
        !self.tail.is_empty() && !std::mem::replace(&mut self.queued, true)
    }

    /// Its turn has come: its tail goes, unless it was used since the last time. True when it has no turn any more.
    pub(crate) fn evict(&mut self) -> bool {
        if std::mem::take(&mut self.used) {
            return false;
        }
        self.clear_tail();
        self.queued = false;
        true
    }

    /// The newest publication that was submitted, if it is in memory.
    pub(crate) fn newest(&self) -> Option<Held> {
        self.pending.back().or(self.tail.back()).cloned()
    }

    /// Publications up to `offset` are over.
    pub(crate) fn forget_up_to(&mut self, offset: u64) {
        self.first = self.first.max(offset + 1).min(self.top + 1);
        self.next_first = self.next_first.max(self.first);
    }

    /// Lets go of what is in memory and over, and moves `first` past it where it is there.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(front) = self.tail.front()
            && front.publication.time_ms.saturating_add(front.ttl_ms) <= now_ms
        {
            let offset = front.publication.offset;
            self.pop_tail();
            // Those before it may last longer.
            if offset <= self.first {
                self.forget_up_to(offset);
            }
        }
    }

    /// Those in memory from `from` on; `None` when there are some before that are not in memory, or some are over.
    pub(crate) fn tail_from(&mut self, from: u64, now_ms: u64) -> Option<impl Iterator<Item = &Arc<Publication>>> {
        let begins = self.tail.front().map_or(self.top + 1, |front| front.publication.offset);
        let over = |held: &Held| held.publication.time_ms.saturating_add(held.ttl_ms) <= now_ms;
        (from >= begins && !self.tail.iter().any(over)).then(|| {
            self.used = true;
            let skip = (from - begins) as usize;
            self.tail.iter().skip(skip).map(|held| &held.publication)
        })
    }

    /// Whether nothing is lost when it is loaded again later.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.clear_tail();
    }
}
