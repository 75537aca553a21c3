//! Links over HTTP/2: each is one request whose body and answer are streams of frames, on a
//! connection of its own.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Incoming;
use hyper::client;
use hyper_util::rt::{TokioIo, TokioTimer};
use steadfast_flow::{BoxFuture, Env, Lease, LeasedIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub use crate::transport::pinned::PinnedTls;

mod pinned;

/// The path of links.
pub(crate) const PATH: &str = "/link";

/// Flow control window in each direction, bytes. A node that stops reading a link holds back at
/// most this much, and the other node's outbox.
pub(crate) const WINDOW: u32 = 4 << 20;

/// Interval of pings of the connection, and timeout of their acknowledgement. They close the
/// connection of a link that has ended, if the other machine has vanished.
pub(crate) const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// The bytes that arrive on a link.
pub type Wire = BoxStream<'static, Result<Bytes, String>>;

/// Opens connections to other nodes.
pub trait Transport: Send + Sync {
    /// Connects to `address`, sends `frames` and returns the bytes that arrive.
    ///
    /// # Errors
    /// The node cannot be reached; the text is for operators.
    fn open(&self, address: &str, frames: BoxStream<'static, Bytes>) -> BoxFuture<'static, Result<Wire, String>>;
}

/// Links over HTTP/2, with TLS if it is configured.
pub struct HttpTransport {
    env: Env,
    tls: Option<PinnedTls>,
    lease: Lease,
}

impl HttpTransport {
    /// Connects from the runtime of `env`, while the lease holds.
    pub fn new(env: Env, tls: Option<PinnedTls>, lease: Lease) -> Self {
        Self { env, tls, lease }
    }
}

impl Transport for HttpTransport {
    fn open(&self, address: &str, frames: BoxStream<'static, Bytes>) -> BoxFuture<'static, Result<Wire, String>> {
        let (env, tls, address) = (self.env.clone(), self.tls.clone(), address.to_owned());
        let lease = self.lease.clone();
        Box::pin(async move {
            if !lease.holds() {
                return Err("the lease of this server has ended".to_owned());
            }
            let tcp = TcpStream::connect(&address).await.map_err(|e| format!("cannot connect to {address}: {e}"))?;
            tcp.set_nodelay(true).map_err(|e| e.to_string())?;
            let tcp = LeasedIo::new(tcp, Some(lease));
            match tls {
                None => request(tcp, &env, frames).await,
                Some(tls) => request(tls.connect(tcp).await?, &env, frames).await,
            }
        })
    }
}

/// Spawns the tasks of HTTP/2.
#[derive(Clone)]
pub(crate) struct Tasks(pub(crate) Env);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.spawn("cluster connection", task);
    }
}

/// The body of a request or an answer that sends `frames`.
pub(crate) fn body(
    frames: BoxStream<'static, Bytes>,
) -> StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>> {
    StreamBody::new(frames.map(|bytes| Ok(Frame::data(bytes))).boxed())
}

/// Why a connection is lost. The text of the error itself says only what hyper did meanwhile.
fn lost(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("the connection is lost: {source}"),
        None => format!("the connection is lost: {error}"),
    }
}

/// The bytes that arrive in a body.
pub(crate) fn bytes_of(body: Incoming) -> Wire {
    let data = async |frame: Result<Frame<Bytes>, hyper::Error>| match frame {
        Ok(frame) => frame.into_data().ok().map(Ok),
        Err(e) => Some(Err(lost(&e))),
    };
    BodyStream::new(body).filter_map(data).boxed()
}

async fn request<T>(io: T, env: &Env, frames: BoxStream<'static, Bytes>) -> Result<Wire, String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = client::conn::http2::Builder::new(Tasks(env.clone()))
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|e| format!("the handshake of HTTP/2 failed: {e}"))?;
    env.spawn("cluster connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "cluster: a connection ended");
        }
    });
    let request = Request::post(format!("http://node{PATH}")).body(body(frames)).map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await.map_err(|e| lost(&e))?;
    if answer.status() != StatusCode::OK {
        return Err(format!("this address is no port for links: it answers {}", answer.status()));
    }
    // The connection ends with its last handle.
    Ok(bytes_of(answer.into_body()).map(move |bytes| (&sender, bytes).1).boxed())
}
