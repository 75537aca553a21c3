//! Users and their access keys. They are stored in the pool, on each of its disks, and a change
//! counts at once.
//!
//! - `key_pair` makes and checks pairs of access key and secret key.
//! - `seal` encrypts secret keys for the pool.
//! - `permissions` are what a user may do.
//! - `user` is what the pool stores of a user, and `account` the same, ready to judge requests.
//! - `directory` finds the account of an access key.
//! - `action` is what an operator can do to users, and `users` does it.

mod account;
mod action;
mod directory;
mod key_pair;
mod permissions;
mod seal;
mod user;
mod users;

pub use account::Account;
pub use action::{NewKey, UserAction};
pub use directory::{KeyRefusal, SigningKey};
pub use key_pair::KeyPair;
pub use permissions::Permissions;
pub use seal::Seal;
pub use user::check_name;
pub use users::{UserError, Users};

#[cfg(test)]
mod tests;
