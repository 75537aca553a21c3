//! Channels of this node with subscribers on other nodes.
//!
//! A node that watches a channel gets each of its publications once, whatever the number of its
//! sessions. The watcher is added before the position is read, so no publication falls in between.

mod members;
mod requests;
mod watchers;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Budget, Env, has_fault};
use steadfast_store::{ChannelHandle, ChannelSink, History, HistoryQuery, Position, Publication, Store};
use tokio::sync::Semaphore;

use crate::error::ChannelError;
use crate::frame::Kind;
use crate::frame::channels::{Watch, WatchNumber, Watched, WirePosition, to_wire};
use crate::hashing::SeededHashes;
use crate::keys::Keys;
use crate::members::ClientId;
use crate::options::ChannelsOptions;
use crate::outbox::Outbox;
use crate::roster::NodeIndex;
use crate::sabotage::ClusterSabotage;
use crate::sessions::Sessions;
pub(crate) use members::HomeMembers;
pub(crate) use requests::HomeRequests;

use members::Members;
use requests::{Publisher, Requests, publications};
use watchers::{Watcher, Watchers};

const PARTS: usize = 64;

/// Watches of all nodes together, at most.
const WATCHES_MAX: usize = 4 << 20;

/// Largest answer to a history request, in permits, and the permits of a link. An answer takes a
/// permit for each page of bytes, at most a 64th of the outbox: so answers never fill the outbox.
const ANSWER_PERMITS: usize = 8;
const READ_PERMITS: usize = 32;

/// Publications in an answer, at most.
const ANSWER_PUBLICATIONS_MAX: usize = 100_000;

/// A front that lacks more publications than these gets pages of them before its watch begins.
const NEAR: u64 = 500;

/// Interval at which members of lost nodes are checked.
const SWEEP: Duration = Duration::from_secs(1);

/// How late a sabotaged home adds a watcher.
const LATE: Duration = Duration::from_millis(1);

/// The link to a node with subscribers.
struct FrontLink {
    watches: HashMap<u64, Arc<str>>,
    publishers: Vec<Publisher>,
    /// Memory of publications that are queued or not committed, also of earlier links.
    publications: Budget,
    reads: Option<Arc<Semaphore>>,
    /// The clients of lists of members that are not complete, by watch.
    listed: HashMap<u64, BTreeSet<ClientId>>,
    /// When the link was lost, until the members of its node have expired.
    down_since: Option<Duration>,
    /// The members of its node have expired: acknowledged joins are announced again.
    expired: bool,
}

impl FrontLink {
    fn new(publications: Budget) -> Self {
        Self {
            watches: HashMap::new(),
            publishers: Vec::new(),
            publications,
            reads: None,
            listed: HashMap::new(),
            down_since: None,
            expired: false,
        }
    }
}

/// The channels of this node that others watch.
pub(crate) struct Home {
    me: Weak<Self>,
    env: Env,
    /// `None`: this node is the home of no channel.
    disks: Option<Store>,
    keys: Keys,
    sessions: OnceLock<Arc<dyn Sessions>>,
    watchers: Watchers,
    pub(crate) sabotage: ClusterSabotage,
    fronts: Vec<Mutex<FrontLink>>,
    members: Members,
    pub(crate) requests: Requests,
}

impl Home {
    /// The home of channels on the disks of `store`, in a cluster of that many nodes.
    pub(crate) fn new(nodes: usize, store: Option<Store>, options: &ChannelsOptions, env: Env) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            keys: Keys::new(env.clone(), options.sabotage),
            disks: store,
            sessions: OnceLock::new(),
            watchers: Watchers::new(PARTS, SeededHashes::new(&env)),
            members: Members::new(PARTS, options.node_ttl, &env),
            sabotage: options.sabotage,
            requests: Requests::new(options.outbox_bytes_max),
            fronts: (0..nodes).map(|_| Mutex::new(FrontLink::new(publications(options, &env)))).collect(),
            env,
        })
    }

    pub(crate) fn set_sessions(&self, sessions: &Arc<dyn Sessions>) {
        let _ = self.sessions.set(sessions.clone());
    }

    /// The sessions of this node. They are set before the first link begins, so nothing that
    /// another node tells is dropped.
    fn sessions(&self) -> &Arc<dyn Sessions> {
        self.sessions.get().expect("the sessions are set before links begin")
    }

    /// Sets the receiver of the publications that the store delivers.
    pub(crate) fn set_sink(&self, sink: &Arc<dyn ChannelSink>) {
        if let Some(store) = &self.disks {
            store.channels().set_sink(sink);
        }
    }

    /// Sets how long the channels on the disks of this node keep their epoch and offset.
    pub(crate) fn set_retention(&self, retention: Duration) {
        if let Some(store) = &self.disks {
            store.channels().set_retention(retention);
        }
    }

    /// A channel on the disks of this node.
    ///
    /// # Errors
    /// Those of the store. A front without disks is the home of no channel.
    pub(crate) fn open(&self, channel: &str) -> Result<ChannelHandle, ChannelError> {
        let store = self.disks.as_ref().ok_or(ChannelError::HomeUnreachable)?;
        Ok(store.channel(channel)?)
    }

    /// Completes when the sessions of this node keep up; `None`: they do.
    pub(crate) fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        self.sessions.get()?.keep_up()
    }

    fn front(&self, node: NodeIndex) -> &Mutex<FrontLink> {
        &self.fronts[usize::from(node.0)]
    }

    /// Watches of all other nodes together.
    pub(crate) fn watches(&self) -> usize {
        self.watchers.watches.load(Relaxed)
    }

    pub(crate) fn on_up(&self, node: NodeIndex, outbox: &Outbox, restarted: bool) {
        assert!(self.sessions.get().is_some(), "the sessions are set before links begin");
        if restarted {
            HomeMembers(self).remove_members(node);
        }
        let mut front = self.front(node).lock();
        front.down_since = None;
        front.publishers = HomeRequests(self).start_publishers(outbox);
        front.reads = Some(Arc::new(Semaphore::new(READ_PERMITS)));
    }

    pub(crate) fn on_down(&self, node: NodeIndex) {
        let front = {
            let mut front = self.front(node).lock();
            let (down_since, expired) = (Some(self.env.now()), front.expired);
            let next = FrontLink::new(front.publications.clone());
            std::mem::replace(&mut *front, FrontLink { down_since, expired, ..next })
        };
        for (number, name) in front.watches {
            self.remove(node, number, &name);
        }
    }

    /// Publications sent to other nodes since the start.
    pub(crate) fn publications(&self) -> u64 {
        self.watchers.publications()
    }

    fn remove(&self, node: NodeIndex, number: u64, name: &str) {
        let before = self.watchers.watches.fetch_sub(1, Relaxed);
        assert!(before > 0, "a watch of {name:?} was not counted");
        self.watchers.remove(node, number, name);
    }

    pub(crate) fn on_unwatch(&self, node: NodeIndex, frame: WatchNumber) {
        let name = {
            let mut front = self.front(node).lock();
            front.listed.remove(&frame.number);
            front.watches.remove(&frame.number)
        };
        if let Some(name) = name {
            self.remove(node, frame.number, &name);
        }
    }

    /// A node watches a channel.
    pub(crate) fn on_watch(&self, node: NodeIndex, outbox: &Outbox, watch: Watch) {
        let number = watch.number;
        if self.watches() >= WATCHES_MAX {
            outbox.send(Kind::Watched(failed(number, ChannelError::LimitExceeded)).to_bytes());
            return;
        }
        let name: Arc<str> = watch.channel.as_str().into();
        if self.front(node).lock().watches.insert(number, name.clone()).is_some() {
            return;
        }
        self.watchers.watches.fetch_add(1, Relaxed);
        if !watch.history {
            self.add(&name, Watcher { node, number, outbox: outbox.clone() }, None);
            let position = WirePosition::default();
            outbox.send(Kind::Watched(Watched { number, position, ..Watched::default() }).to_bytes());
            return;
        }
        let (Some(home), outbox) = (self.me.upgrade(), outbox.clone()) else { return };
        self.env.spawn("cluster watch", async move {
            let answer = match home.answer_watch(node, &outbox, &name, &watch).await {
                Ok(answer) => {
                    if has_fault(home.sabotage, ClusterSabotage::ReadBeforeWatch) {
                        home.env.sleep(LATE).await;
                        let handle = home.open(&name).ok();
                        home.add(&name, Watcher { node, number, outbox: outbox.clone() }, handle.as_ref());
                    }
                    answer
                }
                Err(error) => {
                    // The front watches again, with another number.
                    home.on_unwatch(node, WatchNumber { number });
                    failed(number, error)
                }
            };
            outbox.send(Kind::Watched(answer).to_bytes());
        });
    }

    /// From now on the front gets the publications of the channel, unless it has ended the watch.
    fn add(&self, name: &Arc<str>, watcher: Watcher, handle: Option<&ChannelHandle>) {
        let front = self.front(watcher.node).lock();
        if front.watches.contains_key(&watcher.number) {
            self.watchers.add(name, watcher, handle);
        }
    }

    /// Answers a watch: sends what the front lacks, and begins the watch before the last read.
    async fn answer_watch(
        &self,
        node: NodeIndex,
        outbox: &Outbox,
        name: &Arc<str>,
        watch: &Watch,
    ) -> Result<Watched, ChannelError> {
        let handle = self.open(name)?;
        let answer =
            |position: Position| Watched { number: watch.number, position: position.into(), ..Watched::default() };
        let watcher = || Watcher { node, number: watch.number, outbox: outbox.clone() };
        let mut last = watch.last.map(Position::from);
        let mut added = has_fault(self.sabotage, ClusterSabotage::ReadBeforeWatch);
        if has_fault(self.sabotage, ClusterSabotage::OffsetOnly)
            && let Some(last) = &mut last
        {
            last.epoch = handle.position()?.epoch;
        }
        loop {
            if !added && last.is_none_or(|last| !is_far(last, handle.position().unwrap_or(last))) {
                self.add(name, watcher(), Some(&handle));
                added = true;
            }
            let position = handle.position()?;
            let Some(from) = last.filter(|last| *last != position) else { return Ok(answer(position)) };
            let Some(history) = self.page(node, outbox, &handle, from).await? else {
                if !added {
                    self.add(name, watcher(), Some(&handle));
                }
                return Ok(Watched { reset: true, ..answer(handle.position()?) });
            };
            let offset = history.publications.last().map_or(from.offset, |newest| newest.offset);
            let reached = Position { offset, ..from };
            let page = Watched { missed: to_wire(&history.publications), ..answer(reached) };
            if added && reached == history.position {
                return Ok(page);
            }
            outbox.send(Kind::Watched(Watched { more: true, ..page }).to_bytes());
            last = Some(reached);
        }
    }

    /// A page of the publications after a position; `None`: the channel cannot continue there.
    async fn page(
        &self,
        node: NodeIndex,
        outbox: &Outbox,
        handle: &ChannelHandle,
        from: Position,
    ) -> Result<Option<History>, ChannelError> {
        let _permits = HomeRequests(self).read_permits(node, outbox, 1).await?;
        self.requests.histories.fetch_add(1, Relaxed);
        let query = HistoryQuery { since: Some(from), limit: ANSWER_PUBLICATIONS_MAX, reverse: false };
        let history = handle.history_within(query, self.requests.page_bytes).await?;
        let any = has_fault(self.sabotage, ClusterSabotage::MissingIgnored);
        Ok(Some(history).filter(|history| any || history.complete))
    }

    /// Sends a publication to the nodes that watch its channel, once each.
    pub(crate) fn publish(&self, channel: &str, publication: &Publication, here: impl FnOnce()) {
        self.watchers.publish(channel, publication, here);
    }

    /// Removes expired members until the home is dropped.
    pub(crate) fn start_expiry(self: &Arc<Self>, env: &Env) {
        let (me, env) = (Arc::downgrade(self), env.clone());
        env.clone().spawn_critical("cluster members", async move {
            loop {
                env.sleep(SWEEP).await;
                let Some(home) = me.upgrade() else { return };
                HomeMembers(&home).expire_members();
            }
        });
    }
}

/// Whether a front at `last` lacks many publications.
fn is_far(last: Position, top: Position) -> bool {
    last.epoch == top.epoch && last.offset + NEAR < top.offset
}

impl ChannelSink for Home {
    fn published(&self, channel: &Arc<str>, epoch: u32, publication: &Arc<Publication>) {
        self.watchers.publish(channel, publication, || {
            if let Some(sessions) = self.sessions.get() {
                sessions.published(channel, epoch, publication);
            }
        });
    }
}

fn failed(number: u64, error: ChannelError) -> Watched {
    Watched { number, error: error as u32, ..Watched::default() }
}
