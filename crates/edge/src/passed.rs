//! Answers that are passed through, because they cannot be stored.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use steadfast_flow::{Env, Pass};
use steadfast_store::ObjectInfo;

use crate::bucket_state::{BucketState, CONNECTION_WAIT, busy};
use crate::error::EdgeError;
use crate::origin::{NOT_WHOLE, OriginBody, OriginRequest, unsatisfied_size};

/// What a request wants of an object.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The first byte wanted.
    pub first: u64,
    /// The value of its `Range` header, for answers that are passed through.
    pub range: Option<String>,
    /// The value of its `If-Range` header.
    pub if_range: Option<String>,
    /// The client, which has a share of the bucket's bounds.
    pub client: Arc<str>,
}

/// An object as HEAD describes it.
#[derive(Debug, Clone)]
pub struct HeadObject {
    /// The description.
    pub info: ObjectInfo,
    /// Whether its size is known. The origin need not say it in answer to HEAD.
    pub has_length: bool,
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
    /// The place among the requests that wait, until the first byte.
    waiting: Option<Pass>,
    timeout: Duration,
    env: Env,
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
        let Self { body, connection, waiting, timeout, env, .. } = self;
        stream::try_unfold((body, connection, waiting), move |(mut body, connection, waiting)| {
            let env = env.clone();
            async move {
                let piece = env.timeout(timeout, body.next()).await.ok_or(EdgeError::Timeout)?;
                drop(waiting);
                let broken = |_| EdgeError::Origin("The answer of the origin broke off.".into());
                let piece = piece.transpose().map_err(broken)?;
                Ok(piece.map(|piece| (piece, (body, connection, None))))
            }
        })
    }
}

impl From<ObjectInfo> for HeadObject {
    fn from(info: ObjectInfo) -> Self {
        Self { info, has_length: true }
    }
}

impl From<PassedObject> for HeadObject {
    fn from(passed: PassedObject) -> Self {
        Self { has_length: passed.length.is_some(), info: passed.info }
    }
}

impl BucketState {
    /// Asks the origin for one request.
    pub(crate) async fn pass(
        &self,
        key: &str,
        head: bool,
        wanted: &Wanted,
        waiting: Option<Pass>,
    ) -> Result<PassedObject, EdgeError> {
        let connection = self.bucket_gates.passed.enter(&wanted.client, CONNECTION_WAIT).await;
        let connection = connection.map_err(|refused| busy(&refused))?;
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
        if described.partial && wanted.range.is_none() {
            return Err(self.wrong_answer(key, NOT_WHOLE));
        }
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
        Ok(PassedObject {
            info,
            span,
            partial: described.partial,
            length,
            body: answer.body,
            connection,
            waiting,
            timeout: self.options.timeout,
            env: self.env.clone(),
        })
    }
}
