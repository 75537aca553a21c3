//! What is judged.

use std::borrow::Cow;

use crate::action::S3Action;
use crate::fact::{Fact, Facts};
use crate::principal::Principal;

/// A principal's request to take an action on a bucket or an object.
#[derive(Clone, Copy)]
pub struct AccessRequest<'a> {
    /// Who makes it.
    pub principal: Principal<'a>,
    /// The action.
    pub action: S3Action,
    /// The bucket, or the bucket, a slash and the key of an object; empty for all buckets.
    pub resource: &'a str,
    /// The facts that do not follow from the principal.
    pub facts: &'a dyn Facts,
}

impl Facts for AccessRequest<'_> {
    fn values(&self, fact: &Fact) -> Vec<Cow<'_, str>> {
        match (fact, self.principal) {
            (Fact::Username | Fact::UserId, Principal::User(name)) => vec![Cow::Borrowed(name)],
            (Fact::Username | Fact::UserId, Principal::Anonymous) => Vec::new(),
            (Fact::PrincipalArn, principal) => principal.arn().map(Cow::Owned).into_iter().collect(),
            (Fact::PrincipalType, Principal::User(_)) => vec![Cow::Borrowed("User")],
            (Fact::PrincipalType, Principal::Anonymous) => vec![Cow::Borrowed("Anonymous")],
            _ => self.facts.values(fact),
        }
    }
}
