//! An index that is built from the records of the log, beside the current one.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_log::{Applied, Usage};

use crate::index::LiveIndex;
use crate::shard::applied::AppliedState;
use crate::shard::apply::apply_records;
use crate::shard::buckets::Registry;
use crate::shard::checkpoint::Checkpoint;
use crate::{StoreError, StoreOptions};

/// The state that records of the log make, from the first one on.
pub(crate) struct Rebuild {
    applied: Arc<AppliedState>,
    usage: Arc<Mutex<Usage>>,
}

impl Rebuild {
    /// Begins with an empty `index`, for the disk of `live`.
    pub(crate) fn new(live: &AppliedState, index: LiveIndex, options: StoreOptions) -> Self {
        let applied = AppliedState::new(
            live.env.clone(),
            index,
            live.pool,
            &Checkpoint::default(),
            Registry::default(),
            None,
            options,
        );
        Self { applied: Arc::new(applied), usage: Arc::default() }
    }

    /// Applies the next records.
    ///
    /// # Errors
    /// [`StoreError::Index`] when the index fails.
    pub(crate) async fn apply(&self, records: Vec<Applied>) -> Result<(), StoreError> {
        let (applied, usage) = (self.applied.clone(), self.usage.clone());
        let all = self
            .applied
            .env
            .blocking(move || apply_records(&applied, &records, &mut usage.lock()) == records.len())
            .await;
        if all.ok_or_else(panicked)? { Ok(()) } else { Err(self.unreadable()) }
    }

    /// Ends the replay. Returns the state and the live bytes by extent.
    ///
    /// # Errors
    /// [`StoreError::Index`] when the index fails.
    pub(crate) async fn finish(self) -> Result<(Arc<AppliedState>, Usage), StoreError> {
        let (ended, usage) = (self.applied.clone(), self.usage.clone());
        self.applied.env.blocking(move || ended.finish_replay(&mut usage.lock())).await.ok_or_else(panicked)??;
        if !self.applied.index.is_well() {
            return Err(self.unreadable());
        }
        let usage = std::mem::take(&mut *self.usage.lock());
        Ok((self.applied, usage))
    }

    fn unreadable(&self) -> StoreError {
        let failure = self.applied.index.failure();
        StoreError::Index(failure.map_or_else(|| "it is damaged".to_owned(), |failure| failure.why))
    }
}

fn panicked() -> StoreError {
    StoreError::Index("building it from the log panicked".into())
}
