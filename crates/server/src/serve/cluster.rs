//! The links to the other nodes of a cluster, and the port for theirs.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use steadfast_cluster::{
    Channels, ChannelsOptions, ClusterDoor, ClusterOptions, Dialer, HttpTransport, Links, Namespaces, OwnName,
    OwnTenure, PinnedTls, PoolHome, Roster, Tenure, Transport,
};
use steadfast_flow::{Connection, Env, Lease};
use steadfast_live::LiveConfig;
use steadfast_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};

use super::archive::PoolArchive;
use super::ports::{address, start};
use super::state::{NodeParts, State};
use crate::config::Config;
use crate::net::listener::{Door, Port, Tls};
use crate::net::tls;

/// Connections to the port for links: those of each node, with some that the other side has not
/// closed yet.
const CONNECTIONS_OF_NODE: usize = 4;
/// Minimum number of these connections.
const CONNECTIONS_MIN: usize = 64;

/// Percentage of these connections that one address may have: a stranger must not keep the nodes
/// out.
const ADDRESS_SHARE_PERCENT: usize = 25;

/// Time that a stop waits for the connections of links that have ended.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// Maximum number of connections to the port for links; 0 without a cluster.
pub(super) fn connections(config: &Config) -> usize {
    match config.cluster.name.is_empty() {
        true => 0,
        false => (config.cluster.nodes.0.len() * CONNECTIONS_OF_NODE).max(CONNECTIONS_MIN),
    }
}

/// The door for links of other nodes on its port.
#[derive(Clone)]
struct LinkDoor(ClusterDoor);

impl Door for LinkDoor {
    async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.0.serve(io, connection, peer, stop).await;
    }
}

/// A bound port for links, before the links are opened.
pub(super) struct ClusterPort {
    port: Port,
    address: SocketAddr,
    roster: Arc<Roster>,
    namespaces: Namespaces,
    secret: Vec<u8>,
    transport: Arc<dyn Transport>,
}

impl ClusterPort {
    /// Binds the port, if nodes are configured.
    ///
    /// # Errors
    /// An invalid setting, or the operating system's error, as a message.
    pub(super) async fn bind(
        config: &Config,
        live: &LiveConfig,
        lease: &Lease,
        env: &Env,
    ) -> Result<Option<Self>, String> {
        let Some(roster) = config.roster(live)? else { return Ok(None) };
        let pinned = pinned(config)?;
        let timeout = config.limits.header_timeout;
        let tls = pinned.as_ref().map(|tls| Tls { acceptor: tls.acceptor(), timeout });
        let listen = config.cluster.listen_address(&roster)?;
        let port = Port::bind(listen, connections(config), tls, "cluster.listen").await?;
        let port = port.share(ADDRESS_SHARE_PERCENT, |_| false).idle_when_full(Duration::ZERO).lease(lease);
        Ok(Some(Self {
            address: address(&port)?,
            port,
            roster: Arc::new(roster),
            namespaces: live.namespaces()?,
            secret: config.cluster.read_secret()?,
            transport: Arc::new(HttpTransport::new(env.clone(), pinned, lease.clone())),
        }))
    }

    /// Its address in the ready line.
    pub(super) fn announced(&self) -> String {
        format!(" cluster={}", self.address)
    }

    /// Opens the port. Links are served after [`ClusterNode::start`].
    pub(super) fn open(
        self,
        config: &Config,
        env: &Env,
        state: &State,
        channels: &Channels,
        archive: Option<PoolArchive>,
    ) -> ClusterNode {
        let Self { port, address, roster, namespaces, secret, transport } = self;
        let tenure: OwnTenure = match archive {
            Some(archive) => Arc::new(move || archive.tenure()),
            None => Arc::new(Tenure::default),
        };
        let outbox_bytes_max = config.cluster.outbox.0;
        let options = ClusterOptions { roster, namespaces, secret, tenure, outbox_bytes_max };
        let links = Links::new(options, Arc::new(channels.clone()), env.clone());
        state.cluster(NodeParts {
            links: links.clone(),
            channels: channels.clone(),
            ready_without_homes: config.cluster.ready_without_homes,
        });
        let (stop_port, port_stopped) = watch::channel(false);
        let door = LinkDoor(ClusterDoor::new(links.clone(), env.clone()));
        let port_ended = start(env, port, door, port_stopped, STOP_DEADLINE);
        ClusterNode { links, transport, listening: address, stop_port, port_ended }
    }
}

/// A node of a cluster whose port is open.
pub(super) struct ClusterNode {
    links: Links,
    transport: Arc<dyn Transport>,
    listening: SocketAddr,
    stop_port: watch::Sender<bool>,
    port_ended: oneshot::Receiver<usize>,
}

impl ClusterNode {
    /// The name of the node, before and while it serves.
    pub(super) fn own_name(&self) -> OwnName {
        OwnName::new(self.links.clone(), self.transport.clone(), self.listening)
    }

    /// Opens the links and serves those of other nodes until `stop` is set. The receiver completes
    /// when requests under way are answered and the port is closed.
    pub(super) fn start(self, env: &Env, stop: &watch::Receiver<bool>) -> oneshot::Receiver<()> {
        let Self { links, transport, stop_port, port_ended, .. } = self;
        let links_ended = Dialer::start(&links, &transport, stop);
        let (done, ended) = oneshot::channel();
        env.spawn_critical("cluster", async move {
            let _ = links_ended.await;
            let _ = stop_port.send(true);
            let _ = port_ended.await;
            let _ = done.send(());
        });
        ended
    }
}

/// Takes the pool for this node.
///
/// # Errors
/// The pool is that of another home, or some of its channels have another home, as a message.
pub(super) async fn take_pool(config: &Config, port: Option<&ClusterPort>, store: &Store) -> Result<(), String> {
    let roster = port.map(|port| &*port.roster);
    PoolHome::take(store, roster, config.cluster.accept_moved_channels).await
}

/// The channels of this node, and with a cluster those of other nodes.
///
/// # Errors
/// Neither a store nor a cluster is given, as a message.
pub(super) fn channels(
    config: &Config,
    port: Option<&ClusterPort>,
    store: Option<&Store>,
    env: &Env,
) -> Result<Channels, String> {
    let cluster = &config.cluster;
    match (port, store) {
        (None, None) => Err("a server without a cluster needs a pool".to_owned()),
        (None, Some(store)) => Ok(Channels::alone(store.clone(), env.clone())),
        (Some(port), store) => {
            let options = ChannelsOptions {
                tail_bytes_max: cluster.tails.0,
                outbox_bytes_max: cluster.outbox.0,
                node_ttl: cluster.node_ttl,
                ..ChannelsOptions::default()
            };
            Ok(Channels::new(store.cloned(), port.roster.clone(), &options, env.clone()))
        }
    }
}

/// The certificate of the cluster, if it has one.
pub(super) fn pinned(config: &Config) -> Result<Option<PinnedTls>, String> {
    let (Some(certificate), Some(key)) = (&config.cluster.certificate, &config.cluster.key) else { return Ok(None) };
    let (chain, secret) = tls::read_pair(certificate, key, "cluster")?;
    PinnedTls::new(chain, secret)
        .map(Some)
        .map_err(|e| format!("cluster: {} and {} cannot be used: {e}", certificate.display(), key.display()))
}
