//! The disks of a pool: their content, their roles, and how they form one pool.

pub mod contents;
pub mod fast;
pub mod make;
pub mod making;
pub mod open;
pub mod paths;
pub mod plan;
mod signatures;
pub mod words;
