//! The whole cluster, its users and its faults, in one virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::Disk;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::IndexKind;
use tokio::sync::{mpsc, watch};

use super::ledger::{ClientState, ClusterLedger};
use super::network::{Network, PipeEnd};
use super::node::{Node, NodeEnd, roster};
use super::plan::{ChannelRule, Keeps, NodesPlan};
use super::sessions::channel_name;
use crate::disk::{Device, SimDisk};
use crate::executor::Executor;
use crate::platter::Platter;
use crate::rng::Rng;

/// Time in which a cluster without faults reaches its rest: lost links are noticed and opened, and
/// requests give up.
const REST: Duration = Duration::from_secs(20);

/// Time without a publication after which none is under way, and the number of such waits at most.
const STEP: Duration = Duration::from_secs(5);
const STEPS: u64 = 200;

/// Time after which a front has dropped its idle channels.
const IDLE: Duration = Duration::from_secs(14);

/// What the users do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// They publish, subscribe and leave.
    Busy,
    /// They subscribe and stay.
    Staying,
    /// They leave for good.
    Left,
}

/// The number of processes of each node so far.
#[derive(Default)]
pub(crate) struct Incarnations(Vec<u64>);

impl Incarnations {
    pub(crate) fn next(&mut self, node: usize) -> u64 {
        if self.0.len() <= node {
            self.0.resize(node + 1, 0);
        }
        self.0[node] += 1;
        self.0[node]
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The nodes, their network and their users. Clones share it.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) executor: Executor,
    pub(crate) plan: Arc<NodesPlan>,
    pub(crate) rules: Vec<ChannelRule>,
    pub(crate) network: Network,
    devices: Vec<Device>,
    indexes: Vec<IndexKind>,
    /// The first two nodes have each other's disks.
    swapped: Arc<AtomicBool>,
    pub(crate) ledger: Arc<Mutex<ClusterLedger>>,
    pub(crate) nodes: Arc<Vec<Mutex<Option<Node>>>>,
    pub(crate) incarnations: Arc<Mutex<Incarnations>>,
    pub(crate) phase: Arc<watch::Sender<Phase>>,
}

impl World {
    pub(crate) fn new(executor: Executor, plan: NodesPlan, rng: &mut Rng) -> Result<Self, String> {
        let own = roster(0, &plan)?;
        let rules: Vec<ChannelRule> = (plan.shape.channels.iter().enumerate())
            .map(|(channel, (keeps, size, ttl_ms))| {
                let name = own.name(own.home(&channel_name(channel)));
                let home = (0..plan.shape.nodes).find(|node| format!("node{node}") == name).unwrap_or(0);
                let members = channel < plan.shape.members;
                ChannelRule { home, keeps: *keeps, size: *size, ttl_ms: *ttl_ms, members }
            })
            .collect();
        let mut client = |_| {
            let channel = rng.below(rules.len() as u64) as usize;
            let positioned = rules[channel].keeps != Keeps::Nothing && !rng.one_in(5);
            ClientState { channel, positioned, ..ClientState::default() }
        };
        let clients = (0..plan.users.clients).map(&mut client).collect();
        let ledger = Arc::new(Mutex::new(ClusterLedger::new(&rules, clients)));
        let device = |_| Arc::new(Mutex::new(Platter::new(rng.fork(), plan.shape.disk_bytes, plan.shape.disk_bytes)));
        let devices = (0..plan.shape.nodes).map(device).collect();
        let network = Network::new(executor.clone(), rng.fork(), plan.shape.latency_us, plan.shape.window_bytes);
        Ok(Self {
            executor,
            rules,
            network,
            devices,
            swapped: Arc::default(),
            indexes: (0..plan.shape.nodes).map(|_| IndexKind::memory()).collect(),
            ledger,
            nodes: Arc::new((0..plan.shape.nodes).map(|_| Mutex::default()).collect()),
            incarnations: Arc::default(),
            phase: Arc::new(watch::Sender::new(Phase::Busy)),
            plan: Arc::new(plan),
        })
    }

    pub(crate) fn note(&self, what: &'static str, node: usize, text: impl FnOnce() -> String) {
        let (trace, now) = (self.executor.trace(), self.executor.now_ns());
        trace.note_with_text(now, what, [node as u64, 0, 0], || format!("node {node}: {}", text()));
    }

    /// The disk of a node, and its index.
    pub(crate) fn disk(&self, node: usize) -> (&Device, &IndexKind) {
        let at = if node < 2 && self.swapped.load(Relaxed) { 1 - node } else { node };
        (&self.devices[at], &self.indexes[at])
    }

    /// Two homes get each other's disks: both refuse to start.
    async fn swap_disks(&self) -> Result<(), String> {
        for node in 0..2 {
            self.end(node, NodeEnd::Killed).await?;
        }
        self.swapped.store(true, Relaxed);
        for node in 0..2 {
            match self.start(node).await {
                Err(why) if why.contains("the pool belongs to the home") => {}
                other => return Err(format!("SWAPPED: node {node} starts with another home's disk: {other:?}")),
            }
        }
        self.swapped.store(false, Relaxed);
        for node in 0..2 {
            self.start(node).await?;
        }
        Ok(())
    }

    /// The process of a node, if one runs.
    pub(crate) fn node(&self, node: usize) -> Option<Node> {
        self.nodes[node].lock().clone()
    }

    fn outcome(&self) -> Result<(), String> {
        self.ledger.lock().violation.clone().map_or(Ok(()), Err)
    }

    /// Runs the cluster from its first start to its rest.
    pub(crate) async fn run(self, mut rng: Rng) -> Result<(), String> {
        let env = self.executor.env();
        for node in 0..self.plan.shape.nodes {
            let device = self.disk(node).0.clone();
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(device, self.executor.clone(), self.plan.shape.disk));
            let options = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
            Log::format(&disk, &env, &options).await.map_err(|error| error.to_string())?;
            drop(disk);
            self.disk(node).0.lock().kill();
            self.start(node).await?;
        }
        for client in 0..self.plan.users.clients as usize {
            env.spawn("client", self.clone().follow(client, rng.fork()));
        }
        for round in 0..self.plan.rounds {
            if round > 0 && self.plan.swaps {
                self.swap_disks().await?;
            }
            self.be_busy(&mut rng).await?;
            self.rest(&mut rng).await?;
        }
        self.phase.send_replace(Phase::Left);
        env.sleep(IDLE).await;
        for (at, status) in self.statuses() {
            if (status.watched, status.watches, status.tail_bytes, status.members) != (0, 0, 0, 0) {
                return Err(format!("LEAK: node {at} keeps {status:?}"));
            }
        }
        self.outcome()
    }

    /// Publishes, and causes faults, until all of them have ended.
    async fn be_busy(&self, rng: &mut Rng) -> Result<(), String> {
        let env = self.executor.env();
        self.phase.send_replace(Phase::Busy);
        let (working, mut ends) = mpsc::channel::<()>(1);
        for _ in 0..self.plan.users.publishers {
            let (work, working) = (self.clone().publish(rng.fork()), working.clone());
            env.spawn("publisher", async move {
                work.await;
                drop(working);
            });
        }
        for _ in 0..self.plan.faults.operators {
            let (work, working) = (self.clone().operate(rng.fork()), working.clone());
            env.spawn("operator", async move {
                work.await;
                drop(working);
            });
        }
        drop(working);
        let until = env.now() + self.plan.lasts;
        while env.now() < until {
            env.sleep(Duration::from_millis(500)).await;
            self.outcome()?;
        }
        self.phase.send_replace(Phase::Staying);
        ends.recv().await;
        self.outcome()
    }

    /// Waits at least this long, and until no more publications arrive: a slow network needs long.
    async fn settle(&self, least: Duration) {
        let env = self.executor.env();
        env.sleep(least).await;
        for _ in 0..STEPS {
            let count = || self.statuses().map(|(_, status)| status.publications_received).sum::<u64>();
            let before = count();
            env.sleep(STEP).await;
            if count() == before {
                return;
            }
        }
    }

    /// Without faults, everything comes to its rest.
    async fn rest(&self, rng: &mut Rng) -> Result<(), String> {
        self.settle(REST).await;
        self.note("rest", 0, String::new);
        self.ledger.lock().check_rest();
        self.check_watches().await?;
        self.check_members().await?;
        self.visit(rng).await?;
        self.outcome()?;
        let unstored = self.publish_last(rng).await;
        self.settle(STEP).await;
        self.ledger.lock().check_rest();
        unstored.into_iter().for_each(|(channel, number)| self.ledger.lock().check_seen(channel, number));
        self.outcome()
    }

    fn statuses(&self) -> impl Iterator<Item = (usize, steadfast_cluster::ChannelsStatus)> {
        (0..self.plan.shape.nodes).filter_map(|node| Some((node, self.node(node)?.channels.status()?)))
    }

    /// The homes have the watches that the fronts have, except for those that just end.
    async fn check_watches(&self) -> Result<(), String> {
        for _ in 0..20 {
            let watched: u64 = self.statuses().map(|(_, status)| status.watched).sum();
            let watches: u64 = self.statuses().map(|(_, status)| status.watches).sum();
            if watched == watches {
                return Ok(());
            }
            self.executor.env().sleep(Duration::from_millis(300)).await;
        }
        Err(format!("LEAK: watched channels and watches differ: {:?}", self.statuses().collect::<Vec<_>>()))
    }

    /// Causes faults while the cluster is busy, and ends each.
    async fn operate(self, mut rng: Rng) {
        let env = self.executor.env();
        loop {
            env.sleep(self.plan.faults.calm.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
            if *self.phase.borrow() != Phase::Busy {
                return;
            }
            if let Err(why) = self.fault(&mut rng).await {
                self.ledger.lock().fail(|| why);
            }
        }
    }

    async fn fault(&self, rng: &mut Rng) -> Result<(), String> {
        let (env, nodes, weights) = (self.executor.env(), self.plan.shape.nodes as u64, self.plan.faults.weights);
        let from = rng.below(nodes) as usize;
        let to = (from + 1 + rng.below(nodes - 1) as usize) % nodes as usize;
        let lasts = Duration::from_millis(rng.range(100, 8_000));
        let kinds = [weights.breaks, weights.blocks, weights.lags, weights.stalls, weights.homes, weights.fronts];
        let mut at = rng.below(kinds.iter().sum());
        let kind = kinds.iter().position(|weight| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        });
        self.note("fault", from, || format!("{kind:?} to {to} for {lasts:?}"));
        match kind {
            Some(0) => {
                let end = *rng.pick(&[PipeEnd::Silent, PipeEnd::Reset]);
                self.network.break_between(from, to, end);
            }
            Some(1) => {
                self.network.block((from, to), true);
                env.sleep(lasts).await;
                self.network.block((from, to), false);
            }
            Some(2) => self.lag((from, to), rng).await,
            Some(3) => {
                let Some(node) = self.node(from) else { return Ok(()) };
                node.sessions.busy.send_replace(true);
                env.sleep(lasts).await;
                node.sessions.busy.send_replace(false);
            }
            Some(kind) => {
                let homes = self.plan.shape.homes as u64;
                let node = if kind == 4 { rng.below(homes) } else { rng.range(homes, nodes - 1) } as usize;
                if self.node(node).is_some() {
                    let ends = [NodeEnd::Cut, NodeEnd::Rebooted, NodeEnd::Killed, NodeEnd::Closed];
                    self.end(node, *rng.pick(&ends)).await?;
                    env.sleep(*rng.pick(&[Duration::ZERO, lasts])).await;
                    self.start(node).await?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// The delay of one direction rises so slowly that the link stays, and falls again.
    async fn lag(&self, way: (usize, usize), rng: &mut Rng) {
        let env = self.executor.env();
        for step in 0..=self.plan.faults.lag_s {
            self.network.lag(way, Duration::from_secs(step));
            env.sleep(Duration::from_secs(1)).await;
        }
        env.sleep(Duration::from_millis(rng.below(8_000))).await;
        self.network.lag(way, Duration::ZERO);
    }
}
