//! Seeded simulator of crashes and faults that drives log and store.
pub mod fuzz;
