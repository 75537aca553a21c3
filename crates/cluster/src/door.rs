//! The port for links: each connection carries one request, and it is one link.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use steadfast_flow::{Connection, Env};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::links::Links;
use crate::transport::{KEEP_ALIVE, PATH, Tasks, WINDOW, body, bytes_of};

/// Time in which a new connection must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which the other node takes the last frames of a link that has ended, such as a refusal,
/// and closes the connection.
const LINGER: Duration = Duration::from_secs(1);

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

    /// Serves one connection, with one link, until it ends or `stop` completes. `connection` is
    /// idle until the other node has proved that it has the secret.
    pub async fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requested, mut began) = watch::channel(false);
        // One link for each connection.
        let (links, unused) = (self.links.clone(), Arc::new(Mutex::new(Some(requested))));
        let connection = Arc::new(connection);
        let service = service_fn(move |request: Request<Incoming>| {
            let (links, unused, connection) = (links.clone(), unused.clone(), connection.clone());
            async move {
                let is_link = request.method() == Method::POST && request.uri().path() == PATH;
                let Some(requested) = is_link.then(|| unused.lock().take()).flatten() else {
                    let mut refused = Response::new(http_body_util::Empty::new().boxed_unsync());
                    *refused.status_mut() = StatusCode::NOT_FOUND;
                    return Ok::<_, Infallible>(refused);
                };
                requested.send_replace(true);
                // The link drops this stream, and the sender in it, when it ends.
                let bytes = bytes_of(request.into_body()).map(move |bytes| (&requested, bytes).1);
                let frames = links.accept(bytes.boxed(), peer.to_string(), move || connection.busy());
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
        let ended = async {
            if self.env.timeout(REQUEST_TIMEOUT, began.wait_for(|began| *began)).await.is_none() {
                return tracing::debug!("cluster: a connection without a request is closed");
            }
            while began.changed().await.is_ok() {}
            // Connections without a link must not fill the port.
            self.env.sleep(LINGER).await;
        };
        tokio::select! {
            closed = &mut connection => {
                if let Err(error) = closed {
                    tracing::debug!(%error, "cluster: a connection ended");
                }
            }
            () = &mut stop => {}
            () = ended => {}
        }
    }
}
