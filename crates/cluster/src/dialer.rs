//! Opens the links to a node, at its address or at that of its standby.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{oneshot, watch};

use crate::handshake::{HANDSHAKE, OpenError, Peer};
use crate::link::Incoming;
use crate::links::Links;
use crate::name_taken::NameTaken;
use crate::outbox::Outbox;
use crate::roster::NodeIndex;
use crate::tenure::Tenure;
use crate::transport::Transport;

/// Pause before a link is opened again, and the random time that is added to it, milliseconds.
const RETRY_MS: (u64, u64) = (300, 300);

/// Interval at which a node looks for a later tenure at the other address of a home.
const OTHER_ADDRESS_EVERY: Duration = Duration::from_secs(5);

/// Refusals one after the other, about ten seconds, after which a process is the second of its
/// name. The old link of a process that has lost its machine is lost in three.
const DUPLICATES_MAX: u32 = 23;

/// A link that this process has opened, before it is served.
struct Reached {
    peer: Peer,
    /// Which address of the node it is, in the list of nodes.
    address: String,
    incoming: Incoming,
    outbox: Outbox,
}

/// Opens the links to one other node.
pub struct Dialer {
    links: Links,
    node: NodeIndex,
    transport: Arc<dyn Transport>,
    /// The number of the link that was opened last.
    opened: AtomicU64,
}

impl Dialer {
    /// Opens the links to the nodes whose names are less than this one's; the others open theirs.
    /// From now on, links are served. A lost link is opened again until `stop` is set. Then the
    /// requests under way are answered, and all links are closed; the receiver completes.
    pub fn start(links: &Links, transport: &Arc<dyn Transport>, stop: &watch::Receiver<bool>) -> oneshot::Receiver<()> {
        let (roster, ended) = (links.roster(), links.start(stop));
        for node in roster.nodes().filter(|node| roster.name(*node) < roster.name(roster.own())) {
            let dialer = Self { links: links.clone(), node, transport: transport.clone(), opened: AtomicU64::new(0) };
            links.env().spawn_critical("cluster link", dialer.run(stop.clone()));
        }
        ended
    }

    async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut later = None;
        while !*stop.borrow() {
            let reached = match later.take() {
                Some(reached) => reached,
                None => tokio::select! {
                    reached = self.reach() => reached,
                    _ = stop.wait_for(|stop| *stop) => return,
                },
            };
            let Reached { peer, address, incoming, outbox } = reached;
            let why = {
                let elsewhere = self.later_than(peer.tenure.clone(), &address);
                let mut served = pin!(self.links.serve(peer, address.clone(), incoming, &outbox));
                tokio::select! {
                    why = &mut served => why,
                    reached = elsewhere => {
                        later = Some(reached);
                        outbox.close();
                        served.await
                    }
                }
            };
            self.links.failed(self.node, &address, why);
            if later.is_none() {
                tokio::select! {
                    () = self.pause() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
            }
        }
    }

    /// Opens a link to the address of a node that answers first. The one of the standby is tried a
    /// little later, as the other one answers at once where all is well.
    async fn reach(&self) -> Reached {
        let dial = async |address: &str| {
            if address != self.links.roster().address(self.node) {
                self.pause().await;
            }
            self.dial(address).await
        };
        let mut dials: FuturesUnordered<_> = self.links.roster().addresses(self.node).map(dial).collect();
        dials.next().await.expect("a node has an address")
    }

    /// Waits until a process of a later tenure answers at another address of a node. The process
    /// that this node has a link to may not know of it.
    async fn later_than(&self, tenure: Tenure, at: &str) -> Reached {
        loop {
            self.links.env().sleep(OTHER_ADDRESS_EVERY).await;
            for address in self.links.roster().addresses(self.node).filter(|address| *address != at) {
                if let Ok(reached) = self.open(address, Some(&tenure)).await {
                    return reached;
                }
            }
        }
    }

    async fn pause(&self) {
        let ms = RETRY_MS.0 + self.links.env().random_u64() % RETRY_MS.1;
        self.links.env().sleep(Duration::from_millis(ms)).await;
    }

    /// Opens a link to an address of a node, again and again until that succeeds.
    async fn dial(&self, address: &str) -> Reached {
        let mut duplicates = 0;
        loop {
            let why = match self.open(address, None).await {
                Ok(reached) => return reached,
                Err(OpenError::Duplicate(why)) => {
                    duplicates += 1;
                    if duplicates == DUPLICATES_MAX {
                        self.links.must_end(NameTaken::Duplicate(why.clone()));
                    }
                    why
                }
                Err(OpenError::Superseded(why)) => {
                    self.links.must_end(NameTaken::Superseded(why.clone()));
                    why
                }
                Err(OpenError::Failed(why)) => {
                    duplicates = 0;
                    why
                }
            };
            self.links.failed(self.node, address, why);
            self.pause().await;
        }
    }

    /// Opens a link to an address of a node, if the process there has a later tenure than `than`.
    async fn open(&self, address: &str, than: Option<&Tenure>) -> Result<Reached, OpenError> {
        let (node, identity, env) = (self.node, self.links.identity(), self.links.env());
        let number = self.opened.fetch_add(1, Relaxed) + 1;
        let (outbox, frames) = self.links.outbox();
        let opened = async {
            let incoming = self.transport.open(address, frames.boxed()).await?;
            let mut incoming = Incoming::new(incoming);
            let peer = identity.open(node, (number, than), &mut incoming, &outbox, env).await?;
            identity.tenures.check(node, &peer.tenure)?;
            Ok::<_, OpenError>((peer, incoming))
        };
        let (peer, incoming) = env
            .timeout(HANDSHAKE, opened)
            .await
            .unwrap_or_else(|| Err(format!("no answer from {address} within {} s", HANDSHAKE.as_secs()).into()))?;
        Ok(Reached { peer, address: address.to_owned(), incoming, outbox })
    }
}
