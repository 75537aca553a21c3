//! Where the bytes of an object come from: the store, or the origin of its bucket.

use std::ops::Range as Span;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::HeaderMap;
use http::header::{IF_RANGE, RANGE};
use s3s::S3Result;
use s3s::dto::Range;
use steadfast_edge::{EdgeError, Fetched, FillReader, PassedObject, Wanted};
use steadfast_store::{ObjectInfo, ObjectReader, PartInfo, StoreError};

use crate::error::{edge_error, store_error};
use crate::handler::Handler;

/// An object that is being read.
pub(crate) enum Source {
    Object(ObjectReader),
    Fill(FillReader),
    Passed(PassedObject),
}

/// What a request says about the bytes that it wants.
pub(crate) fn wanted(headers: &HeaderMap, range: Option<&Range>) -> Wanted {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let first = match range {
        Some(Range::Int { first, .. }) => *first,
        // The size is not known yet, and the first segment tells it.
        Some(Range::Suffix { .. }) | None => 0,
    };
    Wanted { first, range: text(RANGE), if_range: text(IF_RANGE) }
}

impl Source {
    /// Begins to read an object.
    pub(crate) async fn open(handler: &Handler, bucket: &str, key: &str, wanted: &Wanted) -> S3Result<Self> {
        match &handler.options.edge {
            Some(edge) if edge.has_origin(bucket) => match edge.get(bucket, key, wanted).await.map_err(edge_error)? {
                Fetched::Object(reader) => Ok(Self::Object(reader)),
                Fetched::Fill(reader) => Ok(Self::Fill(reader)),
                Fetched::Passed(passed) => Ok(Self::Passed(passed)),
            },
            _ => Ok(Self::Object(handler.store.reader(bucket, key).await.map_err(store_error)?)),
        }
    }

    pub(crate) fn info(&self) -> &ObjectInfo {
        match self {
            Self::Object(reader) => reader.info(),
            Self::Fill(reader) => reader.info(),
            Self::Passed(passed) => passed.info(),
        }
    }

    pub(crate) fn parts(&self) -> &[PartInfo] {
        match self {
            Self::Object(reader) => reader.parts(),
            Self::Fill(_) | Self::Passed(_) => &[],
        }
    }

    /// The bytes of `span`. Those of an answer that is passed through are what the origin sends.
    pub(crate) fn stream(self, span: Span<u64>) -> BoxStream<'static, Result<Bytes, EdgeError>> {
        match self {
            Self::Object(reader) => reader.stream(span).map_err(EdgeError::from).boxed(),
            Self::Fill(reader) => reader.stream(span).boxed(),
            Self::Passed(passed) => passed.stream().boxed(),
        }
    }
}

impl Handler {
    /// The description of a stored object. `None` if the origin of the bucket may have it.
    pub(crate) fn stored(&self, bucket: &str, key: &str) -> S3Result<Option<ObjectInfo>> {
        match (self.store.object(bucket, key), &self.options.edge) {
            (Ok(info), _) => Ok(Some(info)),
            (Err(StoreError::NoSuchKey), Some(edge)) if edge.has_origin(bucket) => Ok(None),
            (Err(error), _) => Err(store_error(error)),
        }
    }

    /// The description of an object: of the store, or of its origin.
    pub(crate) async fn describe(&self, bucket: &str, key: &str) -> S3Result<ObjectInfo> {
        match (self.stored(bucket, key)?, &self.options.edge) {
            (Some(info), _) => Ok(info),
            (None, Some(edge)) => edge.head(bucket, key).await.map_err(edge_error),
            (None, None) => Err(store_error(StoreError::NoSuchKey)),
        }
    }
}
