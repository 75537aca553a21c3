//! Publications to submit, and their results.

use bytes::Bytes;
use steadfast_flow::{BoxFuture, Permit};
use steadfast_log::{Durability, Priority};
use steadfast_store::{PendingPublication, Position, Published, StoreError};
use tokio::sync::oneshot;

use crate::error::ChannelError;
use crate::frame::channels::Response;

/// How to store a publication: see [`steadfast_store::NewPublication`].
#[derive(Debug, Clone, Copy)]
pub struct StoreTerms {
    /// Number of publications that the channel keeps, this one included; at least 1.
    pub history_size: u64,
    /// Time that this publication is kept, milliseconds.
    pub history_ttl_ms: u64,
    /// When the publication is answered and delivered.
    pub durability: Durability,
    /// Whether it may use space reserved for deletes.
    pub priority: Priority,
    /// Share of the disk that it must leave free, percent.
    pub leaves_percent: u8,
}

/// A publication to submit.
pub struct Publish {
    /// Payload.
    pub body: Bytes,
    /// Idempotency key; empty: none.
    pub key: String,
    /// Memory of a publication with a key: it may outlive its request.
    pub permit: Option<Permit>,
}

/// A submitted publication.
pub enum Accepted {
    /// It is not stored.
    Delivered,
    /// It has its position here.
    Pending(PendingPublication),
    /// It has a key.
    Keyed(BoxFuture<'static, Result<Position, ChannelError>>),
    /// Its home answers.
    Remote(oneshot::Receiver<Result<Response, ChannelError>>),
}

impl Accepted {
    /// Waits for the commit, at most as long as a write may wait for a hanging disk.
    ///
    /// # Errors
    /// When the commit cannot be confirmed. The publication may still be committed.
    pub async fn committed(self) -> Result<Position, ChannelError> {
        match self {
            Self::Pending(pending) => position(pending.committed().await),
            other => other.resolved().await,
        }
    }

    /// Reports what [`Accepted::committed`] returns, as soon as it would. Completes when nothing
    /// holds the publication any more, however long the disk hangs.
    pub(crate) async fn report(self, report: impl FnOnce(Result<Position, ChannelError>)) {
        match self {
            Self::Pending(pending) => pending.report(|published| report(position(published))).await,
            other => report(other.resolved().await),
        }
    }

    /// Waits for the commit, however long the disk hangs.
    ///
    /// # Errors
    /// When the publication was not committed, or the link to its home was lost.
    pub async fn resolved(self) -> Result<Position, ChannelError> {
        match self {
            Self::Delivered => Ok(Position::default()),
            Self::Pending(pending) => position(pending.resolved().await),
            Self::Keyed(published) => published.await,
            Self::Remote(answer) => {
                answer.await.unwrap_or(Err(ChannelError::OutcomeUnknown)).map(|response| response.position.into())
            }
        }
    }
}

fn position(published: Result<Published, StoreError>) -> Result<Position, ChannelError> {
    Ok(published?.position)
}
