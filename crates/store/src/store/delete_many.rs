//! Deletion of several objects with few commits.

use std::sync::atomic::Ordering;

use steadfast_log::{Durability, Priority, Record};

use super::contents::BucketContents;
use super::topology::HomeDisk;
use crate::record::{Head, keys};
use crate::shard::events::{Draft, ObjectChange, event_bytes_max};
use crate::shard::pending::PendingState;
use crate::shard::submit::{KeyAccess, Precondition, Submission, batch_bytes, check_head};
use crate::{EventKind, StoreError};

/// Bytes of a deletion's record without its key, at most.
const RECORD_BYTES: u64 = 256;

/// The keys of a request that one disk is home to. The caller has entered their slots.
pub(super) struct ManyDeletes<'a> {
    disk: HomeDisk,
    of: BucketContents<'a>,
    durability: Option<Durability>,
    /// Keys with their places in the request.
    keys: Vec<(usize, String)>,
}

impl<'a> ManyDeletes<'a> {
    /// None yet.
    pub(super) fn new(disk: HomeDisk, of: BucketContents<'a>, durability: Option<Durability>) -> Self {
        Self { disk, of, durability, keys: Vec::new() }
    }

    /// Adds a key with its place in the request.
    pub(super) fn push(&mut self, place: usize, key: String) {
        self.keys.push((place, key));
    }

    /// Deletes them, as many per commit as fit. Returns the answers with their places.
    pub(super) async fn run(self) -> Vec<(usize, Result<(), StoreError>)> {
        // Usually one commit; batches of a small pool are small.
        let batch_max = self.disk.log().limits().batch_bytes_max / 2;
        let mut results = Vec::with_capacity(self.keys.len());
        let mut rest = &self.keys[..];
        let found = self.disk.find(self.of.bucket).ok();
        let options = &self.disk.applied.options;
        let event = |key: &str| found.as_ref().map_or(0, |bucket| event_bytes_max(options, bucket, key.len()));
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, key)| {
                bytes += key.len() as u64 + RECORD_BYTES + event(key);
                bytes <= batch_max
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            let result = self.disk.with_disk_name(self.commit(now).await);
            results.extend(now.iter().map(|(place, _)| (*place, result.clone())));
            rest = later;
        }
        results
    }

    /// Deletes some of them in one commit.
    async fn commit(&self, keys: &[(usize, String)]) -> Result<(), StoreError> {
        let (applied, writes) = (&self.disk.applied, &self.disk.writes);
        let bucket = self.disk.find(self.of.bucket)?;
        let mut batch = Vec::with_capacity(keys.len());
        let mut accesses = Vec::with_capacity(keys.len());
        let mut events = Vec::new();
        for (i, (_, key)) in (0u64..).zip(keys) {
            let change = ObjectChange { kind: EventKind::Delete, key, size: 0, etag: "", cause: self.of.cause };
            events.extend(Draft::of(applied, &bucket, change)?.map(|draft| draft.if_there(accesses.len())));
            let head = Head::ObjectDelete { bucket: bucket.id, key: key.as_bytes() }.encode();
            check_head(&head)?;
            batch.push(Record { head: head.into(), ..Record::default() });
            let key = keys::object(bucket.id, key.as_bytes()).into();
            let becomes = Some((PendingState::Absent, i));
            accesses.push(KeyAccess { key, precondition: Precondition::Nothing, becomes });
        }
        let bytes = batch_bytes(&batch) + events.iter().map(Draft::bytes).sum::<u64>();
        let room = writes.reserve(bytes, Priority::Delete).await?;
        let count = batch.len() as u64;
        let gate = bucket.enter().await?;
        let durability = bucket.durability(self.durability);
        let submitted = Submission::new(&accesses, room, batch, durability).with_events(&events).submit(writes);
        let ticket = submitted.await.map_err(|refusal| refusal.or(StoreError::ConditionFailed))?;
        bucket.last_lsn.fetch_max(ticket.first_lsn() + count - 1, Ordering::AcqRel);
        drop(gate);
        writes.committed(ticket).await.map(drop)
    }
}
