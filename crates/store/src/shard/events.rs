//! Events on their way into the batch of their change. See [`crate::events`].

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use steadfast_flow::has_fault;
use steadfast_log::{Durability, Record};

use crate::channels::{FOR_EVER_MS, Publication};
use crate::events::{Cause, EventKind, EventTarget, ObjectEvent};
use crate::layout::slot_of;
use crate::record::{Head, keys};
use crate::shard::applied::AppliedState;
use crate::shard::buckets::Bucket;
use crate::shard::channels::record::PublicationMeta;
use crate::shard::channels::state::{Channel, ChannelState, HeldPublication};
use crate::{BucketSettings, StoreError, StoreOptions, StoreSabotage};

/// Overhead of an event in bytes.
const EVENT_BYTES: u64 = 256;

/// Bytes of a cause, at most: its name, the text of an address, and their lengths.
const CAUSE_BYTES_MAX: u64 = Cause::NAME_BYTES_MAX as u64 + 64;

/// An event without a position yet.
pub(crate) struct Draft {
    slot: usize,
    outbox: Arc<Channel>,
    body: Bytes,
    /// The event happens only if the object exists: index of its access in the batch.
    if_there: Option<usize>,
}

impl Draft {
    /// The event of a change, if a rule or mirror matches. Called where the key is at home and
    /// cannot move.
    pub(crate) fn of(
        applied: &AppliedState,
        bucket: &Bucket,
        change: ObjectChange<'_>,
    ) -> Result<Option<Self>, StoreError> {
        let ObjectChange { kind, key, size, etag, cause } = change;
        let mut targets = Vec::new();
        if let BucketSettings { notifications: Some(notifications), .. } = &**bucket.settings.read() {
            let wanted = notifications.rules.iter().filter(|rule| rule.wants(kind, key));
            targets.extend(wanted.map(|rule| EventTarget { rule: rule.id.clone(), target: rule.target.clone() }));
        }
        if targets.is_empty() && !is_mirrored(&applied.options, bucket, |prefix| key.starts_with(prefix)) {
            return Ok(None);
        }
        let (bucket_name, key_text) = (bucket.name.clone(), key.to_owned());
        let etag = etag.to_owned();
        let event =
            ObjectEvent { kind, bucket: bucket_name, key: key_text, size, etag, targets, cause: cause.cloned() };
        let slot = slot_of(bucket.id, key.as_bytes());
        let outbox = applied.channels.get(applied, &keys::outbox(slot))?;
        Ok(Some(Self { slot, outbox, body: event.encode().into(), if_there: None }))
    }

    /// Bytes that it adds to a batch.
    pub(crate) fn bytes(&self) -> u64 {
        EVENT_BYTES + self.body.len() as u64
    }

    pub(crate) fn if_there(mut self, access: usize) -> Self {
        self.if_there = Some(access);
        self
    }

    pub(crate) fn depends_on(&self) -> Option<usize> {
        self.if_there
    }
}

/// A change of an object, for an event.
#[derive(Clone, Copy)]
pub(crate) struct ObjectChange<'a> {
    pub(crate) kind: EventKind,
    pub(crate) key: &'a str,
    pub(crate) size: u64,
    pub(crate) etag: &'a str,
    pub(crate) cause: Option<&'a Cause>,
}

fn is_mirrored(options: &StoreOptions, bucket: &Bucket, wanted: impl Fn(&str) -> bool) -> bool {
    options.mirrored.iter().any(|mirrored| mirrored.bucket == bucket.name && wanted(&mirrored.prefix))
}

/// Whether the bucket has notifications or is mirrored.
pub(crate) fn has_listeners(options: &StoreOptions, bucket: &Bucket) -> bool {
    bucket.settings.read().notifications.is_some() || is_mirrored(options, bucket, |_| true)
}

/// Maximum bytes that an event of a key adds to a batch; 0 without notifications.
pub(crate) fn event_bytes_max(options: &StoreOptions, bucket: &Bucket, key_len: usize) -> u64 {
    if !has_listeners(options, bucket) {
        return 0;
    }
    let settings = bucket.settings.read();
    let rules = settings.notifications.iter().flat_map(|notifications| &notifications.rules);
    let targets: usize = rules.map(|rule| rule.id.len() + rule.target.len() + 8).sum();
    2 * EVENT_BYTES + CAUSE_BYTES_MAX + (bucket.name.len() + key_len + targets) as u64
}

/// An outbox locked for new events.
struct Opened<'a> {
    slot: usize,
    next: u64,
    state: MutexGuard<'a, ChannelState>,
}

struct PlacedEvent {
    at: usize,
    record: Record,
    floor: u64,
    held: HeldPublication,
}

/// Events with their positions, which no other batch gets meanwhile.
pub(crate) struct Placed<'a> {
    outboxes: Vec<Opened<'a>>,
    events: Vec<PlacedEvent>,
    /// Durability of the batch.
    pub(crate) durability: Durability,
}

impl<'a> Placed<'a> {
    /// Assigns positions to events, each after the last one of its slot. They are final only after
    /// [`Placed::submitted`].
    pub(crate) fn of(applied: &AppliedState, drafts: &[&'a Draft], durability: Durability) -> Self {
        if drafts.is_empty() {
            return Self { outboxes: Vec::new(), events: Vec::new(), durability };
        }
        let is_async = durability == Durability::Async;
        // Locked in ascending order, each once: two batches never wait for each other.
        let mut slots: Vec<(usize, &Draft)> = drafts.iter().map(|draft| (draft.slot, *draft)).collect();
        slots.sort_by_key(|(slot, _)| *slot);
        slots.dedup_by_key(|(slot, _)| *slot);
        let mut outboxes: Vec<Opened<'_>> = Vec::with_capacity(slots.len());
        outboxes.extend(slots.iter().map(|(slot, draft)| {
            let state = draft.outbox.state.lock();
            Opened { slot: *slot, next: state.next, state }
        }));
        // The first record that permits later losses must itself not be lost.
        let first_async = is_async && outboxes.iter().any(|outbox| !outbox.state.is_async);
        let durability = if first_async { Durability::Sync } else { durability };
        let mut placed = Self { outboxes, events: Vec::with_capacity(drafts.len()), durability };
        let mut seen = BTreeSet::new();
        let time_ms = applied.env.wall_ms();
        for draft in drafts {
            // A key that a batch deletes twice existed only once.
            if draft.if_there.is_some() && !seen.insert(&draft.body) {
                continue;
            }
            let Ok(at) = placed.outboxes.binary_search_by_key(&draft.slot, |outbox| outbox.slot) else { continue };
            let Opened { next, state, .. } = &mut placed.outboxes[at];
            *next += 1;
            let forwarded = applied.channels.outbox().map_or(0, |outbox| outbox.forwarded(draft.slot));
            let kept =
                if has_fault(applied.options.sabotage, StoreSabotage::EventsTrimmed) { *next } else { forwarded + 1 };
            let floor = state.next_first.max(kept).min(*next);
            let meta = PublicationMeta {
                removed: false,
                is_async: is_async || state.is_async,
                epoch: state.epoch,
                time_ms,
                ttl_ms: FOR_EVER_MS,
                floor,
                key: None,
            };
            let head =
                Head::Publication { channel: draft.outbox.name.as_bytes(), offset: *next, payload: &meta.encode() };
            let record = Record { head: head.encode().into(), body: vec![draft.body.clone()], version: None };
            let publication = Arc::new(Publication { offset: *next, time_ms, body: draft.body.clone() });
            placed.events.push(PlacedEvent {
                at,
                record,
                floor,
                held: HeldPublication { publication, ttl_ms: FOR_EVER_MS, key: None },
            });
        }
        placed
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.events.iter().map(|event| event.record.clone())
    }

    /// Makes the positions final: the batch with their records was submitted.
    pub(crate) fn submitted(mut self, is_async: bool) {
        for event in self.events {
            let state = &mut self.outboxes[event.at].state;
            state.next = event.held.publication.offset;
            state.next_first = event.floor;
            state.is_async |= is_async;
            state.pending.push_back(event.held);
        }
    }
}
