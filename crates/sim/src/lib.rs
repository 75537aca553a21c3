//! Seeded simulator of crashes and faults that drives log and store.
//!
//! One seed decides the machine, the settings, the clients' requests, the scheduling of tasks, all
//! latencies, the faults and the power cuts. [`run_seed`] replays a seed exactly. A
//! [`model::Model`] decides what a read may return.

mod archive;
mod array;
mod block;
mod channels;
pub mod cli;
mod client;
mod counts;
pub mod disk;
mod drain;
mod edge;
mod events;
pub mod executor;
pub mod fuzz;
mod indexes;
mod kept;
mod leases;
mod life;
mod members;
pub mod model;
mod moment;
mod nodes;
mod once;
mod operator;
mod outcome;
mod plan;
pub mod platter;
mod process;
mod report;
pub mod rng;
mod run;
mod run_state;
mod sabotage;
mod saturating;
mod seeds;
mod shared;
mod standby;
mod survey;
mod tags;
pub mod trace;
mod upload;
mod variants;

pub use block::{BlockFailure, BlockOptions, BlockReport, BlockVariant, block_hash, run_blocks};
pub use counts::Counts;
pub use edge::{EdgeFailure, EdgeOptions, EdgeReport, EdgeVariant, edge_hash, run_edges};
pub use leases::{LeaseFailure, LeaseOptions, LeaseReport, LeaseVariant, lease_hash, run_leases};
pub use nodes::{NodesFailure, NodesOptions, NodesReport, NodesVariant, nodes_hash, run_nodes};
pub use plan::FaultClass;
pub use report::{RunReport, SimOptions, SimReport};
pub use run::{run, run_seed};
pub use variants::Variant;
