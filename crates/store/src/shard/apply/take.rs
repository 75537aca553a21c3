//! Applies one record to the index and to the state in memory.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_log::{Applied, Usage};

use super::class::Class;
use super::{Fault, valued};
use crate::layout::Layout;
use crate::record::keys::{BucketId, Id};
use crate::record::object::Account;
use crate::record::snapshot::SnapshotMeta;
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Head, Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::dirty::Entity;

impl AppliedState {
    /// Applies one record.
    pub(super) fn take(&self, r: &Applied, usage: &mut Usage) -> Result<(), Fault> {
        if let Some(replay) = self.replay.lock().as_mut() {
            replay.records += 1;
        }
        match Head::decode(&r.head)? {
            Head::BucketPut { id, payload } => {
                let meta = BucketMeta::decode(payload)?;
                if self.put(usage, r, keys::bucket(id).into(), payload, Class::Bucket)? {
                    self.registry.write().put(id, meta);
                }
            }
            Head::BucketDelete { id } => {
                let key = Bytes::from(keys::bucket(id));
                if self.delete(usage, r, &key, Class::Bucket)? {
                    self.registry.write().remove(id);
                }
            }
            Head::ObjectPut { bucket, key, payload } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.put(usage, r, index_key.clone(), payload, Class::Object)?;
                if !r.moved {
                    self.dirty.note(bucket, key, |key| Entity::Object { bucket, key });
                }
                self.pending.settle(&index_key, r.lsn);
            }
            Head::ObjectDelete { bucket, key } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.delete(usage, r, &index_key, Class::Object)?;
                self.dirty.note(bucket, key, |key| Entity::Object { bucket, key });
                self.pending.settle(&index_key, r.lsn);
            }
            Head::UploadCreate { bucket, upload, key, payload } => {
                self.put(usage, r, keys::upload(bucket, key, &upload).into(), payload, Class::Upload)?;
                self.dirty.note(bucket, key, |key| Entity::Upload { bucket, key, upload });
            }
            Head::UploadEnd { bucket, upload, key } => self.end_upload(usage, r, bucket, upload, key)?,
            Head::PartPut { bucket, upload, number, key, payload } => {
                self.put_part(usage, r, bucket, upload, number, key, payload)?;
            }
            Head::PoolLayout { payload } => {
                let layout = Layout::decode(payload)?;
                if self.put(usage, r, Bytes::from_static(keys::LAYOUT), payload, Class::Layout)? {
                    *self.layout.write() = Some(Arc::new(layout));
                }
            }
            Head::SnapshotPut { id, payload } => {
                let meta = SnapshotMeta::decode(payload)?;
                if self.put(usage, r, keys::snapshot(&id).into(), payload, Class::Snapshot)? {
                    self.snapshots.write().insert(id, meta);
                }
            }
            Head::SnapshotDelete { id } => {
                if self.delete(usage, r, &keys::snapshot(&id).into(), Class::Snapshot)? {
                    self.snapshots.write().remove(&id);
                }
            }
            // In a replay, copies of records from before the channel's end may follow it.
            Head::Publication { channel, .. } if self.channel_ended(channel, r.version)? => {}
            Head::Publication { channel, offset, payload } => {
                let put = |usage: &mut Usage, key| self.put(usage, r, key, payload, Class::Publication);
                self.apply_publication(usage, r, channel, offset, payload, put)?;
            }
            Head::ChannelEnd { channel } => self.end_channel(usage, r, channel)?,
            Head::Chunk { .. } | Head::PartChunk { .. } => {
                return Err(Malformed("record: a chunk was committed").into());
            }
        }
        Ok(())
    }

    /// Applies the end of an upload: deletes it with its parts.
    fn end_upload(
        &self,
        usage: &mut Usage,
        r: &Applied,
        bucket: BucketId,
        upload: Id,
        key: &[u8],
    ) -> Result<(), Fault> {
        let index_key = Bytes::from(keys::upload(bucket, key, &upload));
        self.delete(usage, r, &index_key, Class::Upload)?;
        let prefix = keys::parts(&upload);
        for pair in self.index.range(&prefix, keys::past(&prefix).as_deref()) {
            let (part, _) = pair?;
            self.delete(usage, r, &part, Class::Part)?;
        }
        self.dirty.note(bucket, key, |key| Entity::Upload { bucket, key, upload });
        self.pending.settle(&index_key, r.lsn);
        Ok(())
    }

    /// Applies a part, if its upload exists.
    #[allow(clippy::too_many_arguments, reason = "the parts of the record")]
    fn put_part(
        &self,
        usage: &mut Usage,
        r: &Applied,
        bucket: BucketId,
        upload: Id,
        number: u16,
        key: &[u8],
        payload: &[u8],
    ) -> Result<(), Fault> {
        // In a replay the upload may follow; parts without an upload are removed at the end. An
        // upload that ended here may have returned with its parts: slots can move to a disk, away,
        // and back.
        let upload_key = keys::upload(bucket, key, &upload);
        let there = match self.replay.lock().as_ref() {
            Some(replay) => replay.marks.get(&upload_key)?.is_none_or(|ended| ended < r.version),
            None => self.index.get(&upload_key)?.is_some(),
        };
        if there {
            self.put(usage, r, keys::part(&upload, number).into(), payload, Class::Part)?;
        }
        if !r.moved {
            self.dirty.note(bucket, key, |key| Entity::Part { bucket, key, upload, number });
        }
        self.pending.settle(&upload_key, r.lsn);
        Ok(())
    }

    /// Applies the end of a channel: removes its older publications.
    fn end_channel(&self, usage: &mut Usage, r: &Applied, channel: &[u8]) -> Result<(), Fault> {
        self.delete(usage, r, &keys::channel_end(channel).into(), Class::Publication)?;
        let (from, to) = keys::publications(channel);
        let mut removed = false;
        for pair in self.index.range(&from, Some(&to)) {
            let (key, _) = pair?;
            removed |= self.remove(usage, &key, Class::Publication, Some(r.version), r.lsn)?;
        }
        // Compaction may move the record long after the channel returned, while its memory has
        // publications in flight.
        if removed || !r.moved {
            self.channels.drop_channel(channel);
        }
        self.dirty.note(keys::CHANNELS, channel, |name| Entity::Channel { name });
        Ok(())
    }

    /// Applies a put. Returns whether the record is now current.
    fn put(&self, usage: &mut Usage, r: &Applied, key: Bytes, payload: &[u8], class: Class) -> Result<bool, Fault> {
        let new = Account::of(class, payload)?;
        self.note_time(class, payload)?;
        let old = self.index.get(&key)?;
        if let Some(old) = &old {
            let was = valued(old)?;
            let old = Account::of(class, was.payload)?;
            if r.version < was.version || r.version == was.version && new.revision < old.revision {
                return Ok(false);
            }
            old.retire(usage, &was.location);
            self.counts.change(class, -1, old.size);
        } else if let Some(replay) = self.replay.lock().as_ref() {
            let deleted = replay.deleted(&key, r.version)?;
            // Up to the base the index knew every key: an absent key was deleted.
            if deleted || r.moved && r.version <= replay.base {
                return Ok(false);
            }
        } else if r.moved {
            return Ok(false);
        }
        new.credit(usage, &r.location);
        self.counts.change(class, 1, new.size);
        let value = Value { version: r.version, location: r.location, payload }.encode();
        self.index.insert(key, value.into(), r.lsn);
        Ok(true)
    }

    /// Deletes `key`. Returns whether it existed.
    fn delete(&self, usage: &mut Usage, r: &Applied, key: &Bytes, class: Class) -> Result<bool, Fault> {
        if let Some(replay) = self.replay.lock().as_mut()
            && class != Class::Part
        {
            replay.marks.put(key, r.version)?;
        }
        self.remove(usage, key, class, Some(r.version), r.lsn)
    }
}
