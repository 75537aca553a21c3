//! A network in memory whose directions can be blocked, and nodes on it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use steadfast_cluster::{
    Channels, ChannelsOptions, ClientId, ClusterOptions, ClusterSabotage, Dialer, LinkEvents, LinkState, LinkStatus,
    Links, Member, MemberChange, NamespaceTerms, Namespaces, NodeAddress, OwnName, OwnTenure, Roster, Sessions, Tenure,
    Transport, Wire,
};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{BoxFuture, Env};
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{ChannelSink, IndexKind, Position, Publication, Store, StoreOptions};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) const OUTBOX_BYTES: u64 = 4 << 20;

/// How long the members of a lost node are kept. A link is found to be lost within 3 s.
pub(crate) const NODE_TTL: Duration = Duration::from_secs(5);

/// Memory for publications of other nodes.
pub(crate) const TAIL_BYTES: u64 = 64 << 10;

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

/// What the sessions of a node got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Epoch, offset and payload.
    Published(u32, u64, String),
    Reset(Position),
}

/// Sessions that record what they get, by channel.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<HashMap<String, Vec<Event>>>,
    /// Announced users, those that left with a minus.
    announced: Mutex<HashMap<String, Vec<String>>>,
    present: Mutex<HashMap<String, BTreeMap<ClientId, Member>>>,
    /// Bytes added to the answers to calls.
    pub(crate) answer_bytes: AtomicUsize,
    /// Whether publications are not taken for now.
    pub(crate) busy: watch::Sender<bool>,
}

impl Recorder {
    pub(crate) fn events(&self, channel: &str) -> Vec<Event> {
        self.events.lock().get(channel).cloned().unwrap_or_default()
    }

    /// The payloads of the channel, in their order.
    pub(crate) fn payloads(&self, channel: &str) -> Vec<String> {
        let payload = |event| match event {
            Event::Published(_, _, payload) => Some(payload),
            Event::Reset(_) => None,
        };
        self.events(channel).into_iter().filter_map(payload).collect()
    }

    pub(crate) fn announced(&self, channel: &str) -> Vec<String> {
        self.announced.lock().get(channel).cloned().unwrap_or_default()
    }

    /// The users that are present according to the home.
    pub(crate) fn present(&self, channel: &str) -> Vec<String> {
        let present = self.present.lock();
        present.get(channel).into_iter().flat_map(|members| members.values().map(|one| one.user.clone())).collect()
    }

    fn add(&self, channel: &str, event: Event) {
        self.events.lock().entry(channel.to_owned()).or_default().push(event);
    }
}

impl ChannelSink for Recorder {
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>) {
        let payload = String::from_utf8(publication.body.to_vec()).expect("text");
        self.add(channel, Event::Published(epoch, publication.offset, payload));
    }
}

impl Sessions for Recorder {
    fn reset(&self, channel: &Arc<str>, position: Position) {
        self.add(channel, Event::Reset(position));
    }

    fn member_changed(&self, channel: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        let mut present = self.present.lock();
        let members = present.entry(channel.to_string()).or_default();
        match change {
            MemberChange::Joined => members.insert(client, member.clone()),
            MemberChange::Left => members.remove(&client),
        };
    }

    fn announce(&self, channel: &Arc<str>, _client: ClientId, member: &Member, change: MemberChange) {
        let sign = if change == MemberChange::Left { "-" } else { "" };
        self.announced.lock().entry(channel.to_string()).or_default().push(format!("{sign}{}", member.user));
    }

    fn presence(&self, channel: &str, limit: usize) -> Vec<(ClientId, Member)> {
        let present = self.present.lock();
        let members = present.get(channel).into_iter().flatten();
        members.take(limit).map(|(client, member)| (*client, member.clone())).collect()
    }

    fn presence_counts(&self, channel: &str) -> (u32, u32) {
        let count = self.present(channel).len() as u32;
        (count, count)
    }

    fn call(&self, call: Bytes) -> BoxFuture<'_, Bytes> {
        let more = vec![b'.'; self.answer_bytes.load(Relaxed)];
        Box::pin(async move { [&b"answer to "[..], &call, &more].concat().into() })
    }

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        let mut busy = self.busy.subscribe();
        (*self.busy.borrow()).then(|| -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let _ = busy.wait_for(|busy| !busy).await;
            })
        })
    }
}

fn options() -> ChannelsOptions {
    ChannelsOptions {
        tail_bytes_max: TAIL_BYTES,
        outbox_bytes_max: OUTBOX_BYTES,
        node_ttl: NODE_TTL,
        members_compared: Duration::from_secs(1),
        ..ChannelsOptions::default()
    }
}

/// A store in memory.
pub(crate) async fn store() -> Store {
    store_on(Arc::new(MemDisk::growable(64 << 20)), StoreOptions::default()).await
}

/// A store on a disk.
pub(crate) async fn store_on(disk: Arc<dyn Disk>, options: StoreOptions) -> Store {
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
    Store::open(disk, IndexKind::memory(), Env::tokio(), options).await.expect("opens").0
}

/// A running node.
pub(crate) struct Node {
    pub(crate) channels: Channels,
    pub(crate) sessions: Arc<Recorder>,
    pub(crate) links: Links,
    pub(crate) own_name: OwnName,
    stop: watch::Sender<bool>,
}

pub(crate) fn address(name: &str) -> String {
    format!("{name}:7000")
}

pub(crate) fn roster(own: &str, nodes: &[&str], homes: &[&str]) -> Roster {
    let nodes = nodes
        .iter()
        .map(|name| NodeAddress { name: (*name).to_owned(), address: address(name), standby: None })
        .collect();
    let homes: Vec<String> = homes.iter().map(|home| (*home).to_owned()).collect();
    Roster::new(own, nodes, &homes).expect("a roster")
}

/// The roster of a home with a standby, whose address is the home's with a 2.
pub(crate) fn standby_roster(own: &str, nodes: &[&str], home: &str) -> Roster {
    let standby = |name: &str| (name == home).then(|| address(&format!("{name}2")));
    let node = |name: &&str| NodeAddress { name: (*name).to_owned(), address: address(name), standby: standby(name) };
    Roster::new(own, nodes.iter().map(node).collect(), &[home.to_owned()]).expect("a roster")
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
    pub(crate) async fn start(&self, roster: Roster) -> Node {
        self.start_with(roster, "secret", store().await).await
    }

    pub(crate) async fn start_with(&self, roster: Roster, secret: &str, store: Store) -> Node {
        self.start_broken(roster, secret, store, ClusterSabotage::None).await
    }

    /// Starts a node with these namespaces: their names, and what their homes store.
    pub(crate) async fn start_with_namespaces(&self, roster: Roster, namespaces: &[(&str, &str, &str)]) -> Node {
        let terms = namespaces.iter().map(|(name, stored, all)| NamespaceTerms {
            name: (*name).to_owned(),
            stored: (*stored).to_owned(),
            all: (*all).to_owned(),
        });
        let namespaces = Namespaces::new(terms).expect("few");
        self.start_node(roster, namespaces, "secret", store().await, ClusterSabotage::None)
    }

    pub(crate) async fn start_broken(
        &self,
        roster: Roster,
        secret: &str,
        store: Store,
        sabotage: ClusterSabotage,
    ) -> Node {
        self.start_node(roster, Namespaces::default(), secret, store, sabotage)
    }

    fn start_node(
        &self,
        roster: Roster,
        namespaces: Namespaces,
        secret: &str,
        store: Store,
        sabotage: ClusterSabotage,
    ) -> Node {
        let own = roster.address(roster.own()).to_owned();
        self.start_at(own, roster, namespaces, secret, (store, sabotage, Arc::new(Tenure::default)))
    }

    /// Starts a node that listens at the address of this name, and whose pool has this tenure; 0:
    /// it has no archive.
    pub(crate) async fn start_of_tenure(&self, roster: Roster, at: &str, number: u64) -> Node {
        let archive = if number == 0 { String::new() } else { "archive".to_owned() };
        let tenure = Tenure { archive, number };
        let tenure: OwnTenure = Arc::new(move || tenure.clone());
        let parts = (store().await, ClusterSabotage::None, tenure);
        self.start_at(address(at), roster, Namespaces::default(), "secret", parts)
    }

    fn start_at(
        &self,
        own: String,
        roster: Roster,
        namespaces: Namespaces,
        secret: &str,
        (store, sabotage, tenure): (Store, ClusterSabotage, OwnTenure),
    ) -> Node {
        let roster = Arc::new(roster);
        let options = ChannelsOptions { sabotage, ..options() };
        let channels = Channels::new(Some(store), roster.clone(), &options, Env::tokio());
        let sessions = Arc::new(Recorder::default());
        let sink: Arc<dyn Sessions> = sessions.clone();
        channels.set_sessions(&sink);
        let options =
            ClusterOptions { roster, namespaces, secret: secret.into(), tenure, outbox_bytes_max: OUTBOX_BYTES };
        let events: Arc<dyn LinkEvents> = Arc::new(channels.clone());
        let links = Links::new(options, events, Env::tokio());
        self.listening.lock().insert(own.clone(), links.clone());
        let (stop, stopped) = watch::channel(false);
        let transport: Arc<dyn Transport> = Arc::new(Port { hub: self.clone(), own });
        Dialer::start(&links, &transport, &stopped);
        let own_name = OwnName::new(links.clone(), transport, ([127, 0, 0, 1], 7000).into());
        Node { channels, sessions, links, own_name, stop }
    }
}

impl Transport for Port {
    fn open(&self, to: &str, frames: BoxStream<'static, Bytes>) -> BoxFuture<'static, Result<Wire, String>> {
        let (hub, own, to) = (self.hub.clone(), self.own.clone(), to.to_owned());
        Box::pin(async move {
            let listening = hub.listening.lock().get(&to).cloned().ok_or("nothing listens")?;
            let answer = listening.accept(hub.direction(frames, &own, &to), own.clone(), || {});
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
