//! The disks of a pool: what is on them, which role each has, how they are made into one.

pub mod contents;
pub mod make;
pub mod making;
pub mod open;
pub mod plan;
pub mod remembered;
mod signatures;
pub mod words;
