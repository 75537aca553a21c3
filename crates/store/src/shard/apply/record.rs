//! Applies one record to the index and to the state in memory.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_log::{Applied, Usage};

use super::publication::PublicationApplier;
use crate::layout::Layout;
use crate::record::epoch_break::EpochBreak;
use crate::record::keys::{BucketId, Id};
use crate::record::object::{Account, First};
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Head, Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::channels::record::PublicationMeta;
use crate::shard::counts::Class;
use crate::shard::dirty::Entity;
use crate::shard::fault::{Fault, valued};

/// The application of one record.
pub(super) struct RecordApplier<'a> {
    pub(super) applied: &'a AppliedState,
    pub(super) usage: &'a mut Usage,
    pub(super) record: &'a Applied,
}

impl RecordApplier<'_> {
    /// Applies one record.
    pub(super) fn apply(mut self) -> Result<(), Fault> {
        let (applied, r) = (self.applied, self.record);
        if let Some(replay) = applied.replay.lock().as_mut() {
            replay.records += 1;
        }
        match Head::decode(&r.head)? {
            Head::BucketPut { id, payload } => {
                let meta = BucketMeta::decode(payload)?;
                if self.put(keys::bucket(id).into(), payload, Class::Bucket)? {
                    applied.registry.write().put(id, meta);
                }
            }
            Head::BucketDelete { id } => {
                let key = Bytes::from(keys::bucket(id));
                if self.delete(&key, Class::Bucket)? {
                    applied.registry.write().remove(id);
                }
            }
            Head::ObjectPut { bucket, key, payload } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.put(index_key.clone(), payload, Class::Object)?;
                if !r.moved {
                    applied.dirty.note(bucket, key, |key| Entity::Object { bucket, key });
                }
                applied.pending.settle(&index_key, r.lsn);
            }
            Head::ObjectDelete { bucket, key } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.delete(&index_key, Class::Object)?;
                applied.dirty.note(bucket, key, |key| Entity::Object { bucket, key });
                applied.pending.settle(&index_key, r.lsn);
            }
            Head::UploadCreate { bucket, upload, key, payload } => {
                self.put(keys::upload(bucket, key, &upload).into(), payload, Class::Upload)?;
                applied.dirty.note(bucket, key, |key| Entity::Upload { bucket, key, upload });
            }
            Head::UploadEnd { bucket, upload, key } => self.end_upload(bucket, upload, key)?,
            Head::PartPut { bucket, upload, number, key, payload } => {
                self.put_part(bucket, upload, number, key, payload)?;
            }
            Head::PoolLayout { payload } => {
                let layout = Layout::decode(payload)?;
                if self.put(Bytes::from_static(keys::LAYOUT), payload, Class::Layout)? {
                    *applied.layout.write() = Some(Arc::new(layout));
                }
            }
            Head::EpochBreak { payload } => {
                let epoch_break = EpochBreak::decode(payload)?;
                if self.put(Bytes::from_static(keys::EPOCH_BREAK), payload, Class::EpochBreak)? {
                    applied.losses.set_epoch_break(r.version, epoch_break);
                }
            }
            Head::Retired { .. } => {}
            // In a replay, copies of records from before the channel's end may follow it.
            Head::Publication { channel, .. } if self.channel_ended(channel)? => {}
            Head::Publication { channel, offset, payload } => {
                PublicationApplier { to: &mut self, name: channel, offset, payload }.apply()?;
            }
            Head::ChannelEnd { channel } => self.end_channel(channel)?,
            Head::Chunk { .. } | Head::PartChunk { .. } => {
                return Err(Malformed("record: a chunk was committed").into());
            }
        }
        Ok(())
    }

    /// Applies the end of an upload: deletes it with its parts.
    fn end_upload(&mut self, bucket: BucketId, upload: Id, key: &[u8]) -> Result<(), Fault> {
        let (applied, r) = (self.applied, self.record);
        let index_key = Bytes::from(keys::upload(bucket, key, &upload));
        self.delete(&index_key, Class::Upload)?;
        let prefix = keys::parts(&upload);
        for pair in applied.index.range(&prefix, keys::past(&prefix).as_deref()) {
            let (part, _) = pair?;
            self.delete(&part, Class::Part)?;
        }
        applied.dirty.note(bucket, key, |key| Entity::Upload { bucket, key, upload });
        applied.pending.settle(&index_key, r.lsn);
        Ok(())
    }

    /// Applies a part, if its upload exists.
    fn put_part(&mut self, bucket: BucketId, upload: Id, number: u16, key: &[u8], payload: &[u8]) -> Result<(), Fault> {
        let (applied, r) = (self.applied, self.record);
        // In a replay the upload may follow; parts without an upload are removed at the end. An
        // upload that ended here may have returned with its parts: slots can move to a disk, away,
        // and back.
        let upload_key = keys::upload(bucket, key, &upload);
        let there = match applied.replay.lock().as_ref() {
            Some(replay) => replay.marks.get(&upload_key)?.is_none_or(|ended| ended < r.version),
            None => applied.index.get(&upload_key)?.is_some(),
        };
        if there {
            self.put(keys::part(&upload, number).into(), payload, Class::Part)?;
        }
        if !r.moved {
            applied.dirty.note(bucket, key, |key| Entity::Part { bucket, key, upload, number });
        }
        applied.pending.settle(&upload_key, r.lsn);
        Ok(())
    }

    /// Applies the end of a channel: removes its older publications.
    fn end_channel(&mut self, channel: &[u8]) -> Result<(), Fault> {
        let (applied, r) = (self.applied, self.record);
        self.delete(&keys::channel_end(channel).into(), Class::Publication)?;
        let (from, to) = keys::publications(channel);
        let mut removed = false;
        for pair in applied.index.range(&from, Some(&to)) {
            let (key, _) = pair?;
            removed |= self.applied.remove(self.usage, &key, Class::Publication, Some(r.version), r.lsn)?;
        }
        // Compaction may move the record long after the channel returned, while its memory has
        // publications in flight.
        if removed || !r.moved {
            applied.channels.drop_channel(channel);
        }
        applied.dirty.note(keys::CHANNELS, channel, |name| Entity::Channel { name });
        Ok(())
    }

    /// Applies a put. Returns whether the record is now current.
    pub(super) fn put(&mut self, key: Bytes, payload: &[u8], class: Class) -> Result<bool, Fault> {
        let (applied, r) = (self.applied, self.record);
        let new = Account::of(class, payload)?;
        self.note_time(class, payload)?;
        let old = applied.index.get(&key)?;
        if let Some(old) = &old {
            let was = valued(old)?;
            let old = Account::of(class, was.payload)?;
            if r.version < was.version || r.version == was.version && new.revision < old.revision {
                return Ok(false);
            }
            old.retire(self.usage, &was.location);
            applied.counts.change(class, -1, old.size);
        } else if let Some(replay) = applied.replay.lock().as_ref() {
            let deleted = replay.deleted(&key, r.version)?;
            // Up to the base the index knew every key: an absent key was deleted.
            if deleted || r.moved && r.version <= replay.base {
                return Ok(false);
            }
        } else if r.moved {
            return Ok(false);
        }
        new.credit(self.usage, &r.location);
        applied.counts.change(class, 1, new.size);
        let value = Value { version: r.version, location: r.location, payload }.encode();
        applied.index.insert(key, value.into(), r.lsn);
        Ok(true)
    }

    /// Deletes `key`. Returns whether it existed.
    fn delete(&mut self, key: &Bytes, class: Class) -> Result<bool, Fault> {
        let (applied, r) = (self.applied, self.record);
        if let Some(replay) = applied.replay.lock().as_mut()
            && class != Class::Part
        {
            replay.marks.put(key, r.version)?;
        }
        self.applied.remove(self.usage, key, class, Some(r.version), r.lsn)
    }

    /// In a replay from nothing, the newest time in the log is the only hint of when the last run
    /// was.
    fn note_time(&self, class: Class, payload: &[u8]) -> Result<(), Malformed> {
        let mut replay = self.applied.replay.lock();
        let Some(replay) = replay.as_mut().filter(|replay| replay.base == 0) else { return Ok(()) };
        let ms = match class {
            Class::Object => First::decode(payload)?.modified_ms,
            Class::Publication => PublicationMeta::decode(payload)?.time_ms,
            Class::Part | Class::Bucket | Class::Upload | Class::Layout | Class::EpochBreak | Class::Retired => 0,
        };
        replay.newest_ms = replay.newest_ms.max(ms);
        Ok(())
    }

    /// Whether this replay met a newer end of the channel.
    fn channel_ended(&self, channel: &[u8]) -> Result<bool, Fault> {
        match self.applied.replay.lock().as_ref() {
            Some(replay) => Ok(replay.deleted(&keys::channel_end(channel), self.record.version)?),
            None => Ok(false),
        }
    }
}
