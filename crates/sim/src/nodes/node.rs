//! One process of a node: its store, its channels and its links.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_cluster::{
    Channels, ChannelsOptions, ClusterOptions, ClusterSabotage, Dialer, LinkEvents, Links, Namespaces, NodeAddress,
    OwnTenure, PoolHome, Roster, Sessions, Tenure, Transport,
};
use steadfast_disk::Disk;
use steadfast_log::LogOptions;
use steadfast_store::{ChannelSink, PoolDisk, Publication, Store, StoreOptions};
use tokio::sync::{oneshot, watch};

use super::network::{PipeEnd, Port, address};
use super::plan::NodesPlan;
use super::sessions::{NodeSessions, channel_name};
use super::world::World;
use crate::disk::SimDisk;
use crate::model::channels::ALL;
use crate::process::MachineProcess;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeEnd {
    /// With a power cut: the others do not notice it.
    Cut,
    /// With a power cut, and a reset of the connections at the next packet.
    Rebooted,
    /// With kill -9: the connections end.
    Killed,
    /// With a close of its store.
    Closed,
}

/// A running process. Clones share it.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) machine: MachineProcess,
    pub(crate) store: Store,
    pub(crate) channels: Channels,
    pub(crate) sessions: Arc<NodeSessions>,
    stop: Arc<watch::Sender<bool>>,
    /// Completes when its links have ended after a stop.
    links_ended: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

struct NoSink;

impl ChannelSink for NoSink {
    fn published(&self, _: &Arc<str>, _: u32, _: &Arc<Publication>) {}
}

impl Node {
    /// Ends the process, and frees its memory: its store and its channels hold each other.
    pub(crate) fn kill(&self) {
        self.machine.kill();
        let sink: Arc<dyn ChannelSink> = Arc::new(NoSink);
        self.store.channels().set_sink(&sink);
    }
}

pub(crate) fn roster(own: usize, plan: &NodesPlan) -> Result<Roster, String> {
    let name = |node: usize| format!("node{node}");
    let nodes = (0..plan.shape.nodes)
        .map(|node| NodeAddress { name: name(node), address: address(node), standby: None })
        .collect();
    Roster::new(&name(own), nodes, &(0..plan.shape.homes).map(name).collect::<Vec<_>>())
}

impl World {
    /// Starts the process of a node.
    pub(crate) async fn start(&self, node: usize) -> Result<(), String> {
        let plan = &self.plan;
        let machine = MachineProcess::new(self.executor.clone());
        let (env, incarnation) = (machine.env(), self.incarnations.lock().next(node));
        let disk: Arc<dyn Disk> =
            Arc::new(SimDisk::new(self.disk(node).0.clone(), self.executor.clone(), plan.shape.disk));
        let given = vec![PoolDisk { name: "d".into(), disk: Ok(disk), hint: false }];
        let mut log = LogOptions { async_window: plan.shape.async_window, ..LogOptions::default() };
        (log.compaction.enabled, log.scrub.enabled) = (false, false);
        let mut options = StoreOptions {
            chunk_bytes: 4096,
            inline_max_bytes: 1000,
            log,
            sabotage: plan.defects.store,
            ..StoreOptions::default()
        };
        if plan.shape.cold {
            options.channel_tail_bytes = 0;
        }
        let opened = Store::open_pool(given, self.disk(node).1.clone(), env.clone(), options).await;
        let store = opened.map_err(|error| format!("the store of node {node} does not open: {error}"))?.0;
        let roster = Arc::new(roster(node, plan)?);
        if plan.defects.cluster != ClusterSabotage::PoolUnchecked
            && let Err(why) = PoolHome::take(&store, Some(&roster), false).await
        {
            machine.kill();
            self.disk(node).0.lock().kill();
            return Err(why);
        }
        for (channel, _) in self.rules.iter().enumerate().filter(|(_, rule)| rule.home == node) {
            let handle = store.channel(&channel_name(channel)).map_err(|error| error.to_string())?;
            let history = handle.history(ALL).await.map_err(|error| error.to_string())?;
            self.ledger.lock().restarted(channel, &history, env.wall_ms());
        }
        let options = ChannelsOptions {
            tail_bytes_max: plan.shape.tail_bytes,
            outbox_bytes_max: plan.shape.outbox_bytes,
            sabotage: plan.defects.cluster,
            ..ChannelsOptions::default()
        };
        let channels = Channels::new(Some(store.clone()), roster.clone(), &options, env.clone());
        let names = (node, incarnation);
        let sessions = NodeSessions::new(
            names,
            &self.executor,
            env.clone(),
            &self.ledger,
            self.rules.clone(),
            plan.defects.session,
        );
        let sessions = Arc::new(sessions);
        let sink: Arc<dyn Sessions> = sessions.clone();
        channels.set_sessions(&sink);
        let (namespaces, secret) = (Namespaces::default(), b"secret".to_vec());
        let (tenure, outbox_bytes_max): (OwnTenure, _) = (Arc::new(Tenure::default), plan.shape.outbox_bytes);
        let options = ClusterOptions { roster, namespaces, secret, tenure, outbox_bytes_max };
        let events: Arc<dyn LinkEvents> = Arc::new(channels.clone());
        let links = Links::with_sabotage(options, events, env, plan.defects.cluster);
        self.network.listen(node, links.clone(), machine.clone());
        let (stop, stopped) = watch::channel(false);
        let port = Port { network: self.network.clone(), own: node, machine: machine.clone() };
        let transport: Arc<dyn Transport> = Arc::new(port);
        let links_ended = Arc::new(Mutex::new(Some(Dialer::start(&links, &transport, &stopped))));
        self.note("up", node, || format!("incarnation {incarnation}"));
        *self.nodes[node].lock() = Some(Node { machine, store, channels, sessions, stop: Arc::new(stop), links_ended });
        Ok(())
    }

    /// Ends the process of a node.
    pub(crate) async fn end(&self, node: usize, end: NodeEnd) -> Result<(), String> {
        let Some(one) = self.nodes[node].lock().take() else { return Ok(()) };
        self.note("down", node, || format!("{end:?}"));
        // A process that closes ends its sessions first.
        if end == NodeEnd::Closed {
            one.sessions.end();
        }
        one.sessions.clear();
        if end == NodeEnd::Closed {
            one.stop.send_replace(true);
            let links_ended = one.links_ended.lock().take();
            if let Some(ended) = links_ended {
                let _ = ended.await;
            }
            one.store.close().await.map_err(|error| format!("the store of node {node} does not close: {error}"))?;
            let of = |(_, rule): &(usize, &super::plan::ChannelRule)| rule.home == node;
            self.rules.iter().enumerate().filter(of).for_each(|(channel, _)| self.ledger.lock().closed(channel));
        }
        one.kill();
        {
            let mut device = self.disk(node).0.lock();
            if matches!(end, NodeEnd::Cut | NodeEnd::Rebooted) { device.cut() } else { device.kill() }
        }
        self.network.gone(node, if end == NodeEnd::Cut { PipeEnd::Silent } else { PipeEnd::Reset });
        Ok(())
    }
}
