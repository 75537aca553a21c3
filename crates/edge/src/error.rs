//! Why an edge cannot answer.

use steadfast_store::StoreError;

/// Why an edge cannot answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EdgeError {
    /// The store refused or failed. [`StoreError::NoSuchKey`] also when the origin has no such
    /// object, [`StoreError::Busy`] at a bound of the edge.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The origin failed, or its answer is not usable; the text is for clients.
    #[error("{0}")]
    Origin(String),
    /// The origin did not answer in time.
    #[error("the origin did not answer in time")]
    Timeout,
    /// The range lies outside the object, which has this size in bytes.
    #[error("the range lies outside the {0} bytes of the object")]
    Range(u64),
    /// The object changed at the origin while it was fetched. Before the first byte, the caller
    /// asks again.
    #[error("the object changed at its origin while it was fetched")]
    Changed,
}
