//! State and helpers that all operations share.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::S3Request;
use s3s::dto::Owner;
use steadfast_flow::Env;
use steadfast_store::Store;

use crate::context::RequestContext;
use crate::md5::Md5Pool;
use crate::options::S3Options;

/// The state that every operation needs.
pub(crate) struct Handler {
    pub(crate) store: Store,
    pub(crate) env: Env,
    /// The runtime that hashes large bodies.
    pub(crate) compute: Env,
    /// The pool that computes the MD5 of large bodies.
    pub(crate) md5: Arc<Md5Pool>,
    pub(crate) options: S3Options,
}

impl Handler {
    pub(crate) fn new(store: Store, env: Env, compute: Env, md5: Md5Pool, options: S3Options) -> Self {
        Self { store, env, compute, md5: Arc::new(md5), options }
    }
}

pub(crate) fn context<T>(req: &S3Request<T>) -> Option<Arc<RequestContext>> {
    req.extensions.get::<Arc<RequestContext>>().cloned()
}

const DURABLE: HeaderName = HeaderName::from_static("x-steadfast-durable");

/// The header that reports whether a write was flushed before the answer.
pub(crate) fn durable_header(durable: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(DURABLE, HeaderValue::from_static(if durable { "true" } else { "false" }));
    headers
}

/// The identifier of the owner of all buckets and objects.
pub(crate) const OWNER: &str = "steadfast";

/// The owner of all buckets and objects.
pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER.into()), id: Some(OWNER.into()) }
}
