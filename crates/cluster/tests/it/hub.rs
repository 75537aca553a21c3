//! A network in memory whose directions can be blocked, and nodes on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use steadfast_cluster::{ClusterOptions, LinkState, LinkStatus, Links, NodeAddress, Roster, Transport, Wire};
use steadfast_flow::{BoxFuture, Env};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) const OUTBOX_BYTES: u64 = 1 << 20;

/// The nodes that listen, and the blocked directions, by address.
#[derive(Clone, Default)]
pub(crate) struct Hub {
    listening: Arc<Mutex<HashMap<String, Links>>>,
    blocked: Arc<watch::Sender<Vec<(String, String)>>>,
}

/// The network as one node sees it.
struct Port {
    hub: Hub,
    own: String,
}

/// A running node.
pub(crate) struct Node {
    pub(crate) links: Links,
    stop: watch::Sender<bool>,
}

pub(crate) fn address(name: &str) -> String {
    format!("{name}:7000")
}

pub(crate) fn roster(own: &str, nodes: &[&str], homes: &[&str]) -> Roster {
    let nodes = nodes.iter().map(|name| NodeAddress { name: (*name).to_owned(), address: address(name) }).collect();
    let homes: Vec<String> = homes.iter().map(|home| (*home).to_owned()).collect();
    Roster::new(own, nodes, &homes).expect("a roster")
}

impl Hub {
    /// Bytes from `from` to `to` wait until [`Hub::heal`].
    pub(crate) fn block(&self, from: &str, to: &str) {
        self.blocked.send_modify(|blocked| blocked.push((address(from), address(to))));
    }

    pub(crate) fn heal(&self) {
        self.blocked.send_modify(Vec::clear);
    }

    /// The bytes of one direction; they wait while it is blocked.
    fn direction(&self, bytes: BoxStream<'static, Bytes>, from: &str, to: &str) -> Wire {
        let (blocked, way) = (self.blocked.subscribe(), (from.to_owned(), to.to_owned()));
        bytes
            .then(move |bytes| {
                let (mut blocked, way) = (blocked.clone(), way.clone());
                async move {
                    let _ = blocked.wait_for(|blocked| !blocked.contains(&way)).await;
                    Ok(bytes)
                }
            })
            .boxed()
    }

    /// Starts a node with the secret "secret".
    pub(crate) fn start(&self, roster: Roster) -> Node {
        self.start_with(roster, "secret")
    }

    pub(crate) fn start_with(&self, roster: Roster, secret: &str) -> Node {
        let own = roster.address(roster.own()).to_owned();
        let options = ClusterOptions { roster, secret: secret.into(), outbox_bytes_max: OUTBOX_BYTES };
        let links = Links::new(options, Env::tokio());
        self.listening.lock().insert(own.clone(), links.clone());
        let (stop, stopped) = watch::channel(false);
        let transport: Arc<dyn Transport> = Arc::new(Port { hub: self.clone(), own });
        links.start(&transport, &stopped);
        Node { links, stop }
    }
}

impl Transport for Port {
    fn open(&self, to: &str, frames: BoxStream<'static, Bytes>) -> BoxFuture<'static, Result<Wire, String>> {
        let (hub, own, to) = (self.hub.clone(), self.own.clone(), to.to_owned());
        Box::pin(async move {
            let listening = hub.listening.lock().get(&to).cloned().ok_or("nothing listens")?;
            let answer = listening.accept(hub.direction(frames, &own, &to));
            Ok(hub.direction(answer, &to, &own))
        })
    }
}

impl Node {
    pub(crate) fn link(&self, to: &str) -> LinkStatus {
        let node = self.links.status().nodes.into_iter().find(|node| node.name == to).expect("a node");
        node.link.expect("another node")
    }

    pub(crate) fn is_up(&self, to: &str) -> bool {
        self.link(to).state == LinkState::Up
    }

    pub(crate) fn stop(&self) {
        let _ = self.stop.send(true);
    }
}

/// Waits until `done`, for at most 10 s of the test's clock. Returns the time.
pub(crate) async fn until(mut done: impl FnMut() -> bool) -> Duration {
    let (env, begin) = (Env::tokio(), Instant::now());
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it did not happen");
        env.sleep(Duration::from_millis(1)).await;
    }
    begin.elapsed()
}
