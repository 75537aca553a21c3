//! Copying a channel from its home to another disk: its publications, in order, and with them where it stands.

use bytes::Bytes;
use steadfast_log::{Durability, LogError, Priority, Record};

use super::copy::{Copier, RECORD_BYTES, Trouble, reading, text};
use super::sweep::patiently;
use crate::StoreError;
use crate::record::{Head, Value, keys};
use crate::shard::channels::record::PublicationMeta;
use crate::shard::core::{Core, Refusal};
use crate::shard::dirty::Thing;
use crate::shard::follow::{self, Follow};
use crate::shard::writer::batch_bytes;

/// Publications that are read and appended at a time, at most.
const PAGE: usize = 256;

/// How many bytes of them, unless one alone has more.
const PAGE_BYTES: u64 = 1 << 20;

/// How many bytes a channel is said to take that has more to copy than can be while its gate is closed.
const MANY: u64 = u64::MAX / (1 << 20);

/// The offset of a channel's newest publication.
fn top(core: &Core, name: &[u8]) -> Result<Option<u64>, StoreError> {
    let (from, to) = keys::publications(name);
    Ok(core.index.last(&from, &to)?.and_then(|(key, _)| keys::offset_of(&key)))
}

impl Copier {
    /// Makes the other disk have what this one has of a channel.
    ///
    /// A run begins with a sweep and copies in ascending order: so up to the newest publication that the other disk has, it has all, but for the
    /// newest itself, which may have been removed since, and for what is over.
    pub(super) async fn channel(&self, name: &Bytes, thing: &Thing) -> Result<u64, Trouble> {
        let (from, to) = (&self.from.core, &self.to.core);
        // What it is to who has it now: its epoch may have ended with a restart, and no record says so yet.
        let epoch = from.channel(text(name)?)?.state.lock().epoch;
        let (here, mut there) = (top(from, name)?, top(to, name)?);
        if there > here {
            // It was forgotten here, and perhaps began anew.
            patiently(&self.options, &self.env, || self.to.forget(std::slice::from_ref(thing))).await?;
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
        // Who asks next finds what is in the index.
        to.channels.let_go(name);
        Ok(copied)
    }

    /// How many bytes [`Copier::channel`] would copy.
    pub(super) fn channel_bytes(&self, name: &[u8]) -> u64 {
        let Ok(there) = top(&self.to.core, name) else { return MANY };
        let (at, end) = (keys::publication(name, there.unwrap_or(0)), keys::publications(name).1);
        let mut bytes = RECORD_BYTES;
        for (count, pair) in self.from.core.index.range(&at, Some(&end)).enumerate() {
            match pair.map(|(_, value)| Value::decode(&value).map(|value| value.location.body_len)) {
                Ok(Ok(len)) if count < PAGE => bytes += u64::from(len),
                _ => return MANY,
            }
        }
        bytes
    }

    /// The record of a publication for the other disk; `None` when that has it already, or it is gone or over. Of the newest not: it says
    /// where the channel stands.
    async fn publication(&self, name: &Bytes, key: &Bytes, epoch: u32, newest: u64) -> Result<Option<Record>, Trouble> {
        let offset = keys::offset_of(key).ok_or_else(|| reading(StoreError::Index("a publication's key".into())))?;
        let mut follow = Follow::default();
        loop {
            let Some(value) = self.from.core.lookup(key)? else { return Ok(None) };
            let value = Value::decode(&value).map_err(|e| reading(e.into()))?;
            let meta = PublicationMeta::decode(value.payload).map_err(|e| reading(e.into()))?;
            if offset < newest && meta.expired(self.from.core.clock.now_ms()) {
                return Ok(None);
            }
            let payload = PublicationMeta { epoch, ..meta }.encode();
            if let Some(there) = self.to.core.lookup(key)?
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

    /// Appends records that no condition is on, and waits until they can be seen.
    pub(super) async fn append(&self, batch: Vec<Record>) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        patiently(&self.options, &self.env, || self.put(batch.clone())).await
    }

    async fn put(&self, batch: Vec<Record>) -> Result<(), StoreError> {
        let (core, log) = (&self.to.core, self.to.log());
        let mut room = Some(core.reserve(log, batch_bytes(&batch), Priority::Write).await?);
        match core.submit(log, &[], &mut room, batch, Durability::Async).await {
            Ok(ticket) => core.committed(ticket).await.map(drop),
            Err(Refusal::Error(e)) => Err(e),
            Err(Refusal::Unmet(..)) => Ok(()),
        }
    }
}
