//! The disk layer over real files and over fault-injecting disks.
//!
//! There is one binary: each further one would link, and compile the generic code of the crates,
//! once more.

mod common;
mod drivers;
mod machine;
mod probe;
mod stripe;
mod superdisk;
mod wrappers;
mod zones;
