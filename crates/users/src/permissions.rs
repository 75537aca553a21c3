//! What a user may do.

use serde::{Deserialize, Serialize};
use steadfast_access::{Grant, Policy, PolicyError, PolicyUse};

/// What a user may do: all of its grants and all that its policy allows, but what the policy
/// denies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    /// Short forms, such as `read:media/public/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
    /// A policy, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// The most bytes that the permissions take in the record of their user; the keys need the rest. A
/// policy of the largest size fits.
const BYTES_MAX: usize = 42 << 10;

impl Permissions {
    /// Checks that all of them can be read.
    ///
    /// # Errors
    /// A text that is no grant, or a document that is no policy, as a message.
    pub fn check(&self) -> Result<(), String> {
        let bytes = serde_json::to_string(self).map_err(|e| e.to_string())?.len();
        if bytes > BYTES_MAX {
            return Err(format!("the grants and the policy take {bytes} bytes; the limit is {BYTES_MAX}"));
        }
        self.policies().map(drop)
    }

    /// The policies that they stand for.
    ///
    /// # Errors
    /// A text that is no grant, or a document that is no policy, as a message.
    pub(crate) fn policies(&self) -> Result<Vec<Policy>, String> {
        let grants: Result<Vec<Grant>, String> = self.grants.iter().map(|text| Grant::parse(text)).collect();
        let grants = grants?;
        let granted = (!grants.is_empty()).then(|| Grant::document(&grants));
        let documents = granted.as_deref().into_iter().chain(self.policy.as_deref());
        let policies: Result<Vec<Policy>, PolicyError> =
            documents.map(|document| Policy::parse(document.as_bytes(), PolicyUse::User)).collect();
        policies.map_err(|why| format!("invalid policy: {why}"))
    }
}
