//! The `steadfast` binary, as a library so that its parts can be tested and fuzzed: configuration, doors, admin port, commands.

pub mod config;
pub mod output;
