//! The server: one listener for a set of exports.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::{Connection, Connections, Env, log_rarely};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::{Semaphore, watch};

use crate::connection::transmit;
use crate::handshake::negotiate;
use crate::listen::{Listener, Stream};
use crate::peer::Peer;
use crate::{Export, Limits, Listen, ListenError};

/// Bytes read from a socket at once: the headers of many requests, or a few small writes.
const INPUT_BYTES: usize = 32 << 10;
/// The address of all connections in their table: they come from this machine.
const ALL_CLIENTS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Time in which a connection that must close does so.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// One listener for a set of exports.
pub struct Server {
    listener: Listener,
    shared: Arc<Shared>,
}

struct Shared {
    exports: Vec<Arc<Export>>,
    limits: Limits,
    env: Env,
}

impl Server {
    /// Binds the listener. The empty name also means the first export.
    ///
    /// # Errors
    /// When the address is not on loopback or in use, when there are no exports, or when two have
    /// the same name.
    pub async fn bind(
        listen: &Listen,
        exports: Vec<Arc<Export>>,
        limits: Limits,
        env: Env,
    ) -> Result<Self, ListenError> {
        let same = |(i, export): (usize, &Arc<Export>)| {
            exports.iter().skip(i + 1).any(|other| other.name() == export.name()).then(|| export.name().to_owned())
        };
        let double = exports.iter().enumerate().find_map(same);
        if let Some(name) = double.or_else(|| exports.is_empty().then(String::new)) {
            return Err(ListenError::Exports(name));
        }
        let listener = Listener::bind(listen).await?;
        Ok(Self { listener, shared: Arc::new(Shared { exports, limits: limits.usable(), env }) })
    }

    /// The listening address, with the port that the system chose.
    ///
    /// # Errors
    /// That of the operating system.
    pub fn local(&self) -> io::Result<Listen> {
        self.listener.local()
    }

    /// Serves until `shutdown` completes. The server then completes requests in flight, sends their
    /// replies and flushes the disks, each within [`Limits::shutdown_timeout`].
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, shared } = self;
        let Shared { exports, limits, env } = &*shared;
        let places = Arc::new(Semaphore::new(limits.connections_max));
        let (stop, stopped) = watch::channel(false);
        tokio::select! {
            () = shutdown => {}
            () = accept(&listener, &shared, &places, &stopped) => {}
        }
        let _ = stop.send(true);
        // The listener closes before the wait, so that clients are refused instead of hanging.
        drop(listener);
        let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
        if env.timeout(limits.shutdown_timeout, places.acquire_many(all)).await.is_none() {
            tracing::warn!("requests were still in flight when the server shut down");
        }
        let flushes = futures::future::join_all(exports.iter().map(|export| export.sync()));
        match env.timeout(limits.shutdown_timeout, flushes).await {
            Some(results) if results.iter().all(Result::is_ok) => {}
            Some(_) => tracing::error!("an export could not be flushed when the server shut down"),
            None => tracing::error!("the flush of an export did not end when the server shut down"),
        }
    }
}

async fn accept(listener: &Listener, shared: &Arc<Shared>, places: &Arc<Semaphore>, stopped: &watch::Receiver<bool>) {
    let env = &shared.env;
    let connections = Connections::new(usize::MAX, env.clone());
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                log_rarely!(warn, %error, "cannot accept a connection");
                env.sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let place = match places.clone().try_acquire_owned() {
            // The oldest handshake makes place: clients that only connect must not keep others out.
            Err(_) if connections.close_idle(Duration::ZERO) => {
                env.timeout(CLOSE_WAIT, places.clone().acquire_owned()).await.and_then(Result::ok)
            }
            place => place.ok(),
        };
        let Some(place) = place else {
            let unix = listener.is_unix();
            log_rarely!(warn, unix, "a connection was refused: the server has reached connections_max");
            continue;
        };
        let Some(connection) = connections.open(ALL_CLIENTS, true) else { continue };
        let (shared, stopped) = (shared.clone(), stopped.clone());
        env.spawn("nbd", async move {
            let Shared { exports, limits, env } = &*shared;
            let served = async {
                let peer = Peer::new(&stream)?;
                match stream {
                    Stream::Unix(stream) => {
                        let (input, output) = stream.into_split();
                        serve_stream(input, output, (&peer, &connection), exports, limits, env, stopped).await
                    }
                    Stream::Tcp(stream) => {
                        let (input, output) = stream.into_split();
                        serve_stream(input, output, (&peer, &connection), exports, limits, env, stopped).await
                    }
                }
            };
            if let Err(error) = served.await {
                log_rarely!(info, %error, "a connection ended");
            }
            drop(place);
        });
    }
}

/// Serves one client. Its connection is idle during the handshake, and closes then if it must.
///
/// # Errors
/// Those of the socket and of the protocol, which end the connection.
pub(crate) async fn serve_stream(
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    (peer, connection): (&Peer, &Connection),
    exports: &[Arc<Export>],
    limits: &Limits,
    env: &Env,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(INPUT_BYTES, input);
    let handshake = env.timeout(limits.handshake_timeout, negotiate(&mut input, &mut output, exports));
    let session = tokio::select! {
        session = handshake => match session {
            Some(session) => session?,
            None => return Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")),
        },
        () = connection.closing().requested() => {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a newer connection took the place of a handshake"));
        }
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    connection.busy();
    match session {
        Some(session) => transmit(input, output, peer, session, env, stopped).await,
        None => Ok(()),
    }
}
