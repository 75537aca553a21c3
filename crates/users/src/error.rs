//! Why an action on users failed.

use steadfast_store::StoreError;

/// Why an action on users failed.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The action cannot be done; the text gives the reason.
    #[error("{0}")]
    Refused(String),
    /// There is no user of this name.
    #[error("there is no user {0:?}")]
    NoSuchUser(String),
    /// No user has this access key.
    #[error("no user has the access key {0:?}")]
    NoSuchKey(String),
    /// There is no named policy of this name.
    #[error("there is no policy {0:?}")]
    NoSuchPolicy(String),
    /// A user has the policy, so it cannot be removed.
    #[error("the user {user:?} has the policy {policy:?}: detach it first")]
    PolicyInUse {
        /// Its name.
        policy: String,
        /// The name of the user.
        user: String,
    },
    /// The pool cannot be read or changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<String> for UserError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}
