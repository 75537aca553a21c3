//! Seeded simulator of crashes and faults that drives log and store.
//!
//! One seed decides the machine, the settings, what clients ask for, which task goes on when, how long everything takes, what
//! fails, and when the power goes; [`run_seed`] replays it exactly. A [`model::Model`] says what may then be read.

mod array;
mod block;
mod channels;
mod client;
mod counts;
pub mod disk;
mod drain;
mod events;
pub mod executor;
pub mod fuzz;
mod indexes;
mod keeper;
mod life;
mod members;
pub mod model;
mod moment;
mod once;
mod operator;
mod plan;
pub mod platter;
mod report;
pub mod rng;
mod run;
mod shared;
mod survey;
mod tireless;
pub mod trace;
mod upload;
mod variants;

pub use block::{BlockFailure, BlockOptions, BlockReport, BlockVariant, block_hash, run_blocks};
pub use counts::Counts;
pub use plan::Trouble;
pub use report::{RunReport, SimOptions, SimReport};
pub use run::{run, run_seed};
pub use variants::Variant;
