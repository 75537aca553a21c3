//! Seeded simulator of crashes and faults that drives log and store.
//!
//! One seed decides the machine, the settings, what clients ask for, which task goes on when, how long everything takes, what
//! fails, and when the power goes; [`run_seed`] replays it exactly. A [`model::Model`] says what may then be read.

mod array;
mod client;
pub mod disk;
mod drain;
pub mod executor;
pub mod fuzz;
mod life;
pub mod model;
mod plan;
pub mod platter;
pub mod rng;
mod run;
pub mod trace;
mod upload;
mod variants;

pub use client::Counts;
pub use plan::Trouble;
pub use run::{RunReport, SimOptions, SimReport, run, run_seed};
pub use variants::Variant;
