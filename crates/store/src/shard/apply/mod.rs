//! The applier: adds committed records to the index, in order, at run time and in recovery alike.
//!
//! **Which of two records of a key counts.** The one with the higher version. Of two with the same
//! version (one is a moved copy), the one with the higher manifest revision; otherwise the later
//! one.
//!
//! A moved record whose key is absent belongs to a deleted key. A replay is the exception: the
//! records before it may be gone from the log. Then the deletes met so far, kept as marks, decide.

pub(crate) mod live;
mod publication;
mod record;
pub(crate) mod repoint;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, has_fault};
use steadfast_log::{Applied, Applier, ChunkMove, ChunkOwners, ExtentUsage, History, Location, LogError, Lsn, Subject};

use record::RecordApplier;

use crate::StoreSabotage;
use crate::index::Health;
use crate::shard::applied::AppliedState;
use crate::shard::checkpoints::Checkpoints;
use crate::shard::fault::Fault;
use crate::shard::openings::Openings;
use steadfast_log::{Log, Usage};

/// The log's applier: it adds committed records to the state of a shard.
pub(crate) struct StoreApplier {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) openings: Arc<Openings>,
}

impl Applier for StoreApplier {
    fn apply(&self, records: &[Applied], usage: &mut Usage) -> usize {
        let taken = apply_records(&self.applied, records, usage);
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

/// Applies records. Returns how many: the rest needs values that the index cannot read now.
pub(crate) fn apply_records(applied: &AppliedState, records: &[Applied], usage: &mut Usage) -> usize {
    debug_assert!(records.is_sorted_by(|a, b| a.lsn < b.lsn), "records are applied in the order of the log");
    if !applied.index.is_well() {
        return 0;
    }
    let mut taken = records.len();
    for (n, record) in records.iter().enumerate() {
        let one = RecordApplier { applied, usage: &mut *usage, record };
        match one.apply() {
            Ok(()) => {}
            Err(Fault::Record(e)) => applied.distrust(&e),
            Err(Fault::Index(_)) if has_fault(applied.options.sabotage, StoreSabotage::IndexErrors) => {}
            Err(Fault::Index(e)) => {
                // When the current value is unknown, nothing replaces it, and no writer is
                // acknowledged.
                applied.index.fault(&e);
                taken = n;
                break;
            }
        }
    }
    if applied.is_replaying() {
        applied.channels.bound_replay();
    }
    let Some(last) = records[..taken].last().map(|r| r.lsn) else { return taken };
    applied.owners.applied(last);
    applied.progress.send_modify(|p| p.lsn = p.lsn.max(last));
    applied.memtable_bytes.store(applied.index.memtable_bytes(), Ordering::Relaxed);
    applied.spill_replay();
    taken
}
