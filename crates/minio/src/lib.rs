//! MinIO's administration over HTTP, as `mc admin` and `madmin` send it: users, access keys,
//! policies, and the state of the server. Set-up scripts written for MinIO work with it.
//!
//! - `operation` is the one table of the requests that are served.
//! - `call` is one of them, and `administration` serves it.
//! - `user_requests`, `key_requests` and `policy_requests` do what it wants to users, keys and
//!   policies; `server_info` is the state.
//! - `payload` encrypts and decrypts bodies with the secret key of the caller.
//! - `failure` is what a refused request gets.

mod administration;
mod call;
mod failure;
mod key_requests;
mod operation;
mod payload;
mod policy_requests;
mod server_info;
mod user_requests;

pub use administration::Administration;
pub use call::{AdminCall, AdminReply};
pub use operation::AdminOperation;

#[cfg(test)]
mod tests;
