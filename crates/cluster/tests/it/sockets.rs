//! Links over HTTP/2 on loopback, with and without TLS.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use steadfast_cluster::{
    Channels, ChannelsOptions, ClusterDoor, ClusterOptions, Dialer, HttpTransport, LinkState, Links, Namespaces,
    NodeAddress, OwnTenure, PinnedTls, Roster, Sessions, Tenure, Transport,
};
use steadfast_flow::{Connection, Env, Lease};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::hub::{Recorder, store, until};

/// Certificates of two clusters, made with
/// `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=c`.
const PEMS: [&str; 2] = [include_str!("one.pem"), include_str!("two.pem")];

fn tls(pem: &str) -> PinnedTls {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
    PinnedTls::new(vec![certificate], key).expect("a pair")
}

async fn start(own: &str, listeners: [TcpListener; 1], nodes: &[NodeAddress], tls: Option<PinnedTls>) -> Links {
    let env = Env::tokio();
    let roster = Arc::new(Roster::new(own, nodes.to_vec(), &["a".to_owned()]).expect("a roster"));
    let channels = Channels::new(Some(store().await), roster.clone(), &ChannelsOptions::default(), env.clone());
    let sessions: Arc<dyn Sessions> = Arc::new(Recorder::default());
    channels.set_sessions(&sessions);
    let (namespaces, secret) = (Namespaces::default(), b"secret".to_vec());
    let tenure: OwnTenure = Arc::new(Tenure::default);
    let options = ClusterOptions { roster, namespaces, secret, tenure, outbox_bytes_max: 1 << 20 };
    let links = Links::new(options, Arc::new(channels), env.clone());
    let door = ClusterDoor::new(links.clone(), env.clone());
    let [listener] = listeners;
    let accepting = tls.clone();
    env.clone().spawn("accept", async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let (door, tls) = (door.clone(), accepting.clone());
            let connection = Connection::alone(peer.ip(), env.clone());
            env.spawn("serve", async move {
                match tls {
                    None => door.serve(socket, connection, peer, std::future::pending()).await,
                    Some(tls) => {
                        if let Ok(io) = tls.acceptor().accept(socket).await {
                            door.serve(io, connection, peer, std::future::pending()).await;
                        }
                    }
                }
            });
        }
    });
    let transport: Arc<dyn Transport> =
        Arc::new(HttpTransport::new(Env::tokio(), tls, Lease::unlimited(&Env::tokio())));
    let (stop, stopped) = watch::channel(false);
    Dialer::start(&links, &transport, &stopped);
    // The links stay open as long as the test runs.
    std::mem::forget(stop);
    links
}

async fn pair(tls: [Option<PinnedTls>; 2]) -> (Links, Links) {
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        TcpListener::bind("127.0.0.1:0").await.expect("a port"),
    ];
    let node = |name: &str, listener: &TcpListener| NodeAddress {
        name: name.to_owned(),
        address: listener.local_addr().expect("bound").to_string(),
        standby: None,
    };
    let nodes = [node("a", &listeners[0]), node("b", &listeners[1])];
    let ([first, second], [tls_a, tls_b]) = (listeners, tls);
    (start("a", [first], &nodes, tls_a).await, start("b", [second], &nodes, tls_b).await)
}

fn is_up(links: &Links) -> bool {
    links.status().nodes.into_iter().filter_map(|node| node.link).all(|link| link.state == LinkState::Up)
}

#[tokio::test]
async fn links_come_up_with_and_without_tls() {
    for tls in [[None, None], [Some(tls(PEMS[0])), Some(tls(PEMS[0]))]] {
        let (a, b) = pair(tls).await;
        until(|| is_up(&a) && is_up(&b)).await;
        let measured = || b.status().nodes[0].link.as_ref().is_some_and(|link| link.round_trip_us.is_some());
        until(measured).await;
    }
}

#[tokio::test]
async fn another_certificate_is_refused() {
    for other in [Some(tls(PEMS[1])), None] {
        let (a, b) = pair([Some(tls(PEMS[0])), other]).await;
        until(|| b.status().nodes[0].link.as_ref().is_some_and(|link| link.error.is_some())).await;
        assert!(!is_up(&a) && !is_up(&b));
    }
}

/// Opens a connection of a stranger, sends a request without an end, and returns whether the port
/// closes the connection within some seconds.
async fn is_closed(links: &Links, path: &str, body: &'static [u8]) -> bool {
    let address = links.roster().address(links.roster().own()).to_owned();
    let io = TokioIo::new(TcpStream::connect(address).await.expect("connected"));
    let (mut sender, connection) = client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    // The body never ends.
    let frames = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(body)))]).chain(stream::pending());
    let request = Request::post(format!("http://node{path}")).body(StreamBody::new(frames.boxed())).expect("valid");
    Env::tokio().spawn("request", async move {
        let answer = sender.send_request(request).await;
        std::future::pending::<()>().await;
        drop((answer, sender));
    });
    Env::tokio().timeout(Duration::from_secs(8), connection).await.is_some()
}

#[tokio::test]
async fn a_connection_without_a_link_is_closed() {
    let (a, _b) = pair([None, None]).await;
    // No link, no handshake, and a frame that is too long for a handshake.
    let closed =
        tokio::join!(is_closed(&a, "/other", b""), is_closed(&a, "/link", b""), is_closed(&a, "/link", &[0xff; 4]));
    assert_eq!(closed, (true, true, true));
}
