//! Channels of other nodes: this node has subscribers, and their homes send the publications.
//!
//! The front of a channel watches it at its home while it has subscribers, and some seconds after.
//! A lost link does not touch the sessions: the front watches again with its last position, and
//! gets what it missed. Where that is impossible, sessions with a position begin anew.
//!
//! Locks: a part of the table first, then a link. Sessions are called without a lock. Only the task
//! that reads the link delivers, so each channel's publications stay in order.

mod entry;
mod links;
mod members;
mod requests;
mod state;
mod tail;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Env, has_fault};
use steadfast_store::{Position, Publication};
use tokio::sync::Notify;

use crate::frame::Kind;
use crate::frame::channels::{Published, Response, WatchNumber, Watched};
use crate::frame::members::{MemberCheck, MemberDone, MemberEvent};
use crate::hashing::SeededHashes;
use crate::members::{ClientId, Member, MemberChange};
use crate::options::ChannelsOptions;
use crate::outbox::Outbox;
use crate::roster::NodeIndex;
use crate::sabotage::ClusterSabotage;
use crate::sessions::Sessions;
use entry::Entry;
use links::HomeLink;
use members::FrontMembers;
use state::{Arrival, Catchup};

pub use tail::HistoryBounds;

const PARTS: usize = 64;

/// How long a channel without subscribers is watched.
const IDLE: Duration = Duration::from_secs(10);

/// Interval at which idle channels are dropped and failed watches repeated.
const SWEEP: Duration = Duration::from_secs(1);

/// Channels in a frame that compares members, at most.
const CHECKED_MAX: usize = 1000;

/// Counters of a front since its start.
#[derive(Debug, Default)]
pub(crate) struct FrontCounters {
    pub(crate) publications: AtomicU64,
    pub(crate) history_requests: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) gaps: AtomicU64,
}

/// The channels of other nodes that this one watches.
pub(crate) struct Front {
    env: Env,
    sessions: OnceLock<Arc<dyn Sessions>>,
    homes: Vec<Mutex<HomeLink>>,
    parts: Vec<Mutex<HashMap<Arc<str>, Entry>>>,
    hasher: SeededHashes,
    sabotage: ClusterSabotage,
    /// Parts whose members are compared in a sweep, and the next of them.
    compared: (usize, AtomicUsize),
    /// A node without a link for this long is lost.
    node_ttl: Duration,
    /// Woken when a link is up.
    links_changed: Notify,
    numbers: AtomicU64,
    /// Channels without subscribers, each with the time to drop it.
    idle: Mutex<VecDeque<(Duration, Arc<str>)>>,
    /// Channels whose watch failed.
    failed: Mutex<Vec<Arc<str>>>,
    tails: Tails,
    pub(crate) counters: FrontCounters,
}

/// The memory of all tails.
struct Tails {
    bytes_max: u64,
    bytes: AtomicU64,
    /// Channels that have got a tail, oldest first.
    queue: Mutex<VecDeque<Arc<str>>>,
}

impl Tails {
    /// Takes bytes out of the sum.
    fn shrank(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        assert!(before >= bytes, "fewer bytes in memory than were counted");
    }
}

impl Front {
    /// The front of a node in a cluster of that many nodes.
    pub(crate) fn new(nodes: usize, options: &ChannelsOptions, env: Env) -> Arc<Self> {
        let (now, tail_bytes_max) = (env.now(), options.tail_bytes_max);
        let front = Arc::new(Self {
            sessions: OnceLock::new(),
            homes: (0..nodes).map(|_| Mutex::new(HomeLink::new(now))).collect(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: SeededHashes::new(&env),
            sabotage: options.sabotage,
            compared: (PARTS.div_ceil(options.members_compared.as_secs().max(1) as usize), AtomicUsize::new(0)),
            node_ttl: options.node_ttl,
            links_changed: Notify::new(),
            numbers: AtomicU64::new(0),
            idle: Mutex::default(),
            failed: Mutex::default(),
            tails: Tails { bytes_max: tail_bytes_max, bytes: AtomicU64::new(0), queue: Mutex::default() },
            counters: FrontCounters::default(),
            env: env.clone(),
        });
        let me = Arc::downgrade(&front);
        env.clone().spawn_critical("cluster front", async move {
            loop {
                env.sleep(SWEEP).await;
                let Some(front) = me.upgrade() else { return };
                front.sweep();
            }
        });
        front
    }

    pub(crate) fn set_sessions(&self, sessions: &Arc<dyn Sessions>) {
        let _ = self.sessions.set(sessions.clone());
    }

    fn sessions(&self) -> &Arc<dyn Sessions> {
        self.sessions.get().expect("the sessions are set before links begin")
    }

    fn part(&self, channel: &str) -> &Mutex<HashMap<Arc<str>, Entry>> {
        &self.parts[self.hasher.hash_one(channel) as usize % PARTS]
    }

    fn home(&self, node: NodeIndex) -> &Mutex<HomeLink> {
        &self.homes[usize::from(node.0)]
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed) + 1
    }

    /// Channels with or without subscribers that this node watches, or wants to.
    pub(crate) fn channels(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tails.bytes.load(Relaxed)
    }

    /// Begins to watch a channel for a subscriber, until [`Front::detach`].
    pub(crate) fn attach(&self, channel: &Arc<str>, home: NodeIndex, bounds: Option<HistoryBounds>) {
        let mut part = self.part(channel).lock();
        let entry = part.entry(channel.clone()).or_insert_with(|| Entry::new(home, bounds, self.sabotage));
        entry.attached += 1;
        self.watch(channel, entry);
    }

    pub(crate) fn detach(&self, channel: &Arc<str>) {
        let now = self.env.now();
        let mut part = self.part(channel).lock();
        let Some(entry) = part.get_mut(channel) else { return };
        assert!(entry.attached > 0, "a channel is detached more often than it was attached");
        entry.attached -= 1;
        if entry.attached == 0 {
            entry.idle_since = now;
            drop(part);
            self.idle.lock().push_back((now + IDLE, channel.clone()));
        }
    }

    /// Watches a channel, at once or in its turn.
    fn watch(&self, name: &Arc<str>, entry: &mut Entry) {
        if !entry.channel.is_unwatched() || entry.queued {
            return;
        }
        let mut home = self.home(entry.home).lock();
        if home.may_watch() {
            let number = self.next_number();
            home.watch(number, name);
            home.send(Kind::Watch(entry.channel.watch(number, name)).to_bytes());
            let lists = entry.members.begin_watch(number);
            for list in lists.into_iter().filter(|_| !has_fault(self.sabotage, ClusterSabotage::NoSnapshot)) {
                home.send(Kind::MemberList(list).to_bytes());
            }
        } else if home.is_up() {
            home.enqueue(name);
            entry.queued = true;
        }
    }

    /// Watches channels of the queue, as many as may be unanswered.
    fn watch_queued(&self, node: NodeIndex) {
        loop {
            let Some(name) = self.home(node).lock().next() else { return };
            if let Some(entry) = self.part(&name).lock().get_mut(&name) {
                entry.queued = false;
                self.watch(&name, entry);
            }
        }
    }

    fn unwatch(&self, entry: &mut Entry) {
        if entry.channel.is_unwatched() {
            return;
        }
        let number = entry.channel.number();
        let mut home = self.home(entry.home).lock();
        if !has_fault(self.sabotage, ClusterSabotage::WatchNumberIgnored) {
            home.unwatch(number);
        }
        if !has_fault(self.sabotage, ClusterSabotage::UnwatchLost) {
            home.send(Kind::Unwatch(WatchNumber { number }).to_bytes());
        }
        entry.channel.unwatch();
    }

    fn sweep(&self) {
        let now = self.env.now();
        loop {
            let due = {
                let mut idle = self.idle.lock();
                if idle.front().is_none_or(|(due, _)| *due > now) {
                    break;
                }
                idle.pop_front()
            };
            let Some((_, name)) = due else { break };
            let mut part = self.part(&name).lock();
            if let Some(entry) = part.get_mut(&name)
                && entry.attached == 0
                && entry.idle_since + IDLE <= now
            {
                // The home must learn of leaves first.
                if !entry.members.is_empty() {
                    self.idle.lock().push_back((now + IDLE, name.clone()));
                    continue;
                }
                self.unwatch(entry);
                entry.changed.notify_waiters();
                self.tails.shrank(entry.channel.tail_bytes() as u64);
                part.remove(&name);
            }
        }
        for node in 0..self.homes.len() {
            self.watch_queued(NodeIndex(node as u16));
        }
        for name in std::mem::take(&mut *self.failed.lock()) {
            if let Some(entry) = self.part(&name).lock().get_mut(&name) {
                self.watch(&name, entry);
            }
        }
        self.compare_members();
    }

    /// The link to a node is up: watches its channels again, those with subscribers first. Each
    /// front has its own order, so that a home does not read one channel for all of them at a time.
    pub(crate) fn on_up(&self, node: NodeIndex, outbox: &Outbox) {
        let mut channels = Vec::new();
        for part in &self.parts {
            for (name, entry) in part.lock().iter_mut().filter(|(_, entry)| entry.home == node) {
                entry.queued = true;
                channels.push((entry.attached == 0, self.hasher.hash_one(name), name.clone()));
            }
        }
        channels.sort_unstable();
        self.home(node).lock().up(outbox, channels.into_iter().map(|(.., name)| name).collect());
        self.links_changed.notify_waiters();
        self.watch_queued(node);
        // A channel that was attached in between is in neither.
        for part in &self.parts {
            for (name, entry) in part.lock().iter_mut().filter(|(_, entry)| entry.home == node) {
                self.watch(name, entry);
            }
        }
    }

    /// The link to a node is lost. The sessions stay, with what they have.
    pub(crate) fn on_down(&self, node: NodeIndex) {
        if has_fault(self.sabotage, ClusterSabotage::BreakUnnoticed) {
            return;
        }
        self.home(node).lock().down(self.env.now());
        for part in &self.parts {
            for entry in part.lock().values_mut().filter(|entry| entry.home == node) {
                entry.queued = false;
                entry.channel.unwatch();
                entry.changed.notify_waiters();
            }
        }
    }

    /// Changes the channel of a watch. `None`: the watch has ended.
    fn with_entry<T>(&self, name: &Arc<str>, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut part = self.part(name).lock();
        let entry = part.get_mut(name)?;
        let before = entry.channel.tail_bytes() as u64;
        let result = change(entry);
        let after = entry.channel.tail_bytes() as u64;
        drop(part);
        if after > before {
            self.tails.bytes.fetch_add(after - before, Relaxed);
            if before == 0 {
                self.tails.queue.lock().push_back(name.clone());
            }
            self.evict_tails();
        } else if after < before {
            self.tails.shrank(before - after);
        }
        Some(result)
    }

    /// Drops the oldest tails until their memory is within its bound.
    fn evict_tails(&self) {
        while self.tail_bytes() > self.tails.bytes_max {
            let Some(name) = self.tails.queue.lock().pop_front() else { return };
            if let Some(entry) = self.part(&name).lock().get_mut(&name) {
                self.tails.shrank(entry.channel.tail_bytes() as u64);
                entry.channel.clear_tail();
            }
        }
    }

    pub(crate) fn on_watched(&self, node: NodeIndex, answer: Watched) {
        let name = {
            let mut home = self.home(node).lock();
            if answer.more { home.channel(answer.number) } else { home.answered(answer.number) }
        };
        let Some(name) = name else { return };
        let catchup = self.with_entry(&name, |entry| {
            let catchup = entry.channel.watched(answer);
            if catchup.is_some() && entry.channel.failed().is_some() {
                self.failed.lock().push(name.clone());
            }
            catchup.map(|catchup| (catchup, entry.changed.clone()))
        });
        if let Some((catchup, changed)) = catchup.flatten() {
            self.catch_up(&name, catchup);
            changed.notify_waiters();
        }
        self.watch_queued(node);
    }

    fn catch_up(&self, name: &Arc<str>, catchup: Catchup) {
        let sessions = self.sessions();
        if let Some(position) = catchup.reset {
            self.counters.resets.fetch_add(1, Relaxed);
            sessions.reset(name, position);
        }
        for publication in &catchup.publications {
            self.counters.publications.fetch_add(1, Relaxed);
            sessions.published(name, catchup.epoch, publication);
        }
    }

    pub(crate) fn on_published(&self, node: NodeIndex, frame: Published) {
        let Some(name) = self.home(node).lock().channel(frame.number) else { return };
        let publication = Arc::new(Publication::from(frame.publication));
        let arrival = self.with_entry(&name, |entry| {
            let arrival = entry.channel.published(frame.number, &publication);
            if arrival == Arrival::Gap {
                // A link is in order, so only too many publications before the answer are expected.
                self.counters.gaps.fetch_add(1, Relaxed);
                self.unwatch(entry);
                self.watch(&name, entry);
            }
            arrival
        });
        if let Some(Arrival::Deliver(epoch)) = arrival {
            self.counters.publications.fetch_add(1, Relaxed);
            self.sessions().published(&name, epoch, &publication);
        }
    }

    pub(crate) fn on_response(&self, node: NodeIndex, response: Response) {
        self.home(node).lock().on_response(response);
    }

    /// The position of a channel, if it is watched.
    pub(crate) fn current(&self, channel: &str) -> Option<Position> {
        self.part(channel).lock().get(channel)?.channel.current()
    }

    /// Whether a join with that many bytes may be sent to a home now.
    pub(crate) fn may_join(&self, home: NodeIndex, bytes: usize) -> bool {
        self.home(home).lock().may_join(bytes)
    }

    /// A client at this node subscribed to a channel, after it was attached.
    pub(crate) fn member_joined(&self, name: &str, client: ClientId, member: Arc<Member>) {
        self.change_member(name, |members, watch| members.join(client, member, watch));
    }

    pub(crate) fn member_updated(&self, name: &str, client: ClientId, member: Arc<Member>) {
        self.change_member(name, |members, watch| members.update(client, member, watch));
    }

    pub(crate) fn member_left(&self, name: &str, client: ClientId) {
        self.change_member(name, |members, watch| members.leave(client, watch));
    }

    fn change_member(&self, name: &str, change: impl FnOnce(&mut FrontMembers, Option<u64>) -> Option<MemberEvent>) {
        let mut part = self.part(name).lock();
        let Some(entry) = part.get_mut(name) else { return };
        let watch = entry.watch_number();
        if let Some(event) = change(&mut entry.members, watch) {
            self.home(entry.home).lock().send(Kind::MemberEvent(event).to_bytes());
        }
    }

    pub(crate) fn on_member_done(&self, node: NodeIndex, frame: &MemberDone) {
        let Some(name) = self.home(node).lock().channel(frame.number) else { return };
        if let Some(entry) = self.part(&name).lock().get_mut(&name)
            && entry.watch_number() == Some(frame.number)
        {
            entry.members.done(frame);
        }
    }

    pub(crate) fn on_announcement(&self, node: NodeIndex, frame: MemberEvent) {
        let Some(name) = self.home(node).lock().channel(frame.number) else { return };
        let change = if frame.gone { MemberChange::Left } else { MemberChange::Joined };
        if let Some((client, member)) = frame.member.member() {
            self.sessions().announce(&name, client, &member, change);
        }
    }

    /// Compares the members of some parts with their homes.
    fn compare_members(&self) {
        for _ in 0..self.compared.0 {
            let at = self.compared.1.fetch_add(1, Relaxed) % PARTS;
            // The lock keeps changes from coming between the check and what it covers.
            let part = self.parts[at].lock();
            let mut checks = BTreeMap::<NodeIndex, MemberCheck>::new();
            for entry in part.values().filter(|entry| entry.members.were_some()) {
                let Some(number) = entry.watch_number() else { continue };
                let check = checks.entry(entry.home).or_default();
                check.numbers.push(number);
                check.hashes.push(entry.members.hash());
            }
            for (node, check) in checks {
                let home = self.home(node).lock();
                for (numbers, hashes) in check.numbers.chunks(CHECKED_MAX).zip(check.hashes.chunks(CHECKED_MAX)) {
                    let check = MemberCheck { numbers: numbers.to_vec(), hashes: hashes.to_vec() };
                    if home.may_list() {
                        home.send(Kind::MemberCheck(check).to_bytes());
                    }
                }
            }
        }
    }

    /// A home knows other members of a channel than this node told it.
    pub(crate) fn on_members_wanted(&self, node: NodeIndex, frame: WatchNumber) {
        let Some(name) = self.home(node).lock().channel(frame.number) else { return };
        if let Some(entry) = self.part(&name).lock().get_mut(&name)
            && entry.watch_number() == Some(frame.number)
        {
            let home = self.home(node).lock();
            if home.may_list() {
                let lists = entry.members.list(frame.number);
                lists.into_iter().for_each(|list| home.send(Kind::MemberList(list).to_bytes()));
            }
        }
    }

    pub(crate) fn on_cleared(&self, node: NodeIndex, frame: WatchNumber) {
        let Some(name) = self.home(node).lock().channel(frame.number) else { return };
        self.with_entry(&name, |entry| {
            if entry.channel.number() == frame.number {
                entry.channel.clear_tail();
            }
        });
    }
}
