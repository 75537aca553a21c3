//! The applier: adds committed records to the index, in order, at run time and in recovery alike.
//!
//! **Which of two records of a key counts.** The one with the higher version. Of two with the same
//! version (one is a moved copy), the one with the higher manifest revision; otherwise the later
//! one.
//!
//! A moved record whose key is absent belongs to a deleted key. A replay is the exception: the
//! records before it may be gone from the log. Then the deletes met so far, kept as marks, decide.

pub(crate) mod class;
pub(crate) mod live;
pub(crate) mod repoint;
mod take;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, has_fault};
use steadfast_log::{
    Applied, Applier, ChunkMove, ChunkOwners, ExtentUsage, History, Hold, Location, LogError, Lsn, Subject,
};

use class::Class;

use crate::index::{Health, IndexError};
use crate::record::keys::Id;
use crate::record::object::{Account, First};
use crate::record::wire::Malformed;
use crate::record::{Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::channels::record::PublicationMeta;
use crate::shard::checkpoints::Checkpoints;
use crate::shard::openings::Openings;
use crate::{StoreError, StoreSabotage};
use steadfast_log::{Log, Usage};

/// Why a record was not applied.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The record itself cannot be decoded.
    Record(Malformed),
    /// The index could not read the key's current value.
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

/// Decodes an indexed value.
fn valued(value: &[u8]) -> Result<Value<'_>, Fault> {
    Value::decode(value).map_err(|e| Fault::Index(IndexError::damaged(e.to_string())))
}

/// See the module.
pub(crate) struct StoreApplier {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) openings: Arc<Openings>,
}

impl Applier for StoreApplier {
    fn apply(&self, records: &[Applied], usage: &mut Usage) -> usize {
        let taken = self.applied.apply(records, usage);
        if taken > 0 {
            self.checkpoints.note(&self.applied, usage, &records[..taken], taken == records.len());
        }
        taken
    }
    fn ready(&self) -> BoxFuture<'_, bool> {
        let mut health = self.applied.index.health();
        Box::pin(async move {
            let ended = health.wait_for(|health| !matches!(health, Health::Failed(_))).await;
            ended.is_ok_and(|health| matches!(*health, Health::Well))
        })
    }

    fn can_continue(&self, history: &History) -> bool {
        self.openings.can_continue(history) || has_fault(self.applied.options.sabotage, StoreSabotage::AnyIndex)
    }

    fn checkpoint(&self) -> Lsn {
        self.checkpoints.lsn()
    }

    fn checkpoint_wanted(&self) {
        self.checkpoints.want();
    }

    fn usage(&self) -> Vec<ExtentUsage> {
        self.checkpoints.usage()
    }

    fn record_is_live(&self, head: &[u8], version: Lsn, location: &Location, oldest: Lsn) -> Option<bool> {
        live::record(&self.applied, head, version, location, oldest)
    }

    fn subject(&self, head: &[u8]) -> Subject {
        live::subject(head)
    }

    fn holds(&self) -> Vec<Hold> {
        self.applied.snapshots.read().iter().map(|(id, meta)| meta.hold(*id)).collect()
    }

    fn names_chunks(&self, head: &[u8]) -> bool {
        live::names_chunks(head)
    }
}

impl ChunkOwners for StoreApplier {
    fn chunk_is_live<'a>(&'a self, log: &'a Log, head: &'a [u8], location: &'a Location) -> BoxFuture<'a, bool> {
        Box::pin(live::chunk(&self.applied, log, head, location))
    }

    fn discard(&self, head: &[u8]) -> BoxFuture<'_, bool> {
        let head = Bytes::copy_from_slice(head);
        Box::pin(async move { live::discard(&self.applied, &head).await })
    }

    fn repoint<'a>(
        &'a self,
        log: &'a Log,
        moves: BTreeMap<Bytes, Vec<ChunkMove>>,
    ) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move { repoint::repoint(&self.applied, log, &moves).await })
    }
}

impl AppliedState {
    /// Applies records. Returns how many: the rest needs values that the index cannot read now.
    pub(crate) fn apply(&self, records: &[Applied], usage: &mut Usage) -> usize {
        debug_assert!(records.is_sorted_by(|a, b| a.lsn < b.lsn), "records are applied in the order of the log");
        if !self.index.is_well() {
            return 0;
        }
        let mut taken = records.len();
        for (n, record) in records.iter().enumerate() {
            match self.take(record, usage) {
                Ok(()) => {}
                Err(Fault::Record(e)) => self.distrust(&e),
                Err(Fault::Index(_)) if has_fault(self.options.sabotage, StoreSabotage::IndexErrors) => {}
                Err(Fault::Index(e)) => {
                    // When the current value is unknown, nothing replaces it, and no writer is
                    // acknowledged.
                    self.index.fault(&e);
                    taken = n;
                    break;
                }
            }
        }
        if self.is_replaying() {
            self.channels.bound_replay();
        }
        let Some(last) = records[..taken].last().map(|r| r.lsn) else { return taken };
        self.owners.applied(last);
        self.progress.send_modify(|p| p.lsn = p.lsn.max(last));
        self.memtable_bytes.store(self.index.memtable_bytes(), Ordering::Relaxed);
        self.spill_replay();
        taken
    }

    /// In a replay from nothing, the newest time in the log is the only hint of when the last run
    /// was.
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

    /// Whether this replay met a newer end of the channel.
    fn channel_ended(&self, channel: &[u8], version: Lsn) -> Result<bool, Fault> {
        match self.replay.lock().as_ref() {
            Some(replay) => Ok(replay.deleted(&keys::channel_end(channel), version)?),
            None => Ok(false),
        }
    }

    /// Removes `key` unless its value is newer than `version`.
    fn remove(
        &self,
        usage: &mut Usage,
        key: &Bytes,
        class: Class,
        version: Option<Lsn>,
        lsn: Lsn,
    ) -> Result<bool, Fault> {
        let Some(old) = self.index.get(key)? else { return Ok(false) };
        let was = valued(&old)?;
        if version.is_some_and(|version| was.version > version) {
            return Ok(false);
        }
        let account = Account::of(class, was.payload)?;
        account.retire(usage, &was.location);
        self.counts.change(class, -1, account.size);
        self.index.remove(key.clone(), lsn);
        Ok(true)
    }

    /// Removes a publication that has expired, or is no longer in its channel's history.
    pub(crate) fn remove_expired(&self, usage: &mut Usage, key: &Bytes, lsn: Lsn) -> Result<bool, Fault> {
        self.remove(usage, key, Class::Publication, None, lsn)
    }

    /// Removes the value from before `r`.
    pub(crate) fn remove_replayed(&self, usage: &mut Usage, key: &Bytes, r: &Applied) -> Result<bool, Fault> {
        self.remove(usage, key, Class::Publication, Some(r.version), r.lsn)
    }

    /// Records that the index or a record is inconsistent. The shard continues, and the next start
    /// rebuilds the index.
    pub(crate) fn distrust(&self, what: &Malformed) {
        tracing::error!(error = %what, "a record could not be applied; the index will be rebuilt at the next start");
        self.losses.distrust();
        self.index.condemn();
    }

    /// Ends the replay: drops the marks and removes parts whose upload has ended.
    pub(crate) fn finish_replay(&self, usage: &mut Usage) -> Result<u64, Fault> {
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
        self.counts.set_uploads(uploads.len() as u64);
        for pair in self.index.range(&[keys::PARTS], Some(&[keys::PARTS + 1])) {
            let (key, _) = pair?;
            let upload: Option<Id> = key.get(1..17).and_then(|id| id.try_into().ok());
            if upload.is_none_or(|id| !uploads.contains(&id)) {
                self.remove(usage, &key, Class::Part, None, lsn)?;
                self.memtable_bytes.store(self.index.memtable_bytes(), Ordering::Relaxed);
                self.spill_replay();
            }
        }
        self.clock.known(newest_ms);
        // Only now: until here the index belongs to a replay, and no run may continue from it.
        self.replay.lock().take();
        Ok(records)
    }

    /// In a replay from nothing, no state counts before the end. But changes need not stay in
    /// memory: a crash would start from nothing.
    fn spill_replay(&self) {
        let from_nothing = self.replay.lock().as_ref().is_some_and(|replay| replay.base == 0);
        if from_nothing && self.memtable_bytes.load(Ordering::Relaxed) >= self.options.memtable_bytes_max {
            self.index.seal();
            if let Err(e) = self.index.persist() {
                tracing::warn!(error = %e, "cannot write the index");
            }
        }
    }
}
