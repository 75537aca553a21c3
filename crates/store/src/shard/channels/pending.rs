//! A publication with an assigned offset that awaits its commit.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::FusedFuture;
use steadfast_log::{Committed, Ticket};

use crate::StoreError;
use crate::channels::{Position, Published};
use crate::shard::writes::Writes;

/// A submitted publication.
pub struct PendingPublication {
    pub(super) writes: Arc<Writes>,
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
        let Self { writes, ticket, position, early } = self;
        writes.committed(ticket).await.map(|committed| published(position, early, &committed))
    }

    /// Reports what [`PendingPublication::committed`] returns, as soon as it would. Completes when
    /// the commit is resolved, however long the disk hangs.
    pub async fn report(self, report: impl FnOnce(Result<Published, StoreError>)) {
        let Self { writes, ticket, position, early } = self;
        let mut ticket = ticket.fuse();
        let committed = writes.committed(&mut ticket).await;
        report(committed.map(|committed| published(position, early, &committed)));
        if !ticket.is_terminated() {
            let _ = writes.resolved(ticket).await;
        }
    }

    /// Awaits the commit, however long the disk hangs.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn resolved(self) -> Result<Published, StoreError> {
        let Self { writes, ticket, position, early } = self;
        writes.resolved(ticket).await.map(|committed| published(position, early, &committed))
    }
}

fn published(position: Position, early: bool, committed: &Committed) -> Published {
    Published { position, durable: early || committed.durable }
}
