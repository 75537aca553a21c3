//! What all policies together say of a request.

use crate::policy::Policy;
use crate::request::AccessRequest;
use crate::statement::Effect;

/// What the policies say of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessDecision {
    /// A statement allows it, and none denies it.
    Allowed,
    /// A statement denies it.
    Denied,
    /// No statement applies to it.
    Unmentioned,
}

impl AccessDecision {
    /// Whether the request may proceed.
    pub fn is_allowed(self) -> bool {
        self == Self::Allowed
    }
}

/// Judges a request by all of `policies`: those of its user and that of its bucket. One that denies
/// it counts more than all that allow it.
pub fn decide<'p>(policies: impl IntoIterator<Item = &'p Policy>, request: &AccessRequest<'_>) -> AccessDecision {
    let mut decision = AccessDecision::Unmentioned;
    for policy in policies {
        match policy.effect_on(request) {
            Some(Effect::Deny) => return AccessDecision::Denied,
            Some(Effect::Allow) => decision = AccessDecision::Allowed,
            None => {}
        }
    }
    decision
}
