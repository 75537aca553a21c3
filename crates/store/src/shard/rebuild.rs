//! An index that is built from the records of the log, beside the current one.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_log::{Applied, Usage};

use crate::index::LiveIndex;
use crate::shard::checkpoint::Checkpoint;
use crate::shard::core::{Core, Registry};
use crate::{StoreError, StoreOptions};

/// The state that records of the log make, from the first one on.
pub(crate) struct Rebuild {
    core: Arc<Core>,
    usage: Arc<Mutex<Usage>>,
}

impl Rebuild {
    /// Begins with an empty `index`, for the disk of `live`.
    pub(crate) fn new(live: &Core, index: LiveIndex, options: StoreOptions) -> Self {
        let core = Core::new(
            live.env.clone(),
            index,
            live.pool,
            &Checkpoint::default(),
            Registry::default(),
            None,
            live.read_ahead.clone(),
            options,
        );
        Self { core: Arc::new(core), usage: Arc::default() }
    }

    /// Applies the next records.
    ///
    /// # Errors
    /// [`StoreError::Index`] when the index fails.
    pub(crate) async fn apply(&self, records: Vec<Applied>) -> Result<(), StoreError> {
        let (core, usage) = (self.core.clone(), self.usage.clone());
        let all = self.core.env.blocking(move || core.apply(&records, &mut usage.lock()) == records.len()).await;
        if all.ok_or_else(panicked)? { Ok(()) } else { Err(self.unreadable()) }
    }

    /// Ends the replay. Returns the state and the live bytes by extent.
    ///
    /// # Errors
    /// [`StoreError::Index`] when the index fails.
    pub(crate) async fn finish(self) -> Result<(Arc<Core>, Usage), StoreError> {
        let (ended, usage) = (self.core.clone(), self.usage.clone());
        self.core.env.blocking(move || ended.finish_replay(&mut usage.lock())).await.ok_or_else(panicked)??;
        if !self.core.index.is_well() {
            return Err(self.unreadable());
        }
        let usage = std::mem::take(&mut *self.usage.lock());
        Ok((self.core, usage))
    }

    fn unreadable(&self) -> StoreError {
        let failure = self.core.index.failure();
        StoreError::Index(failure.map_or_else(|| "it is damaged".to_owned(), |failure| failure.why))
    }
}

fn panicked() -> StoreError {
    StoreError::Index("building it from the log panicked".into())
}
