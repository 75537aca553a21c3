//! The S3 port of a front, which has no disks: every request is answered with 503 and the reason.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use steadfast_flow::{Connection, Env};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Config;
use crate::net::listener::Door;

/// The answer, in the shape of S3's errors.
const ANSWER: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>ServiceUnavailable</Code><Message>This node \
                      is a front of a cluster and has no disks: send S3 requests to a home.</Message></Error>";

/// Bytes of a request's body that are read and dropped: many clients read no answer before they
/// have sent the body.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The S3 port of a node without disks.
#[derive(Clone)]
pub(super) struct FrontDoor {
    env: Env,
    header_timeout: Duration,
    body_stall: Duration,
}

impl FrontDoor {
    pub(super) fn new(config: &Config, env: &Env) -> Self {
        let limits = &config.limits;
        Self { env: env.clone(), header_timeout: limits.header_timeout, body_stall: limits.stall_timeout }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        // A client that expects an answer before it sends the body gets this one.
        if !request.headers().contains_key(EXPECT) {
            let mut body = Limited::new(request.into_body(), BODY_BYTES_MAX);
            let whole = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = self.env.timeout(self.body_stall, whole).await;
        }
        let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        response
    }
}

impl Door for FrontDoor {
    async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection.idle();
        let front = self.clone();
        let service = service_fn(move |request| {
            let front = front.clone();
            async move { Ok::<_, Infallible>(front.answer(request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_timeout)
            .serve_connection(TokioIo::new(io), service);
        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            biased;
            ended = served.as_mut() => ended,
            () = stop => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(e) = ended {
            tracing::debug!(%peer, error = %e, "connection ended");
        }
    }
}
