//! Seeded simulator of crashes and faults that drives log and store.

pub mod disk;
pub mod executor;
pub mod fuzz;
pub mod model;
pub mod platter;
pub mod rng;
pub mod trace;
