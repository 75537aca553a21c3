//! Where the bytes of an object come from: the store, or the origin of its bucket.

use std::ops::Range as Span;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::header::{AGE, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE};
use s3s::S3Result;
use s3s::dto::Range;
use steadfast_edge::{Edge, EdgeAnswer, EdgeError, Fetched, FillReader, Handling, HeadObject, PassedObject, Wanted};
use steadfast_store::{ObjectInfo, ObjectReader, PartInfo};

use crate::context::RequestClient;
use crate::error::{edge_error, store_error};
use crate::handler::Handler;

/// An object that is being read.
pub(crate) enum Source {
    Object(ObjectReader),
    /// An object that the edge has stored in this bucket.
    Cached(ObjectReader, Edge, String),
    Fill(FillReader),
    Passed(PassedObject),
}

/// What a request says about the bytes that it wants.
pub(crate) fn wanted(headers: &HeaderMap, client: Option<&RequestClient>, range: Option<&Range>) -> Wanted {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let first = match range {
        Some(Range::Int { first, .. }) => *first,
        // The size is not known yet, and the first segment tells it.
        Some(Range::Suffix { .. }) | None => 0,
    };
    Wanted { first, range: text(RANGE), if_range: text(IF_RANGE), client: client_of(client) }
}

/// The client whose share of the edge a request uses.
fn client_of(client: Option<&RequestClient>) -> Arc<str> {
    client.map_or_else(|| "".into(), |client| client.group.clone())
}

impl Source {
    /// Begins to read an object. The headers report what the edge did.
    pub(crate) async fn open(
        handler: &Handler,
        bucket: &str,
        key: &str,
        wanted: &Wanted,
    ) -> S3Result<(Self, HeaderMap)> {
        let Some(edge) = handler.edge_of(bucket) else {
            let reader = handler.store.at(bucket, key).reader().await.map_err(store_error)?;
            return Ok((Self::Object(reader), HeaderMap::new()));
        };
        let answer = edge.get(bucket, key, wanted).await.map_err(edge_error)?;
        let headers = cache_headers(&answer);
        let source = match answer.found {
            Fetched::Object(reader) => Self::Cached(reader, edge.clone(), bucket.to_owned()),
            Fetched::Fill(reader) => Self::Fill(reader),
            Fetched::Passed(passed) => Self::Passed(passed),
        };
        Ok((source, headers))
    }

    pub(crate) fn info(&self) -> &ObjectInfo {
        match self {
            Self::Object(reader) | Self::Cached(reader, ..) => reader.info(),
            Self::Fill(reader) => reader.info(),
            Self::Passed(passed) => passed.info(),
        }
    }

    pub(crate) fn parts(&self) -> &[PartInfo] {
        match self {
            Self::Object(reader) | Self::Cached(reader, ..) => reader.parts(),
            Self::Fill(_) | Self::Passed(_) => &[],
        }
    }

    /// The bytes of `span`. Those of an answer that is passed through are what the origin sends.
    pub(crate) fn stream(self, span: Span<u64>) -> BoxStream<'static, Result<Bytes, EdgeError>> {
        match self {
            Self::Object(reader) => reader.stream(span).map_err(EdgeError::from).boxed(),
            Self::Cached(reader, edge, bucket) => {
                let (key, version) = (reader.info().key.clone(), reader.info().version);
                reader.stream(span).map_err(move |error| edge.read_failed(&bucket, &key, version, error)).boxed()
            }
            Self::Fill(reader) => reader.stream(span).boxed(),
            Self::Passed(passed) => passed.stream().boxed(),
        }
    }
}

/// `Age`, and `Cache-Status` (RFC 9211).
fn cache_headers<T>(answer: &EdgeAnswer<T>) -> HeaderMap {
    let status = match answer.handling {
        Handling::Hit => "Steadfast; hit",
        Handling::Stale => "Steadfast; hit; detail=stale",
        Handling::Revalidated => "Steadfast; fwd=stale; fwd-status=304",
        Handling::Replaced => "Steadfast; fwd=stale",
        Handling::Miss { collapsed: false } => "Steadfast; fwd=uri-miss",
        Handling::Miss { collapsed: true } => "Steadfast; fwd=uri-miss; collapsed",
        Handling::Passed => "Steadfast; fwd=uri-miss; detail=passed-through",
    };
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(HeaderName::from_static("cache-status"), HeaderValue::from_static(status));
    headers.extend(answer.age_s.map(|age| (AGE, HeaderValue::from(age))));
    headers
}

impl Handler {
    /// The edge, for a bucket with an origin.
    pub(crate) fn edge_of(&self, bucket: &str) -> Option<&Edge> {
        self.options.edge.as_ref().filter(|edge| edge.has_origin(bucket))
    }

    /// The description of an object, of the store or of its origin. The headers report what the
    /// edge did.
    pub(crate) async fn describe(
        &self,
        bucket: &str,
        key: &str,
        client: Option<&RequestClient>,
    ) -> S3Result<(HeadObject, HeaderMap)> {
        let Some(edge) = self.edge_of(bucket) else {
            let info = self.store.at(bucket, key).info().map_err(store_error)?;
            return Ok((info.into(), HeaderMap::new()));
        };
        let answer = edge.head(bucket, key, client_of(client)).await.map_err(edge_error)?;
        let headers = cache_headers(&answer);
        Ok((answer.found, headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_report_what_the_edge_did() {
        let headers = |handling, age_s| cache_headers(&EdgeAnswer { found: (), handling, age_s });
        let hit = headers(Handling::Hit, Some(7));
        assert_eq!((&hit["cache-status"], &hit["age"]), (&"Steadfast; hit".parse().unwrap(), &"7".parse().unwrap()));
        assert!(!headers(Handling::Miss { collapsed: true }, None).contains_key("age"));
    }
}
