//! Users and their access keys. They are stored in the pool, on each of its disks, and a change
//! counts at once.
//!
//! - `key_pair` makes and checks pairs of access key and secret key.
//! - `seal` encrypts secret keys for the pool.
//! - `permissions` are what a user may do, and `named_policy` is a policy that users share.
//! - `user` is what the pool stores of a user, `summary` what operators see of it, and `account` is
//!   ready to judge requests.
//! - `directory` finds the account of an access key.
//! - `action` is what an operator can do to users, and `users` does it; `policies` does it to named
//!   policies.

mod account;
mod action;
mod directory;
mod error;
mod key_pair;
mod named_policy;
mod permissions;
mod policies;
mod seal;
mod summary;
mod user;
mod users;

pub use account::Account;
pub use action::{Attachment, KeyChange, NewKey, UserAction};
pub use directory::{KeyRefusal, SigningKey};
pub use error::UserError;
pub use key_pair::KeyPair;
pub use named_policy::NamedPolicy;
pub use permissions::Permissions;
pub use policies::NamedPolicies;
pub use seal::Seal;
pub use summary::{KeyState, KeySummary, UserSummary};
pub use user::check_name;
pub use users::Users;

#[cfg(test)]
mod tests;
