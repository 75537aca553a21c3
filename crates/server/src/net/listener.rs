//! One port: accepts connections up to a limit, hands each to its door, stops gracefully.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use steadfast_flow::{Connection, Connections, Env, Lease, LeasedIo, Throttle};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// Maximum number of connections to the admin port.
pub const ADMIN_CONNECTIONS: usize = 64;
/// Time that a connection may be idle while its port is full, unless the port has another.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);
/// Interval at which a full port looks for an idle connection.
const CLOSE_IDLE_EVERY: Duration = Duration::from_millis(100);
/// Minimum time between two log lines about failures to accept.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Serves a protocol on connections.
pub trait Door: Clone + Send + Sync + 'static {
    /// Maximum bytes of answers that the kernel holds unsent for a connection. A small number makes
    /// a slow reader visible before it fills megabytes in the kernel.
    const UNSENT_BYTES_MAX: libc::c_int = 128 << 10;

    /// Serves one connection until it ends. When `stop` completes, the connection ends after its
    /// request in progress, if any. The door records in `connection` whether it is idle: a full
    /// port closes idle ones.
    fn serve<T>(
        &self,
        io: T,
        connection: Connection,
        peer: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static;
}

/// Counters of a port.
#[derive(Debug, Default)]
pub struct PortStats {
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections open.
    pub open: AtomicU64,
    /// Maximum number of connections.
    pub limit: AtomicU64,
    /// Times that accepting waited for a connection to end.
    pub at_bound: AtomicU64,
    /// TLS handshakes that failed, took too long, or were not TLS.
    pub tls_failed: AtomicU64,
    /// Idle connections that were closed because the port was full.
    pub idle_closed: AtomicU64,
    /// Connections refused because their address had its share.
    pub refused: AtomicU64,
}

/// Counts down when dropped.
struct Open(Arc<PortStats>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// TLS on a port.
#[derive(Clone)]
pub struct Tls {
    /// The acceptor with its certificate.
    pub acceptor: TlsAcceptor,
    /// Time limit of a handshake.
    pub timeout: Duration,
}

/// A bound port.
pub struct Port {
    listener: TcpListener,
    connections: usize,
    /// Maximum number of connections of one address.
    of_address: usize,
    /// Whether an address may have any number of connections, such as a proxy of many clients.
    exempt: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Time that a connection may be idle while the port is full.
    idle_when_full: Duration,
    tls: Option<Tls>,
    /// Until when its clients are answered; `None`: always.
    lease: Option<Lease>,
    stats: Arc<PortStats>,
}

impl Port {
    /// Binds `address`. At most `connections` are open; further ones wait to be accepted. `setting`
    /// is the name in errors.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub async fn bind(
        address: SocketAddr,
        connections: usize,
        tls: Option<Tls>,
        setting: &str,
    ) -> Result<Self, String> {
        let listener = TcpListener::bind(address).await.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => {
                format!("{setting}: {address} is in use by another process; stop it or listen elsewhere")
            }
            _ => format!("{setting}: cannot listen on {address}: {e}"),
        })?;
        let stats = PortStats { limit: AtomicU64::new(connections as u64), ..PortStats::default() };
        let exempt = Box::new(|_| false);
        Ok(Self {
            listener,
            connections,
            of_address: usize::MAX,
            exempt,
            idle_when_full: IDLE_WHEN_FULL,
            tls,
            lease: None,
            stats: Arc::new(stats),
        })
    }

    /// Bounds one address to `percent` of the connections; an `exempt` address is not bounded.
    #[must_use]
    pub fn share(mut self, percent: usize, exempt: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        self.of_address = (self.connections * percent).div_ceil(100).max(1);
        self.exempt = Box::new(exempt);
        self
    }

    /// Sets the time that a connection may be idle while the port is full.
    #[must_use]
    pub fn idle_when_full(mut self, time: Duration) -> Self {
        self.idle_when_full = time;
        self
    }

    /// Answers clients only while the lease holds.
    #[must_use]
    pub fn lease(mut self, lease: &Lease) -> Self {
        self.lease = Some(lease.clone());
        self
    }

    /// The address with the actual port.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Its counters.
    pub fn stats(&self) -> Arc<PortStats> {
        self.stats.clone()
    }

    /// Serves until `stop` is set, then waits up to `deadline` for the requests in progress and
    /// cuts off the rest. Returns the number of connections that were cut off.
    pub async fn run(self, env: Env, door: impl Door, mut stop: watch::Receiver<bool>, deadline: Duration) -> usize {
        let slots = Arc::new(Semaphore::new(self.connections));
        let connections = Connections::new(self.of_address, env.clone());
        let failure_log = Throttle::new(FAILURE_LOG_INTERVAL);
        let (cut, cut_watch) = watch::channel(false);
        let stopping = stop.clone();
        let accepting = async {
            loop {
                let (socket, peer) = match self.listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(e) => {
                        // Out of descriptors, or the connection has closed already: neither ends
                        // the server.
                        if let Some(more) = failure_log.pass(&env) {
                            tracing::warn!(error = %e, more, "cannot accept a connection (`more`: failures since the last such line)");
                        }
                        env.sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                if self.lease.as_ref().is_some_and(|lease| !lease.holds()) {
                    continue;
                }
                let Some(connection) = connections.open(peer.ip(), (self.exempt)(peer.ip())) else {
                    self.stats.refused.fetch_add(1, Relaxed);
                    continue;
                };
                // It is busy while it waits here; the others wait behind it in the kernel's queue.
                connection.busy();
                let slot = match slots.clone().try_acquire_owned() {
                    Ok(slot) => Some(slot),
                    Err(_) => {
                        self.stats.at_bound.fetch_add(1, Relaxed);
                        self.slot(&slots, &connections, &env).await
                    }
                };
                self.stats.accepted.fetch_add(1, Relaxed);
                self.stats.open.fetch_add(1, Relaxed);
                let open = Open(self.stats.clone());
                connection.idle();
                let (closing, stats) = (connection.closing(), self.stats.clone());
                let handshake =
                    Handshake { tls: self.tls.clone(), lease: self.lease.clone(), stats: self.stats.clone() };
                let served = serve(socket, connection, peer, door.clone(), handshake, env.clone(), stopping.clone());
                let cut = set(cut_watch.clone());
                env.spawn("connection", async move {
                    tokio::select! {
                        biased;
                        () = served => {}
                        () = closing.requested() => {
                            stats.idle_closed.fetch_add(1, Relaxed);
                        }
                        () = cut => {}
                    }
                    drop((open, slot));
                });
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = accepting => {}
        }
        drop(self.listener);
        let all = u32::try_from(self.connections).unwrap_or(u32::MAX);
        if env.timeout(deadline, slots.acquire_many(all)).await.is_some() {
            return 0;
        }
        let left = self.connections - slots.available_permits();
        let _ = cut.send(true);
        drop(slots.acquire_many(all).await);
        left
    }
}

impl Port {
    /// Waits for a slot and closes idle connections meanwhile.
    async fn slot(&self, slots: &Arc<Semaphore>, connections: &Connections, env: &Env) -> Option<OwnedSemaphorePermit> {
        let mut waiting = std::pin::pin!(slots.clone().acquire_owned());
        loop {
            connections.close_idle(self.idle_when_full);
            tokio::select! {
                biased;
                // The semaphore is never closed.
                slot = waiting.as_mut() => return slot.ok(),
                () = env.sleep(CLOSE_IDLE_EVERY) => {}
            }
        }
    }
}

/// Completes when the flag is set or its sender is dropped.
async fn set(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

/// The handshake of a connection before its door gets it.
struct Handshake {
    tls: Option<Tls>,
    lease: Option<Lease>,
    stats: Arc<PortStats>,
}

async fn serve<D: Door>(
    socket: TcpStream,
    connection: Connection,
    peer: SocketAddr,
    door: D,
    handshake: Handshake,
    env: Env,
    stop: watch::Receiver<bool>,
) {
    if let Err(e) = socket.set_nodelay(true) {
        tracing::debug!(%peer, error = %e, "cannot set TCP_NODELAY");
    }
    if let Err(e) = keep_unsent(&socket, D::UNSENT_BYTES_MAX) {
        tracing::debug!(%peer, error = %e, "cannot set TCP_NOTSENT_LOWAT");
    }
    let Handshake { tls, lease, stats } = handshake;
    let Some(tls) = tls else { return door.serve(LeasedIo::new(socket, lease), connection, peer, set(stop)).await };
    let handshake = async {
        let mut first = [0];
        if socket.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            return Ok(Err(socket));
        }
        tls.acceptor.accept(socket).await.map(Ok)
    };
    let shaken = env.timeout(tls.timeout, handshake).await;
    if !matches!(shaken, Some(Ok(Ok(_)))) {
        stats.tls_failed.fetch_add(1, Relaxed);
    }
    match shaken {
        Some(Ok(Ok(io))) => door.serve(LeasedIo::new(io, lease), connection, peer, set(stop)).await,
        Some(Ok(Err(plain))) => {
            tracing::debug!(%peer, "HTTP without TLS");
            let _ = env.timeout(tls.timeout, refuse_plain(plain)).await;
        }
        Some(Err(e)) => tracing::debug!(%peer, error = %e, "TLS handshake failed"),
        None => tracing::debug!(%peer, "TLS handshake took too long"),
    }
}

/// Limits the unsent bytes that the kernel accepts to about `bytes`.
fn keep_unsent(socket: &impl AsRawFd, bytes: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open while `socket` is borrowed, and the option is an integer of
    // the given size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Answers a client that speaks HTTP without TLS with an error in HTTP.
async fn refuse_plain(mut socket: TcpStream) -> io::Result<()> {
    let why = "this port speaks TLS: use https\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{why}",
        why.len()
    );
    // Closing a socket with unread bytes resets the connection, and the client might miss the
    // answer.
    let _ = socket.read(&mut [0; 8192]).await?;
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Echoes each byte; when stopped, ends after the next one.
    #[derive(Clone, Default)]
    struct Echo(Arc<AtomicUsize>);

    impl Door for Echo {
        async fn serve<T>(
            &self,
            mut io: T,
            connection: Connection,
            _peer: SocketAddr,
            stop: impl Future<Output = ()> + Send + 'static,
        ) where
            T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        {
            self.0.fetch_add(1, Relaxed);
            let mut stop = std::pin::pin!(stop);
            loop {
                let stopped = futures::poll!(stop.as_mut()).is_ready();
                match io.read_u8().await {
                    Ok(byte) if io.write_u8(byte).await.is_ok() && !stopped => connection.idle(),
                    _ => return,
                }
            }
        }
    }

    async fn start(
        connections: usize,
    ) -> (SocketAddr, Arc<PortStats>, Echo, watch::Sender<bool>, tokio::sync::oneshot::Receiver<usize>) {
        let port = Port::bind("127.0.0.1:0".parse().expect("valid"), connections, None, "test").await.expect("bound");
        let (address, stats, door) = (port.address().expect("bound"), port.stats(), Echo::default());
        let (stop, stopped) = watch::channel(false);
        let (tx, rx) = tokio::sync::oneshot::channel();
        let (env, served) = (Env::tokio(), door.clone());
        Env::tokio().spawn("port", async move {
            let _ = tx.send(port.run(env, served, stopped, Duration::from_millis(100)).await);
        });
        (address, stats, door, stop, rx)
    }

    async fn talk(socket: &mut TcpStream) {
        socket.write_u8(7).await.expect("sent");
        assert_eq!(socket.read_u8().await.expect("answered"), 7);
    }

    #[tokio::test]
    async fn connections_over_the_bound_wait_for_others_to_end() {
        let (address, stats, door, _stop, _done) = start(1).await;
        let mut first = TcpStream::connect(address).await.expect("connected");
        talk(&mut first).await;
        let mut second = TcpStream::connect(address).await.expect("in the backlog");
        second.write_u8(7).await.expect("sent");
        while stats.at_bound.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((door.0.load(Relaxed), stats.open.load(Relaxed)), (1, 1));
        drop(first);
        assert_eq!(second.read_u8().await.expect("answered"), 7);
        assert_eq!(stats.accepted.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn a_full_port_closes_idle_connections() {
        let (address, stats, _door, _stop, _done) = start(3).await;
        let mut idle = Vec::new();
        for _ in 0..3 {
            let mut socket = TcpStream::connect(address).await.expect("connected");
            talk(&mut socket).await;
            idle.push(socket);
        }
        // It is served although none of the others ends by itself.
        let mut new = TcpStream::connect(address).await.expect("in the backlog");
        talk(&mut new).await;
        assert_eq!((stats.idle_closed.load(Relaxed), stats.open.load(Relaxed)), (1, 3));
        let mut gone = 0;
        for socket in &mut idle {
            let ended = Env::tokio().timeout(Duration::from_millis(50), socket.read_u8()).await;
            gone += usize::from(matches!(ended, Some(Err(_))));
        }
        assert_eq!(gone, 1);
    }

    #[tokio::test]
    async fn handshakes_that_fail_are_counted() {
        let config = tokio_rustls::rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(tokio_rustls::rustls::server::ResolvesServerCertUsingSni::new()));
        let tls = Tls { acceptor: TlsAcceptor::from(Arc::new(config)), timeout: Duration::from_millis(200) };
        let address = "127.0.0.1:0".parse().expect("valid");
        let port = Port::bind(address, 4, Some(tls), "test").await.expect("bound");
        let (address, stats) = (port.address().expect("bound"), port.stats());
        let (_stop, stopped) = watch::channel(false);
        Env::tokio().spawn("port", async move {
            port.run(Env::tokio(), Echo::default(), stopped, Duration::ZERO).await;
        });
        for (sent, failed) in [(&b"\x16nonsense"[..], 1), (b"GET / HTTP/1.1\r\n\r\n", 2), (b"", 3)] {
            let mut socket = TcpStream::connect(address).await.expect("connected");
            socket.write_all(sent).await.expect("sent");
            let _ = socket.read_to_end(&mut Vec::new()).await;
            assert_eq!(stats.tls_failed.load(Relaxed), failed);
        }
    }

    #[tokio::test]
    async fn a_stop_waits_for_what_is_served() {
        let (address, stats, _door, stop, done) = start(4).await;
        let mut socket = TcpStream::connect(address).await.expect("connected");
        talk(&mut socket).await;
        stop.send(true).expect("running");
        // The one that was waiting when the stop came, and the one after.
        talk(&mut socket).await;
        let _ = socket.write_u8(7).await;
        assert_eq!(done.await.expect("ended"), 0);
        assert_eq!(stats.open.load(Relaxed), 0);
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }

    #[tokio::test]
    async fn a_stop_cuts_off_what_does_not_end() {
        let (address, _stats, _door, stop, done) = start(4).await;
        let mut socket = TcpStream::connect(address).await.expect("connected");
        talk(&mut socket).await;
        stop.send(true).expect("running");
        assert_eq!(done.await.expect("ended"), 1);
        assert!(socket.read_u8().await.is_err());
    }
}
