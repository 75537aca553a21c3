//! Budgets, semaphores, the ring, histograms, request stages, and the interfaces to time,
//! randomness and tasks.
//!
//! The lowest layer: it depends on no other crate of Steadfast and does no I/O.

pub mod budget;
pub mod connections;
pub mod env;
mod fault;
pub mod gate;
mod gauge;
pub mod histogram;
mod lease;
mod leased_io;
pub mod pace;
pub mod patience;
pub mod ring;
pub mod slow;
pub mod stages;
mod striped;
pub mod task;
#[cfg(test)]
mod testing;
pub mod throttle;

pub use budget::{Budget, KeyedBudget, Permit};
pub use connections::{Closing, Connection, Connections, group_of};
pub use env::{BoxFuture, Env, Panicked, Runtime, TokioRuntime};
pub use fault::has_fault;
pub use gate::{Gate, KeyedGate, KeyedGateOptions, Pass};
pub use gauge::{FlowStatus, Refused};
pub use histogram::{Histogram, HistogramCounter};
pub use lease::Lease;
pub use leased_io::LeasedIo;
pub use pace::Pace;
pub use patience::Patience;
pub use ring::Ring;
pub use slow::{Ended, SlowRequests, SlowStatus};
pub use stages::{Stage, Stages};
pub use striped::Striped;
pub use throttle::{Throttle, shortened};
