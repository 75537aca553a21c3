//! What a user may do.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast_access::{Grant, Policy, PolicyError, PolicyUse};

/// What a user may do: all of its grants, and all that its own policy and the named ones allow, but
/// what one of them denies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    /// Short forms, such as `read:media/public/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
    /// A policy, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The names of policies that users share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<String>,
}

/// The most named policies of a user. Source: AWS, whose quota can be raised so far.
pub(crate) const ATTACHED_MAX: usize = 20;

/// The most bytes that the permissions take in the record of their user; the keys need the rest. A
/// policy of the largest size fits.
const BYTES_MAX: usize = 42 << 10;

impl Permissions {
    /// Checks that all of them can be read, and that there are no more named policies than a user
    /// may have.
    ///
    /// # Errors
    /// A text that is no grant, or a document that is no policy, as a message.
    pub fn check(&self) -> Result<(), String> {
        if self.attached.len() > ATTACHED_MAX {
            return Err(format!("a user may have {ATTACHED_MAX} named policies"));
        }
        let bytes = serde_json::to_string(self).map_err(|e| e.to_string())?.len();
        if bytes > BYTES_MAX {
            return Err(format!("the grants and the policy take {bytes} bytes; the limit is {BYTES_MAX}"));
        }
        self.own_policies().map(drop)
    }

    /// The policies that they stand for, without the named ones.
    ///
    /// # Errors
    /// A text that is no grant, or a document that is no policy, as a message.
    pub(crate) fn own_policies(&self) -> Result<Vec<Arc<Policy>>, String> {
        let grants: Result<Vec<Grant>, String> = self.grants.iter().map(|text| Grant::parse(text)).collect();
        let grants = grants?;
        let granted = (!grants.is_empty()).then(|| Grant::document(&grants));
        let documents = granted.as_deref().into_iter().chain(self.policy.as_deref());
        let policies: Result<Vec<Arc<Policy>>, PolicyError> =
            documents.map(|document| Policy::parse(document.as_bytes(), PolicyUse::User).map(Arc::new)).collect();
        policies.map_err(|why| format!("invalid policy: {why}"))
    }
}
