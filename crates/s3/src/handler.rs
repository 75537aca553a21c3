//! State and helpers that all operations share.

use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use s3s::dto::Owner;
use s3s::{S3Request, S3Result, s3_error};
use steadfast_access::{ACCOUNT, canonical_id};
use steadfast_flow::Env;
use steadfast_store::{BucketDocument, Cause, Store};

use crate::caller::Caller;
use crate::context::RequestContext;
use crate::error::store_error;
use crate::md5::Md5Pool;
use crate::options::S3Options;
use crate::rights::{Judge, RequestParts};

/// The state that every operation needs.
pub(crate) struct Handler {
    pub(crate) store: Store,
    pub(crate) env: Env,
    /// The runtime that hashes large bodies.
    pub(crate) compute: Env,
    /// The pool that computes the MD5 of large bodies.
    pub(crate) md5: Arc<Md5Pool>,
    pub(crate) options: S3Options,
    pub(crate) judge: Arc<Judge>,
}

impl Handler {
    pub(crate) fn new(
        (store, env): (Store, Env),
        compute: Env,
        md5: Md5Pool,
        options: S3Options,
        judge: Arc<Judge>,
    ) -> Self {
        Self { store, env, compute, md5: Arc::new(md5), options, judge }
    }

    /// Sets or removes a document of a bucket, unless it is as given.
    ///
    /// # Errors
    /// `NoSuchBucket`, and those of a commit.
    pub(crate) async fn set_document(
        &self,
        bucket: &str,
        kind: BucketDocument,
        document: Option<String>,
    ) -> S3Result<()> {
        let settings = self.store.buckets().settings(bucket).map_err(store_error)?;
        if settings.document(kind) == document.as_deref() {
            return Ok(());
        }
        let changed = self.store.buckets().change(bucket, |settings| settings.set_document(kind, document));
        changed.await.map_err(store_error)
    }
}

pub(crate) fn context<T>(req: &S3Request<T>) -> Option<Arc<RequestContext>> {
    req.extensions.get::<Arc<RequestContext>>().cloned()
}

/// The parts of a request that policies look at.
///
/// # Errors
/// `InternalError` for a request whose caller is unknown: nothing may be allowed to it.
pub(crate) fn request_parts<'a>(
    context: Option<&'a Arc<RequestContext>>,
    uri: &'a Uri,
    headers: &'a HeaderMap,
) -> S3Result<RequestParts<'a>> {
    match context.and_then(|context| context.caller.get()) {
        Some(caller) => Ok(RequestParts { uri, headers, caller }),
        None => Err(s3_error!(InternalError, "The caller of the request is unknown.")),
    }
}

/// What the event of a change says of its caller.
///
/// # Errors
/// `InternalError` for a request whose caller is unknown.
pub(crate) fn cause(context: Option<&Arc<RequestContext>>) -> S3Result<Cause> {
    let caller = context.and_then(|context| context.caller.get());
    caller.map(Caller::cause).ok_or_else(|| s3_error!(InternalError, "The caller of the request is unknown."))
}

const DURABLE: HeaderName = HeaderName::from_static("x-steadfast-durable");

/// The header that reports whether a write was flushed before the answer.
pub(crate) fn durable_header(durable: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(DURABLE, HeaderValue::from_static(if durable { "true" } else { "false" }));
    headers
}

/// The name of the owner of all buckets and objects.
const OWNER: &str = "steadfast";
static OWNER_ID: LazyLock<String> = LazyLock::new(|| canonical_id(None));

/// The owner of all buckets and objects: the root identity.
pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER.into()), id: Some(OWNER_ID.clone()) }
}

/// Whether a client that expects this owner of a bucket is right. SDKs name the account.
pub(crate) fn is_owner(expected: &str) -> bool {
    expected == ACCOUNT || expected == OWNER
}
