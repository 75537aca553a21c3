//! The path of a request from its connection to the operations and back: gate, id, limits, metrics.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3Error, s3_error};
use steadfast_flow::{
    Budget, Connection, Env, FlowStatus, KeyedGate, KeyedGateOptions, Patience, SlowRequests, SlowStatus, Stage,
    Throttle, group_of, stages,
};
use steadfast_minio::Administration;
use steadfast_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::about::About;
use crate::access::{Access, Domains, Keys};
use crate::administration::AdminRoute;
use crate::audit::Audited;
use crate::body::{RequestBody, ResponseBody, Tail};
use crate::caller::ClientLink;
use crate::context::{BodyFault, Observer, RequestClient, RequestContext};
use crate::cors;
use crate::error::{request_timeout, slow_down};
use crate::forwarded::{Forwarded, is_secure};
use crate::handler::Handler;
use crate::io::{ConnectionState, StallIo};
use crate::md5::Md5Pool;
use crate::options::S3Options;
use crate::probes;
use crate::refused::refuse_early;
use crate::rights::Judge;
use crate::signed;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// If more bytes of a body than this are unread at the time of the answer, the answer closes the
/// connection. Fewer are received first: hyper would discard only what has arrived, and close the
/// connection without a word. A client that waits for `100 Continue` has sent nothing, so for it
/// the limit is 0.
const UNREAD_BYTES_MAX: u64 = 64 << 10;
/// The time to receive them. After it, the answer closes the connection.
const UNREAD_TIME: Duration = Duration::from_secs(1);

/// Minimum interval between log messages about failed requests.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The reason why the options were refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DoorError {
    /// No credentials: no client could sign a request.
    #[error("no pair of access key and secret key is configured")]
    NoCredentials,
    /// An empty or duplicate access key, or an empty secret.
    #[error("access keys must be unique, and no access key or secret may be empty")]
    InvalidCredentials,
    /// A domain that cannot be a host name.
    #[error("{0:?} is not a domain name")]
    InvalidDomain(String),
    /// The operating system gives no thread to compute hashes.
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(String),
}

/// The S3 service over a store, for hyper. Clones share one service.
#[derive(Clone)]
pub struct S3Door(Arc<Shared>);

struct Shared {
    s3: S3Service,
    administration: AdminRoute,
    /// Admits the requests being served.
    gate: KeyedGate,
    /// Admits the long answers being sent, which do not fit into one piece of memory.
    answers: KeyedGate,
    xml: Budget,
    env: Env,
    options: S3Options,
    observer: Option<Arc<dyn Observer>>,
    failure_log: Throttle,
    slow: Arc<SlowRequests>,
    /// Each request holds a copy of it.
    in_flight: Arc<()>,
}

impl S3Door {
    /// A service that hashes on the threads that serve requests and has no observer; see
    /// [`S3Door::build`].
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn new(store: Store, env: Env, options: S3Options) -> Result<Self, DoorError> {
        Self::build(store, env, options, None, None)
    }

    /// Builds the service. `compute` is the environment of another runtime, whose few threads hash
    /// the bodies larger than [`S3Options::inline_hash_bytes`], so that hashing does not delay the
    /// threads that poll sockets. `observer` receives a record of every request when it ends.
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
        let (public_read, edge) = (options.public_read.clone(), options.edge.clone());
        let judge = Arc::new(Judge::new(store.clone(), env.clone(), public_read, edge));
        let handler = Handler::new(
            (store.clone(), env.clone()),
            compute.unwrap_or_else(|| env.clone()),
            md5,
            options.clone(),
            judge.clone(),
        );
        let mut builder = S3ServiceBuilder::new(handler);
        let keys = Keys::new(&options.credentials, options.users.clone());
        builder.set_auth(keys.clone());
        let administration = AdminRoute {
            administration: options.administration.clone(),
            domains: Arc::new(Domains::new(&options.domains)),
            keys: keys.clone(),
            env: env.clone(),
            body_time: options.body_stall,
        };
        builder.set_route(administration.clone());
        let xml = Budget::new("s3_xml", options.xml_memory_bytes, env.clone());
        builder.set_access(Access {
            keys,
            xml: xml.clone(),
            body_time: options.body_stall,
            env: env.clone(),
            xml_bytes_max: options.xml_bytes_max,
            edge: options.edge.clone(),
            judge,
            store: store.clone(),
        });
        if !options.domains.is_empty() {
            builder.set_host(Domains::new(&options.domains));
        }
        let mut config = S3Config::default();
        config.xml_max_body_size = options.xml_bytes_max;
        config.presigned_url_max_skew_time_secs = u32::try_from(options.clock_skew_max.as_secs()).unwrap_or(u32::MAX);
        // Form uploads are refused earlier; this limit is a second safeguard.
        config.post_object_max_file_size = options.xml_bytes_max as u64;
        // The bodies of objects are bounded where they are received. They pass through `s3s` in
        // pieces.
        config.put_object_max_size = None;
        config.custom_route_max_body_size = Some(Administration::BODY_BYTES_MAX);
        config.aws_chunked_stream_max_chunk_size = usize::MAX;
        config.enable_sig_v2 = options.signature_v2;
        config.sig_v4_allowed_services = vec!["s3".to_owned()];
        config.unsigned_amz_header_allowlist = signed::UNSIGNED.iter().map(|name| (*name).to_owned()).collect();
        // Method, path and sub-resource alone determine the operation.
        config.operation_id_routing = false;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let gate = |name, places| {
            let share = |all: usize| (all * options.address_share_percent.clamp(1, 100)).div_ceil(100);
            let bounds = KeyedGateOptions {
                limit: places,
                waiting_max: options.requests_waiting_max,
                key_limit: share(places),
                key_waiting_max: match options.address_share_percent {
                    100.. => options.requests_waiting_max,
                    _ => share(options.requests_waiting_max),
                },
            };
            KeyedGate::new(name, bounds, env.clone())
        };
        let failure_log = Throttle::new(FAILURE_LOG_INTERVAL);
        let slow = Arc::new(SlowRequests::new("s3", options.slow_request, env.clone()));
        let (places, answers) = (gate("s3_requests", options.requests_max), gate("s3_answers", options.answers_max));
        Ok(Self(Arc::new(Shared {
            s3: builder.build(),
            administration,
            gate: places,
            answers,
            xml,
            env,
            options,
            observer,
            failure_log,
            slow,
            in_flight: Arc::default(),
        })))
    }

    /// The requests that have begun and not ended, including those that wait for their clients.
    pub fn requests_in_flight(&self) -> usize {
        Arc::strong_count(&self.0.in_flight) - 1
    }

    /// The requests being served, and those waiting for a permit.
    pub fn gate_status(&self) -> FlowStatus {
        self.0.gate.status()
    }

    /// The long answers being sent, and those waiting for a permit.
    pub fn answers_status(&self) -> FlowStatus {
        self.0.answers.status()
    }

    /// The count of slow requests.
    pub fn slow_status(&self) -> SlowStatus {
        self.0.slow.status()
    }

    /// The memory that XML bodies of requests take.
    pub fn xml_status(&self) -> FlowStatus {
        self.0.xml.status()
    }

    /// Serves one ready connection (accepted, and past its TLS handshake) of an unknown client; see
    /// [`S3Door::connection_of`].
    pub fn connection<I>(&self, io: I) -> hyper::server::conn::http1::Connection<TokioIo<StallIo<I>>, ConnectionService>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        self.connection_of(io, Connection::alone(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.0.env.clone()))
    }

    /// Serves one ready connection. `connection` is the record that its port keeps of it; the
    /// service notes there whether it is idle. The result is a future that ends with the
    /// connection. Its method
    /// [`graceful_shutdown`](hyper::server::conn::http1::Connection::graceful_shutdown) lets the
    /// request being served finish.
    pub fn connection_of<I>(
        &self,
        io: I,
        connection: Connection,
    ) -> hyper::server::conn::http1::Connection<TokioIo<StallIo<I>>, ConnectionService>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let options = &self.0.options;
        let state = Arc::new(ConnectionState::new(connection));
        let io =
            StallIo::new(io, self.0.env.clone(), options.response_stall, options.client_bytes_s_min, state.clone());
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_timeout)
            .max_buf_size(options.connection_buffer_bytes.max(8192))
            .serve_connection(TokioIo::new(io), ConnectionService { door: self.clone(), state })
    }

    /// Serves one request.
    async fn handle(&self, request: Request<Incoming>, state: Arc<ConnectionState>) -> Response<ResponseBody> {
        let shared = &self.0;
        state.connection.busy();
        state.renewed.store(true, Relaxed);
        let (id, stages) = (shared.env.random_u64(), shared.slow.begin(Stage::Parse));
        let context = Arc::new(RequestContext::new(id, stages, shared.in_flight.clone()));
        let started = shared.env.now();
        let unread_max = if request.headers().contains_key(EXPECT) { 0 } else { UNREAD_BYTES_MAX };
        let about = About::of(&request);
        let origin = cors::allowed(&shared.options.allowed_origins, request.headers());
        let mut audited = None;
        let mut response = if origin.is_some() && cors::is_preflight(&request) {
            cors::preflight(request.headers())
        } else if request.method() == Method::OPTIONS {
            error_response(cors::refused(request.headers()))
        } else if probes::is_probe(&request) {
            probes::answer()
        } else if probes::is_administration(&request)
            && shared.administration.is_host(request.uri(), request.headers())
            && !shared.administration.serves(request.method(), request.uri(), request.headers())
        {
            let response = probes::refuse(request.uri().path());
            context.leave_unread(request.into_body().map_err(Into::into).boxed_unsync());
            response
        } else {
            audited = self.audited(&request, &context, &about, &state);
            // The future is large; boxed, it is not copied with the futures that hold it.
            stages::measured(context.stages.clone(), Box::pin(self.answer(request, &context, &state))).await
        };
        if context.fault() == Some(BodyFault::Stalled) && response.status() != StatusCode::OK {
            // `s3s` may have reported the early end of an XML body as another error.
            response = error_response(request_timeout());
        }
        self.discard_unread(&context, unread_max).await;
        self.finish(&mut response, &context, &about);
        if !shared.options.allowed_origins.is_empty() {
            cors::vary(response.headers_mut());
        }
        if let Some(origin) = origin {
            cors::admit(response.headers_mut(), origin);
        }
        state.linger.store(context.unread() > 0, Relaxed);
        if let Some(stages) = &context.stages {
            stages.enter(Stage::Send);
        }
        let tail = Tail {
            context,
            observer: shared.observer.clone(),
            audited,
            slow: shared.slow.clone(),
            env: shared.env.clone(),
            started,
            status: response.status().as_u16(),
            bytes_out: 0,
            complete: false,
            state,
        };
        response.map(|body| ResponseBody::new(body, tail))
    }

    /// A request for the audit log; `None`: there is no such log.
    fn audited<B>(
        &self,
        request: &Request<B>,
        context: &Arc<RequestContext>,
        about: &About,
        state: &ConnectionState,
    ) -> Option<Audited> {
        let options = &self.0.options;
        let sink = options.audit.as_ref()?;
        let peer = state.connection.address();
        let address = Forwarded::of(&options.trusted_proxies, peer, request.headers()).source();
        Some(Audited::begin(sink, (context, &self.0.env), request, address, about.names(&options.domains)))
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        context: &Arc<RequestContext>,
        state: &Arc<ConnectionState>,
    ) -> Response<Body> {
        let (shared, options) = (&self.0, &self.0.options);
        let peer = state.connection.address();
        let forwarded = Forwarded::of(&options.trusted_proxies, peer, request.headers());
        let client: Arc<str> = match forwarded {
            Forwarded::For(client) => group_of(client).into(),
            Forwarded::No(_) | Forwarded::Unknown => state.connection.group().clone(),
        };
        let link = ClientLink {
            address: forwarded.source(),
            secure: is_secure(&options.trusted_proxies, peer, request.headers()).unwrap_or(options.https),
        };
        let request = request.map(|body| {
            let patience = Patience::new(options.body_stall, options.client_bytes_s_min);
            RequestBody::new(body, context.clone(), shared.env.clone(), patience)
        });
        let Ok(place) = shared.gate.enter(&client, options.request_wait).await else {
            return error_response(slow_down("requests served at a time"));
        };
        context.hold_place(place);
        if let Some(error) = refuse_early(&request, options.signature_v2) {
            return error_response(error);
        }
        let mut request = request.map(|body| {
            if http_body::Body::is_end_stream(&body) { Body::empty() } else { Body::http_body_unsync(body) }
        });
        request.extensions_mut().insert(context.clone());
        request.extensions_mut().insert(RequestClient { group: client.clone(), link });
        let response = match shared.s3.call(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(request = %context.id, ?error, "the server could not build a response");
                error_response(s3_error!(InternalError, "We encountered an internal error. Please try again."))
            }
        };
        // The XML has been processed. A client that reads the answer slowly must not hold its
        // memory.
        context.release_xml();
        let length =
            response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let body = response.body();
        if http_body::Body::is_end_stream(body)
            || body.bytes().is_some()
            || length.is_some_and(|length| length <= options.short_answer_bytes)
        {
            return response;
        }
        // From here on, the time depends on how fast the client reads.
        context.release_place();
        match shared.answers.enter(&client, options.request_wait).await {
            Ok(place) => {
                context.hold_place(place);
                response
            }
            Err(_) => error_response(slow_down("answers sent at a time")),
        }
    }

    /// Receives the rest of a small body that no operation has read, so that the connection can
    /// take the next request.
    async fn discard_unread(&self, context: &RequestContext, unread_max: u64) {
        let Some(mut body) = context.take_unread() else { return };
        if context.unread() > unread_max || context.fault().is_some() {
            return;
        }
        context.release_place();
        let discard = async { while let Some(Ok(_)) = body.frame().await {} };
        if self.0.env.timeout(UNREAD_TIME, discard).await.is_some() && http_body::Body::is_end_stream(&body) {
            context.set_all_read();
        }
    }

    fn finish(&self, response: &mut Response<Body>, context: &RequestContext, about: &About) {
        if response.status() == StatusCode::OK && response.headers().contains_key(http::header::CONTENT_RANGE) {
            // `s3s` sets this status for GET, but not for HEAD.
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
        about.complete(response, &context.id, &self.0.options.domains);
        if response.headers().contains_key("x-minio-error-code")
            && let Ok(region) = HeaderValue::from_str(&self.0.options.region)
        {
            // An SDK that looks for the region of a bucket reads it from a refused HEAD, too.
            response.headers_mut().insert("x-amz-bucket-region", region);
        }
        if context.unread() > 0 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Ok(id) = HeaderValue::from_str(&context.id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let failed = status == StatusCode::INTERNAL_SERVER_ERROR || status == StatusCode::INSUFFICIENT_STORAGE;
        // When a disk fails or is full, every request fails, and one message is as useful as many.
        if failed && let Some(more) = self.0.failure_log.pass(&self.0.env) {
            let why = response.body().bytes().unwrap_or_default();
            tracing::warn!(request = %context.id, operation = context.operation(), status = status.as_u16(), more,
                why = %String::from_utf8_lossy(&why), "a request failed (and `more` since the last such line)");
        }
    }
}

/// The service for one connection.
pub struct ConnectionService {
    door: S3Door,
    state: Arc<ConnectionState>,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (door, state) = (self.door.clone(), self.state.clone());
        Box::pin(async move { Ok(door.handle(request, state).await) })
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
}
