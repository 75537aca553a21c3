//! The disk layer over real files and over disks that misbehave.
//!
//! One binary: each further one would be linked, and compile the generic code of the crates, once more.

mod common;
mod drivers;
mod machine;
mod probe;
mod stripe;
mod superdisk;
mod wrappers;
mod zones;
