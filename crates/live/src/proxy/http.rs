//! Requests to a back end: HTTP/1.1, over connections that are kept for the next one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use steadfast_flow::Env;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// For how long a connection is kept that nothing is asked on.
const IDLE: Duration = Duration::from_secs(60);

/// Where the certificates of public authorities are, unless `SSL_CERT_FILE` says.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// TLS to servers that public authorities vouch for, or those in `SSL_CERT_FILE`.
///
/// # Errors
/// Why there are no certificates, for people.
pub fn authorities() -> Result<TlsConnector, String> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let path = named.as_deref().or_else(|| ROOTS.into_iter().find(|path| std::path::Path::new(path).exists()));
    let path = path.ok_or("no certificates of authorities were found: set SSL_CERT_FILE to a bundle of them")?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| format!("{path}: {e}"))? {
        // One that is not understood vouches for nothing.
        let _ = roots.add(certificate.map_err(|e| format!("{path}: {e}"))?);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

type Connection = SendRequest<Full<Bytes>>;

/// The way to one URL.
pub(crate) struct Endpoint {
    /// As it stands in the `Host` header.
    authority: HeaderValue,
    host: String,
    port: u16,
    /// With its query.
    path: Uri,
    tls: Option<TlsConnector>,
    /// Connections on which nothing is asked, and since when.
    idle: Mutex<Vec<(Duration, Connection)>>,
    idle_max: usize,
    env: Env,
}

impl Endpoint {
    /// To this URL, keeping so many connections.
    ///
    /// # Errors
    /// What is wrong with the URL, for people.
    pub(crate) fn new(url: &str, idle_max: usize, env: &Env) -> Result<Self, String> {
        let wrong = |what: &str| format!("endpoint: {url:?}: {what}");
        let parsed: Uri = url.parse().map_err(|_| wrong("not a URL"))?;
        let tls = match parsed.scheme_str() {
            Some("http") => None,
            Some("https") => Some(authorities()?),
            _ => return Err(wrong("give a URL that begins with http:// or https://")),
        };
        let host = parsed.host().ok_or_else(|| wrong("it names no host"))?.to_owned();
        let port = parsed.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let authority = parsed.port_u16().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let path = parsed.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|_| wrong("not a path"))?;
        Ok(Self {
            authority: HeaderValue::from_str(&authority).map_err(|_| wrong("not a host"))?,
            host,
            port,
            path,
            tls,
            idle: Mutex::default(),
            idle_max,
            env: env.clone(),
        })
    }

    /// Sends a request; status and body of the answer. The caller sets a limit to the time.
    pub(crate) async fn send(&self, method: Method, headers: HeaderMap, body: Bytes) -> io::Result<(u16, Bytes)> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::HOST, self.authority.clone());
        let (answer, connection) = loop {
            let kept = self.kept();
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            if let Err(e) = connection.ready().await {
                if is_kept {
                    continue;
                }
                return Err(io::Error::other(e));
            }
            match connection.try_send_request(request).await {
                Ok(answer) => break (answer, connection),
                // The back end had closed the connection, and nothing of the request left.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if is_kept => request = unsent,
                    _ => return Err(io::Error::other(failed.into_error())),
                },
            }
        };
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(io::Error::other)?;
        let mut idle = self.idle.lock();
        if idle.len() < self.idle_max && !connection.is_closed() {
            idle.push((self.env.now(), connection));
        }
        Ok((status, body.to_bytes()))
    }

    /// A connection that was kept. The one used last is taken first, so that those that are not needed grow old.
    fn kept(&self) -> Option<Connection> {
        let now = self.env.now();
        let mut idle = self.idle.lock();
        idle.retain(|(since, connection)| now.saturating_sub(*since) < IDLE && !connection.is_closed());
        idle.pop().map(|(_, connection)| connection)
    }

    async fn connect(&self) -> io::Result<Connection> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((bare, self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.drive(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
                self.drive(tls.connect(name, stream).await?).await
            }
        }
    }

    async fn drive<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: T) -> io::Result<Connection> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        self.env.spawn("live back end", async move {
            // What goes wrong, the request says.
            let _ = connection.await;
        });
        Ok(sender)
    }
}
