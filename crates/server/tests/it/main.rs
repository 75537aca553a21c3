//! The binary as a process.
//!
//! One test binary: each further one costs another link and compiles the generic code again.

mod process;
