//! The simulator over many seeds.
//!
//! One binary: each further one would link, and compile the generic code of the crates, once more.

mod block;
mod channel_model;
mod edge;
mod nodes;
mod seeds;
