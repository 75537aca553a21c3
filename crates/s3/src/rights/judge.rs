//! The judge: whether a caller may do what a request is about.

use std::collections::BTreeSet;

use http::header::{HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use s3s::S3Result;
use s3s::path::S3Path;
use steadfast_access::{AccessRequest, Policy, Principal, S3Action, decide};
use steadfast_flow::Env;
use steadfast_store::Store;

use crate::error::store_error;
use crate::rights::denied;
use crate::rights::facts::{RequestFacts, RequestParts, TAGGING};
use crate::rights::needed::{Needed, ResourceKind, action};
use crate::rights::rules::{BucketRules, RulesOfBuckets};

const DELETE_OBJECT: S3Action = action("DeleteObject");
const GET_OBJECT: S3Action = action("GetObject");
const LIST_BUCKET: S3Action = action("ListBucket");
const PUT_OBJECT: S3Action = action("PutObject");
const PUT_TAGS: S3Action = action("PutObjectTagging");

/// Decides by the policies of users and buckets. No policy binds the root identity.
pub(crate) struct Judge {
    store: Store,
    env: Env,
    rules: RulesOfBuckets,
}

impl Judge {
    pub(crate) fn new(store: Store, env: Env, public_read: BTreeSet<String>) -> Self {
        Self { rules: RulesOfBuckets::new(store.clone(), public_read), store, env }
    }

    /// The policy that the configuration gives a bucket.
    pub(crate) fn configured_policy(&self, bucket: &str) -> Option<String> {
        self.rules.configured(bucket)
    }

    /// Whether a policy of a bucket allows something to everyone; `None` if it has no policy.
    ///
    /// # Errors
    /// `NoSuchBucket`; `InternalError` for a policy that cannot be read.
    pub(crate) fn is_public(&self, bucket: &str) -> S3Result<Option<bool>> {
        let rules = self.rules.of(bucket)?;
        Ok((!rules.policies.is_empty()).then(|| rules.policies.iter().any(Policy::is_public)))
    }

    /// The facts about a request that is about a bucket, or an object of it.
    pub(crate) fn facts<'a>(
        &'a self,
        parts: RequestParts<'a>,
        bucket: &'a str,
        key: Option<&'a str>,
    ) -> RequestFacts<'a> {
        RequestFacts::new((&self.store, &self.env), parts, bucket, key)
    }

    /// Refuses a request whose caller lacks the right to its operation, before its body is read.
    ///
    /// # Errors
    /// `AccessDenied`; `InvalidArgument` for a request that policies cannot judge.
    pub(crate) fn check_operation(&self, needed: &Needed, parts: RequestParts<'_>, path: &S3Path) -> S3Result<()> {
        let caller = parts.caller;
        let Some(principal) = caller.identity.principal() else { return Ok(()) };
        if needed.of_account && principal == Principal::Anonymous {
            return Err(denied());
        }
        let (bucket, key) = match path {
            S3Path::Root => ("", None),
            S3Path::Bucket { bucket } => (&**bucket, None),
            S3Path::Object { bucket, key } => (&**bucket, Some(&**key)),
        };
        assert_eq!(needed.on == ResourceKind::Object, key.is_some(), "the operation is on what the path names");
        parts.check()?;
        let rules = match needed.on {
            ResourceKind::Service => None,
            ResourceKind::Bucket | ResourceKind::Object => Some(self.rules.of(bucket)?),
        };
        let rules = rules.as_deref();
        let mut facts = self.facts(parts, bucket, key);
        if needed.late {
            let restricted = rules.is_some_and(|rules| rules.restricted);
            let somewhere = |action| {
                let policies = rules.into_iter().flat_map(|rules| &rules.policies);
                caller.identity.policies().iter().chain(policies).any(|policy| policy.may_allow(principal, action))
            };
            let open = !(restricted && principal == Principal::Anonymous);
            let mut actions = needed.actions(false).chain(needed.actions(true));
            return if open && actions.any(somewhere) { Ok(()) } else { Err(denied()) };
        }
        for action in needed.actions(parts.names_version()).chain(of_headers(needed.action, parts.headers)) {
            if !is_allowed(rules, principal, action, &mut facts)? {
                return Err(denied());
            }
        }
        match (key, rules) {
            (Some(_), Some(rules)) => hide_absence(rules, principal, &facts),
            _ => Ok(()),
        }
    }

    /// Refuses an action that the caller may not take; `versioned` is the one on a version.
    ///
    /// # Errors
    /// Those of [`Judge::check`].
    pub(crate) fn check_either(&self, action: S3Action, versioned: S3Action, facts: RequestFacts<'_>) -> S3Result<()> {
        self.check(if facts.names_version() { versioned } else { action }, facts)
    }

    /// Refuses an action that the caller may not take.
    ///
    /// # Errors
    /// `AccessDenied`; `NoSuchBucket`; those of finding out the facts.
    pub(crate) fn check(&self, action: S3Action, mut facts: RequestFacts<'_>) -> S3Result<()> {
        let Some(principal) = facts.parts.caller.identity.principal() else { return Ok(()) };
        match is_allowed(Some(&*self.rules.of(facts.bucket)?), principal, action, &mut facts)? {
            true => Ok(()),
            false => Err(denied()),
        }
    }

    /// Hides from the caller that a key does not exist, if it may not list the bucket of the key.
    ///
    /// # Errors
    /// Those of [`Judge::check`], but `AccessDenied`.
    pub(crate) fn hide_absence(&self, facts: &RequestFacts<'_>) -> S3Result<()> {
        let Some(principal) = facts.parts.caller.identity.principal() else { return Ok(()) };
        hide_absence(&*self.rules.of(facts.bucket)?, principal, facts)
    }
}

fn hide_absence(rules: &BucketRules, principal: Principal<'_>, facts: &RequestFacts<'_>) -> S3Result<()> {
    if !rules.shows_absence && !is_allowed(Some(rules), principal, LIST_BUCKET, &mut facts.of_bucket())? {
        facts.parts.caller.hide_absence();
    }
    Ok(())
}

/// The further actions that headers of a write need. A condition on an entity tag tells what the
/// object holds.
fn of_headers(action: S3Action, headers: &HeaderMap) -> impl Iterator<Item = S3Action> {
    let writes = action == PUT_OBJECT;
    let tags = writes && headers.contains_key(&TAGGING);
    let any = |value: &HeaderValue| value.as_bytes().trim_ascii() == b"*";
    let reads = (writes || action == DELETE_OBJECT)
        && (headers.contains_key(IF_MATCH) || headers.get_all(IF_NONE_MATCH).iter().any(|value| !any(value)));
    tags.then_some(PUT_TAGS).into_iter().chain(reads.then_some(GET_OBJECT))
}

fn is_allowed(
    rules: Option<&BucketRules>,
    principal: Principal<'_>,
    action: S3Action,
    facts: &mut RequestFacts<'_>,
) -> S3Result<bool> {
    if rules.is_some_and(|rules| rules.restricted) && principal == Principal::Anonymous {
        return Ok(false);
    }
    let resource = facts.resource();
    let policies = rules.into_iter().flat_map(|rules| &rules.policies);
    let policies = facts.parts.caller.identity.policies().iter().chain(policies);
    let decision = decide(policies, &AccessRequest { principal, action, resource: &resource, facts: &*facts });
    match facts.failure() {
        Some(error) => Err(store_error(error)),
        None => Ok(decision.is_allowed()),
    }
}
