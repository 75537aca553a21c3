//! A publication with an assigned offset that awaits its commit.

use std::sync::Arc;

use steadfast_log::{Committed, Ticket};

use crate::StoreError;
use crate::channels::{Position, Published};
use crate::shard::core::Core;

/// A submitted publication.
pub struct PendingPublication {
    pub(super) core: Arc<Core>,
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    /// The simulator's broken variant answers before the flush.
    pub(super) early: bool,
}

impl PendingPublication {
    /// Awaits the commit. When the disk hangs, it waits at most as long as a write may wait; the
    /// publication may still be committed later.
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
