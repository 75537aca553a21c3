//! Origins: where the objects of an edge bucket come from.

mod client;
mod description;
mod listing;
mod media_types;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::HeaderMap;

pub(crate) use client::Client;
pub(crate) use description::{Description, MADE_TAG, Tag, unsatisfied_size};
pub use listing::{ListedObject, OriginPage};

/// What is wrong with a range in answer to a request without one.
pub(crate) const NOT_WHOLE: &str = "it is a range, and the whole object was wanted";

/// The bytes of an answer. An error means that the connection broke, or that the answer is not as
/// long as it said.
pub type OriginBody = BoxStream<'static, Result<Bytes, String>>;

/// A request to an origin.
#[derive(Debug, Clone, Default)]
pub struct OriginRequest {
    /// Whether only the headers are wanted.
    pub head: bool,
    /// The key, as clients of the edge name it.
    pub key: String,
    /// Further headers: `range` and conditions.
    pub headers: Vec<(&'static str, String)>,
}

/// The answer of an origin.
pub struct OriginAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: OriginBody,
}

/// A server that objects can be fetched from.
pub trait Origin: Send + Sync + 'static {
    /// Sends a request. Completes with the head of the answer. It has no timeout: the caller sets
    /// one.
    ///
    /// # Errors
    /// No answer came; the text is for operators.
    fn send(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginAnswer, String>>;

    /// Asks for a page of the objects whose keys begin with `prefix` and follow `after`. `None` for
    /// an origin that cannot list. The bound on the answer and its timeout are the caller's.
    fn list(&self, prefix: &str, after: &str) -> Option<BoxFuture<'static, Result<OriginAnswer, String>>> {
        let _ = (prefix, after);
        None
    }

    /// What precedes each key at the origin in its listings.
    fn prefix(&self) -> &str {
        ""
    }
}
