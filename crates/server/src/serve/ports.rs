//! The ports of a server: TLS, shares of the connections, tasks.

use std::net::SocketAddr;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_live::{CONNECTIONS, LiveConfig};
use tokio::sync::{oneshot, watch};

use super::cluster;
use crate::config::Config;
use crate::net::descriptors::{self, Shares};
use crate::net::listener::{Door, Port, Tls};
use crate::net::tls;

/// TLS of the ports, if it is configured.
///
/// # Errors
/// When the certificate or the key cannot be used, as a message.
pub(super) fn tls_of(config: &Config) -> Result<Option<Tls>, String> {
    Ok(match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => {
            Some(Tls { acceptor: tls::acceptor(certificate, key)?, timeout: config.limits.header_timeout })
        }
        _ => None,
    })
}

/// The maximum number of connections of each port. Together they leave file descriptors for the
/// rest.
pub(super) fn connection_shares(config: &Config, live: &LiveConfig) -> Shares {
    let limit = descriptors::raise();
    let live_connections = match (config.live.listen, live.client.connection_limit) {
        (None, _) => 0,
        (Some(_), 0) => CONNECTIONS,
        (Some(_), limit) => limit,
    };
    let grpc = if live.grpc_api.enabled { config.live.grpc_connections } else { 0 };
    let streams = [
        live.http_stream.enabled,
        live.sse.enabled,
        live.uni_http_stream.enabled,
        live.uni_sse.enabled,
        live.uni_websocket.enabled,
    ];
    let tls = config.tls.certificate.is_some() && config.live.tls;
    let live_files = if tls || streams.contains(&true) { 3 } else { 1 };
    let s3 = config.s3_listen().map_or(0, |_| config.limits.connections);
    let wanted = Shares { s3, grpc, live: live_connections, live_files };
    let reserved = config.limits.reserved_files + cluster::connections(config);
    let shares = descriptors::share(limit, reserved, wanted);
    let mut less = Vec::new();
    for (name, wanted, got) in [
        ("limits.connections", wanted.s3, shares.s3),
        ("live.grpc_connections", wanted.grpc, shares.grpc),
        ("live.client.connection_limit", live.client.connection_limit, shares.live),
    ] {
        if got < wanted {
            less.push(format!("{name} {got} instead of {wanted}"));
        }
    }
    if !less.is_empty() {
        tracing::warn!(
            limit,
            "fewer connections than configured, because the process has too few file descriptors: {}. Raise the limit (`ulimit -n`, \
             LimitNOFILE of systemd)",
            less.join(", ")
        );
    }
    shares
}

/// The address that a port listens on, for the ready line.
pub(super) fn address(port: &Port) -> Result<SocketAddr, String> {
    port.address().map_err(|e| format!("the address of a port cannot be read: {e}"))
}

/// Runs a port as a task. The receiver gets the number of connections that were cut off.
pub(crate) fn start(
    env: &Env,
    port: Port,
    door: impl Door,
    stop: watch::Receiver<bool>,
    deadline: Duration,
) -> oneshot::Receiver<usize> {
    let (tx, rx) = oneshot::channel();
    let inner = env.clone();
    env.spawn_critical("port", async move {
        let _ = tx.send(port.run(inner, door, stop, deadline).await);
    });
    rx
}
