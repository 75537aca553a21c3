//! The S3 interface, called in process.
//!
//! One binary: each further one would be linked, and compile the generic code of the crates, once
//! more.

#![allow(clippy::disallowed_methods, reason = "test code is outside the seam")]

mod acl;
mod administration;
mod answers;
mod audit;
mod common;
mod edge;
mod inputs;
mod objects;
mod policies;
mod policy_facts;
mod presigned;
mod protocol;
mod public;
mod signed;
mod unset;
mod users;
mod version2;
mod versions;
mod xml;
