//! Budgets, semaphores and the seams for time, randomness and tasks.
//!
//! The lowest layer: it imports nothing of Steadfast's and does no I/O.

pub mod env;

pub use env::{BoxFuture, Env, Runtime, TokioRuntime};
