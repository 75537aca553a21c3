//! The links of a node: one to each other node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use steadfast_flow::{Env, log_rarely};
use tokio::sync::{oneshot, watch};

use crate::events::LinkEvents;
use crate::frame::Hello;
use crate::handshake::{HANDSHAKE, Identity, Peer, Refusal, random_bytes};
use crate::link::{Incoming, Serving, ping, run};
use crate::name_taken::NameTaken;
use crate::namespaces::{Namespaces, in_words};
use crate::outbox::Outbox;
use crate::roster::{NodeIndex, Roster};
use crate::sabotage::ClusterSabotage;
use crate::status::{ClusterStatus, LinkCounters, LinkState, LinkStatus, NodeStatus, RefusedProcess};
use crate::tenure::{OwnTenure, Tenures};

/// Time that a stop waits for the answers to requests of other nodes, and for their closing of the
/// links.
const ANSWERS: Duration = Duration::from_secs(2);
const CLOSE: Duration = Duration::from_secs(1);

/// How long the status shows a process that was refused.
const REFUSED_SHOWN: Duration = Duration::from_secs(60);

/// Settings of a node.
pub struct ClusterOptions {
    /// The nodes.
    pub roster: Arc<Roster>,
    /// The namespaces of this node.
    pub namespaces: Namespaces,
    /// The secret that all nodes have.
    pub secret: Vec<u8>,
    /// The tenure of this process.
    pub tenure: OwnTenure,
    /// Bytes that may wait to be sent on a link. A link above it is closed.
    pub outbox_bytes_max: u64,
}

/// The newest link to a node.
#[derive(Default)]
struct Newest {
    incarnation: Bytes,
    number: u64,
    /// The other end.
    address: String,
    outbox: Option<Outbox>,
}

/// What the status shows of a node's link.
struct Shown {
    up: bool,
    since: Duration,
    established: u64,
    /// Why there is no link, by the address of the other end in the list of nodes.
    errors: BTreeMap<String, String>,
    differing: Vec<String>,
    /// The address of a further process that was refused, and when.
    refused: Option<(String, Duration)>,
}

impl Shown {
    fn new(since: Duration) -> Self {
        let errors = BTreeMap::new();
        Self { up: false, since, established: 0, errors, differing: Vec::new(), refused: None }
    }

    fn error(&self) -> Option<String> {
        let errors: Vec<&str> = self.errors.values().map(String::as_str).collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    fn refused(&self, now: Duration) -> Option<RefusedProcess> {
        let (address, at) = self.refused.as_ref()?;
        let ago = now.saturating_sub(*at);
        (ago < REFUSED_SHOWN).then(|| RefusedProcess { address: address.clone(), ago_s: ago.as_secs() })
    }
}

/// The links to one node, of which at most one is served at a time.
struct Slot {
    newest: Mutex<Newest>,
    /// Held while a link is served, so that a link begins after the older one has ended.
    serving: tokio::sync::Mutex<()>,
    shown: Mutex<Shown>,
    counters: LinkCounters,
}

struct Inner {
    identity: Identity,
    outbox_bytes_max: u64,
    sabotage: ClusterSabotage,
    events: Arc<dyn LinkEvents>,
    env: Env,
    slots: Vec<Slot>,
    /// Whether links are served.
    started: watch::Sender<bool>,
    /// Why this process must end.
    taken: watch::Sender<Option<NameTaken>>,
}

/// The links of a node. Clones share them.
#[derive(Clone)]
pub struct Links(Arc<Inner>);

impl Links {
    /// A node without links. [`Dialer::start`] opens them.
    pub fn new(options: ClusterOptions, events: Arc<dyn LinkEvents>, env: Env) -> Self {
        Self::with_sabotage(options, events, env, ClusterSabotage::None)
    }

    /// The same, broken on purpose.
    #[doc(hidden)]
    pub fn with_sabotage(
        options: ClusterOptions,
        events: Arc<dyn LinkEvents>,
        env: Env,
        sabotage: ClusterSabotage,
    ) -> Self {
        let since = env.now();
        let slot = |_| Slot {
            newest: Mutex::default(),
            serving: tokio::sync::Mutex::default(),
            shown: Mutex::new(Shown::new(since)),
            counters: LinkCounters::default(),
        };
        let slots: Vec<Slot> = options.roster.nodes().map(slot).collect();
        let ClusterOptions { roster, namespaces, secret, tenure, outbox_bytes_max } = options;
        let tenures = Tenures::new(slots.len(), roster.own(), tenure);
        let identity = Identity { roster, namespaces, secret, incarnation: random_bytes(&env), tenures };
        let (started, taken) = (watch::Sender::default(), watch::Sender::default());
        Self(Arc::new(Inner { identity, outbox_bytes_max, sabotage, events, env, slots, started, taken }))
    }

    pub(crate) fn env(&self) -> &Env {
        &self.0.env
    }

    /// What this process says of itself.
    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// A new outbox, and the frames that leave it.
    pub(crate) fn outbox(&self) -> (Outbox, impl Stream<Item = Bytes> + Send + use<> + 'static) {
        Outbox::with_sabotage(self.0.outbox_bytes_max, self.0.sabotage)
    }

    /// The nodes.
    pub fn roster(&self) -> &Roster {
        &self.0.identity.roster
    }

    /// From now on, links are served, until `stop` is set. Then the requests under way are
    /// answered, and all links are closed; the receiver completes.
    pub(crate) fn start(&self, stop: &watch::Receiver<bool>) -> oneshot::Receiver<()> {
        self.0.started.send_replace(true);
        let (links, mut stop) = (self.clone(), stop.clone());
        let (done, ended) = oneshot::channel();
        self.0.env.spawn("cluster stop", async move {
            let _ = stop.wait_for(|stop| *stop).await;
            links.close().await;
            let _ = done.send(());
        });
        ended
    }

    /// Answers the requests under way, and closes all links.
    async fn close(&self) {
        let Inner { events, env, slots, .. } = &*self.0;
        if env.timeout(ANSWERS, events.finish()).await.is_none() {
            tracing::warn!("cluster: requests of other nodes are not answered, because they take too long");
        }
        let outboxes = || slots.iter().filter_map(|slot| slot.newest.lock().outbox.clone());
        outboxes().for_each(|outbox| outbox.finish());
        // The other nodes close their side when they have got all.
        let closed = async {
            for slot in slots {
                drop(slot.serving.lock().await);
            }
        };
        let _ = env.timeout(CLOSE, closed).await;
        outboxes().for_each(|outbox| outbox.close());
    }

    /// This process must end.
    pub(crate) fn must_end(&self, why: NameTaken) {
        self.0.taken.send_if_modified(|taken| {
            let is_news = taken.is_none();
            taken.get_or_insert(why);
            is_news
        });
    }

    /// Notes why this node's own address does not answer, and logs it if it is news.
    pub(crate) fn own_address_fails(&self, address: &str, why: String) {
        let (roster, mut shown) = (self.roster(), self.0.slots[usize::from(self.roster().own().0)].shown.lock());
        if shown.errors.get(address) != Some(&why) {
            let name = roster.name(roster.own());
            tracing::warn!(
                "cluster: this node, {name:?}, cannot reach itself at {address}, its address in cluster.nodes: {why}"
            );
            shown.errors.insert(address.to_owned(), why);
        }
    }

    /// Completes when another node has refused this process as the second of its name for about ten
    /// seconds, or has seen a later tenure of it, with the reason.
    pub(crate) async fn taken(&self) -> NameTaken {
        let mut taken = self.0.taken.subscribe();
        let found = taken.wait_for(Option::is_some).await;
        found.ok().and_then(|why| why.clone()).expect("the sender lives as long as this")
    }

    /// Checks that no other process has the name of a node. The process of an older link must have
    /// been silent for so long that the link is lost, or be superseded.
    fn admit(&self, node: NodeIndex, hello: &Hello, from: &str) -> Result<(), String> {
        let Inner { identity, slots, .. } = &*self.0;
        let slot = &slots[usize::from(node.0)];
        if node == self.roster().own() {
            if hello.incarnation != identity.incarnation {
                let name = self.roster().name(node);
                log_rarely!(warn, "cluster: another process has the name of this node, {name:?}, at {from}");
            }
            return Ok(());
        }
        identity.tenures.check(node, &hello.tenure)?;
        let newest = slot.newest.lock();
        let is_open = newest.outbox.as_ref().is_some_and(|outbox| !outbox.is_closed());
        if !is_open
            || newest.incarnation == hello.incarnation
            || hello.tenure.supersedes(&identity.tenures.latest(node))
        {
            return Ok(());
        }
        slot.shown.lock().refused = Some((from.to_owned(), self.0.env.now()));
        let (name, address) = (self.roster().name(node), &newest.address);
        log_rarely!(
            warn,
            "cluster: a second process with the name {name:?} is refused, at {from}: the other is at {address}"
        );
        Err(format!(
            "another process with the name {name:?} is connected, at {address}, and this one is at {from}: each process needs its \
             own cluster.name"
        ))
    }

    /// Answers a node that opens a link, and serves the link. `from` is the node's address. Calls
    /// `proved` once the node has proved that it has the secret. Returns the frames to send to it;
    /// they end with the link.
    pub fn accept(
        &self,
        incoming: BoxStream<'static, Result<Bytes, String>>,
        from: String,
        proved: impl FnOnce() + Send + 'static,
    ) -> BoxStream<'static, Bytes> {
        let (outbox, frames) = self.outbox();
        let links = self.clone();
        self.0.env.spawn_critical("cluster link", async move {
            let Inner { identity, env, .. } = &*links.0;
            let mut incoming = Incoming::new(incoming);
            let admit = |node, hello: &Hello| links.admit(node, hello, &from);
            match env.timeout(HANDSHAKE, identity.answer(&mut incoming, &outbox, admit, env)).await {
                Some(Ok(None)) => {}
                Some(Ok(Some(peer))) => {
                    proved();
                    // Without the sessions, a home would drop what the other node says.
                    let _ = links.0.started.subscribe().wait_for(|started| *started).await;
                    let node = peer.node;
                    let why = links.serve(peer, from, incoming, &outbox).await;
                    links.failed(node, identity.roster.address(node), why);
                }
                Some(Err(Refusal::Node(node, why))) => links.failed(node, identity.roster.address(node), why),
                Some(Err(Refusal::Superseded(why))) => links.must_end(NameTaken::Superseded(why)),
                Some(Err(Refusal::Stranger(why))) => log_rarely!(warn, "cluster: a link is refused: {why}"),
                None => tracing::debug!("cluster: a connection without a handshake is closed"),
            }
        });
        frames.boxed()
    }

    /// Serves a link until it ends, and returns why it did.
    pub(crate) async fn serve(&self, peer: Peer, address: String, mut incoming: Incoming, outbox: &Outbox) -> String {
        let Inner { env, slots, events, .. } = &*self.0;
        let slot = &slots[usize::from(peer.node.0)];
        let (older, restarted) = {
            let mut newest = slot.newest.lock();
            if newest.incarnation == peer.incarnation && newest.number >= peer.number {
                return "a newer link has replaced it".to_owned();
            }
            if let Err(why) = self.0.identity.tenures.note(peer.node, &peer.tenure) {
                return why;
            }
            let restarted = !newest.incarnation.is_empty() && newest.incarnation != peer.incarnation;
            let (incarnation, number) = (peer.incarnation, peer.number);
            let newer = Newest { incarnation, number, address, outbox: Some(outbox.clone()) };
            (std::mem::replace(&mut *newest, newer), restarted)
        };
        if let Some(older) = older.outbox {
            older.close();
        }
        // An older link is never read again.
        let _serving = slot.serving.lock().await;
        assert!(*self.0.started.borrow(), "a link is served before the sessions can take what it says");
        {
            let mut shown = slot.shown.lock();
            assert!(!shown.up, "two links of a node are served at a time");
            (shown.up, shown.since, shown.established) = (true, env.now(), shown.established + 1);
            tracing::info!(node = self.roster().name(peer.node), "cluster: the link is up");
            shown.errors.clear();
            if !peer.differing.is_empty() && shown.differing != peer.differing {
                tracing::warn!(
                    node = self.roster().name(peer.node),
                    "cluster: the node has other options for {}: they should be the same on all nodes",
                    in_words(&peer.differing)
                );
            }
            shown.differing = peer.differing;
        }
        incoming.established();
        env.spawn("cluster ping", ping(env.clone(), outbox.clone()));
        events.on_up(peer.node, outbox, restarted);
        let why = run(env, &mut incoming, &Serving { node: peer.node, outbox, events, counters: &slot.counters }).await;
        outbox.close();
        events.on_down(peer.node);
        let mut shown = slot.shown.lock();
        (shown.up, shown.since) = (false, env.now());
        why
    }

    /// Notes why there is no link, and logs it if it is news.
    pub(crate) fn failed(&self, node: NodeIndex, address: &str, why: String) {
        let mut shown = self.0.slots[usize::from(node.0)].shown.lock();
        // A further link of a node that has one already fails alone.
        if !shown.up && shown.errors.get(address) != Some(&why) {
            tracing::warn!(node = self.roster().name(node), "cluster: the link is down: {why}");
            shown.errors.insert(address.to_owned(), why);
        }
    }

    /// The state of all links.
    pub fn status(&self) -> ClusterStatus {
        let (roster, now) = (self.roster(), self.0.env.now());
        let link = |node: NodeIndex| {
            let slot = &self.0.slots[usize::from(node.0)];
            let (outbox_bytes, peer) = {
                let newest = slot.newest.lock();
                (newest.outbox.as_ref().map_or(0, Outbox::bytes), newest.address.clone())
            };
            let shown = slot.shown.lock();
            LinkStatus {
                state: if shown.up { LinkState::Up } else { LinkState::Down },
                since_s: now.saturating_sub(shown.since).as_secs(),
                round_trip_us: slot.counters.round_trip_us(),
                outbox_bytes: if shown.up { outbox_bytes } else { 0 },
                established: shown.established,
                frames_received: slot.counters.frames_received(),
                peer: shown.up.then_some(peer),
                tenure: self.0.identity.tenures.latest(node).number,
                error: shown.error(),
                differing_namespaces: shown.differing.clone(),
                refused: shown.refused(now),
            }
        };
        let node = |node: NodeIndex| NodeStatus {
            name: roster.name(node).to_owned(),
            address: roster.address(node).to_owned(),
            standby: roster.standby(node).map(str::to_owned),
            home: roster.homes().iter().any(|home| home == roster.name(node)),
            link: (node != roster.own()).then(|| link(node)),
        };
        ClusterStatus {
            name: roster.name(roster.own()).to_owned(),
            outbox_bytes_max: self.0.outbox_bytes_max,
            nodes: roster.nodes().map(node).collect(),
        }
    }
}
