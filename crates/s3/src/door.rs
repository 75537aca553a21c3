//! From a connection to the operations and back: gate, request id, limits, metrics.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3Error, s3_error};
use steadfast_flow::{Env, FlowStatus, Gate, Pass};
use steadfast_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::access::{Domains, Keys, SignedOnly};
use crate::body::{RequestBody, ResponseBody, Tail};
use crate::context::{BodyFault, Observer, RequestContext};
use crate::cors;
use crate::error::{invalid_request, request_timeout, slow_down};
use crate::handler::Handler;
use crate::io::StallIo;
use crate::md5::Md5Pool;
use crate::options::S3Options;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// A client that has more than this of a body left to send when it is answered is told that the connection ends with the answer; less
/// is mostly there already, and is passed over. One that waits for `100 Continue` sends nothing, so that is never there.
const UNREAD_BYTES_MAX: u64 = 64 << 10;

/// Why the options were refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DoorError {
    /// Nobody could sign a request.
    #[error("no pair of access key and secret key is configured")]
    NoCredentials,
    /// An empty or duplicate access key, or an empty secret.
    #[error("the access keys must be different, and neither they nor their secrets empty")]
    InvalidCredentials,
    /// A domain that cannot be a host name.
    #[error("{0:?} is not a domain name")]
    InvalidDomain(String),
    /// The operating system gives no thread to compute hashes.
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(String),
}

/// The S3 door over a store: a hyper service. Cloning shares it.
#[derive(Clone)]
pub struct S3Door(Arc<Shared>);

struct Shared {
    s3: S3Service,
    gate: Gate,
    env: Env,
    options: S3Options,
    observer: Option<Arc<dyn Observer>>,
}

impl S3Door {
    /// A door that hashes on the threads that serve requests and reports to nobody; see [`S3Door::build`].
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn new(store: Store, env: Env, options: S3Options) -> Result<Self, DoorError> {
        Self::build(store, env, options, None, None)
    }

    /// A door. `compute` is the environment of another runtime, whose few threads hash the bodies that are larger than
    /// [`S3Options::inline_hash_bytes`], so that they do not hold up the threads that poll sockets. `observer` is told of
    /// every request when it ends.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn build(
        store: Store,
        env: Env,
        options: S3Options,
        compute: Option<Env>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Self, DoorError> {
        check(&options)?;
        let md5 = Md5Pool::new().map_err(|e| DoorError::Thread(e.to_string()))?;
        let handler = Handler::new(store, env.clone(), compute.unwrap_or_else(|| env.clone()), md5, options.clone());
        let mut builder = S3ServiceBuilder::new(handler);
        builder.set_auth(Keys::new(&options.credentials));
        builder.set_access(SignedOnly);
        if !options.domains.is_empty() {
            builder.set_host(Domains::new(&options.domains));
        }
        let mut config = S3Config::default();
        config.xml_max_body_size = options.xml_bytes_max;
        config.presigned_url_max_skew_time_secs = u32::try_from(options.clock_skew_max.as_secs()).unwrap_or(u32::MAX);
        // Form uploads are refused before they get there; this is for the case that one does.
        config.post_object_max_file_size = options.xml_bytes_max as u64;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let gate = Gate::new("s3_requests", options.requests_max, options.requests_waiting_max, env.clone());
        Ok(Self(Arc::new(Shared { s3: builder.build(), gate, env, options, observer })))
    }

    /// How many requests are being served and wait.
    pub fn gate_status(&self) -> FlowStatus {
        self.0.gate.status()
    }

    /// Serves one connection, which is ready (accepted, and past its TLS handshake). The result is a future that ends with
    /// the connection; [`graceful_shutdown`](hyper::server::conn::http1::Connection::graceful_shutdown) lets the request that
    /// is being served finish.
    pub fn connection<I>(&self, io: I) -> hyper::server::conn::http1::Connection<TokioIo<StallIo<I>>, Visit>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let options = &self.0.options;
        let linger = Arc::new(AtomicBool::new(false));
        let io = StallIo::new(io, self.0.env.clone(), options.response_stall, linger.clone());
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_timeout)
            .max_buf_size(options.connection_buffer_bytes.max(8192))
            .serve_connection(TokioIo::new(io), Visit { door: self.clone(), linger })
    }

    /// Serves one request; `linger` becomes whether the client may still be sending it when it is answered.
    async fn handle(&self, request: Request<Incoming>, linger: &AtomicBool) -> Response<ResponseBody> {
        let shared = &self.0;
        let context = Arc::new(RequestContext::new(shared.env.random_u64()));
        let started = shared.env.now();
        let unread_max = if request.headers().contains_key(EXPECT) { 0 } else { UNREAD_BYTES_MAX };
        let origin = cors::allowed(&shared.options.allowed_origins, request.headers());
        let (mut response, pass) = if origin.is_some() && cors::is_preflight(&request) {
            (cors::preflight(request.headers()), None)
        } else {
            self.answer(request, &context).await
        };
        if context.fault() == Some(BodyFault::Stalled) && response.status() != StatusCode::OK {
            // `s3s` may have taken the end of an XML body for something else.
            response = error_response(request_timeout());
        }
        self.finish(&mut response, &context, unread_max);
        if let Some(origin) = origin {
            cors::admit(response.headers_mut(), origin);
        }
        linger.store(context.unread() > 0, Relaxed);
        let tail = Tail {
            context,
            observer: shared.observer.clone(),
            env: shared.env.clone(),
            started,
            status: response.status().as_u16(),
            bytes_out: 0,
            complete: false,
            pass,
        };
        response.map(|body| ResponseBody::new(body, tail))
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        context: &Arc<RequestContext>,
    ) -> (Response<Body>, Option<Pass>) {
        let shared = &self.0;
        let request =
            request.map(|body| RequestBody::new(body, context.clone(), shared.env.clone(), shared.options.body_stall));
        let Ok(pass) = shared.gate.enter(shared.options.request_wait).await else {
            return (error_response(slow_down("requests served at a time")), None);
        };
        if let Some(error) = refuse_early(&request) {
            return (error_response(error), Some(pass));
        }
        let mut request = request.map(|body| {
            if http_body::Body::is_end_stream(&body) { Body::empty() } else { Body::http_body_unsync(body) }
        });
        request.extensions_mut().insert(context.clone());
        let response = match shared.s3.call(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(request = %context.id, ?error, "a response could not be made");
                error_response(s3_error!(InternalError, "We encountered an internal error. Please try again."))
            }
        };
        (response, Some(pass))
    }

    fn finish(&self, response: &mut Response<Body>, context: &RequestContext, unread_max: u64) {
        if response.status() == StatusCode::OK && response.headers().contains_key(http::header::CONTENT_RANGE) {
            // `s3s` knows that of GET, not of HEAD.
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        let status = response.status();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::NOT_MODIFIED {
            *response.body_mut() = Body::empty();
            response.headers_mut().remove(CONTENT_TYPE);
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        if context.unread() > unread_max {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Ok(id) = HeaderValue::from_str(&context.id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR || status == StatusCode::INSUFFICIENT_STORAGE {
            let why = response.body().bytes().unwrap_or_default();
            tracing::warn!(request = %context.id, operation = context.operation(), status = status.as_u16(),
                why = %String::from_utf8_lossy(&why), "a request failed");
        }
    }
}

/// The door as one connection sees it.
pub struct Visit {
    door: S3Door,
    linger: Arc<AtomicBool>,
}

impl hyper::service::Service<Request<Incoming>> for Visit {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (door, linger) = (self.door.clone(), self.linger.clone());
        Box::pin(async move { Ok(door.handle(request, &linger).await) })
    }
}

fn check(options: &S3Options) -> Result<(), DoorError> {
    if options.credentials.is_empty() {
        return Err(DoorError::NoCredentials);
    }
    let mut names: Vec<&str> = options.credentials.iter().map(|(access, _)| access.as_str()).collect();
    names.sort_unstable();
    let duplicate = names.windows(2).any(|pair| pair[0] == pair[1]);
    if duplicate || options.credentials.iter().any(|(access, secret)| access.is_empty() || secret.is_empty()) {
        return Err(DoorError::InvalidCredentials);
    }
    for domain in &options.domains {
        let valid = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !domain.split('.').all(valid) {
            return Err(DoorError::InvalidDomain(domain.clone()));
        }
    }
    Ok(())
}

/// Refuses what `s3s` would serve and we do not want: signature version 2 (SHA-1, and not compared in constant time there), and form
/// uploads (which it gathers in memory).
fn refuse_early<B>(request: &Request<B>) -> Option<S3Error> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let query = request.uri().query().unwrap_or_default();
    let v2 = header(http::header::AUTHORIZATION).is_some_and(|v| v.starts_with(b"AWS "))
        || query.split('&').any(|pair| pair.starts_with("Signature="));
    if v2 {
        return Some(invalid_request(
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        ));
    }
    let form = request.method() == Method::POST
        && header(CONTENT_TYPE).is_some_and(|v| v.to_ascii_lowercase().starts_with(b"multipart/form-data"));
    form.then(|| s3_error!(NotImplemented, "Uploads by form (POST Object) are not offered."))
}

fn error_response(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let with = |credentials: &[(&str, &str)], domains: &[&str]| {
            check(&S3Options {
                credentials: credentials.iter().map(|(a, s)| ((*a).to_owned(), (*s).to_owned())).collect(),
                domains: domains.iter().map(|d| (*d).to_owned()).collect(),
                ..S3Options::default()
            })
        };
        assert!(with(&[("a", "s"), ("b", "s")], &["s3.example.com", "localhost"]).is_ok());
        assert!(matches!(with(&[], &[]), Err(DoorError::NoCredentials)));
        assert!(matches!(with(&[("a", "s"), ("a", "t")], &[]), Err(DoorError::InvalidCredentials)));
        assert!(matches!(with(&[("a", "")], &[]), Err(DoorError::InvalidCredentials)));
        assert!(matches!(with(&[("a", "s")], &["s3..com"]), Err(DoorError::InvalidDomain(_))));
    }

    #[test]
    fn old_signatures_and_forms_are_refused() {
        let request = |method: &str, uri: &str, header: (&str, &str)| {
            Request::builder().method(method).uri(uri).header(header.0, header.1).body(()).unwrap()
        };
        assert!(refuse_early(&request("GET", "/b/k", ("authorization", "AWS AKID:sig"))).is_some());
        assert!(refuse_early(&request("GET", "/b/k?AWSAccessKeyId=A&Signature=x&Expires=1", ("a", "b"))).is_some());
        assert!(refuse_early(&request("POST", "/b", ("content-type", "Multipart/Form-Data; boundary=x"))).is_some());
        assert!(refuse_early(&request("GET", "/b/k?X-Amz-Signature=x", ("a", "b"))).is_none());
        assert!(refuse_early(&request("PUT", "/b/k", ("content-type", "multipart/form-data"))).is_none());
    }
}
