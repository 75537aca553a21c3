//! HTTP clients of other servers, with connections that are reused.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::WantsClientCert;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::addresses::Addresses;
use crate::connector::Connector;

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// How long sent data may stay unacknowledged by the other end.
const VANISHED: Duration = Duration::from_secs(10);

/// A client of the servers behind one URL. It resends a request only if the server closed the
/// connection before any of it was sent.
pub type HttpClient = HttpClientOf<Full<Bytes>>;

/// As [`HttpClient`], for requests whose bodies have type `B`.
pub type HttpClientOf<B> = Client<HttpsConnector<Connector>, B>;

/// A client for gRPC, whose requests have bodies of type `B`.
pub type GrpcClient<B> = HttpClientOf<B>;

/// TLS settings of a client.
pub struct ClientTls {
    /// Trusted authorities and the client certificate.
    pub config: ClientConfig,
    /// The name that the server must prove, if not the URL's host.
    pub server_name: Option<ServerName<'static>>,
}

/// Starts a TLS client configuration.
///
/// # Errors
/// The TLS library has no safe protocol version.
pub fn tls_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())
}

/// Trusts the certificates of the system, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// No certificate is found; the text is for operators.
pub fn with_system_authorities(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    builder
        .with_native_roots()
        .map_err(|e| format!("no root certificates found ({e}): set SSL_CERT_FILE to a bundle of them"))
}

/// A client for this URL that keeps `idle_max` idle connections. Over `https` it trusts the
/// certificates of the system, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// The URL or the certificates are invalid; the text is for operators.
pub fn http_client<B>(url: &http::Uri, idle_max: usize) -> Result<HttpClientOf<B>, String>
where
    B: Body + Send,
    B::Data: Send,
{
    http_client_for(url, idle_max, None, Addresses::Any)
}

/// The same, with these TLS settings over `https`, and connections to these addresses only.
///
/// # Errors
/// The URL or the certificates are invalid, or the host of the URL is an address that is not
/// allowed; the text is for operators.
pub fn http_client_for<B>(
    url: &http::Uri,
    idle_max: usize,
    tls: Option<ClientTls>,
    addresses: Addresses,
) -> Result<HttpClientOf<B>, String>
where
    B: Body + Send,
    B::Data: Send,
{
    let (builder, connector) = connector(url, tls, addresses)?;
    let connector = builder.enable_http1().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle_max)
        .build(connector))
}

/// An HTTP/2 client, which multiplexes requests over one connection.
///
/// # Errors
/// The URL or the certificates are invalid; the text is for operators.
pub fn grpc_client_over<B>(url: &http::Uri, tls: Option<ClientTls>) -> Result<GrpcClient<B>, String>
where
    B: Body + Send,
    B::Data: Send,
{
    let (builder, mut connector) = connector(url, tls, Addresses::Any)?;
    // Otherwise requests could wait a quarter of an hour on a connection whose other end has
    // vanished.
    connector.set_tcp_user_timeout(VANISHED);
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
    addresses: Addresses,
) -> Result<(HttpsConnectorBuilder<WantsProtocols1>, Connector), String> {
    check_url(url)?;
    addresses.check_url(url)?;
    let (config, server_name) = match tls {
        // No root is trusted, because this URL does not use TLS.
        _ if url.scheme_str() == Some("http") => {
            (tls_builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth(), None)
        }
        Some(tls) => (tls.config, tls.server_name),
        None => (with_system_authorities(tls_builder()?)?.with_no_client_auth(), None),
    };
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok((builder, Connector::new(addresses)))
}

/// A URL for the log and for messages: without its user, password and query, which may be secrets.
pub fn shown_url(url: &str) -> String {
    const HIDDEN: &str = "(not shown)";
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let (place, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let user = authority.rfind('@').map_or("", |_| HIDDEN);
    let host = authority.rfind('@').map_or(authority, |at| &authority[at..]);
    let query = if query.is_empty() { String::new() } else { format!("?{HIDDEN}") };
    format!("{scheme}{separator}{user}{host}{path}{query}")
}

/// Checks that a URL has a host and a scheme that clients speak.
pub(crate) fn check_url(url: &http::Uri) -> Result<(), String> {
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err("use a URL that begins with http://, https:// or, for a proxy, grpc://".to_owned());
    }
    if url.host().is_none_or(str::is_empty) {
        return Err("the URL has no host".to_owned());
    }
    Ok(())
}

/// Sends a request and reads the whole answer, whose body has at most `bytes_max` bytes. It has no
/// timeout: the caller sets one.
///
/// # Errors
/// The answer is incomplete or too large; the text is for operators.
pub async fn exchange<B>(
    client: &HttpClientOf<B>,
    request: Request<B>,
    bytes_max: usize,
) -> Result<Response<Bytes>, String>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    let (head, body): (_, Incoming) = client.request(request).await.map_err(|e| with_causes(&e))?.into_parts();
    let body = Limited::new(body, bytes_max).collect().await.map_err(|e| with_causes(&*e))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// An error with its causes: the outer error of a client alone has little detail.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn public(url: &str) -> Result<HttpClient, String> {
        http_client_for(&url.parse().expect("a URL"), 1, None, Addresses::Public)
    }

    async fn get(client: &HttpClient, url: &str) -> Result<Response<Bytes>, String> {
        let request = Request::get(url).body(Full::default()).expect("valid");
        exchange(client, request, 100).await
    }

    #[test]
    fn secrets_in_urls_are_not_shown() {
        for (url, shown) in [
            ("http://h:1/a", "http://h:1/a"),
            ("https://user:pass@h/a?token=1#x", "https://(not shown)@h/a?(not shown)"),
            ("https://u:p@ss@h#secret", "https://(not shown)@h?(not shown)"),
            ("user:pass@h/a", "(not shown)@h/a"),
            ("https://h/a@b?c", "https://h/a@b?(not shown)"),
            ("", ""),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn urls_are_checked_when_a_client_is_built() {
        for (url, expected) in [
            ("ftp://h/", "begins with http://"),
            ("/a", "begins with http://"),
            ("http://10.0.0.1:80/", "the address 10.0.0.1 of host 10.0.0.1 is private"),
            ("https://[fe80::1]/", "the address fe80::1 of host [fe80::1] is private"),
        ] {
            assert!(public(url).is_err_and(|e| e.contains(expected)), "{url}");
        }
        assert!(public("http://8.8.8.8/").is_ok());
    }

    #[tokio::test]
    async fn a_client_of_public_addresses_opens_no_connection_to_a_private_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let client = public("http://localhost/").expect("a name is resolved later");
        for host in ["localhost", "127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"] {
            let refused = get(&client, &format!("http://{host}:{port}/")).await.expect_err(host);
            assert!(refused.contains("is private"), "{refused}");
        }
        // The first connection is that of the client that may open it.
        let url = format!("http://localhost:{port}/any");
        let any = http_client(&url.parse().expect("a URL"), 1).expect("a client");
        let answer = async {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            let mut head = [0; 8];
            socket.read_exact(&mut head).await.expect("a request");
            socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("sent");
            (head, socket)
        };
        let (answer, (head, _)) = tokio::join!(get(&any, &url), answer);
        assert_eq!((answer.map(|answer| answer.status().as_u16()), &head), (Ok(204), b"GET /any"));
    }
}
