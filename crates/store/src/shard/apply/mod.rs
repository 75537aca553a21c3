//! The applier: takes committed records into the index, in order, at run time and in recovery alike.
//!
//! **Which of two records of a key stands.** The one with the higher version; of two with the same version (one is a moved
//! copy) the one with the higher revision of its manifest, else the later. A moved record whose key is not there belongs to a key
//! that has been deleted, except while the log is replayed: then what came before it may simply not be there any more, and the
//! deletes met so far, kept as marks, say which is the case.

mod class;
pub(crate) mod live;
pub(crate) mod repoint;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_flow::BoxFuture;
use steadfast_log::{Applied, Applier, ChunkMove, ExtentUsage, History, Hold, Location, LogError, Lsn, Subject};

use class::Class;

use crate::index::{Health, IndexError};
use crate::layout::Layout;
use crate::record::keys::Id;
use crate::record::object::{Account, First};
use crate::record::snapshot::SnapshotMeta;
use crate::record::wire::Malformed;
use crate::record::{BucketMeta, Head, Value, keys};
use crate::shard::channels::record::PublicationMeta;
use crate::shard::core::{Core, Persisted};
use crate::shard::dirty::Thing;
use crate::{StoreError, StoreSabotage};
use steadfast_log::Log;

/// The log, once it is open.
pub(crate) type LogSlot = Arc<parking_lot::RwLock<Option<Log>>>;

/// Why a record was not taken in.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It does not make sense itself.
    Record(Malformed),
    /// What the index has in its place could not be read.
    Index(IndexError),
}

impl From<Malformed> for Fault {
    fn from(e: Malformed) -> Self {
        Self::Record(e)
    }
}

impl From<IndexError> for Fault {
    fn from(e: IndexError) -> Self {
        Self::Index(e)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Record(e) => e.into(),
            Fault::Index(e) => e.into(),
        }
    }
}

/// A value that the index gave.
fn valued(value: &[u8]) -> Result<Value<'_>, Fault> {
    Value::decode(value).map_err(|e| Fault::Index(IndexError::damaged(e.to_string())))
}

/// See the module.
pub(crate) struct StoreApplier {
    pub(crate) core: Arc<Core>,
    pub(crate) log: LogSlot,
}

impl Applier for StoreApplier {
    fn apply(&self, records: &[Applied]) {
        self.apply_some(records);
    }

    fn apply_some(&self, records: &[Applied]) -> usize {
        let core = &self.core;
        let _one = core.applying.lock();
        if !core.index.is_well() {
            return 0;
        }
        let (mut log_bytes, mut taken) = (0, records.len());
        for (n, record) in records.iter().enumerate() {
            match self.take(record) {
                Ok(()) => {}
                Err(Fault::Record(e)) => core.distrust(&e),
                Err(Fault::Index(_)) if core.options.sabotage == StoreSabotage::IndexErrors => {}
                Err(Fault::Index(e)) => {
                    // Where what is there cannot be known, nothing is put in its place, and nobody is told that it was.
                    core.index.fault(&e);
                    taken = n;
                    break;
                }
            }
            log_bytes += Log::footprint(&record.location);
        }
        if core.replay.lock().is_some() {
            core.channels.bound_replay();
        }
        let Some(last) = records[..taken].last().map(|r| r.lsn) else { return taken };
        core.split.store(taken < records.len(), Ordering::Relaxed);
        core.owners.applied(last);
        core.progress.send_modify(|p| p.lsn = p.lsn.max(last));
        core.log_bytes.fetch_add(log_bytes, Ordering::Relaxed);
        core.memtable_bytes.store(core.index.memtable_bytes(), Ordering::Relaxed);
        core.seal_if_due();
        taken
    }

    fn ready(&self) -> BoxFuture<'_, bool> {
        let mut health = self.core.index.health();
        Box::pin(async move {
            let ended = health.wait_for(|health| !matches!(health, Health::Ailing(_))).await;
            ended.is_ok_and(|health| matches!(*health, Health::Well))
        })
    }

    fn goes_on(&self, history: &History) -> bool {
        self.core.opening_before.store(history.newest(), Ordering::Release);
        let (lsn, opening) = self.core.opened_with;
        let any = self.core.options.sabotage == StoreSabotage::AnyIndex;
        let fits = if lsn == 0 || any { Ok(()) } else { history.goes_on(lsn, opening) };
        fits.inspect_err(|why| *self.core.unfit.lock() = Some((*why).to_owned())).is_ok()
    }

    fn checkpoint(&self) -> Lsn {
        self.core.persisted.lock().lsn
    }

    fn checkpoint_wanted(&self) {
        if !self.core.checkpoint_wanted.swap(true, Ordering::AcqRel) {
            self.core.checkpoint_due.notify_one();
        }
    }

    fn usage(&self) -> Vec<ExtentUsage> {
        self.core.persisted.lock().usage.clone()
    }

    fn record_is_live(&self, head: &[u8], version: Lsn, location: &Location, oldest: Lsn) -> Option<bool> {
        live::record(&self.core, head, version, location, oldest)
    }

    fn subject(&self, head: &[u8]) -> Subject {
        live::subject(head)
    }

    fn holds(&self) -> Vec<Hold> {
        self.core.snapshots.read().iter().map(|(id, meta)| meta.hold(*id)).collect()
    }

    fn names_chunks(&self, head: &[u8]) -> bool {
        live::names_chunks(head)
    }

    fn chunk_is_live(&self, head: &[u8], location: &Location) -> BoxFuture<'_, bool> {
        let (head, location) = (Bytes::copy_from_slice(head), *location);
        Box::pin(async move {
            let log = self.log.read().clone();
            match log {
                Some(log) => live::chunk(&self.core, &log, &head, &location).await,
                None => true,
            }
        })
    }

    fn repoint(&self, moves: BTreeMap<Bytes, Vec<ChunkMove>>) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            let log = self.log.read().clone();
            match log {
                Some(log) => repoint::repoint(&self.core, &log, &moves).await,
                None => Err(LogError::Closed),
            }
        })
    }
}

impl StoreApplier {
    fn take(&self, r: &Applied) -> Result<(), Fault> {
        let core = &self.core;
        if let Some(replay) = core.replay.lock().as_mut() {
            replay.records += 1;
        }
        match Head::decode(&r.head)? {
            Head::BucketPut { id, payload } => {
                let meta = BucketMeta::decode(payload)?;
                if self.put(r, keys::bucket(id).into(), payload, Class::Bucket)? {
                    core.registry.write().put(id, meta);
                }
            }
            Head::BucketDelete { id } => {
                let key = Bytes::from(keys::bucket(id));
                if self.delete(r, &key, Class::Bucket)? {
                    core.registry.write().remove(id);
                }
            }
            Head::ObjectPut { bucket, key, payload } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.put(r, index_key.clone(), payload, Class::Object)?;
                if !r.moved {
                    core.dirty.note(bucket, key, |key| Thing::Object { bucket, key });
                }
                core.pending.settle(&index_key, r.lsn);
            }
            Head::ObjectDelete { bucket, key } => {
                let index_key = Bytes::from(keys::object(bucket, key));
                self.delete(r, &index_key, Class::Object)?;
                core.dirty.note(bucket, key, |key| Thing::Object { bucket, key });
                core.pending.settle(&index_key, r.lsn);
            }
            Head::UploadCreate { bucket, upload, key, payload } => {
                self.put(r, keys::upload(bucket, key, &upload).into(), payload, Class::Upload)?;
                core.dirty.note(bucket, key, |key| Thing::Upload { bucket, key, upload });
            }
            Head::UploadEnd { bucket, upload, key } => {
                let index_key = Bytes::from(keys::upload(bucket, key, &upload));
                self.delete(r, &index_key, Class::Upload)?;
                let prefix = keys::parts(&upload);
                for pair in core.index.range(&prefix, keys::past(&prefix).as_deref()) {
                    let (part, _) = pair?;
                    self.delete(r, &part, Class::Part)?;
                }
                core.dirty.note(bucket, key, |key| Thing::Upload { bucket, key, upload });
                core.pending.settle(&index_key, r.lsn);
            }
            Head::PartPut { bucket, upload, number, key, payload } => {
                // In a replay the upload may come later; parts that it never comes for are removed at the end. One that ended here may have
                // come again since, with its parts: slots move to a disk, away, and back.
                let upload_key = keys::upload(bucket, key, &upload);
                let there = match core.replay.lock().as_ref() {
                    Some(replay) => replay.marks.get(&upload_key)?.is_none_or(|ended| ended < r.version),
                    None => core.index.get(&upload_key)?.is_some(),
                };
                if there {
                    self.put(r, keys::part(&upload, number).into(), payload, Class::Part)?;
                }
                if !r.moved {
                    core.dirty.note(bucket, key, |key| Thing::Part { bucket, key, upload, number });
                }
                core.pending.settle(&upload_key, r.lsn);
            }
            Head::PoolLayout { payload } => {
                let layout = Layout::decode(payload)?;
                if self.put(r, Bytes::from_static(keys::LAYOUT), payload, Class::Layout)? {
                    *core.layout.write() = Some(Arc::new(layout));
                }
            }
            Head::SnapshotPut { id, payload } => {
                let meta = SnapshotMeta::decode(payload)?;
                if self.put(r, keys::snapshot(&id).into(), payload, Class::Snapshot)? {
                    core.snapshots.write().insert(id, meta);
                }
            }
            Head::SnapshotDelete { id } => {
                if self.delete(r, &keys::snapshot(&id).into(), Class::Snapshot)? {
                    core.snapshots.write().remove(&id);
                }
            }
            // In a replay: of what came before the channel's end, copies may come after it.
            Head::Publication { channel, .. } if core.channel_ended(channel, r.version)? => {}
            Head::Publication { channel, offset, payload } => core.apply_publication(
                r,
                channel,
                offset,
                payload,
                |key| self.put(r, key, payload, Class::Publication),
                |key| core.remove(key, Class::Publication, None, r.lsn),
            )?,
            Head::ChannelEnd { channel } => {
                self.delete(r, &keys::channel_end(channel).into(), Class::Publication)?;
                let (from, to) = keys::publications(channel);
                let mut removed = false;
                for pair in core.index.range(&from, Some(&to)) {
                    let (key, _) = pair?;
                    removed |= core.remove(&key, Class::Publication, Some(r.version), r.lsn)?;
                }
                // Compaction moves the record long after the channel came again: what is in memory has publications on their way.
                if removed || !r.moved {
                    core.channels.let_go(channel);
                }
                core.dirty.note(keys::CHANNELS, channel, |name| Thing::Channel { name });
            }
            Head::Chunk { .. } | Head::PartChunk { .. } => {
                return Err(Malformed("record: a chunk was committed").into());
            }
        }
        Ok(())
    }

    /// Whether the record stands.
    fn put(&self, r: &Applied, key: Bytes, payload: &[u8], class: Class) -> Result<bool, Fault> {
        let core = &self.core;
        let new = Account::of(class, payload)?;
        core.note_time(class, payload)?;
        let old = core.index.get(&key)?;
        if let Some(old) = &old {
            let was = valued(old)?;
            let old = Account::of(class, was.payload)?;
            if r.version < was.version || r.version == was.version && new.revision < old.revision {
                return Ok(false);
            }
            core.accounts.lock().retract(&was.location, &old.shares);
            core.count(class, -1, old.size);
        } else if let Some(replay) = core.replay.lock().as_ref() {
            let deleted = replay.deleted(&key, r.version)?;
            // Up to the base the index knew of every key: one that it does not have had been deleted.
            if deleted || r.moved && r.version <= replay.base {
                return Ok(false);
            }
        } else if r.moved {
            return Ok(false);
        }
        core.accounts.lock().add(&r.location, &new.shares);
        core.count(class, 1, new.size);
        let value = Value { version: r.version, location: r.location, payload }.encode();
        core.index.insert(key, value.into(), r.lsn);
        Ok(true)
    }

    /// Whether something was there and is removed.
    fn delete(&self, r: &Applied, key: &Bytes, class: Class) -> Result<bool, Fault> {
        let core = &self.core;
        if let Some(replay) = core.replay.lock().as_mut()
            && class != Class::Part
        {
            replay.marks.put(key, r.version)?;
        }
        core.remove(key, class, Some(r.version), r.lsn)
    }
}

impl Core {
    fn count(&self, class: Class, by: i64, size: u64) {
        let add = |counter: &std::sync::atomic::AtomicU64, amount: u64| {
            if by > 0 {
                counter.fetch_add(amount, Ordering::Relaxed)
            } else {
                counter.fetch_sub(amount, Ordering::Relaxed)
            }
        };
        match class {
            Class::Object => {
                add(&self.objects, 1);
                add(&self.bytes, size);
            }
            Class::Upload => {
                add(&self.uploads, 1);
            }
            Class::Bucket | Class::Part | Class::Layout | Class::Snapshot | Class::Publication => {}
        }
    }

    /// In a replay from nothing, the newest time in the log is all that is known of when the last run was.
    fn note_time(&self, class: Class, payload: &[u8]) -> Result<(), Malformed> {
        let mut replay = self.replay.lock();
        let Some(replay) = replay.as_mut().filter(|replay| replay.base == 0) else { return Ok(()) };
        let ms = match class {
            Class::Object => First::decode(payload)?.modified_ms,
            Class::Publication => PublicationMeta::decode(payload)?.time_ms,
            Class::Part | Class::Bucket | Class::Upload | Class::Layout | Class::Snapshot => 0,
        };
        replay.newest_ms = replay.newest_ms.max(ms);
        Ok(())
    }

    /// Whether a newer end of the channel was met in this replay.
    fn channel_ended(&self, channel: &[u8], version: Lsn) -> Result<bool, Fault> {
        match self.replay.lock().as_ref() {
            Some(replay) => Ok(replay.deleted(&keys::channel_end(channel), version)?),
            None => Ok(false),
        }
    }

    /// Removes `key` unless what is there is newer than `version`.
    fn remove(&self, key: &Bytes, class: Class, version: Option<Lsn>, lsn: Lsn) -> Result<bool, Fault> {
        let Some(old) = self.index.get(key)? else { return Ok(false) };
        let was = valued(&old)?;
        if version.is_some_and(|version| was.version > version) {
            return Ok(false);
        }
        let account = Account::of(class, was.payload)?;
        self.accounts.lock().retract(&was.location, &account.shares);
        self.count(class, -1, account.size);
        self.index.remove(key.clone(), lsn);
        Ok(true)
    }

    /// Removes a publication whose time is over. With `applying` held.
    pub(crate) fn remove_expired(&self, key: &Bytes, lsn: Lsn) -> Result<bool, Fault> {
        self.remove(key, Class::Publication, None, lsn)
    }

    /// Removes what came before `r`.
    pub(crate) fn remove_replayed(&self, key: &Bytes, r: &Applied) -> Result<bool, Fault> {
        self.remove(key, Class::Publication, Some(r.version), r.lsn)
    }

    /// Something in the index or in a record does not make sense: go on as well as can be, and rebuild at the next start.
    pub(crate) fn distrust(&self, what: &Malformed) {
        tracing::error!(error = %what, "a record could not be applied; the index will be rebuilt at the next start");
        self.distrusted.store(true, Ordering::Release);
        self.index.condemn();
    }

    /// Ends the replay: forgets the marks and removes parts whose upload has ended.
    pub(crate) fn finish_replay(&self) -> Result<u64, Fault> {
        let (records, newest_ms) = match self.replay.lock().as_ref() {
            Some(replay) => (replay.records, replay.newest_ms),
            None => return Ok(0),
        };
        let lsn = self.progress.borrow().lsn.max(1);
        let mut uploads = std::collections::BTreeSet::<Id>::new();
        for pair in self.index.range(&[keys::UPLOADS], Some(&[keys::PARTS])) {
            let (key, _) = pair?;
            uploads.extend(keys::parse_upload(&key).map(|(_, id)| id));
        }
        self.uploads.store(uploads.len() as u64, Ordering::Relaxed);
        for pair in self.index.range(&[keys::PARTS], Some(&[keys::PARTS + 1])) {
            let (key, _) = pair?;
            let upload: Option<Id> = key.get(1..17).and_then(|id| id.try_into().ok());
            if upload.is_none_or(|id| !uploads.contains(&id)) {
                self.remove(&key, Class::Part, None, lsn)?;
                self.memtable_bytes.store(self.index.memtable_bytes(), Ordering::Relaxed);
                self.seal_if_due();
            }
        }
        self.clock.known(newest_ms);
        // Not before: until here the index is one of a replay, which nothing goes on from.
        self.replay.lock().take();
        Ok(records)
    }

    /// Sets the state so far apart to be persisted, when enough has changed and nothing is being persisted.
    fn seal_if_due(&self) {
        let changed = self.memtable_bytes.load(Ordering::Relaxed);
        let replaying = self.replay.lock().as_ref().map(|replay| replay.base);
        match replaying {
            // Nothing counts before the end, but it need not stay in memory: a crash would start again from nothing.
            Some(0) if changed >= self.options.memtable_bytes_max => {
                self.index.seal();
                if let Err(e) = self.index.persist() {
                    tracing::warn!(error = %e, "cannot write the index");
                }
            }
            Some(_) => {}
            None => {
                if changed >= self.options.memtable_bytes_max
                    || self.log_bytes.load(Ordering::Relaxed) >= self.checkpoint_log_bytes
                {
                    self.seal();
                }
            }
        }
    }

    /// Sets the state so far apart to be persisted. With `applying` held, or when the applier no longer runs.
    pub(crate) fn seal(&self) -> bool {
        if !self.index.is_well() {
            return false;
        }
        // A recovery takes a frame whole or not at all: one that ended in the middle of it would be half known.
        if self.split.load(Ordering::Relaxed) {
            // Due with the rest of the frame, which comes next.
            self.log_bytes.store(self.checkpoint_log_bytes, Ordering::Relaxed);
            return false;
        }
        let checkpoint = self.snapshot();
        if checkpoint.lsn == self.persisted.lock().lsn || self.sealing.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.log_bytes.store(0, Ordering::Relaxed);
        self.index.insert(Bytes::from_static(keys::CHECKPOINT), checkpoint.encode().into(), checkpoint.lsn);
        self.index.seal();
        *self.sealed.lock() = Some(Persisted { lsn: checkpoint.lsn, usage: checkpoint.usage });
        self.checkpoint_due.notify_one();
        true
    }
}
