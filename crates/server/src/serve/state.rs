//! The state of the server, for the admin port.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use serde_json::{Value, json};
use steadfast_cluster::{Channels, Links};
use steadfast_flow::Env;
use steadfast_live::Node;

use super::archive::PoolArchive;
use super::pool::Pool;
use crate::admin::Source;
use crate::admin::metrics::{process_cpu, process_memory};
use crate::block::Device;
use crate::net::listener::PortStats;
use crate::report::duration;

/// The answer of a front to commands that concern a pool.
pub(super) const NO_POOL: &str = "this node is a front of a cluster and has no disks: run the command at a home";

/// The phase of the server.
enum Phase {
    Opening,
    Serving(Box<Serving>),
    Stopping,
}

/// The parts of a serving server.
pub struct Serving {
    /// The services of the pool; `None`: this node is a front without disks.
    pub pool: Option<Pool>,
    /// The node of the live port, if it has one.
    pub live: Option<Arc<Node>>,
    /// The share of each disk that publications of clients leave free, in percent; 0: none.
    pub publish_reserve: u8,
}

/// The process of a server.
pub(crate) struct ProcessStatus {
    env: Env,
    started: Duration,
    started_ms: u64,
}

impl ProcessStatus {
    /// A process that starts now.
    pub(crate) fn new(env: &Env) -> Self {
        Self { env: env.clone(), started: env.now(), started_ms: env.wall_ms() }
    }

    /// Its status.
    pub(crate) fn describe(&self, not_ready: Option<String>) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_ms": self.started_ms,
            "uptime_s": self.env.now().saturating_sub(self.started).as_secs(),
            "ready": not_ready.is_none(),
            "not_ready": not_ready,
            "memory": process_memory(),
            "cpu_us": u64::try_from(process_cpu().as_micros()).unwrap_or(u64::MAX),
        })
    }
}

/// The server's state.
pub struct State {
    process: ProcessStatus,
    /// Of the S3 port; `None`: there is none.
    connections: Option<Arc<PortStats>>,
    phase: RwLock<Phase>,
    block: OnceLock<Vec<Arc<Device>>>,
    cluster: OnceLock<NodeParts>,
    archive: OnceLock<PoolArchive>,
}

/// The parts of a node of a cluster.
pub struct NodeParts {
    /// The links to the other nodes.
    pub links: Links,
    /// The channels that use them.
    pub channels: Channels,
    /// How long a front may be without a home before it is not ready; 0: it stays ready.
    pub ready_without_homes: Duration,
}

impl NodeParts {
    /// Why a front is not ready.
    fn not_ready(&self) -> Option<String> {
        let down = self.channels.without_homes().filter(|_| !self.ready_without_homes.is_zero())?;
        (down >= self.ready_without_homes).then(|| {
            format!(
                "this front has had no link to a home for {}: `steadfast status` says why",
                duration(down.as_secs())
            )
        })
    }
}

impl State {
    /// A server that opens its pool.
    pub fn new(env: &Env, connections: Option<Arc<PortStats>>) -> Self {
        let process = ProcessStatus::new(env);
        let phase = RwLock::new(Phase::Opening);
        let (block, cluster, archive) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { process, connections, phase, block, cluster, archive }
    }

    /// Sets the block devices that the server serves.
    pub fn block(&self, devices: Vec<Arc<Device>>) {
        // One start sets them once.
        let _ = self.block.set(devices);
    }

    /// Sets the parts of a node of a cluster.
    pub fn cluster(&self, parts: NodeParts) {
        // One start sets them once.
        let _ = self.cluster.set(parts);
    }

    /// Sets the archive of the pool.
    pub fn archive(&self, archive: PoolArchive) {
        // One start sets it once.
        let _ = self.archive.set(archive);
    }

    /// Enters the serving phase.
    pub fn serving(&self, serving: Serving) {
        *self.phase.write() = Phase::Serving(Box::new(serving));
    }

    /// The services of the pool, while the server serves.
    ///
    /// # Errors
    /// When the server is starting or stopping, or is a front without disks.
    pub fn pool(&self) -> Result<Pool, String> {
        match &*self.phase.read() {
            Phase::Serving(serving) => serving.pool.clone().ok_or_else(|| NO_POOL.to_owned()),
            _ => Err("the server is starting or stopping: try again".to_owned()),
        }
    }

    /// Whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        matches!(&*self.phase.read(), Phase::Stopping)
    }

    /// Enters the stopping phase and drops the parts.
    pub fn stopping(&self) {
        *self.phase.write() = Phase::Stopping;
    }
}

impl Source for State {
    fn not_ready(&self) -> Option<String> {
        match &*self.phase.read() {
            Phase::Opening => Some("the pool is being opened".to_owned()),
            Phase::Stopping => Some("the server is stopping".to_owned()),
            Phase::Serving(serving) => match &serving.pool {
                Some(pool) => {
                    let lease = self.archive.get().and_then(PoolArchive::not_ready);
                    lease.or_else(|| pool.engine.not_ready())
                }
                None => self.cluster.get()?.not_ready(),
            },
        }
    }

    fn warnings(&self) -> Vec<String> {
        match &*self.phase.read() {
            Phase::Serving(serving) => {
                let block = self.block.get().into_iter().flatten().flat_map(|device| device.warnings());
                let pool = serving.pool.iter().flat_map(|pool| pool.engine.short_of_space(serving.publish_reserve));
                pool.chain(block).chain(self.archive.get().and_then(PoolArchive::warning)).collect()
            }
            Phase::Opening | Phase::Stopping => Vec::new(),
        }
    }

    fn status(&self) -> Value {
        let mut status = self.process.describe(self.not_ready());
        if let Some(connections) = &self.connections {
            status["connections"] = json!({
                "open": connections.open.load(Relaxed),
                "limit": connections.limit.load(Relaxed),
                "accepted": connections.accepted.load(Relaxed),
                "at_bound": connections.at_bound.load(Relaxed),
                "idle_closed": connections.idle_closed.load(Relaxed),
                "refused": connections.refused.load(Relaxed),
                "tls_failed": connections.tls_failed.load(Relaxed),
            });
        }
        if let Some(devices) = self.block.get().filter(|devices| !devices.is_empty()) {
            status["block"] = devices.iter().map(|device| device.status()).collect();
        }
        if let Some(NodeParts { links, channels, .. }) = self.cluster.get() {
            status["cluster"] = json!(links.status());
            status["cluster"]["channels"] = json!(channels.status());
        }
        if let Some(archive) = self.archive.get() {
            status["archive"] = json!(archive.status());
        }
        if let Phase::Serving(serving) = &*self.phase.read() {
            if let Some(live) = &serving.live {
                status["live"] = json!(live.status());
            }
            let (mut slow, mut bounds) = (Vec::new(), Vec::new());
            if let Some(Pool { engine, door, users: _, audit, edge, webhooks }) = &serving.pool {
                engine.describe(&mut status);
                status["s3"] = json!({"requests_in_flight": door.requests_in_flight()});
                status["webhooks"] = json!(webhooks.status());
                if let Some(edge) = edge {
                    status["edge"] = json!(edge.status());
                }
                slow.push(json!(door.slow_status()));
                bounds.extend([json!(door.gate_status()), json!(door.answers_status()), json!(door.xml_status())]);
                bounds.extend(audit.iter().map(|audit| json!(audit.status())));
            }
            slow.extend(status["live"]["slow_requests"].as_array().into_iter().flatten().cloned());
            status["slow_requests"] = Value::Array(slow);
            collect_bounds(&status["live"], &mut bounds);
            collect_bounds(&status["edge"], &mut bounds);
            collect_bounds(&status["store"], &mut bounds);
            status["bounds"] = Value::Array(bounds);
        }
        status
    }
}

/// Collects the bounds in the status of the layers below: every object with `name`, `limit` and
/// `used`.
fn collect_bounds(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            if map.contains_key("name") && map.contains_key("limit") && map.contains_key("used") {
                found.push(value.clone());
            } else {
                map.values().for_each(|v| collect_bounds(v, found));
            }
        }
        Value::Array(items) => items.iter().for_each(|v| collect_bounds(v, found)),
        _ => {}
    }
}
