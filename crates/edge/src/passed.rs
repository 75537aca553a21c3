//! Answers that are passed through, because they cannot be stored.

use std::ops::Range;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use steadfast_flow::Pass;
use steadfast_store::ObjectInfo;

use crate::error::EdgeError;
use crate::origin::{OriginBody, OriginRequest, unsatisfied_size};
use crate::site::Site;

/// What a request wants of an object.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The first byte wanted.
    pub first: u64,
    /// The value of its `Range` header, for answers that are passed through.
    pub range: Option<String>,
    /// The value of its `If-Range` header.
    pub if_range: Option<String>,
}

/// An answer of the origin for one request.
pub struct PassedObject {
    info: ObjectInfo,
    span: Range<u64>,
    partial: bool,
    length: Option<u64>,
    body: OriginBody,
    /// The connection, until the last byte.
    connection: Pass,
}

impl PassedObject {
    /// The object's description. Its size is 0 if the origin does not say it.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The bytes that the answer contains, and whether they are a range of the object. The origin
    /// has decided it.
    pub fn span(&self) -> (Range<u64>, bool) {
        (self.span.clone(), self.partial)
    }

    /// Bytes of the answer, if the origin says so.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The bytes. The stream ends after an error.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, EdgeError>> + Send + use<> + 'static {
        let Self { body, connection, .. } = self;
        body.map(move |piece| {
            let _connection = &connection;
            piece.map_err(|_| EdgeError::Origin("The answer of the origin broke off.".into()))
        })
    }
}

impl Site {
    /// Asks the origin for one request.
    pub(crate) async fn pass(&self, key: &str, head: bool, wanted: &Wanted) -> Result<PassedObject, EdgeError> {
        let connection = self.connect(&self.connections.passed).await?;
        let headers = [("range", &wanted.range), ("if-range", &wanted.if_range)];
        let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let answer = self.ask(OriginRequest { head, key: key.to_owned(), headers }).await?;
        if answer.status == 416 {
            return Err(EdgeError::Range(unsatisfied_size(&answer.headers).unwrap_or(0)));
        }
        if !matches!(answer.status, 200 | 206) {
            return Err(self.unexpected(key, answer.status));
        }
        let described = self.describe(key, &answer)?;
        let (start, length) = (described.start, described.length);
        let info = ObjectInfo {
            key: key.to_owned(),
            size: described.total.unwrap_or(0),
            modified_ms: described.modified_ms.unwrap_or_else(|| self.env.wall_ms()),
            version: 0,
            attributes: described.attributes,
            part_count: 0,
        };
        let span = start..start.saturating_add(length.unwrap_or(0));
        Ok(PassedObject { info, span, partial: described.partial, length, body: answer.body, connection })
    }
}
