//! A statement of a policy.

use crate::action::{ActionSet, S3Action};
use crate::condition::PolicyCondition;
use crate::document::{OneOrMany, StatementDocument};
use crate::principal::{Principal, Principals};
use crate::request::AccessRequest;
use crate::wildcard::Wildcard;

/// What the ARN of a bucket or an object begins with.
const ARN: &str = "arn:aws:s3:::";

/// What a policy belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyUse<'a> {
    /// The bucket of this name. Its statements name principals, and resources of this bucket.
    Bucket(&'a str),
    /// A user. Its statements name no principals.
    User,
}

/// What a statement does to the requests that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Allows them.
    Allow,
    /// Denies them, whatever allows them.
    Deny,
}

/// A statement: whom, which actions, on what, under which conditions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyStatement {
    pub(crate) effect: Effect,
    /// `None`: the user that the policy belongs to.
    principals: Option<Principals>,
    actions: ActionSet,
    resources: Vec<Wildcard>,
    /// The resources are those that it does not apply to.
    except: bool,
    conditions: Vec<PolicyCondition>,
}

impl PolicyStatement {
    /// # Errors
    /// What the statement lacks, or has and should not, in words.
    pub(crate) fn parse(document: &StatementDocument, used: PolicyUse<'_>, variables: bool) -> Result<Self, String> {
        let effect = match document.effect.as_str() {
            "Allow" => Effect::Allow,
            "Deny" => Effect::Deny,
            other => return Err(format!("invalid effect {other:?}: it is \"Allow\" or \"Deny\"")),
        };
        let principals = match (used, &document.principal) {
            (PolicyUse::Bucket(_), Some(field)) => Some(Principals::parse(field)?),
            (PolicyUse::User, None) => None,
            (PolicyUse::Bucket(_), None) => return Err("missing required field Principal".into()),
            (PolicyUse::User, Some(_)) => return Err("the policy of a user has no Principal".into()),
        };
        let actions = match (&document.actions, &document.not_actions) {
            (Some(patterns), None) => parse_actions(patterns)?,
            (None, Some(patterns)) => parse_actions(patterns)?.complement(),
            _ => return Err("a statement has either Action or NotAction".into()),
        };
        let (patterns, except) = match (&document.resources, &document.not_resources) {
            (Some(patterns), None) => (patterns, false),
            (None, Some(patterns)) => (patterns, true),
            _ => return Err("a statement has either Resource or NotResource".into()),
        };
        let resources: Result<Vec<Wildcard>, String> =
            patterns.0.iter().map(|pattern| parse_resource(pattern, used, variables)).collect();
        let mut conditions = Vec::new();
        for (operator, facts) in document.conditions.iter().flat_map(|entries| &entries.0) {
            for (fact, values) in &facts.0 {
                conditions.push(PolicyCondition::parse(operator, fact, &values.0, variables)?);
            }
        }
        let resources = resources?;
        if resources.is_empty() {
            return Err("a statement names no resource".into());
        }
        Ok(Self { effect, principals, actions, resources, except, conditions })
    }

    /// Whether it names the principal and the action.
    fn names(&self, principal: Principal<'_>, action: S3Action) -> bool {
        self.actions.contains(action)
            && self.principals.as_ref().is_none_or(|p| p.include(principal, self.effect == Effect::Deny))
    }

    /// Whether it allows `principal` this action on some resource, under some condition.
    pub(crate) fn may_allow(&self, principal: Principal<'_>, action: S3Action) -> bool {
        self.effect == Effect::Allow && self.names(principal, action)
    }

    /// Whether it applies to the request.
    pub(crate) fn applies_to(&self, request: &AccessRequest<'_>) -> bool {
        self.names(request.principal, request.action)
            && self.resources.iter().any(|pattern| pattern.matches_in(request.resource, request)) != self.except
            && self.conditions.iter().all(|condition| condition.holds(request))
    }

    /// The users that it names.
    pub(crate) fn users(&self) -> impl Iterator<Item = &str> {
        self.principals.iter().flat_map(Principals::users)
    }

    /// Whether it allows something to everyone, wherever they are.
    pub(crate) fn is_public(&self) -> bool {
        self.effect == Effect::Allow
            && self.principals.as_ref().is_some_and(Principals::include_everyone)
            && !self.conditions.iter().any(PolicyCondition::limits_everyone)
    }
}

fn parse_actions(patterns: &OneOrMany<String>) -> Result<ActionSet, String> {
    let mut actions = ActionSet::default();
    for pattern in &patterns.0 {
        let named = ActionSet::matching(pattern);
        if named.is_empty() {
            return Err(format!("invalid action {pattern:?}"));
        }
        actions = actions.union(named);
    }
    if actions.is_empty() { Err("a statement names no action".into()) } else { Ok(actions) }
}

/// A pattern of ARNs, without what all of them begin with.
fn parse_resource(pattern: &str, used: PolicyUse<'_>, variables: bool) -> Result<Wildcard, String> {
    let invalid = || format!("invalid resource {pattern:?}");
    let name = match (pattern.strip_prefix(ARN), used) {
        (Some(name), _) if !name.is_empty() => name,
        (None, PolicyUse::User) if pattern == "*" => pattern,
        _ => return Err(invalid()),
    };
    if let PolicyUse::Bucket(bucket) = used {
        let of_bucket = name.split_once('/').map_or(name, |(bucket, _)| bucket);
        if !Wildcard::plain(of_bucket).matches(bucket) {
            return Err(invalid());
        }
    }
    Wildcard::compile(name, true, variables)
}
