//! The live port: handshakes, which turn a connection into a session of a partition, and the server API.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustix::net::{SocketFlags, acceptfrom_with};
use serde_json::json;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{Connection, Connections, Ended, Pass, Patience, Throttle, group_of};
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::api::result::error_json;
use crate::api::{Api, Terms, durability};
use crate::commands::NodeHub;
use crate::gateway::{self, Emulation, Stalling, Streaming, connect_command};
use crate::grpc::{ERROR_MODE, GrpcDoor};
use crate::handshake::{self, Refusal, origin_allowed};
use crate::node::Node;
use crate::partition::{self, Arrived, Event, Opened, Transport};
use crate::protocol::Encoding;
use crate::protocol::codes::{self, ClientError};
use crate::socket;
use crate::websocket;

/// Connections that are taken in before others of the runtime have their turn.
const ACCEPTS: usize = 64;

/// Bytes of an API request.
const API_BYTES_MAX: usize = 10 << 20;

/// How long a connection to a full port waits for an idle one to close.
const ARRIVE_WAIT: Duration = Duration::from_secs(1);

/// How long a connection without a session may be idle while the port is full.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);

/// How long a request to the API waits for its turn.
const API_WAIT: Duration = Duration::from_secs(5);

/// What there is, for who asks for something else.
const PATHS: &str = "there is /connection/websocket, /connection/http_stream, /connection/sse, /connection/uni_websocket, \
                     /connection/uni_http_stream, /connection/uni_sse, /emulation, /api/METHOD and /health\n";

/// How the port is served, beyond what Centrifugo has options for.
#[derive(Clone)]
pub struct DoorOptions {
    /// TLS, with its certificate.
    pub tls: Option<TlsAcceptor>,
    /// How long a client may take for a TLS handshake, a request's header, or its body.
    pub header_timeout: Duration,
    /// How long a client may be behind `client_bytes_s_min` with taking an answer.
    pub stall_timeout: Duration,
    /// Bytes a second that a client must take; 0: something in each `stall_timeout`.
    pub client_bytes_s_min: u64,
    /// How many of all connections one address may have without a connected session, in percent.
    pub address_share: usize,
    /// Whether an address is that of a proxy, which may have any number of them.
    pub is_proxy: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

/// An answer, whole or one that goes on.
type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The live door over a node. Cloning shares it.
#[derive(Clone)]
pub struct LiveDoor {
    node: Arc<Node>,
    api: Arc<Api>,
    emulation: Arc<Emulation>,
    options: DoorOptions,
    /// Connections that have no session, or one that is not connected yet.
    unconnected: Connections,
}

/// The workers of a door.
pub struct Workers {
    node: Arc<Node>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Ends all sessions, and waits for the workers. Blocks for a moment.
    pub fn stop(self) {
        for inbox in &self.node.inboxes {
            inbox.send(Event::Stop);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker of the live door panicked");
            }
        }
    }
}

impl LiveDoor {
    /// A door, and the workers behind it.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn start(node: Arc<Node>, options: DoorOptions) -> io::Result<(Self, Workers)> {
        let mut threads = Vec::with_capacity(node.inboxes.len());
        for (number, inbox) in (0u16..).zip(&node.inboxes) {
            let hub = Arc::new(NodeHub(node.clone()));
            let bounds = node.bounds(options.stall_timeout, options.client_bytes_s_min);
            threads.push(partition::start(number, inbox.clone(), hub, bounds, &node.env)?);
        }
        let emulation = Arc::new(Emulation::new(node.start.clone(), node.env.clone()));
        let connections = usize::try_from(node.connections.status().limit).unwrap_or(usize::MAX);
        let unconnected =
            Connections::new(connections.saturating_mul(options.address_share).div_ceil(100), node.env.clone());
        let door = Self { api: Arc::new(Api::new(node.clone())), emulation, options, node, unconnected };
        Ok((door.clone(), Workers { node: door.node, threads }))
    }

    /// The door of the API over gRPC, for a port of its own.
    pub fn grpc(&self) -> GrpcDoor {
        GrpcDoor::new(self.node.clone(), self.api.clone(), self.options.clone())
    }

    /// Accepts connections until `stop` is set.
    pub async fn run(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let env = self.node.env.clone();
        let listener = match listener.into_std().and_then(socket::listen) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the live door cannot accept connections"),
        };
        let failures_told = Throttle::new(Duration::from_secs(10));
        loop {
            let ready = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                ready = listener.readable() => ready,
            };
            let accepted = ready.and_then(|mut ready| self.accept(&mut ready));
            if let Err(error) = accepted {
                // Out of descriptors, or a connection that has gone already: neither ends the door.
                if let Some(more) = failures_told.pass(&env) {
                    tracing::warn!(%error, more, "cannot accept a connection (and `more` since the last such line)");
                }
                env.sleep(Duration::from_millis(50)).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Takes in connections that wait, some at a time.
    fn accept(&self, ready: &mut AsyncFdReadyGuard<'_, std::net::TcpListener>) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..ACCEPTS {
            match ready.try_io(|listener| Ok(acceptfrom_with(listener.get_ref(), flags)?)) {
                Ok(Ok((socket, Some(peer)))) => self.arrive(socket.into(), peer.try_into()?),
                Ok(Ok((_, None))) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => return Ok(()),
            }
        }
        Ok(())
    }

    fn arrive(&self, socket: std::net::TcpStream, peer: SocketAddr) {
        let group = group_of(peer.ip());
        if let Some(place) = self.node.connections.enter_at_once(&group) {
            return self.admit(socket, peer, place);
        }
        // The port is full. The gate bounds how many connections wait.
        let door = self.clone();
        let connections = door.node.connections.status();
        if connections.used >= connections.limit {
            door.unconnected.close_idle(IDLE_WHEN_FULL);
        }
        self.node.env.spawn("live arrival", async move {
            match door.node.connections.enter(&group, ARRIVE_WAIT).await {
                Ok(place) => door.admit(socket, peer, place),
                Err(_) => {
                    tracing::debug!(%peer, "refused: as many connections as there may be, of all or of this address");
                }
            }
        });
    }

    fn admit(&self, socket: std::net::TcpStream, peer: SocketAddr, place: Pass) {
        let Some(connection) = self.unconnected.open(peer.ip(), (self.options.is_proxy)(peer.ip())) else {
            return tracing::debug!(%peer, "refused: its address has too many connections without a session");
        };
        let connection = Arc::new(connection);
        let short = if self.options.tls.is_none() {
            handshake::short(&self.node, &socket, connection.group())
        } else {
            Ok(None)
        };
        let long = match short {
            Ok(Some(arrived)) => return self.open(socket, Vec::new(), arrived, Some(place), Some(connection)),
            Ok(None) => TcpStream::from_std(socket),
            Err(error) => Err(error),
        };
        match long {
            Ok(socket) => {
                self.node.env.spawn("live connection", self.clone().connection(socket, peer, place, connection))
            }
            Err(error) => tracing::debug!(%peer, %error, "connection ended"),
        }
    }

    async fn connection(self, socket: TcpStream, peer: SocketAddr, place: Pass, connection: Arc<Connection>) {
        let (env, options) = (self.node.env.clone(), self.options.clone());
        let limit = options.header_timeout;
        let patience = Patience::new(options.stall_timeout, options.client_bytes_s_min);
        let max = self.node.config.websocket.message_size_limit;
        let Some(tls) = options.tls else {
            let client = Stalling::new(socket, env, patience);
            let Some((client, leftover, upgraded)) = self.http(client, peer, &connection).await else { return };
            if upgraded.transport == Transport::UniWebSocket {
                return self.unidirectional(client, leftover, max, upgraded, (place, connection)).await;
            }
            // The worker gets the socket itself.
            return match client.into_inner().into_std() {
                Ok(socket) => self.open(socket, leftover, upgraded, Some(place), Some(connection)),
                Err(error) => tracing::warn!(%peer, %error, "a connection cannot be handed over"),
            };
        };
        let shaken = tokio::select! {
            biased;
            shaken = env.timeout(limit, tls.accept(socket)) => shaken,
            () = connection.closing().requested() => return,
        };
        let client = match shaken {
            Some(Ok(client)) => Stalling::new(client, env, patience),
            Some(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => return tracing::debug!(%peer, "TLS handshake took too long"),
        };
        let Some((client, leftover, upgraded)) = self.http(client, peer, &connection).await else { return };
        if upgraded.transport == Transport::UniWebSocket {
            return self.unidirectional(client, leftover, max, upgraded, (place, connection)).await;
        }
        match gateway::pair() {
            Ok((worker, gateway)) => {
                self.open(worker, leftover, upgraded, None, Some(connection));
                gateway::bridge(client, gateway, &self.node.env).await;
                drop(place);
            }
            Err(error) => tracing::warn!(%peer, %error, "no descriptors for a session"),
        }
    }

    /// Serves requests on a connection. If it has become a WebSocket: it, and what the client sent behind its handshake.
    /// It is closed when it is idle and the port is full.
    async fn http<T>(&self, client: T, peer: SocketAddr, connection: &Arc<Connection>) -> Option<(T, Vec<u8>, Arrived)>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let upgraded = Arc::new(Mutex::new(None));
        let (door, decided, leave, connection) =
            (self.clone(), upgraded.clone(), connection.closing(), connection.clone());
        let service = service_fn(move |request| {
            let (door, decided, connection) = (door.clone(), decided.clone(), connection.clone());
            async move {
                connection.busy();
                let answer = door.answer(request, &decided, &connection).await;
                if answer.body().size_hint().exact().is_some() {
                    connection.idle();
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.header_timeout)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(client), service);
        let ended = tokio::select! {
            biased;
            ended = connection.without_shutdown() => ended,
            () = leave.requested() => {
                tracing::debug!(%peer, "closed: idle without a session, and the port is full");
                return None;
            }
        };
        let parts = match ended {
            Ok(parts) => parts,
            Err(error) => {
                tracing::debug!(%peer, %error, "connection ended");
                return None;
            }
        };
        let upgraded = upgraded.lock().take()?;
        Some((parts.io.into_inner(), parts.read_buf.to_vec(), upgraded))
    }

    /// Gives a session to the worker that has fewest.
    fn open(
        &self,
        socket: std::net::TcpStream,
        leftover: Vec<u8>,
        arrived: Arrived,
        place: Option<Pass>,
        unconnected: Option<Arc<Connection>>,
    ) {
        if let Some(connection) = &unconnected {
            // The worker ends it when it does not connect in time.
            connection.busy();
        }
        let place = place.map(|place| Box::new(place) as Box<dyn Send>);
        let opened = Opened { socket, leftover, arrived, place, unconnected };
        let least = self.node.inboxes.iter().min_by_key(|inbox| inbox.sessions.load(Relaxed));
        if let Some(inbox) = least {
            inbox.send(Event::Open(Box::new(opened)));
        }
    }

    /// A unidirectional session connects with its first message.
    async fn unidirectional<T>(
        &self,
        client: T,
        leftover: Vec<u8>,
        message_max: usize,
        arrived: Arrived,
        (place, connection): (Pass, Arc<Connection>),
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match gateway::pair() {
            Ok((worker, gateway)) => {
                let name = self.emulation.name();
                let arrived = Arrived { session: Some(name.clone()), ..arrived };
                self.open(worker, Vec::new(), arrived, None, Some(connection));
                let served =
                    gateway::unidirectional(client, leftover, message_max, gateway, name, &self.emulation).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "connection ended");
                }
                drop(place);
            }
            Err(error) => tracing::warn!(%error, "no descriptors for a session"),
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        upgraded: &Mutex<Option<Arrived>>,
        connection: &Connection,
    ) -> Answer {
        let path = request.uri().path();
        let config = &self.node.config;
        let transport = match path {
            handshake::PATH => return self.upgrade(&request, Transport::WebSocket, upgraded, connection),
            "/connection/uni_websocket" if config.uni_websocket.enabled => {
                return self.upgrade(&request, Transport::UniWebSocket, upgraded, connection);
            }
            "/connection/http_stream" if config.http_stream.enabled => Some(Transport::HttpStream),
            "/connection/sse" if config.sse.enabled => Some(Transport::Sse),
            "/connection/uni_http_stream" if config.uni_http_stream.enabled => Some(Transport::UniHttpStream),
            "/connection/uni_sse" if config.uni_sse.enabled => Some(Transport::UniSse),
            _ => None,
        };
        let emulates = path == "/emulation" && (config.http_stream.enabled || config.sse.enabled);
        if transport.is_some() || emulates {
            let origin = request.headers().get(header::ORIGIN).cloned();
            if !origin_allowed(&self.node, request.headers()) {
                return self.forbidden(origin.as_ref());
            }
            let mut response = match transport {
                _ if *request.method() == Method::OPTIONS => preflight(request.headers()),
                Some(transport) => self.stream(request, transport, connection).await,
                None => self.emulate(request).await,
            };
            if let Some(origin) = origin {
                // The page of another origin may read the answer: its origin was looked at above.
                let headers = response.headers_mut();
                headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
                headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
                headers.insert(header::VARY, HeaderValue::from_static("Origin"));
            }
            return response;
        }
        if path == "/health" {
            return text(StatusCode::OK, "{}");
        }
        match path.strip_prefix("/api/") {
            Some(method) => {
                let method = method.to_owned();
                self.api(&method, request).await
            }
            None if path.starts_with("/connection/") || path == "/emulation" => text(
                StatusCode::NOT_FOUND,
                "there is no such endpoint, or it is not enabled (http_stream.enabled, sse.enabled, ...)\n",
            ),
            None => text(StatusCode::NOT_FOUND, PATHS),
        }
    }

    /// A body, of a bounded size and in a bounded time.
    async fn body(&self, body: Incoming, max: usize) -> Result<Bytes, Answer> {
        let lap = stages::enter(Stage::Receive);
        let collected = Limited::new(body, max).collect();
        let collected = self.node.env.timeout(self.options.header_timeout, collected).await;
        drop(lap);
        match collected {
            Some(Ok(body)) => Ok(body.to_bytes()),
            Some(Err(_)) => Err(text(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large, or was cut short\n")),
            None => Err(text(StatusCode::REQUEST_TIMEOUT, "the request did not come in time\n")),
        }
    }

    /// A session whose answer goes on.
    async fn stream(&self, request: Request<Incoming>, transport: Transport, connection: &Connection) -> Answer {
        let events = matches!(transport, Transport::Sse | Transport::UniSse);
        let protobuf = transport == Transport::HttpStream
            && request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/octet-stream");
        let max = self.node.config.websocket.message_size_limit;
        let headers = self.node.proxies.kept(request.headers());
        let first = match *request.method() {
            Method::GET if events => match connect_of(request.uri().query().unwrap_or_default()) {
                Some(connect) => connect,
                None => return text(StatusCode::BAD_REQUEST, "cf_connect is not text in percent encoding\n"),
            },
            Method::POST => match self.body(request.into_body(), max).await {
                Ok(body) => body.to_vec(),
                Err(refused) => return refused,
            },
            _ if events => return text(StatusCode::METHOD_NOT_ALLOWED, "use GET with cf_connect, or POST\n"),
            _ => return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n"),
        };
        let first = match transport.is_unidirectional() {
            true => connect_command(&first),
            false => Some(first),
        };
        let Some(first) = first.filter(|first| !first.is_empty() && first.len() <= max) else {
            return text(
                StatusCode::BAD_REQUEST,
                "there must be a connect request, not larger than a message may be\n",
            );
        };
        let (worker, gateway) = match gateway::pair() {
            Ok(pair) => pair,
            Err(error) => {
                tracing::warn!(%error, "no descriptors for a session");
                return text(StatusCode::SERVICE_UNAVAILABLE, "the server can take no more sessions now\n");
            }
        };
        let encoding = if protobuf { Encoding::Protobuf } else { Encoding::Json };
        let leftover = websocket::from_client(encoding, &first);
        let name = self.emulation.name();
        let address = connection.group().clone();
        let arrived = Arrived { encoding, transport, deflate: None, headers, session: Some(name.clone()), address };
        self.open(worker, leftover, arrived, None, None);
        let streaming = Streaming::new(gateway, transport, encoding, name, &self.emulation);
        let mut response = Response::new(UnsyncBoxBody::new(StreamBody::new(streaming.into_body())));
        let kind = match (events, protobuf) {
            (true, _) => "text/event-stream; charset=utf-8",
            (false, true) => "application/octet-stream",
            (false, false) => "application/json",
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache, no-store, max-age=0"));
        // Proxies that collect an answer before they pass it on would hold it for ever.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }

    /// Commands of a session that has such an answer.
    async fn emulate(&self, request: Request<Incoming>) -> Answer {
        if *request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let kind = request.headers().get(header::CONTENT_TYPE);
        let protobuf = kind.is_some_and(|kind| kind == "application/octet-stream");
        // Commands as a JSON text, in which each quote is two bytes, and its cover.
        let max = 2 * self.node.config.websocket.message_size_limit + 1024;
        match self.body(request.into_body(), max).await {
            Ok(body) => text(self.emulation.answer(protobuf, &body).await, ""),
            Err(refused) => refused,
        }
    }

    fn upgrade(
        &self,
        request: &Request<Incoming>,
        transport: Transport,
        upgraded: &Mutex<Option<Arrived>>,
        connection: &Connection,
    ) -> Answer {
        match handshake::agree(&self.node, request, transport, connection.group()) {
            Ok((arrived, headers)) => {
                *upgraded.lock() = Some(arrived);
                let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
                *response.headers_mut() = headers;
                response
            }
            Err(Refusal::Other) => {
                text(StatusCode::BAD_REQUEST, "this is a WebSocket endpoint: connect with a Centrifugo SDK\n")
            }
            Err(Refusal::Origin) => self.forbidden(request.headers().get(header::ORIGIN)),
        }
    }

    fn forbidden(&self, origin: Option<&HeaderValue>) -> Answer {
        match self.node.told.origin.pass(&self.node.env) {
            Some(more) => {
                tracing::info!(?origin, more, "refused: the origin is not in client.allowed_origins");
            }
            None => tracing::debug!(?origin, "refused: the origin is not in client.allowed_origins"),
        }
        text(StatusCode::FORBIDDEN, "this origin may not connect: see client.allowed_origins\n")
    }

    /// Reads a request to the API and carries it out, with what it takes counted; or the answer when there is none to read.
    async fn carry_out(
        &self,
        method: &str,
        terms: &Terms,
        body: Incoming,
    ) -> Result<Result<Vec<u8>, ClientError>, Answer> {
        let node = &self.node;
        // One that does not say how long it is may be as long as any.
        let declared = body.size_hint().exact().map_or(API_BYTES_MAX, |len| len.min(API_BYTES_MAX as u64) as usize);
        let Ok(_turn) = node.api_requests.enter(API_WAIT).await else { return Ok(Err(codes::TOO_MANY_REQUESTS)) };
        let Ok(mut room) = node.api_bytes.acquire(declared as u64, API_WAIT).await else {
            return Ok(Err(codes::TOO_MANY_REQUESTS));
        };
        let body = self.body(body, API_BYTES_MAX).await?;
        stages::note(|stages| stages.add_received(body.len() as u64));
        room.shrink_to(body.len() as u64);
        Ok(self.api.call(method, terms, &body).await)
    }

    async fn api(&self, method: &str, request: Request<Incoming>) -> Answer {
        let config = &self.node.config.http_api;
        let headers = request.headers();
        let given = headers.get("x-api-key").and_then(|key| key.to_str().ok());
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.or_else(|| bearer.and_then(|value| value.strip_prefix("apikey ")));
        let known = !config.key.is_empty() && given.is_some_and(|given| same(given.as_bytes(), config.key.as_bytes()));
        if !known && !config.insecure {
            return text(StatusCode::UNAUTHORIZED, "the API needs X-API-Key with the key of http_api.key\n");
        }
        if *request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let (head, body) = request.into_parts();
        let transport =
            config.error_mode == "transport" || head.headers.get(ERROR_MODE).is_some_and(|mode| mode == "transport");
        let (terms, refused) = match durability(&head.headers) {
            Ok(durability) => (Terms::new(durability), None),
            Err(error) => (Terms::default(), Some(error)),
        };
        let answer = match refused {
            Some(error) => Err(error),
            None => {
                let slow = &self.node.slow_calls;
                let stages = slow.begin(Stage::Other);
                let carried = stages::measured(stages.clone(), self.carry_out(method, &terms, body)).await;
                if let Some(stages) = &stages {
                    if let Ok(Err(error)) = &carried {
                        stages.set_outcome(error.code);
                    }
                    slow.end(stages, &Ended { operation: method, ..Ended::default() });
                }
                match carried {
                    Ok(answer) => answer,
                    Err(refused) => return refused,
                }
            }
        };
        let (status, answer) = match answer {
            Ok(reply) => (StatusCode::OK, reply),
            Err(error) if transport => (status_of(&error), error_json(&error).to_string().into_bytes()),
            Err(error) => (StatusCode::OK, json!({"error": error_json(&error)}).to_string().into_bytes()),
        };
        let mut response = Response::new(whole(terms.held(Bytes::from(answer))));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// The status of an error, for those who want it as one.
fn status_of(error: &ClientError) -> StatusCode {
    match error.code {
        102 | 104 => StatusCode::NOT_FOUND,
        106 => StatusCode::PAYLOAD_TOO_LARGE,
        107 | 108 => StatusCode::BAD_REQUEST,
        111 => StatusCode::TOO_MANY_REQUESTS,
        112 => StatusCode::RANGE_NOT_SATISFIABLE,
        _ if *error != codes::INTERNAL && error.temporary => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Whether two are the same, in a time that does not tell where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// The connect command or request in a query.
fn connect_of(query: &str) -> Option<Vec<u8>> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("cf_connect=")).unwrap_or_default();
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(out)
}

/// Tells a browser that a page of another origin may send what it wants to send.
fn preflight(asked: &HeaderMap) -> Answer {
    let mut response = text(StatusCode::NO_CONTENT, "");
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("300"));
    response
}

fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    UnsyncBoxBody::new(Full::new(bytes).map_err(|never| match never {}))
}

fn text(status: StatusCode, body: &'static str) -> Answer {
    let mut response = Response::new(whole(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_command_is_found_in_a_query() {
        let found = |query: &str| connect_of(query).map(|found| String::from_utf8(found).expect("text"));
        assert_eq!(found("a=b&cf_connect=%7B%22id%22%3A1+%7D&c=d").as_deref(), Some("{\"id\":1 }"));
        assert_eq!(found("").as_deref(), Some(""));
        assert_eq!(found("cf_connect=%7"), None);
        assert_eq!(found("cf_connect=%zz"), None);
    }
}
