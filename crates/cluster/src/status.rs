//! The state of the nodes and links, for operators.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It carries frames.
    Up,
    /// There is none.
    Down,
}

/// A link to another node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkStatus {
    /// Its state.
    pub state: LinkState,
    /// How long it has had this state, seconds.
    pub since_s: u64,
    /// The last round trip, microseconds; `None` before the first.
    pub round_trip_us: Option<u64>,
    /// Bytes that wait to be sent.
    pub outbox_bytes: u64,
    /// Links established since the start.
    pub established: u64,
    /// Frames received since the start.
    pub frames_received: u64,
    /// The address of the other end, while the link is up.
    pub peer: Option<String>,
    /// The latest tenure of the node: its pool has an owner of this number; 0 without an archive.
    pub tenure: u64,
    /// Why the last link ended, or could not be established.
    pub error: Option<String>,
    /// Namespaces whose options are not the same at the other node. Their channels are stored in
    /// the same way.
    pub differing_namespaces: Vec<String>,
    /// The last further process that has the name of the node and was refused, for a minute.
    pub refused: Option<RefusedProcess>,
}

/// A process that has the name of a node, while another process of this name is connected.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefusedProcess {
    /// The address that it connects from.
    pub address: String,
    /// When it was refused last, seconds ago.
    pub ago_s: u64,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The address of its links.
    pub address: String,
    /// The address of its links on the machine of its standby.
    pub standby: Option<String>,
    /// Whether it is a home of channels.
    pub home: bool,
    /// The link to it; `None` for this node.
    pub link: Option<LinkStatus>,
}

/// The cluster as this node sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// The name of this node.
    pub name: String,
    /// Limit of [`LinkStatus::outbox_bytes`].
    pub outbox_bytes_max: u64,
    /// All nodes, in the order of the configuration.
    pub nodes: Vec<NodeStatus>,
}

/// Counters of the links to a node.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    received: AtomicU64,
    /// The last round trip in microseconds plus one; 0: none yet.
    round_trip: AtomicU64,
}

impl LinkCounters {
    pub(crate) fn received(&self) {
        self.received.fetch_add(1, Relaxed);
    }

    pub(crate) fn frames_received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    pub(crate) fn round_trip(&self, us: u64) {
        self.round_trip.store(us + 1, Relaxed);
    }

    pub(crate) fn round_trip_us(&self) -> Option<u64> {
        self.round_trip.load(Relaxed).checked_sub(1)
    }
}
