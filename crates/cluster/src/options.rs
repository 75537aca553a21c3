//! Settings of the channels of a node.

use std::time::Duration;

use crate::sabotage::ClusterSabotage;

/// Settings of the channels of a node.
#[derive(Debug, Clone)]
pub struct ChannelsOptions {
    /// Memory for the newest publications of channels of other homes, bytes.
    pub tail_bytes_max: u64,
    /// Size of the outbox of a link, bytes: answers to other nodes fit into it.
    pub outbox_bytes_max: u64,
    /// How long the members of a node without a link are kept.
    pub node_ttl: Duration,
    /// Time in which a front compares the members of all its channels with their homes.
    pub members_compared: Duration,
    /// A broken variant for the simulator.
    pub sabotage: ClusterSabotage,
}

impl Default for ChannelsOptions {
    fn default() -> Self {
        Self {
            tail_bytes_max: 64 << 20,
            outbox_bytes_max: 64 << 20,
            node_ttl: Duration::from_secs(10),
            members_compared: Duration::from_secs(32),
            sabotage: ClusterSabotage::None,
        }
    }
}
