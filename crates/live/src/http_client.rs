//! HTTP clients of other servers, with connections that are reused.

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

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// How long sent data may stay unacknowledged by the other end.
const VANISHED: Duration = Duration::from_secs(10);

/// A client of the servers behind one URL. It resends a request only if the server closed the
/// connection before any of it was sent.
pub type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client for gRPC.
pub(crate) type GrpcClient = Client<HttpsConnector<HttpConnector>, tonic::body::Body>;

/// The error for missing root certificates.
pub(crate) fn no_authorities(error: &std::io::Error) -> String {
    format!("no root certificates found ({error}): set SSL_CERT_FILE to a bundle of them")
}

/// TLS settings of a client.
pub(crate) struct ClientTls {
    /// Trusted authorities and the client certificate.
    pub(crate) config: ClientConfig,
    /// The name that the server must prove, if not the URL's host.
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// Starts a TLS client configuration.
pub(crate) fn tls_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())
}

/// A client for this URL that keeps `idle_max` idle connections. Over `https` it trusts the
/// certificates of the system, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// The URL or the certificates are invalid; the text is for operators.
pub fn http_client(url: &http::Uri, idle_max: usize) -> Result<HttpClient, String> {
    http_client_over(url, idle_max, None)
}

/// The same, with these TLS settings over `https`.
pub(crate) fn http_client_over(url: &http::Uri, idle_max: usize, tls: Option<ClientTls>) -> Result<HttpClient, String> {
    let (builder, connector) = connector(url, tls)?;
    let connector = builder.enable_http1().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle_max)
        .build(connector))
}

/// An HTTP/2 client, which multiplexes requests over one connection.
pub(crate) fn grpc_client_over(url: &http::Uri, tls: Option<ClientTls>) -> Result<GrpcClient, String> {
    let (builder, mut connector) = connector(url, tls)?;
    // Otherwise requests could wait a quarter of an hour on a connection whose other end has
    // vanished.
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
        // No root is trusted, because this URL does not use TLS.
        (Some("http"), _) => {
            (tls_builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth(), None)
        }
        _ => return Err("use a URL that begins with http://, https:// or, for a proxy, grpc://".to_owned()),
    };
    if url.host().is_none_or(str::is_empty) {
        return Err("the URL has no host".to_owned());
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

/// Sends a request and reads the whole answer, whose body has at most `bytes_max` bytes. It has no
/// timeout: the caller sets one.
///
/// # Errors
/// The answer is incomplete or too large; the text is for operators.
pub async fn exchange(
    client: &HttpClient,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<Response<Bytes>, String> {
    let (head, body): (_, Incoming) = client.request(request).await.map_err(|e| with_causes(&e))?.into_parts();
    let body = Limited::new(body, bytes_max).collect().await.map_err(|e| with_causes(&*e))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// An error with its causes: the outer error of a client alone has little detail.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
