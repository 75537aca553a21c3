//! HTTP to servers of others, over connections that are kept for the next request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::proxy::ProxyTlsConfig;

/// For how long a connection is kept that nothing is asked on.
const IDLE: Duration = Duration::from_secs(60);

/// For how long the other end of a connection may say nothing of what was sent to it.
const VANISHED: Duration = Duration::from_secs(10);

/// A client of the servers behind one URL. It sends a request again only when nothing of it had left, on a connection that the server closed.
pub type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// One that speaks gRPC.
pub(crate) type GrpcClient = Client<HttpsConnector<HttpConnector>, tonic::body::Body>;

/// Why nobody can be trusted.
pub(crate) fn no_authorities(error: &std::io::Error) -> String {
    format!("no certificates of authorities ({error}): set SSL_CERT_FILE to a bundle of them")
}

/// How a server is met over TLS.
pub(crate) struct ClientTls {
    /// Whom to trust, and what to show.
    pub(crate) config: ClientConfig,
    /// Who the server is to be, if not the URL's host.
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// Begins to say how a server is met over TLS.
pub(crate) fn tls_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())
}

/// A client for this URL that keeps so many connections. Over `https` to servers that the system's
/// certificates vouch for, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// What is wrong with the URL or with the certificates, for people.
pub fn http_client(url: &http::Uri, idle_max: usize) -> Result<HttpClient, String> {
    http_client_over(url, idle_max, None)
}

/// The same, over `https` as it is said; `place` is where.
///
/// # Errors
/// What is wrong with the URL or with what is said, for people.
pub fn http_client_tls(
    url: &http::Uri,
    idle_max: usize,
    tls: &ProxyTlsConfig,
    place: &str,
) -> Result<HttpClient, String> {
    http_client_over(url, idle_max, tls.client(place)?)
}

/// The same, over `https` as it is said.
pub(crate) fn http_client_over(url: &http::Uri, idle_max: usize, tls: Option<ClientTls>) -> Result<HttpClient, String> {
    let (builder, connector) = connector(url, tls)?;
    let connector = builder.enable_http1().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle_max)
        .build(connector))
}

/// A client of HTTP/2 alone, which has one connection to the server: requests go over it side by side.
pub(crate) fn grpc_client_over(url: &http::Uri, tls: Option<ClientTls>) -> Result<GrpcClient, String> {
    let (builder, mut connector) = connector(url, tls)?;
    // Else requests would go on for a quarter of an hour over a connection whose other end has vanished.
    connector.set_tcp_user_timeout(Some(VANISHED));
    let connector = builder.enable_http2().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http2_only(true)
        .build(connector))
}

fn connector(
    url: &http::Uri,
    tls: Option<ClientTls>,
) -> Result<(HttpsConnectorBuilder<WantsProtocols1>, HttpConnector), String> {
    let (config, server_name) = match (url.scheme_str(), tls) {
        (Some("https"), Some(tls)) => (tls.config, tls.server_name),
        (Some("https"), None) => {
            let trusting = tls_builder()?.with_native_roots();
            let trusting = trusting.map_err(|e| no_authorities(&e))?;
            (trusting.with_no_client_auth(), None)
        }
        // They vouch for nobody: nothing is asked over TLS.
        (Some("http"), _) => {
            (tls_builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth(), None)
        }
        _ => return Err("give a URL that begins with http://, https:// or, for a proxy, grpc://".to_owned()),
    };
    if url.host().is_none_or(str::is_empty) {
        return Err("it names no host".to_owned());
    }
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.enforce_http(false);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok((builder, connector))
}

/// Sends a request and reads the whole answer, whose body has so many bytes at most. It takes as long as the server does: bound it.
///
/// # Errors
/// Why there is no whole answer, for people.
pub async fn exchange(
    client: &HttpClient,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<Response<Bytes>, String> {
    let (head, body): (_, Incoming) = client.request(request).await.map_err(|e| with_causes(&e))?.into_parts();
    let body = Limited::new(body, bytes_max).collect().await.map_err(|e| with_causes(&*e))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// An error and what it comes from: of a client's, the first alone says little.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
