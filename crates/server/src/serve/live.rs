//! The live port of a server, if it has one.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use steadfast_cluster::Channels;
use steadfast_flow::{Connection, Env, Lease};
use steadfast_live::{CentrifugoOptions, DoorOptions, GrpcDoor, Limits, LiveConfig, LiveDoor, Node, Workers};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::ports::start;
use super::state::State;
use crate::admin::Source;
use crate::config::Config;
use crate::config::live::address_of;
use crate::net::descriptors::Shares;
use crate::net::listener::{Door, Port, Tls};

/// Connections that may wait to be accepted; the kernel's limit (`net.core.somaxconn`) is lower.
/// With a short queue, sessions that all reconnect at once lose their first packet, which costs
/// them a second.
const BACKLOG: u32 = 65_535;

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The setting named in errors of the gRPC port.
const GRPC: &str = "live.grpc_api.port";

/// The port of the API over gRPC, if it is enabled: its address and its TLS.
fn plan_grpc(
    config: &Config,
    live: &LiveConfig,
    server_tls: bool,
) -> Result<Option<(SocketAddr, Option<Tls>)>, String> {
    let options = &live.grpc_api;
    if !options.enabled {
        return Ok(None);
    }
    if options.is_open() {
        tracing::warn!(
            "live.grpc_api: no key is set: every client that reaches the port of the gRPC API has full access"
        );
    } else if server_tls && !options.tls.enabled {
        tracing::warn!("live.grpc_api.tls is not enabled: its key is sent in clear text, though `tls` is set");
    }
    let timeout = config.limits.header_timeout;
    let tls = options.acceptor()?.map(|acceptor| Tls { acceptor, timeout });
    let port = options.port;
    let address = address_of("live.grpc_api.address", &options.address, port)?;
    let own = [config.s3_listen(), Some(config.admin.listen), config.live.listen];
    let everywhere = |address: SocketAddr| address.ip().is_unspecified();
    let meets = |own: SocketAddr| own.ip() == address.ip() || everywhere(own) || everywhere(address);
    if port != 0 && own.into_iter().flatten().any(|own| own.port() == port && meets(own)) {
        return Err(format!("{GRPC}: another port of this server is {port} too: change one of them"));
    }
    Ok(Some((address, tls)))
}

/// The door of the API over gRPC on its port.
#[derive(Clone)]
struct Grpc(GrpcDoor);

impl Door for Grpc {
    fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Back ends keep such connections open between calls: they never count as idle.
        connection.busy();
        let served = self.0.serve(io, peer, stop);
        async move {
            served.await;
            drop(connection);
        }
    }
}

/// A serving live port.
pub(super) struct LiveServed {
    pub(super) node: Arc<Node>,
    pub(super) workers: Workers,
    /// The number of gRPC connections that were cut off, once the port has ended.
    pub(super) grpc: Option<oneshot::Receiver<usize>>,
}

/// A bound port, before the store is open.
pub(super) struct LivePort {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    /// Address that it listens on.
    address: SocketAddr,
    options: LiveConfig,
    internal: Option<Internal>,
    grpc: Option<Port>,
    lease: Lease,
}

/// The bound internal port.
struct Internal {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    address: SocketAddr,
}

impl Internal {
    /// Binds the internal port.
    fn bind(wanted: SocketAddr, tls: Option<TlsAcceptor>) -> Result<Self, String> {
        let fail = |e: std::io::Error| format!("http_server.internal_port: cannot listen on {wanted}: {e}");
        let listener = listen(wanted).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Self { listener, tls, address })
    }
}

/// The live port as it is configured, checked and not bound yet.
pub(super) struct LivePlan {
    wanted: SocketAddr,
    read: CentrifugoOptions,
    tls: Option<TlsAcceptor>,
    /// The internal port, if there is one.
    internal: Option<(SocketAddr, Option<TlsAcceptor>)>,
    grpc: Option<(SocketAddr, Option<Tls>)>,
}

impl LivePlan {
    /// Checks the options of the live port as far as that is possible without binding it: it builds
    /// all that a start builds. `tls` is that of the S3 port.
    ///
    /// # Errors
    /// An invalid setting, or a file that cannot be used, as a message.
    pub(super) fn make(
        config: &Config,
        read: CentrifugoOptions,
        tls: Option<Tls>,
        env: &Env,
    ) -> Result<Option<Self>, String> {
        let Some(wanted) = config.live.listen else {
            let no_door = "live.grpc_api.enabled: it is part of the live port, which is off: set live.listen";
            return if read.config.grpc_api.enabled { Err(no_door.to_owned()) } else { Ok(None) };
        };
        steadfast_live::check(&read.config, !config.cluster.name.is_empty(), env).map_err(|e| e.to_string())?;
        let grpc = plan_grpc(config, &read.config, tls.is_some())?;
        let http = &read.config.http_server;
        let own = http.tls.acceptor("http_server.tls", &[b"http/1.1"])?;
        let tls = own.or(tls.filter(|_| config.live.tls).map(|tls| tls.acceptor));
        let internal = match http.internal()? {
            Some((name, port)) => {
                let address = address_of("http_server.internal_address", name, port)?;
                let own = http.tls_of_internal().acceptor("http_server.internal_tls", &[b"http/1.1"])?;
                Some((address, own.or(tls.clone().filter(|_| !http.tls_external && !http.tls.enabled))))
            }
            None => None,
        };
        Ok(Some(Self { wanted, read, tls, internal, grpc }))
    }
}

impl LivePort {
    /// Binds the ports of a plan.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub(super) async fn bind(plan: LivePlan, shares: Shares, lease: &Lease) -> Result<Self, String> {
        let LivePlan { wanted, read, tls, internal, grpc } = plan;
        if !read.ignored.is_empty() {
            tracing::info!("Centrifugo's options without effect here: {}", read.ignored.join(", "));
        }
        if !read.unknown.is_empty() {
            tracing::warn!("options that Centrifugo does not know: {}", read.unknown.join(", "));
        }
        for warning in &read.literal {
            tracing::warn!("{warning}");
        }
        let mut options = read.config;
        options.client.connection_limit = shares.live;
        let fail = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "live.listen: {wanted} is in use by another process; stop it, listen elsewhere (--live-listen ADDRESS), or turn the \
                 live port off (--live-listen \"\")"
            ),
            _ => format!("live.listen: cannot listen on {wanted}: {e}; --live-listen \"\" turns the live port off"),
        };
        let listener = listen(wanted).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let grpc = match grpc {
            Some((address, tls)) => Some(Port::bind(address, shares.grpc, tls, GRPC).await?.lease(lease)),
            None => None,
        };
        let internal = internal.map(|(wanted, tls)| Internal::bind(wanted, tls)).transpose()?;
        Ok(Self { listener, tls, address, options, internal, grpc, lease: lease.clone() })
    }

    /// Its addresses in the ready line.
    pub(super) fn announced(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let grpc = self.grpc.as_ref().and_then(|port| port.address().ok());
        let grpc = grpc.map(|address| format!(" grpc=grpc://{address}")).unwrap_or_default();
        let internal = self.internal.as_ref().map(|port| {
            let scheme = if port.tls.is_some() { "https" } else { "http" };
            format!(" internal={scheme}://{}", port.address)
        });
        format!(" live={scheme}://{}{}{grpc}", self.address, internal.unwrap_or_default())
    }

    /// Serves until `stop` is set. The caller stops the workers then.
    ///
    /// # Errors
    /// An invalid setting, as a message.
    pub(super) fn serve(
        self,
        config: &Config,
        channels: Channels,
        state: &Arc<State>,
        env: &Env,
        stop: watch::Receiver<bool>,
    ) -> Result<LiveServed, String> {
        let options = self.options;
        let partitions = match config.live.partitions {
            0 => std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get),
            partitions => partitions,
        };
        let live = &config.live;
        let limits = Limits {
            connects: live.connects,
            subscribes: live.subscribes,
            history_reads: live.history_reads,
            waiting: live.waiting,
            address_connections: live.address_connections,
            publish_rate: live.publish_rate,
            publish_reserve: live.publish_reserve,
            proxy_requests: live.proxy_requests,
            grpc_calls: live.grpc_calls,
            api_requests: live.api_requests,
            api_bytes: live.api_bytes.0,
            answers_bytes: live.answers_memory.0,
            answers_share_percent: config.limits.address_share,
            history_bytes_max: live.history_max.bytes(),
            compression_bytes_max: live.compression_max.bytes(),
            slow_request: config.limits.slow_request,
        };
        let proxies = config.limits.trusted_proxies.0.clone();
        let state = state.clone();
        let door = DoorOptions {
            not_ready: Arc::new(move || state.not_ready()),
            tls: self.tls,
            lease: self.lease,
            header_timeout: config.limits.header_timeout,
            stall_timeout: config.limits.stall_timeout,
            client_bytes_s_min: config.limits.client_rate_min.0,
            address_share: config.limits.address_share,
            is_proxy: Arc::new(move |address| proxies.iter().any(|network| network.contains(address))),
        };
        let node = Node::new(options, &limits, channels, env.clone(), partitions).map_err(|e| e.to_string())?;
        let (door, workers) =
            LiveDoor::start(node.clone(), door).map_err(|e| format!("the live port cannot be started: {e}"))?;
        let deadline = config.server.stop_deadline;
        let grpc = self.grpc.map(|port| start(env, port, Grpc(GrpcDoor::new(&door)), stop.clone(), deadline));
        if let Some(Internal { listener, tls, .. }) = self.internal {
            env.spawn_critical("internal port", door.internal(tls).run(listener, stop.clone()));
        }
        env.spawn_critical("live port", door.run(self.listener, stop));
        Ok(LiveServed { node, workers, grpc })
    }
}
