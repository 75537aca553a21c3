//! The admin port: health, metrics, status. It has no authentication and changes nothing.

pub mod collect;
mod labels;
pub mod live;
pub mod metrics;
pub mod superdisk;
pub mod webhooks;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use steadfast_flow::Env;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::net::listener::Door;

/// What the admin port tells about.
pub trait Source: Send + Sync + 'static {
    /// Why the server should get no requests now; `None` when it should.
    fn not_ready(&self) -> Option<String>;

    /// Everything that there is to know, as JSON.
    fn status(&self) -> serde_json::Value;
}

/// The admin door. Cloning shares it.
#[derive(Clone)]
pub struct Admin {
    source: Arc<dyn Source>,
    registry: Arc<Registry>,
    env: Env,
}

const PATHS: [&str; 4] = ["/health/live", "/health/ready", "/metrics", "/status"];

/// How long a client may hold a connection: answers are small, and whoever asks again may connect again.
const CONNECTION_MAX: Duration = Duration::from_secs(300);

/// How long a client may take for a request's header, and stay idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

impl Admin {
    /// A door over `source` and the metrics of `registry`.
    pub fn new(source: Arc<dyn Source>, registry: Registry, env: Env) -> Self {
        Self { source, registry: Arc::new(registry), env }
    }

    /// Answers one request.
    pub fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if !PATHS.contains(&path) {
            return text(StatusCode::NOT_FOUND, format!("there is {}\n", PATHS.join(", ")));
        }
        if *method != Method::GET && *method != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/health/live" => text(StatusCode::OK, "live\n".to_owned()),
            "/health/ready" => match self.source.not_ready() {
                None => text(StatusCode::OK, "ready\n".to_owned()),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
            },
            "/metrics" => self.metrics(),
            _ => {
                let body = serde_json::to_vec_pretty(&self.source.status()).unwrap_or_default();
                typed(StatusCode::OK, "application/json", body)
            }
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut out = String::with_capacity(16 << 10);
        match prometheus_client::encoding::text::encode(&mut out, &self.registry) {
            Ok(()) => {
                typed(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", out.into_bytes())
            }
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n".to_owned()),
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
    async fn serve<T>(&self, io: T, peer: SocketAddr, stop: impl Future<Output = ()> + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let admin = self.clone();
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let response = admin.answer(request.method(), request.uri().path());
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

    struct Told(Mutex<Option<String>>);

    impl Source for Told {
        fn not_ready(&self) -> Option<String> {
            self.0.lock().clone()
        }

        fn status(&self) -> serde_json::Value {
            serde_json::json!({"version": "1"})
        }
    }

    async fn get(admin: &Admin, method: Method, path: &str) -> (u16, String) {
        let response = admin.answer(&method, path);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("in memory").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn routes() {
        let told = Arc::new(Told(Mutex::new(None)));
        let mut registry = Registry::with_prefix("steadfast");
        let requests = metrics::Requests::register(&mut registry);
        let admin = Admin::new(told.clone(), registry, Env::tokio());
        assert_eq!(get(&admin, Method::GET, "/health/live").await, (200, "live\n".into()));
        assert_eq!(get(&admin, Method::GET, "/health/ready").await, (200, "ready\n".into()));
        *told.0.lock() = Some("the disk failed".into());
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
        assert!(body.ends_with("# EOF\n"));
    }
}
