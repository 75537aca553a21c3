//! The admin port: health, metrics, status. It changes nothing. If a token is set, metrics and
//! status require it.

pub mod block;
pub mod cluster;
pub mod collect;
pub mod edge;
mod labels;
pub mod legs;
pub mod live;
pub mod metrics;
pub mod superdisk;
pub mod table;
pub mod webhooks;

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use steadfast_flow::{Connection, Env};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{AdminSection, Secret};
use crate::net::listener::Door;

/// The source of health and status.
pub trait Source: Send + Sync + 'static {
    /// Why the server is not ready; `None` if it is.
    fn not_ready(&self) -> Option<String>;

    /// Warnings of a server that is ready.
    fn warnings(&self) -> Vec<String>;

    /// The whole status, as JSON.
    fn status(&self) -> serde_json::Value;
}

/// The admin door. Cloning shares it.
#[derive(Clone)]
pub struct Admin {
    source: Arc<dyn Source>,
    registry: Arc<Registry>,
    env: Env,
    access: Arc<Access>,
}

/// The access rules of the port.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Token that metrics and status require; empty: none.
    pub token: Secret,
    /// Host names by which clients may call the port, besides addresses and localhost.
    pub hosts: Vec<String>,
    /// Whether any name is allowed.
    pub any_host: bool,
}

impl Access {
    /// The rules of a configuration.
    pub fn new(config: &AdminSection) -> Self {
        Self {
            token: config.token.clone(),
            hosts: config.hosts.0.clone(),
            any_host: config.hosts.0.is_empty() && !config.listen.ip().is_loopback(),
        }
    }

    /// Whether the `Host` of a request is allowed. A web page can let its own name resolve to this
    /// machine (DNS rebinding) and could then read the status.
    fn is_host_allowed(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST) else { return true };
        let Ok(host) = host.to_str() else { return false };
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.to_ascii_lowercase();
        let local = name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok();
        self.any_host || local || self.hosts.contains(&name)
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        self.token.0.is_empty() || given.is_some_and(|given| same(given, self.token.0.as_bytes()))
    }
}

/// Whether two texts are equal, in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

const PATHS: [&str; 4] = ["/health/live", "/health/ready", "/metrics", "/status"];

/// Maximum time of a connection: answers are small, and a client can reconnect.
const CONNECTION_MAX: Duration = Duration::from_secs(300);

/// Time limit for a request's header, and of an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

impl Admin {
    /// A door over `source` and the metrics of `registry`.
    pub fn new(source: Arc<dyn Source>, registry: Registry, access: Access, env: Env) -> Self {
        Self { source, registry: Arc::new(registry), env, access: Arc::new(access) }
    }

    /// Answers one request.
    pub fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        if !self.access.is_host_allowed(headers) {
            return text(StatusCode::FORBIDDEN, "this host name is not allowed: see admin.hosts\n".to_owned());
        }
        if !PATHS.contains(&path) {
            return text(StatusCode::NOT_FOUND, format!("the paths are {}\n", PATHS.join(", ")));
        }
        if *method != Method::GET && *method != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        if !path.starts_with("/health/") && !self.access.has_token(headers) {
            let mut response =
                text(StatusCode::UNAUTHORIZED, "this path requires the token of admin.token\n".to_owned());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        match path {
            "/health/live" => text(StatusCode::OK, "live\n".to_owned()),
            "/health/ready" => match self.source.not_ready() {
                None => {
                    let warnings: String = self.source.warnings().iter().map(|line| format!("{line}\n")).collect();
                    text(StatusCode::OK, format!("ready\n{warnings}"))
                }
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
            },
            "/metrics" => self.metrics(headers),
            _ => {
                let body = serde_json::to_vec_pretty(&self.source.status()).unwrap_or_default();
                typed(StatusCode::OK, "application/json", body)
            }
        }
    }

    /// The metrics in OpenMetrics if the client accepts it, else in the format of Prometheus.
    fn metrics(&self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let mut out = String::with_capacity(16 << 10);
        if prometheus_client::encoding::text::encode(&mut out, &self.registry).is_err() {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n".to_owned());
        }
        let accepted = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        if accepted
            .flat_map(|value| value.split(','))
            .any(|kind| kind.trim().starts_with("application/openmetrics-text"))
        {
            typed(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", out.into_bytes())
        } else {
            typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics::plain(&out).into_bytes())
        }
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body.into_bytes())
}

fn typed(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Door for Admin {
    async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let idle = move || connection.idle();
        let admin = self.clone();
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            idle();
            let response = admin.answer(request.method(), request.uri().path(), request.headers());
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_header_size(16 << 10)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(io), service);
        let mut connection = std::pin::pin!(connection);
        let stopped = async {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended,
                () = stop => {}
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        };
        if let Some(Err(e)) = self.env.timeout(CONNECTION_MAX, stopped).await {
            tracing::debug!(%peer, error = %e, "admin connection ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use parking_lot::Mutex;

    struct FixedSource(Mutex<Option<String>>);

    impl Source for FixedSource {
        fn not_ready(&self) -> Option<String> {
            self.0.lock().clone()
        }

        fn warnings(&self) -> Vec<String> {
            Vec::new()
        }

        fn status(&self) -> serde_json::Value {
            serde_json::json!({"version": "1"})
        }
    }

    async fn get(admin: &Admin, method: Method, path: &str) -> (u16, String) {
        get_with(admin, method, path, &[]).await
    }

    async fn get_with(
        admin: &Admin,
        method: Method,
        path: &str,
        with: &[(&'static str, &'static str)],
    ) -> (u16, String) {
        let headers =
            with.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        let response = admin.answer(&method, path, &headers.collect());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("in memory").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn routes() {
        let source = Arc::new(FixedSource(Mutex::new(None)));
        let mut registry = Registry::with_prefix("steadfast");
        let requests = metrics::Requests::register(&mut registry);
        let admin = Admin::new(source.clone(), registry, Access::default(), Env::tokio());
        assert_eq!(get(&admin, Method::GET, "/health/live").await, (200, "live\n".into()));
        assert_eq!(get(&admin, Method::GET, "/health/ready").await, (200, "ready\n".into()));
        *source.0.lock() = Some("the disk failed".into());
        assert_eq!(get(&admin, Method::GET, "/health/ready").await, (503, "not ready: the disk failed\n".into()));
        assert_eq!(get(&admin, Method::GET, "/health/live").await.0, 200);
        assert_eq!(get(&admin, Method::POST, "/status").await.0, 405);
        assert_eq!(get(&admin, Method::GET, "/").await.0, 404);
        let (status, body) = get(&admin, Method::GET, "/status").await;
        assert_eq!((status, body.contains("\"version\"")), (200, true));

        requests.record("PutObject", 200, 4096, 10, Duration::from_micros(700), true);
        let (status, body) = get(&admin, Method::GET, "/metrics").await;
        assert_eq!(status, 200);
        let line = "steadfast_s3_request_seconds_bucket{le=\"0.001\",operation=\"PutObject\",status=\"200\"} 1";
        assert!(body.contains(line), "{body}");
        assert!(body.contains("steadfast_s3_received_bytes_total 4096"), "{body}");
        assert!(body.contains("# TYPE steadfast_s3_received_bytes_total counter"), "{body}");
        assert!(!body.contains("# EOF") && !body.contains("# UNIT"), "{body}");
        let accept = [("accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1")];
        let (_, body) = get_with(&admin, Method::GET, "/metrics", &accept).await;
        assert!(body.contains("# TYPE steadfast_s3_received_bytes counter"), "{body}");
        assert!(body.ends_with("# EOF\n"));
    }

    #[tokio::test]
    async fn names_and_tokens() {
        let admin = |listen: &str, token: &str, hosts: &[&str]| {
            let config = AdminSection {
                listen: listen.parse().expect("an address"),
                token: Secret(token.to_owned()),
                hosts: crate::config::Names(hosts.iter().map(|host| (*host).to_owned()).collect()),
            };
            let source = Arc::new(FixedSource(Mutex::new(None)));
            Admin::new(source, Registry::with_prefix("steadfast"), Access::new(&config), Env::tokio())
        };
        let status = async |admin: &Admin, path: &str, with: &[(&'static str, &'static str)]| {
            get_with(admin, Method::GET, path, with).await.0
        };
        let local = admin("127.0.0.1:9001", "", &["admin.internal"]);
        for name in ["127.0.0.1:9001", "[::1]:9001", "LOCALHOST", "localhost:9001", "admin.internal:9001"] {
            assert_eq!(status(&local, "/status", &[("host", name)]).await, 200, "{name}");
        }
        assert_eq!(status(&local, "/status", &[("host", "attacker.example:9001")]).await, 403);
        assert_eq!(status(&local, "/status", &[]).await, 200);
        let open = admin("0.0.0.0:9001", "", &[]);
        assert_eq!(status(&open, "/status", &[("host", "steadfast.monitoring.svc:9001")]).await, 200);
        let guarded = admin("0.0.0.0:9001", "t0ken", &[]);
        assert_eq!(status(&guarded, "/health/ready", &[]).await, 200);
        for path in ["/metrics", "/status"] {
            assert_eq!(status(&guarded, path, &[]).await, 401);
            assert_eq!(status(&guarded, path, &[("authorization", "Bearer t0kem")]).await, 401);
            assert_eq!(status(&guarded, path, &[("authorization", "Bearer t0ken")]).await, 200);
        }
    }
}
