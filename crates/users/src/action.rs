//! What an operator can do to users, keys and named policies.

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

/// What changes of a key; `None`: it stays as it is.
#[derive(Default)]
pub struct KeyChange {
    /// The secret key.
    pub secret_key: Option<String>,
    /// Whether it is disabled.
    pub disabled: Option<bool>,
    /// When it stops to work, in milliseconds since 1970; `Some(None)`: never.
    pub expires_ms: Option<Option<u64>>,
}

impl fmt::Debug for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyChange(secret, disabled {:?}, expires {:?} ms)", self.disabled, self.expires_ms)
    }
}

/// How the named policies of a user change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The user gets further ones.
    Add,
    /// The user loses some.
    Remove,
    /// The user has these and no others.
    Replace,
}

/// What an operator does to users, keys and named policies.
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
    /// Makes a named policy, or changes it for all users that have it.
    PolicySet {
        /// Its name.
        name: String,
        /// The policy, as JSON.
        policy: String,
    },
    /// Lists the named policies.
    PolicyList {},
    /// Shows a named policy.
    PolicyShow {
        /// Its name.
        name: String,
    },
    /// Removes a named policy that no user has.
    PolicyRemove {
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
