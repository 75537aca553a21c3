//! What an operator can do to users and keys.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::permissions::Permissions;

/// A key to be made.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// `None`: a new one.
    pub access_key: Option<String>,
    /// `None`: a new one.
    pub secret_key: Option<String>,
    /// How long it works, in milliseconds; `None`: for ever.
    pub lifetime_ms: Option<u64>,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({:?}, secret, {:?} ms)", self.access_key, self.lifetime_ms)
    }
}

/// What an operator does to users and keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UserAction {
    /// Creates a user with its first key.
    Create {
        /// Its name.
        name: String,
        /// What it may do.
        permissions: Permissions,
        /// Its key; `None`: it has none yet.
        key: Option<NewKey>,
    },
    /// Lists the users with their keys.
    List {},
    /// Shows one user with its keys.
    Show {
        /// Its name.
        name: String,
    },
    /// Sets what a user may do, in place of what it could.
    Permit {
        /// Its name.
        name: String,
        /// What it may do.
        permissions: Permissions,
    },
    /// Disables all keys of a user, or lets them work again.
    Disable {
        /// Its name.
        name: String,
        /// Whether they are disabled.
        disabled: bool,
    },
    /// Removes a user and its keys.
    Remove {
        /// Its name.
        name: String,
    },
    /// Makes a further key.
    KeyCreate {
        /// The name of its user.
        user: String,
        /// The key.
        key: NewKey,
    },
    /// Disables a key, or lets it work again.
    KeyDisable {
        /// Its access key.
        access_key: String,
        /// Whether it is disabled.
        disabled: bool,
    },
    /// Makes a key in place of another, which works on for a while.
    KeyRotate {
        /// The access key of the other.
        access_key: String,
        /// How long both work, in milliseconds.
        overlap_ms: u64,
        /// The new key.
        key: NewKey,
    },
    /// Removes a key.
    KeyRemove {
        /// Its access key.
        access_key: String,
    },
}
