//! MinIO's administration on the S3 port: the root identity alone may use it.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Extensions, HeaderMap, Method, Uri};
use s3s::host::S3Host;
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use steadfast_flow::Env;
use steadfast_minio::{AdminCall, AdminOperation, Administration};

use crate::access::{Domains, Keys};
use crate::caller::{Caller, Identity};
use crate::context::{RequestClient, RequestContext};
use crate::error::invalid_request;
use crate::rights::denied;
use crate::signed;

/// The name of all its operations in metrics and logs.
const OPERATION: &str = "Administration";

/// The requests of the administration among those of the port.
#[derive(Clone)]
pub(crate) struct AdminRoute {
    pub(crate) administration: Option<Administration>,
    /// A host name of a bucket has no administration: its paths are keys.
    pub(crate) domains: Arc<Domains>,
    pub(crate) keys: Keys,
    pub(crate) env: Env,
    /// The time a client may take to send a body.
    pub(crate) body_time: Duration,
}

impl AdminRoute {
    /// Whether a request names no bucket by its host, so that its path may be one of the
    /// administration.
    pub(crate) fn is_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let header = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = header.or(uri.host()).unwrap_or_default();
        self.domains.parse_host_header(host).is_ok_and(|host| host.bucket().is_none())
    }

    /// Whether a request is served.
    pub(crate) fn serves(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        let known = AdminOperation::find(method, uri.path()).is_some();
        known && self.administration.is_some() && self.is_host(uri, headers)
    }

    /// Refuses all but the root identity, with a signature of version 4 in the header that covers
    /// the body and all of the query string.
    fn check_signature(&self, request: &S3Request<Body>) -> S3Result<()> {
        let Some(credentials) = &request.credentials else { return Err(denied()) };
        let header = |name: &str| request.headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
        if !header(AUTHORIZATION.as_str()).starts_with(b"AWS4-HMAC-SHA256") {
            return Err(invalid_request("The administration takes signatures of version 4 in the header only."));
        }
        let hash = header("x-amz-content-sha256");
        if hash.len() != 64 || !hash.iter().all(u8::is_ascii_hexdigit) {
            return Err(invalid_request("The signature of a request to the administration must cover its body."));
        }
        signed::check(&request.uri, &request.headers)?;
        match self.keys.identity(&credentials.access_key, &credentials.secret_key)? {
            Identity::Root => Ok(()),
            Identity::User(_) | Identity::Anonymous => Err(denied()),
        }
    }
}

#[async_trait::async_trait]
impl S3Route for AdminRoute {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        self.serves(method, uri, headers)
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let context = request.extensions.get::<Arc<RequestContext>>().cloned();
        let link = request.extensions.get::<RequestClient>().map(|client| client.link);
        let (Some(context), Some(link)) = (context, link) else {
            return Err(s3_error!(InternalError, "The request has no context."));
        };
        context.set_operation(OPERATION);
        self.check_signature(request)?;
        context.caller.get_or_init(|| Caller::new(Identity::Root, link));
        context.set_body_due(self.env.now() + self.body_time);
        Ok(())
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let operation = AdminOperation::find(&request.method, request.uri.path());
        let (Some(operation), Some(administration), Some(credentials)) =
            (operation, &self.administration, &request.credentials)
        else {
            return Err(s3_error!(InternalError, "The request was not checked."));
        };
        let bytes_max = usize::try_from(Administration::BODY_BYTES_MAX).unwrap_or(usize::MAX);
        let body = request.input.store_all_limited(bytes_max).await;
        let host = request.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let call = AdminCall {
            operation,
            query: request.uri.query().unwrap_or_default().to_owned(),
            access_key: credentials.access_key.clone(),
            secret_key: credentials.secret_key.expose().to_owned(),
            host: host.to_owned(),
            body: body.map_err(|e| invalid_request(format!("The body cannot be read: {e}")))?,
        };
        let reply = administration.answer(call).await;
        let mut response = S3Response::with_status(Body::from(reply.body), reply.status);
        response.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}
