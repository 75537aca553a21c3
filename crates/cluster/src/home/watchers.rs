//! The nodes that watch channels of this home.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use steadfast_store::{ChannelHandle, Publication};

use crate::frame::Kind;
use crate::frame::channels::{Published, WatchNumber, WirePublication};
use crate::hashing::SeededHashes;
use crate::outbox::Outbox;
use crate::roster::NodeIndex;

/// A node that watches a channel.
pub(super) struct Watcher {
    pub(super) node: NodeIndex,
    /// Number of the watch.
    pub(super) number: u64,
    pub(super) outbox: Outbox,
}

/// A channel that other nodes watch.
#[derive(Default)]
struct WatchedChannel {
    watchers: Vec<Watcher>,
    /// Keeps the channel in the memory of the store.
    handle: Option<ChannelHandle>,
}

/// The nodes that watch channels, by channel.
pub(super) struct Watchers {
    parts: Vec<Mutex<HashMap<Arc<str>, WatchedChannel>>>,
    hasher: SeededHashes,
    /// Watches that have begun, also those whose front gets no publications yet.
    pub(super) watches: AtomicUsize,
    /// Frames with a publication, sent since the start.
    publications: AtomicU64,
}

impl Watchers {
    pub(super) fn new(parts: usize, hasher: SeededHashes) -> Self {
        let parts = (0..parts).map(|_| Mutex::default()).collect();
        Self { parts, hasher, watches: AtomicUsize::new(0), publications: AtomicU64::new(0) }
    }

    /// The same of `over` values for all uses of a channel.
    pub(super) fn spread(&self, channel: &str, over: usize) -> usize {
        self.hasher.hash_one(channel) as usize % over
    }

    fn part(&self, channel: &str) -> &Mutex<HashMap<Arc<str>, WatchedChannel>> {
        &self.parts[self.spread(channel, self.parts.len())]
    }

    pub(super) fn publications(&self) -> u64 {
        self.publications.load(Relaxed)
    }

    pub(super) fn add(&self, name: &Arc<str>, watcher: Watcher, handle: Option<&ChannelHandle>) {
        let mut part = self.part(name).lock();
        let channel = part.entry(name.clone()).or_default();
        channel.watchers.push(watcher);
        channel.handle = channel.handle.take().or_else(|| handle.cloned());
    }

    pub(super) fn remove(&self, node: NodeIndex, number: u64, name: &str) {
        let mut part = self.part(name).lock();
        if let Some(channel) = part.get_mut(name) {
            channel.watchers.retain(|watcher| (watcher.node, watcher.number) != (node, number));
            if channel.watchers.is_empty() {
                part.remove(name);
            }
        }
    }

    /// The channel in the store, if it is in use.
    pub(super) fn handle(&self, channel: &str) -> Option<ChannelHandle> {
        self.part(channel).lock().get(channel)?.handle.clone()
    }

    /// Sends a publication to the nodes that watch its channel, once each. Then `here` delivers it
    /// to the sessions of this node, under the same lock: so all sessions get publications without
    /// an offset in one order.
    pub(super) fn publish(&self, channel: &str, publication: &Publication, here: impl FnOnce()) {
        let part = self.part(channel).lock();
        for watcher in part.get(channel).into_iter().flat_map(|channel| &channel.watchers) {
            let publication = WirePublication::from(publication);
            watcher.outbox.send(Kind::Published(Published { number: watcher.number, publication }).to_bytes());
            self.publications.fetch_add(1, Relaxed);
        }
        if publication.offset == 0 {
            here();
        } else {
            // The store delivers those of a channel one after another.
            drop(part);
            here();
        }
    }

    /// The history of a channel was removed: the nodes that watch it drop what they have in memory.
    pub(super) fn clear(&self, channel: &str) {
        self.each(channel, |watcher| {
            watcher.outbox.send(Kind::Cleared(WatchNumber { number: watcher.number }).to_bytes());
        });
    }

    pub(super) fn each(&self, channel: &str, act: impl FnMut(&Watcher)) {
        if let Some(channel) = self.part(channel).lock().get(channel) {
            channel.watchers.iter().for_each(act);
        }
    }
}
