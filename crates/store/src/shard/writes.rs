//! Writing to a shard: space and budget, and the waits for commits.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Batch, Committed, Durability, Log, LogError, Lsn, Priority, Reservation, Ticket};

use crate::StoreError;
use crate::index::Health;
use crate::shard::applied::AppliedState;
use crate::shard::hang::HangWatch;
use crate::shard::spare::Spare;
use crate::shard::wanted::Wanted;

/// Maps the log's busy error to the store's.
pub(crate) fn busy(e: LogError) -> StoreError {
    match e {
        LogError::Busy { .. } => StoreError::Busy("data in flight to the disk"),
        e => e.into(),
    }
}

/// What the writers of a shard share.
pub(crate) struct Writes {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) log: Log,
    pub(crate) hang: Arc<HangWatch>,
    pub(crate) wanted: Wanted,
    /// Whether new data was refused for lack of space, and none has been accepted since.
    full: AtomicBool,
    spare: Spare,
    /// LSN of the last submitted record of a bucket.
    bucket_lsn: AtomicU64,
}

impl Writes {
    /// Nothing has been written.
    pub(crate) fn new(applied: Arc<AppliedState>, log: Log, hang: Arc<HangWatch>) -> Self {
        let wanted = Wanted::new(applied.env.clone());
        let (full, bucket_lsn) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { applied, log, hang, wanted, full, spare: Spare::default(), bucket_lsn }
    }

    /// The free share of the disk, in percent.
    pub(crate) fn spare_percent(&self) -> u8 {
        self.spare.percent(&self.applied.env, &self.log)
    }

    /// Whether new data was refused for lack of space, and none has been accepted since.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Remembers a refusal of new data for lack of space.
    pub(crate) fn note_full<T>(&self, result: &Result<T, LogError>) {
        if matches!(result, Err(LogError::Full)) {
            self.full.store(true, Ordering::Relaxed);
        }
    }

    /// New data was accepted.
    pub(crate) fn note_space(&self) {
        if self.is_full() {
            self.full.store(false, Ordering::Relaxed);
        }
    }

    /// Refuses new data while the index cannot be written: more would only fill the memory.
    fn admit(&self) -> Result<(), StoreError> {
        if self.applied.memtable_bytes.load(Ordering::Relaxed)
            > self.applied.options.memtable_bytes_max.saturating_mul(8)
        {
            return Err(StoreError::Busy("index changes that are not on disk yet"));
        }
        Ok(())
    }

    /// Reserves bytes of the log's budget.
    pub(crate) async fn reserve(&self, bytes: u64, priority: Priority) -> Result<Reservation, StoreError> {
        self.hang.refuse_hanging()?;
        self.applied.index.refuse_failed()?;
        if priority == Priority::Write {
            self.admit()?;
        }
        let room = self.wanted.wait(self.log.reserve(bytes, priority, self.applied.options.write_wait)).await;
        if priority == Priority::Write {
            self.note_full(&room);
        }
        room.map_err(busy)
    }

    /// Submits a batch.
    ///
    /// # Errors
    /// Those of [`Log::submit`].
    pub(crate) fn append(&self, room: Reservation, batch: Batch, durability: Durability) -> Result<Ticket, LogError> {
        let count = batch.len() as u64;
        let ticket = self.log.submit(room, batch, durability)?;
        self.applied.pending.submitted(ticket.first_lsn() + count - 1);
        Ok(ticket)
    }

    /// Submits a batch of bucket or pool records and waits for its commit.
    pub(crate) async fn commit_buckets(&self, room: Reservation, batch: Batch) -> Result<(), StoreError> {
        let count = batch.len() as u64;
        let ticket = self.append(room, batch, Durability::Sync)?;
        self.bucket_lsn.fetch_max(ticket.first_lsn() + count - 1, Ordering::AcqRel);
        self.committed(ticket).await.map(drop)
    }

    /// LSN of the last submitted record of a bucket.
    pub(crate) fn bucket_lsn(&self) -> Lsn {
        self.bucket_lsn.load(Ordering::Acquire)
    }

    /// Awaits a ticket.
    pub(crate) async fn committed(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, StoreError> {
        let lap = stages::enter(Stage::Apply);
        let committed = self.outcome(self.hang.unless_hanging(self.unless_index_fails(ticket)).await?)?;
        lap.was(Stage::Queue, committed.begun);
        lap.was(Stage::Flush, committed.written);
        Ok(committed)
    }

    /// Awaits a ticket, however long the disk hangs.
    pub(crate) async fn resolved(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, StoreError> {
        self.outcome(ticket.await)
    }

    fn outcome(&self, outcome: Result<Committed, LogError>) -> Result<Committed, StoreError> {
        outcome.map_err(|e| {
            if matches!(e, LogError::Unknown { .. } | LogError::Failed { .. }) {
                self.applied.progress.send_modify(|p| p.failed = true);
            }
            e.into()
        })
    }

    /// Waits for a commit, but while the index has failed no longer than a write may wait. The
    /// commit is or will be durable, but cannot be seen before the index is healed.
    async fn unless_index_fails(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, LogError> {
        let mut health = self.applied.index.health();
        let index_failed = async {
            let failed = health.wait_for(|health| matches!(health, Health::Failed(_))).await.is_ok();
            self.applied.env.sleep(self.applied.options.write_wait).await;
            failed && !self.applied.index.is_well()
        };
        let ticket = std::pin::pin!(ticket);
        match futures::future::select(ticket, std::pin::pin!(index_failed)).await {
            futures::future::Either::Left((done, _)) => done,
            futures::future::Either::Right((true, _)) => {
                Err(LogError::Unknown { what: "commit", cause: "the index is being rebuilt".into() })
            }
            futures::future::Either::Right((false, ticket)) => ticket.await,
        }
    }
}
