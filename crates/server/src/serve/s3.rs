//! The S3 service of a server: its port, its options, its metrics.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use steadfast_edge::Edge;
use steadfast_flow::{Connection, Env};
use steadfast_s3::{EtagKind as S3Etag, Observer, RequestRecord, S3Door, S3Options};
use steadfast_store::Store;
use steadfast_users::{KeyPair, Users};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::admin::metrics::Requests;
use crate::config::{Config, EtagKind};
use crate::net::listener::{Door, Port, Tls};
use crate::notify::Targets;

/// Binds the port, if the server has one; an address gets at most its share of the connections,
/// unless it is a trusted proxy.
///
/// # Errors
/// The operating system's error, as a message.
pub(super) async fn bind(config: &Config, connections: usize, tls: Option<Tls>) -> Result<Option<Port>, String> {
    let Some(listen) = config.s3_listen() else { return Ok(None) };
    let port = Port::bind(listen, connections, tls, "s3.listen").await?;
    let proxies = config.limits.trusted_proxies.0.clone();
    let exempt = move |address| proxies.iter().any(|network| network.contains(address));
    Ok(Some(port.share(config.limits.address_share, exempt)))
}

/// Opens the edge; `None` if no bucket has an origin.
///
/// # Errors
/// A secret cannot be read, an origin is invalid, or a bucket cannot be created.
pub(super) async fn open_edge(config: &Config, store: &Store, env: &Env) -> Result<Option<Edge>, String> {
    let buckets = config.edge.edge_buckets(&|name| std::env::var(name).ok())?;
    let any = !buckets.is_empty();
    // Also without buckets: it removes the fills of buckets that had an origin before.
    let edge = Edge::open(store.clone(), env.clone(), buckets, config.edge.bounds(config.limits.address_share)).await?;
    Ok(any.then_some(edge))
}

/// The options of the S3 service.
pub(super) fn options(
    config: &Config,
    (root, users): (KeyPair, Users),
    targets: Targets,
    edge: Option<Edge>,
) -> S3Options {
    S3Options {
        targets: Some(Arc::new(targets)),
        edge,
        credentials: vec![(root.access_key, root.secret_key)],
        users: Some(users),
        signature_v2: config.s3.signature_v2,
        domains: config.s3.domain.iter().cloned().collect(),
        https: config.tls.certificate.is_some(),
        public_read: config.s3.public_read.0.iter().cloned().chain(config.edge.public_read()).collect(),
        allowed_origins: config.s3.allowed_origins.0.clone(),
        etag: match config.s3.etag {
            EtagKind::Md5 => S3Etag::Md5,
            EtagKind::Fast => S3Etag::Opaque,
        },
        requests_max: config.limits.requests,
        requests_waiting_max: config.limits.requests_waiting,
        request_wait: config.limits.request_wait,
        slow_request: config.limits.slow_request,
        xml_memory_bytes: config.limits.xml_memory.0,
        header_timeout: config.limits.header_timeout,
        body_stall: config.limits.stall_timeout,
        response_stall: config.limits.stall_timeout,
        client_bytes_s_min: config.limits.client_rate_min.0,
        answers_max: config.limits.answers,
        address_share_percent: config.limits.address_share,
        trusted_proxies: config.limits.trusted_proxies.0.clone(),
        ..S3Options::default()
    }
}

/// The S3 service on a port.
#[derive(Clone)]
pub(super) struct S3PortDoor(pub(super) S3Door);

impl Door for S3PortDoor {
    // Two pieces of an object. With half a piece, a GET of 1 MiB took an eighth more CPU time: the
    // kernel split each write, and the server waited for the socket in between.
    const UNSENT_BYTES_MAX: libc::c_int = 512 << 10;

    async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut connection = std::pin::pin!(self.0.connection_of(io, connection));
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => Some(ended),
            () = stop => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(e) = ended {
            tracing::debug!(%peer, error = %e, "connection ended");
        }
    }
}

/// Records requests in the metrics.
pub(super) struct Measured(pub(super) Requests);

impl Observer for Measured {
    fn finished(&self, r: &RequestRecord) {
        self.0.record(r.operation, r.status, r.bytes_in, r.bytes_out, r.duration, r.complete);
    }
}
