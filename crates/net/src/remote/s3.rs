//! A bucket of an S3 endpoint as a store.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::client::HttpRequestBody;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion};
use steadfast_flow::{BoxFuture, Env};

use super::adapter::{Adapter, StatusError, StoreHttpClient};
use super::name::{S3Place, check_name};
use super::probe::ProbeFinding;
use super::rules::QUESTIONS;
use super::{EntityTag, REMOTE_PAGE, RemoteEntry, RemoteError, RemoteObject, RemoteResult, RemoteStore};
use crate::http_client::{exchange, http_client, with_causes};
use crate::s3::{S3Endpoint, S3Request};

/// Most bytes of the settings of a bucket.
const SETTINGS_BYTES_MAX: usize = 1 << 20;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Idle connections that are kept.
const IDLE_MAX: usize = 16;

/// A bucket of an S3 endpoint.
pub struct S3Store {
    store: AmazonS3,
    /// For what the library has no requests.
    endpoint: S3Endpoint,
    client: StoreHttpClient,
    place: S3Place,
    env: Env,
    /// Time limit of a request.
    timeout: Duration,
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Store({})", self.describe())
    }
}

impl S3Store {
    /// A store in this place; a request has no clear answer after `timeout`.
    ///
    /// # Errors
    /// What is wrong with the place; the text is for operators.
    pub fn new(place: S3Place, timeout: Duration, env: Env) -> Result<Self, String> {
        let wrong = |why: String| format!("{}: {why}", crate::shown_url(&place.endpoint));
        let endpoint = S3Endpoint::new(&place.endpoint, Some(place.credentials.clone())).map_err(wrong)?;
        let client = http_client(endpoint.url(), IDLE_MAX).map_err(wrong)?;
        let (retry, credentials) = (RetryConfig { max_retries: 0, ..RetryConfig::default() }, &place.credentials);
        let mut builder = AmazonS3Builder::new()
            .with_endpoint(place.endpoint.trim_end_matches('/'))
            .with_bucket_name(&place.bucket)
            .with_region(&credentials.region)
            .with_access_key_id(&credentials.access_key)
            .with_secret_access_key(&credentials.secret_key.0)
            .with_virtual_hosted_style_request(false)
            .with_allow_http(true)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry)
            .with_http_connector(Adapter(client.clone()));
        if let Some(token) = &credentials.session_token {
            builder = builder.with_token(&token.0);
        }
        let store = builder.build().map_err(|e| wrong(with_causes(&e)))?;
        Ok(Self { store, endpoint, client, place, env, timeout })
    }

    /// What the settings of the bucket mean for an archive under the prefix.
    pub async fn bucket_findings(&self) -> Vec<ProbeFinding> {
        let mut findings = Vec::new();
        for question in &QUESTIONS {
            let answer = self.settings(question.query).await;
            findings.push(question.finding(answer, &self.place.prefix));
        }
        findings
    }

    async fn settings(&self, query: &str) -> Result<(u16, Bytes), String> {
        let request = S3Request { method: "GET", bucket: &self.place.bucket, key: "", query, headers: &[] };
        let request = self.endpoint.request(&request, self.env.wall_ms(), Bytes::new()).map_err(|e| e.to_string())?;
        let request = request.map(|_| HttpRequestBody::empty());
        let answer = self.env.timeout(self.timeout, exchange(&self.client, request, SETTINGS_BYTES_MAX)).await;
        let answer = answer.ok_or_else(|| "no answer".to_owned())??;
        Ok((answer.status().as_u16(), answer.into_body()))
    }

    fn path(&self, name: &str) -> RemoteResult<Path> {
        check_name(name).map_err(RemoteError::Refused)?;
        self.any_path(name)
    }

    /// The place of an object that may have been put there by others.
    fn any_path(&self, name: &str) -> RemoteResult<Path> {
        let separator = if self.place.prefix.is_empty() { "" } else { "/" };
        let path = format!("{}{separator}{name}", self.place.prefix);
        Path::parse(path).map_err(|e| RemoteError::Refused(e.to_string()))
    }

    /// The name of an object in the bucket; `None` outside the prefix.
    fn name_of(&self, path: &Path) -> Option<String> {
        match self.place.prefix.as_str() {
            "" => Some(path.as_ref().to_owned()),
            prefix => Some(path.as_ref().strip_prefix(prefix)?.strip_prefix('/')?.to_owned()),
        }
    }

    /// Makes one attempt.
    async fn attempt<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> RemoteResult<T> {
        match self.env.timeout(self.timeout, work).await {
            Some(done) => done.map_err(|e| self.error_of(&e)),
            None => Err(RemoteError::Unknown(format!("none within {:?}", self.timeout))),
        }
    }

    fn error_of(&self, error: &object_store::Error) -> RemoteError {
        if matches!(error, object_store::Error::InvalidPath { .. }) {
            return RemoteError::Refused(format!("the prefix has objects of others: {error}"));
        }
        let Some(answer) = StatusError::of(error) else { return RemoteError::Unknown(innermost(error)) };
        let bucket = &self.place.bucket;
        match (answer.status, answer.code.as_str()) {
            (_, "NoSuchBucket") => RemoteError::Refused(format!("the bucket {bucket} does not exist: create it first")),
            (404, _) => RemoteError::Missing,
            // The caller knows which condition it was.
            (304 | 412, _) => RemoteError::Changed,
            (401 | 403, _) => {
                RemoteError::Refused(format!("{answer}: check the keys and what they may do in the bucket"))
            }
            (429, _) | (503, "SlowDown") => RemoteError::Slow(answer.to_string()),
            (501, _) => RemoteError::Refused(format!("{answer}: the store lacks what an archive needs")),
            // 409: another write was going on, perhaps an earlier attempt of the same. A proxy
            // answers 502 to 504 also when the store has done its part.
            (408 | 409, _) | (400, "RequestTimeout") | (500.., _) => RemoteError::Unknown(answer.to_string()),
            _ => RemoteError::Refused(answer.to_string()),
        }
    }

    async fn put(&self, name: &str, body: PutPayload, mode: PutMode) -> RemoteResult<EntityTag> {
        let path = self.path(name)?;
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.attempt(self.store.put_opts(&path, body, options)).await?;
        put.e_tag.map(EntityTag).ok_or_else(|| RemoteError::Refused("the store gives no entity tags".to_owned()))
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>, bytes_max: u64) -> RemoteResult<RemoteObject> {
        let path = self.path(name)?;
        let options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
        let read = async {
            let found = self.store.get_opts(&path, options).await?;
            let (meta, sent) = (found.meta.clone(), found.range.clone());
            if sent.end - sent.start > bytes_max {
                return Ok((meta, sent, None));
            }
            let mut body = page_aligned((sent.end - sent.start) as usize);
            let mut pieces = found.into_stream();
            while let Some(piece) = pieces.try_next().await? {
                body.extend_from_slice(&piece);
            }
            Ok((meta, sent, Some(body.freeze())))
        };
        let (meta, sent, body) = self.attempt(read).await?;
        let Some(body) = body else {
            return Err(RemoteError::Refused(format!("{name} has more than {bytes_max} bytes")));
        };
        if range
            .as_ref()
            .is_some_and(|range| sent.start == range.start && sent.end < range.end && sent.end == meta.size)
        {
            return Err(RemoteError::Refused(format!("{name} has only {} bytes", meta.size)));
        }
        let whole = range.is_none_or(|range| range == sent) && body.len() as u64 == sent.end - sent.start;
        if !whole {
            return Err(RemoteError::Unknown(format!("{} bytes came of {name}, of {sent:?}", body.len())));
        }
        Ok(RemoteObject { body, tag: meta.e_tag.map(EntityTag), size: meta.size })
    }

    async fn page(&self, under: &str, after: &str) -> RemoteResult<Vec<RemoteEntry>> {
        let prefix = match (under, self.place.prefix.as_str()) {
            ("", "") => None,
            ("", prefix) => Some(Path::parse(prefix).map_err(|e| RemoteError::Refused(e.to_string()))?),
            (under, _) => Some(self.path(under)?),
        };
        let found = match after {
            "" => self.store.list(prefix.as_ref()),
            after => self.store.list_with_offset(prefix.as_ref(), &self.any_path(after)?),
        };
        let found = self.attempt(found.take(REMOTE_PAGE).try_collect::<Vec<_>>()).await?;
        let mut page: Vec<RemoteEntry> = Vec::with_capacity(found.len());
        for meta in found {
            let Some(name) = self.name_of(&meta.location) else {
                return Err(RemoteError::Refused(format!("the listing has {}, which is elsewhere", meta.location)));
            };
            let before = page.last().map_or(after, |last| last.name.as_str());
            if *name <= *before {
                return Err(RemoteError::Refused(format!("the listing is not in order: {name} after {before:?}")));
            }
            let modified_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
            page.push(RemoteEntry { name, size: meta.size, modified_ms });
        }
        Ok(page)
    }

    async fn remove(&self, names: &[String]) -> RemoteResult<()> {
        assert!(names.len() <= REMOTE_PAGE, "{} names at a time", names.len());
        let paths = names.iter().map(|name| self.path(name)).collect::<RemoteResult<Vec<_>>>()?;
        let paths = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        let deleted = self.store.delete_stream(paths).try_for_each(|_| async { Ok(()) });
        // The library panics at an answer that names other keys.
        let deleted = AssertUnwindSafe(self.attempt(deleted)).catch_unwind().await;
        match deleted.unwrap_or_else(|_| Err(RemoteError::Unknown("an answer about other names".to_owned()))) {
            Err(RemoteError::Missing) => Err(RemoteError::Refused("404 to a delete of several objects".to_owned())),
            done => done,
        }
    }
}

/// Memory for a body of `len` bytes, which begins at a page: a disk takes that without a copy.
pub(super) fn page_aligned(len: usize) -> BytesMut {
    let mut memory = BytesMut::with_capacity(len + PAGE);
    memory.split_off(memory.as_ptr().align_offset(PAGE))
}

/// The text of the last cause, which the others repeat.
fn innermost(error: &object_store::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

impl RemoteStore for S3Store {
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(async move {
            match self.put(name, body.into_iter().collect(), PutMode::Create).await {
                Err(RemoteError::Changed) => Err(RemoteError::Exists),
                Err(RemoteError::Missing) => Err(RemoteError::Refused("404 to a write".to_owned())),
                done => done,
            }
        })
    }

    fn replace<'a>(
        &'a self,
        name: &'a str,
        body: Bytes,
        over: &'a EntityTag,
    ) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(async move {
            let version = UpdateVersion { e_tag: Some(over.0.clone()), version: None };
            match self.put(name, body.into(), PutMode::Update(version)).await {
                // S3 says so if the object does not exist.
                Err(RemoteError::Missing) => Err(RemoteError::Changed),
                done => done,
            }
        })
    }

    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>> {
        Box::pin(self.get(name, range, bytes_max))
    }

    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>> {
        Box::pin(self.page(under, after))
    }

    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>> {
        Box::pin(self.remove(names))
    }

    fn describe(&self) -> String {
        let S3Place { endpoint, bucket, prefix, .. } = &self.place;
        let separator = if prefix.is_empty() { "" } else { "/" };
        format!("s3://{bucket}{separator}{prefix} at {}", crate::shown_url(endpoint))
    }
}
