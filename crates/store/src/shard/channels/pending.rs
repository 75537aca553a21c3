//! A publication that has its place in its channel and awaits its commit.

use std::sync::Arc;

use steadfast_log::{Committed, Ticket};

use crate::StoreError;
use crate::channels::{Position, Published};
use crate::shard::core::Core;

/// A publication that was submitted.
pub struct PendingPublication {
    pub(super) core: Arc<Core>,
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    /// The broken variant of the simulator answers before the flush.
    pub(super) early: bool,
}

impl PendingPublication {
    /// Awaits the commit. Where the disk hangs, for as long as a write may wait at most: the
    /// publication may be committed after that.
    ///
    /// # Errors
    /// [`StoreError::Hangs`], those of the log.
    pub async fn committed(self) -> Result<Published, StoreError> {
        let Self { core, ticket, position, early } = self;
        core.committed(ticket).await.map(|committed| published(position, early, &committed))
    }

    /// Awaits the commit, however long the disk hangs.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn resolved(self) -> Result<Published, StoreError> {
        let Self { core, ticket, position, early } = self;
        core.resolved(ticket).await.map(|committed| published(position, early, &committed))
    }
}

fn published(position: Position, early: bool, committed: &Committed) -> Published {
    Published { position, durable: early || committed.durable }
}
