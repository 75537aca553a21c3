//! The live door of a server, where it has one.

use std::net::SocketAddr;
use std::sync::Arc;

use steadfast_flow::Env;
use steadfast_live::{DoorOptions, Limits, LiveConfig, LiveDoor, Node, Workers};
use steadfast_store::Store;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::config::Config;
use crate::net::listener::Tls;

/// Connections that may wait to be accepted; the kernel's own bound (`net.core.somaxconn`) is lower. With a short queue, sessions that all
/// come back at once lose their first packet, and a second with it.
const BACKLOG: u32 = 65_535;

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A port that is bound, before there is a store to serve from.
pub(super) struct LivePort {
    listener: TcpListener,
    tls: Option<Tls>,
    /// Where it listens.
    address: SocketAddr,
    options: LiveConfig,
}

impl LivePort {
    /// Binds it, if there is to be one. Its options are read here, so that a mistake in them is told before a pool is opened.
    ///
    /// # Errors
    /// A setting that makes no sense, or what the operating system says, for people.
    pub(super) async fn bind(config: &Config, tls: Option<Tls>) -> Result<Option<Self>, String> {
        let Some(wanted) = config.live.listen else { return Ok(None) };
        let options = config.live_options().map_err(|e| e.to_string())?;
        let fail = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "live.listen: {wanted} is in use by another process; stop it, listen elsewhere (--live-listen ADDRESS), or do without the live \
                 door (--live-listen \"\")"
            ),
            _ => format!("live.listen: cannot listen on {wanted}: {e}; --live-listen \"\" does without the live door"),
        };
        let listener = listen(wanted).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Some(Self { listener, tls: tls.filter(|_| config.live.tls), address, options }))
    }

    /// Where it listens, for clients.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// Serves until `stop` is set. The workers are to be stopped then.
    ///
    /// # Errors
    /// A setting that makes no sense, for people.
    pub(super) fn serve(
        self,
        config: &Config,
        store: &Store,
        env: &Env,
        stop: watch::Receiver<bool>,
    ) -> Result<(Arc<Node>, Workers), String> {
        let options = self.options;
        if options.client.insecure || options.http_api.insecure {
            tracing::warn!("the live door is insecure: everybody may do everything. For trials only");
        }
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
            proxy_requests: live.proxy_requests,
            compression_bytes_max: live.compression_max.bytes(),
        };
        let door = DoorOptions {
            tls: self.tls.map(|tls| tls.acceptor),
            header_timeout: config.limits.header_timeout,
            stall_timeout: config.limits.stall_timeout,
        };
        let node = Node::new(options, &limits, store.clone(), env.clone(), partitions).map_err(|e| e.to_string())?;
        let (door, workers) =
            LiveDoor::start(node.clone(), door).map_err(|e| format!("the live door cannot be started: {e}"))?;
        env.spawn("live port", door.run(self.listener, stop));
        Ok((node, workers))
    }
}
