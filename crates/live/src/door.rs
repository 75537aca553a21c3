//! The live port: handshakes that turn connections into sessions of partitions, and the server API
//! over HTTP.

mod answer;
mod api;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustix::net::{SocketFlags, acceptfrom_with};
use steadfast_flow::{
    Connection, Connections, KeyedGate, Lease, LeasedIo, Pass, Patience, Throttle, group_of, log_rarely,
};
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::commands::NodeHub;
use crate::config::{Endpoint, PortKind};
use crate::gateway::{self, Emulation, Stalling};
use crate::handshake;
use crate::node::Node;
use crate::partition::{self, Opened, WorkerEvent};
use crate::protocol::Transport;
use crate::session::ConnectionInfo;
use crate::socket;

pub(crate) use api::same;

/// Maximum number of connections accepted before other tasks run.
const ACCEPTS: usize = 64;

/// How long a connection to a full port waits for another one to close.
const ARRIVE_WAIT: Duration = Duration::from_secs(1);

/// Idle time after which a connection without a session is closed while the port is full.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);

/// Options of the port that Centrifugo does not have.
#[derive(Clone)]
pub struct DoorOptions {
    /// The TLS acceptor with its certificate; `None`: plain TCP.
    pub tls: Option<TlsAcceptor>,
    /// Until when clients are answered.
    pub lease: Lease,
    /// Timeout of a TLS handshake, a request header and a request body.
    pub header_timeout: Duration,
    /// How long a client may lag behind `client_bytes_s_min` while it reads an answer.
    pub stall_timeout: Duration,
    /// Minimum read rate of a client in bytes per second; 0: at least one byte in each
    /// `stall_timeout`.
    pub client_bytes_s_min: u64,
    /// Maximum share of the connections that one address may have without a connected session, in
    /// percent.
    pub address_share: usize,
    /// Whether an address is a trusted proxy, which has no such limit.
    pub is_proxy: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Why the server is not ready, for `/health/ready`; `None`: it is.
    pub not_ready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

/// The live door of a node. Clones share it.
#[derive(Clone)]
pub struct LiveDoor {
    pub(crate) node: Arc<Node>,
    pub(crate) api: Arc<Api>,
    emulation: Arc<Emulation>,
    port: PortKind,
    /// The endpoints of the port, with their paths.
    endpoints: Arc<[(Endpoint, String)]>,
    pub(crate) options: DoorOptions,
    /// Connections without a connected session.
    unconnected: Connections,
}

/// The worker threads of a door.
pub struct Workers {
    node: Arc<Node>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Ends all sessions and waits for the workers. It blocks for a short time.
    pub fn stop(self) {
        for inbox in self.node.partitions.inboxes() {
            inbox.send(WorkerEvent::Stop);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker of the live door panicked");
            }
        }
    }
}

impl LiveDoor {
    /// Starts the workers of a node and returns its door.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(node: Arc<Node>, options: DoorOptions) -> io::Result<(Self, Workers)> {
        let mut threads = Vec::with_capacity(node.partitions.inboxes().len());
        for (number, inbox) in (0u16..).zip(node.partitions.inboxes()) {
            let hub = Arc::new(NodeHub(node.clone()));
            let bounds = node.bounds(options.stall_timeout, options.client_bytes_s_min);
            threads.push(partition::start(number, inbox.clone(), hub, bounds, &node.env)?);
        }
        let emulation = Arc::new(Emulation::new(node.start.clone(), node.env.clone()));
        let connections = usize::try_from(node.admission.connections.clients.status().limit).unwrap_or(usize::MAX);
        let unconnected =
            Connections::new(connections.saturating_mul(options.address_share).div_ceil(100), node.env.clone());
        let port = PortKind::External;
        let endpoints = node.rules.config.endpoints(port).into();
        let api = Arc::new(Api::new(node.clone()));
        let door = Self { api, emulation, port, endpoints, options, node, unconnected };
        Ok((door.clone(), Workers { node: door.node, threads }))
    }

    /// The door of the internal port: the server API and `/health` for back ends.
    #[must_use]
    pub fn internal(&self, tls: Option<TlsAcceptor>) -> Self {
        let options = DoorOptions { tls, ..self.options.clone() };
        let port = PortKind::Internal;
        Self { port, endpoints: self.node.rules.config.endpoints(port).into(), options, ..self.clone() }
    }

    /// The gate of connections to this port.
    fn gate(&self) -> &KeyedGate {
        match self.port {
            PortKind::External => &self.node.admission.connections.clients,
            PortKind::Internal => &self.node.admission.connections.internal,
        }
    }

    /// The path of an endpoint; `None` if the port does not have it.
    fn path_of(&self, endpoint: Endpoint) -> Option<&str> {
        self.endpoints.iter().find(|(found, _)| *found == endpoint).map(|(_, path)| path.as_str())
    }

    /// Accepts connections until `stop` is set.
    pub async fn run(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let env = self.node.env.clone();
        let listener = match listener.into_std().and_then(socket::listen) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the live door cannot accept connections"),
        };
        let accept_warn_throttle = Throttle::new(Duration::from_secs(10));
        loop {
            let ready = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                ready = listener.readable() => ready,
            };
            let accepted = ready.and_then(|mut ready| self.accept(&mut ready));
            if let Err(error) = accepted {
                // Neither a lack of descriptors nor a connection that closed early ends the door.
                if let Some(more) = accept_warn_throttle.pass(&env) {
                    tracing::warn!(%error, more, "cannot accept a connection (`more` counts those since the last such line)");
                }
                env.sleep(Duration::from_millis(50)).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Accepts pending connections, at most [`ACCEPTS`].
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
        if !self.options.lease.holds() {
            return tracing::debug!(%peer, "connection refused: the lease of this server has ended");
        }
        let group = group_of(peer.ip());
        if let Some(permit) = self.gate().enter_at_once(&group) {
            return self.admit(socket, peer, permit);
        }
        // The port is full. The gate bounds the number of waiting connections.
        let door = self.clone();
        let connections = door.gate().status();
        if connections.used >= connections.limit {
            door.unconnected.close_idle(IDLE_WHEN_FULL);
        }
        self.node.env.spawn("live arrival", async move {
            match door.gate().enter(&group, ARRIVE_WAIT).await {
                Ok(permit) => door.admit(socket, peer, permit),
                Err(_) => {
                    tracing::debug!(%peer, "connection refused: the limit of all or of this address is reached");
                }
            }
        });
    }

    fn admit(&self, socket: std::net::TcpStream, peer: SocketAddr, permit: Pass) {
        let Some(connection) = self.unconnected.open(peer.ip(), (self.options.is_proxy)(peer.ip())) else {
            return tracing::debug!(%peer, "connection refused: its address has too many connections without a session");
        };
        let connection = Arc::new(connection);
        let fast = match self.path_of(Endpoint::WebSocket).filter(|_| self.options.tls.is_none()) {
            Some(path) => handshake::fast(&self.node, &socket, path, connection.share_key()),
            None => Ok(None),
        };
        let slow = match fast {
            Ok(Some(info)) => return self.open(socket, Vec::new(), info, Some(permit), Some(connection)),
            Ok(None) => TcpStream::from_std(socket),
            Err(error) => Err(error),
        };
        match slow {
            Ok(socket) => {
                self.node.env.spawn("live connection", self.clone().connection(socket, peer, permit, connection))
            }
            Err(error) => tracing::debug!(%peer, %error, "connection ended"),
        }
    }

    async fn connection(self, socket: TcpStream, peer: SocketAddr, permit: Pass, connection: Arc<Connection>) {
        let (env, options) = (self.node.env.clone(), self.options.clone());
        let limit = options.header_timeout;
        let patience = Patience::new(options.stall_timeout, options.client_bytes_s_min);
        let max = self.node.rules.config.websocket.message_size_limit;
        let Some(tls) = options.tls else {
            let client = Stalling::new(LeasedIo::new(socket, Some(options.lease)), env, patience);
            let Some((client, leftover, upgraded)) = self.http(client, peer, &connection).await else { return };
            if upgraded.transport == Transport::UniWebSocket {
                return self.unidirectional(client, leftover, max, upgraded, (permit, connection)).await;
            }
            // The worker gets the socket itself.
            return match client.into_inner().into_inner().into_std() {
                Ok(socket) => self.open(socket, leftover, upgraded, Some(permit), Some(connection)),
                Err(error) => log_rarely!(warn, %peer, %error, "a connection cannot be passed to its worker"),
            };
        };
        let shaken = tokio::select! {
            biased;
            shaken = env.timeout(limit, tls.accept(socket)) => shaken,
            () = connection.closing().requested() => return,
        };
        let client = match shaken {
            Some(Ok(client)) => Stalling::new(LeasedIo::new(client, Some(options.lease)), env, patience),
            Some(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => return tracing::debug!(%peer, "TLS handshake timed out"),
        };
        let Some((client, leftover, upgraded)) = self.http(client, peer, &connection).await else { return };
        if upgraded.transport == Transport::UniWebSocket {
            return self.unidirectional(client, leftover, max, upgraded, (permit, connection)).await;
        }
        match gateway::pair() {
            Ok((worker, gateway)) => {
                self.open(worker, leftover, upgraded, None, Some(connection));
                gateway::bridge(client, gateway, &self.node.env).await;
                drop(permit);
            }
            Err(error) => {
                log_rarely!(warn, %peer, %error, "a session has no descriptors: raise the limit of open files");
            }
        }
    }

    /// Serves HTTP requests of a connection. If it becomes a WebSocket, returns the connection and
    /// the bytes to read from it first. An idle connection is closed while the port is full.
    async fn http<T>(
        &self,
        client: T,
        peer: SocketAddr,
        connection: &Arc<Connection>,
    ) -> Option<(T, Vec<u8>, ConnectionInfo)>
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
                tracing::debug!(%peer, "connection closed: it is idle without a session and the port is full");
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
        let (upgraded, mut leftover) = upgraded.lock().take()?;
        leftover.extend_from_slice(&parts.read_buf);
        Some((parts.io.into_inner(), leftover, upgraded))
    }

    /// Passes a session to the worker with the fewest sessions.
    fn open(
        &self,
        socket: std::net::TcpStream,
        leftover: Vec<u8>,
        info: ConnectionInfo,
        permit: Option<Pass>,
        unconnected: Option<Arc<Connection>>,
    ) {
        if let Some(connection) = &unconnected {
            // The worker disconnects a session that does not connect in time.
            connection.busy();
        }
        let permit = permit.map(|permit| Box::new(permit) as Box<dyn Send>);
        let lease = self.options.lease.clone();
        let opened = Opened { socket, leftover, connection: info, permit, unconnected, lease };
        let least = self.node.partitions.inboxes().iter().min_by_key(|inbox| inbox.sessions.load(Relaxed));
        if let Some(inbox) = least {
            inbox.send(WorkerEvent::Open(Box::new(opened)));
        }
    }

    /// Serves a unidirectional WebSocket. Its first message is the connect request.
    async fn unidirectional<T>(
        &self,
        client: T,
        leftover: Vec<u8>,
        message_max: usize,
        info: ConnectionInfo,
        (permit, connection): (Pass, Arc<Connection>),
    ) where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match gateway::pair() {
            Ok((worker, gateway)) => {
                let name = self.emulation.name();
                let info = ConnectionInfo { session: Some(name.clone()), ..info };
                self.open(worker, Vec::new(), info, None, Some(connection));
                let served =
                    gateway::unidirectional(client, leftover, message_max, gateway, name, &self.emulation).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "connection ended");
                }
                drop(permit);
            }
            Err(error) => log_rarely!(warn, %error, "a session has no descriptors: raise the limit of open files"),
        }
    }
}
