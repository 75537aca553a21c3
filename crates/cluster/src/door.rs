//! The port for links: each connection carries one request, and it is one link.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use steadfast_flow::Env;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::links::Links;
use crate::transport::{KEEP_ALIVE, PATH, Tasks, WINDOW, body, bytes_of};

/// Time in which a new connection must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The port for links of other nodes.
#[derive(Clone)]
pub struct ClusterDoor {
    links: Links,
    env: Env,
}

impl ClusterDoor {
    /// A port that hands links to `links`.
    pub fn new(links: Links, env: Env) -> Self {
        Self { links, env }
    }

    /// Serves one connection, with one link, until it ends or `stop` completes.
    pub async fn serve<T>(&self, io: T, stop: impl Future<Output = ()> + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requested, mut began) = watch::channel(false);
        let (links, requested) = (self.links.clone(), Arc::new(requested));
        let service = service_fn(move |request: Request<Incoming>| {
            let (links, requested) = (links.clone(), requested.clone());
            async move {
                let is_link = request.method() == Method::POST && request.uri().path() == PATH;
                // One link for each connection.
                if !is_link || requested.send_replace(true) {
                    let mut refused = Response::new(http_body_util::Empty::new().boxed_unsync());
                    *refused.status_mut() = StatusCode::NOT_FOUND;
                    return Ok::<_, Infallible>(refused);
                }
                let frames = links.accept(bytes_of(request.into_body()));
                Ok(Response::new(body(frames).boxed_unsync()))
            }
        });
        let connection = server::conn::http2::Builder::new(Tasks(self.env.clone()))
            .timer(TokioTimer::new())
            .max_concurrent_streams(1)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1)
            .serve_connection(TokioIo::new(io), service);
        let (mut connection, mut stop) = (pin!(connection), pin!(stop));
        let late = async {
            if self.env.timeout(REQUEST_TIMEOUT, began.wait_for(|began| *began)).await.is_some() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "cluster: a connection ended");
                }
            }
            () = &mut stop => {}
            () = late => tracing::debug!("cluster: a connection without a request is closed"),
        }
    }
}
