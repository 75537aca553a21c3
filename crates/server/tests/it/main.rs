//! The binary as a process.
//!
//! One binary: each further one would be linked, and compile the generic code of the crates, once more.

mod process;
