//! The simulator over many seeds.
//!
//! One binary: each further one would link, and compile the generic code of the crates, once more.

mod block;
mod channel_model;
mod edge;
mod leases;
mod nodes;
mod seeds;

/// The broken variants that a run of the tests tries: one in four, or all with the environment
/// variable `BROKEN_VARIANTS`, as `./test --long` sets it.
fn tried<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().step_by(if std::env::var_os("BROKEN_VARIANTS").is_some() { 1 } else { 4 })
}
