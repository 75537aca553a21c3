//! The disks of a pool: what is on them, which role each has, how they are made into one.

pub mod contents;
pub mod open;
pub mod plan;
mod signatures;
pub mod words;
