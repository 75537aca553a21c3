//! Copying of a channel from its home to another disk: its publications in order, and with them its
//! position.

use bytes::Bytes;
use steadfast_log::{Durability, LogError, Priority, Record};

use super::copy::{Copier, CopyError, RECORD_BYTES, reading, text};
use super::sweep::{forget, patiently};
use crate::StoreError;
use crate::record::{Head, Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::channels::record::PublicationMeta;
use crate::shard::dirty::Entity;
use crate::shard::follow::{self, Follow};
use crate::shard::submit::{Refusal, Submission, batch_bytes};

/// Maximum number of publications that are read and appended at a time.
const PAGE: usize = 256;

/// Maximum bytes of them, unless a single one is larger.
const PAGE_BYTES: u64 = 1 << 20;

/// Bytes assumed for a channel with more to copy than is allowed while its gate is closed.
const MANY: u64 = u64::MAX / (1 << 20);

/// The offset of a channel's newest publication.
fn top(applied: &AppliedState, name: &[u8]) -> Result<Option<u64>, StoreError> {
    let (from, to) = keys::publications(name);
    Ok(applied.index.last(&from, &to)?.and_then(|(key, _)| keys::offset_of(&key)))
}

impl Copier {
    /// Makes the other disk's copy of a channel equal to this one's.
    ///
    /// A run begins with a sweep and copies in ascending order. So up to its newest publication the
    /// other disk has all of them. Exceptions are that newest one, which may have been removed
    /// since, and expired ones.
    pub(super) async fn channel(&self, name: &Bytes, entity: &Entity) -> Result<u64, CopyError> {
        let (from, to) = (&self.from.applied, &self.to.applied);
        // The epoch that current subscribers see: it may have changed with a restart, and no record
        // contains it yet.
        let epoch = from.channels.get(from, text(name)?)?.state.lock().epoch;
        let (here, mut there) = (top(from, name)?, top(to, name)?);
        if there > here {
            // The channel was forgotten here, and perhaps began anew.
            patiently(&self.options, &self.env, || forget(&self.to, std::slice::from_ref(entity))).await?;
            there = None;
        }
        let Some(newest) = here else { return Ok(0) };
        let (mut at, end) = (keys::publication(name, there.unwrap_or(0)), keys::publications(name).1);
        let batch_max = PAGE_BYTES.min(self.to.log().limits().batch_bytes_max / 2);
        let mut copied = 0;
        loop {
            let page: Vec<_> = from.index.range(&at, Some(&end)).take(PAGE).collect();
            let Some(last) = page.last() else { break };
            at = [&last.as_ref().map_err(|e| reading(e.clone().into()))?.0[..], &[0]].concat();
            let mut batch = Vec::new();
            for pair in page {
                let (key, _) = pair.map_err(|e| reading(e.into()))?;
                let Some(record) = self.publication(name, &key, epoch, newest).await? else { continue };
                self.spend(RECORD_BYTES + record.body.iter().map(|piece| piece.len() as u64).sum::<u64>()).await;
                let bytes = batch_bytes(std::slice::from_ref(&record));
                if batch_bytes(&batch) + bytes > batch_max {
                    self.append(std::mem::take(&mut batch)).await?;
                }
                copied += bytes;
                batch.push(record);
            }
            self.append(batch).await?;
        }
        // The next user loads the channel from the index.
        to.channels.drop_channel(name);
        Ok(copied)
    }

    /// How many bytes [`Copier::channel`] would copy.
    pub(super) fn channel_bytes(&self, name: &[u8]) -> u64 {
        let Ok(there) = top(&self.to.applied, name) else { return MANY };
        let (at, end) = (keys::publication(name, there.unwrap_or(0)), keys::publications(name).1);
        let mut bytes = RECORD_BYTES;
        for (count, pair) in self.from.applied.index.range(&at, Some(&end)).enumerate() {
            match pair.map(|(_, value)| Value::decode(&value).map(|value| value.location.body_len)) {
                Ok(Ok(len)) if count < PAGE => bytes += u64::from(len),
                _ => return MANY,
            }
        }
        bytes
    }

    /// The record of a publication for the other disk; `None` when that disk has it, or it was
    /// removed or expired. The newest one is always copied: it contains the channel's position.
    async fn publication(
        &self,
        name: &Bytes,
        key: &Bytes,
        epoch: u32,
        newest: u64,
    ) -> Result<Option<Record>, CopyError> {
        let offset = keys::offset_of(key).ok_or_else(|| reading(StoreError::Index("a publication's key".into())))?;
        let mut follow = Follow::default();
        loop {
            let Some(value) = self.from.applied.lookup(key)? else { return Ok(None) };
            let value = Value::decode(&value).map_err(|e| reading(e.into()))?;
            let meta = PublicationMeta::decode(value.payload).map_err(|e| reading(e.into()))?;
            if offset < newest && meta.expired(self.from.applied.clock.now_ms()) {
                return Ok(None);
            }
            let payload = PublicationMeta { epoch, ..meta }.encode();
            if let Some(there) = self.to.applied.lookup(key)?
                && Value::decode(&there).map_err(StoreError::from)?.payload == payload
            {
                return Ok(None);
            }
            let at = value.location;
            let body = match follow::read(self.from.log(), &at, 0..at.body_len, key).await {
                Ok(body) => body,
                Err(LogError::Moved) => {
                    follow.moved(self.from.log(), &at).await.map_err(reading)?;
                    continue;
                }
                Err(e) => return Err(reading(e.into())),
            };
            let head = Head::Publication { channel: name, offset, payload: &payload }.encode();
            return Ok(Some(Record { head: head.into(), body: vec![body], version: None }));
        }
    }

    /// Appends records without preconditions, and waits until they are applied.
    pub(super) async fn append(&self, batch: Vec<Record>) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        patiently(&self.options, &self.env, || self.put(batch.clone())).await
    }

    async fn put(&self, batch: Vec<Record>) -> Result<(), StoreError> {
        let room = self.to.writes.reserve(batch_bytes(&batch), Priority::Write).await?;
        match Submission::new(&[], room, batch, Durability::Async).submit(&self.to.writes).await {
            Ok(ticket) => self.to.writes.committed(ticket).await.map(drop),
            Err(Refusal::Error(e)) => Err(e),
            Err(Refusal::Unmet(..)) => Ok(()),
        }
    }
}
