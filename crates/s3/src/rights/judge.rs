//! The judge: whether a caller may do what a request is about.

use std::collections::BTreeSet;

use http::header::{HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use s3s::S3Result;
use s3s::path::S3Path;
use steadfast_access::{AccessDecision, AccessRequest, ListedPermission, Policy, Principal, S3Action, decide};
use steadfast_edge::Edge;
use steadfast_flow::Env;
use steadfast_store::{Attributes, Store, StoreError};

use crate::error::store_error;
use crate::rights::denied;
use crate::rights::facts::{ACL, RequestFacts, RequestParts, TAGGING};
use crate::rights::needed::{Needed, ResourceKind, action};
use crate::rights::rules::{BucketRules, RulesOfBuckets};

const CREATE_BUCKET: S3Action = action("CreateBucket");
const DELETE_OBJECT: S3Action = action("DeleteObject");
const GET_OBJECT: S3Action = action("GetObject");
const LIST_BUCKET: S3Action = action("ListBucket");
const PUT_BUCKET_LIST: S3Action = action("PutBucketAcl");
const PUT_LIST: S3Action = action("PutObjectAcl");
const PUT_OBJECT: S3Action = action("PutObject");
const PUT_OWNERSHIP: S3Action = action("PutBucketOwnershipControls");
const PUT_TAGS: S3Action = action("PutObjectTagging");

/// Decides by the policies of users and buckets, and by access control lists. None of them binds
/// the root identity.
pub(crate) struct Judge {
    store: Store,
    env: Env,
    rules: RulesOfBuckets,
}

impl Judge {
    pub(crate) fn new(store: Store, env: Env, public_read: BTreeSet<String>, edge: Option<Edge>) -> Self {
        Self { rules: RulesOfBuckets::new(store.clone(), public_read, edge), store, env }
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
                let mut policies = caller.identity.policies().chain(policies);
                policies.any(|policy| policy.may_allow(principal, action))
                    || rules.is_some_and(|rules| is_listed_on_bucket(rules, principal, action))
            };
            let open = !(restricted && principal == Principal::Anonymous);
            let mut actions = needed.actions(false).chain(needed.actions(true));
            return if open && actions.any(somewhere) { Ok(()) } else { Err(denied()) };
        }
        for action in needed.actions(parts.names_version()) {
            if !is_allowed(rules, principal, action, &mut facts)? {
                return Err(denied());
            }
        }
        for action in of_headers(needed.action, parts.headers) {
            let allowed = match action {
                GET_OBJECT => is_allowed(rules, principal, action, &mut facts)?,
                // The list of the object that the request replaces says nothing about the new one.
                _ => decide_by_policies(rules, principal, action, &mut facts)?.is_allowed(),
            };
            if !allowed {
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

    /// Refuses a caller that no policy lets set access control lists, whatever the list of the
    /// object says.
    ///
    /// # Errors
    /// Those of [`Judge::check`].
    pub(crate) fn check_list_by_policies(&self, mut facts: RequestFacts<'_>) -> S3Result<()> {
        let Some(principal) = facts.parts.caller.identity.principal() else { return Ok(()) };
        let rules = self.rules.of(facts.bucket)?;
        match decide_by_policies(Some(&rules), principal, PUT_LIST, &mut facts)?.is_allowed() {
            true => Ok(()),
            false => Err(denied()),
        }
    }

    /// Judges a request again, by the object that was opened: another request may have replaced
    /// the one that was judged. The second action is the one on a version.
    ///
    /// # Errors
    /// Those of [`Judge::check`].
    pub(crate) fn check_opened(
        &self,
        (action, versioned): (S3Action, S3Action),
        facts: RequestFacts<'_>,
        opened: &Attributes,
    ) -> S3Result<()> {
        match facts.parts.caller.was_object_judged() {
            true => self.check_either(action, versioned, facts.with_object(opened)),
            false => Ok(()),
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

/// Canned lists that give nothing to anyone but the owner.
const OF_OWNER: [&[u8]; 3] = [b"private", b"bucket-owner-read", b"bucket-owner-full-control"];

/// The further actions that headers of a write need. A condition on an entity tag tells what the
/// object holds. An access control list that gives nothing needs none.
fn of_headers(action: S3Action, headers: &HeaderMap) -> impl Iterator<Item = S3Action> {
    let writes = action == PUT_OBJECT;
    let creates = action == CREATE_BUCKET;
    let lists = (writes || creates)
        && (headers.get_all(&ACL).iter().any(|name| !OF_OWNER.contains(&name.as_bytes()))
            || headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")));
    let owns = creates && headers.contains_key("x-amz-object-ownership");
    let tags = writes && headers.contains_key(&TAGGING);
    let any = |value: &HeaderValue| value.as_bytes().trim_ascii() == b"*";
    let reads = (writes || action == DELETE_OBJECT)
        && (headers.contains_key(IF_MATCH) || headers.get_all(IF_NONE_MATCH).iter().any(|value| !any(value)));
    let list = if creates { PUT_BUCKET_LIST } else { PUT_LIST };
    let needed = [tags.then_some(PUT_TAGS), lists.then_some(list), owns.then_some(PUT_OWNERSHIP)];
    needed.into_iter().flatten().chain(reads.then_some(GET_OBJECT))
}

fn is_allowed(
    rules: Option<&BucketRules>,
    principal: Principal<'_>,
    action: S3Action,
    facts: &mut RequestFacts<'_>,
) -> S3Result<bool> {
    match (decide_by_policies(rules, principal, action, facts)?, rules) {
        (AccessDecision::Allowed, _) => Ok(true),
        (AccessDecision::Unmentioned, Some(rules)) => is_listed(rules, principal, action, facts),
        (AccessDecision::Unmentioned, None) | (AccessDecision::Denied, _) => Ok(false),
    }
}

fn decide_by_policies(
    rules: Option<&BucketRules>,
    principal: Principal<'_>,
    action: S3Action,
    facts: &mut RequestFacts<'_>,
) -> S3Result<AccessDecision> {
    if rules.is_some_and(|rules| rules.restricted) && principal == Principal::Anonymous {
        return Ok(AccessDecision::Denied);
    }
    let resource = facts.resource();
    let policies = rules.into_iter().flat_map(|rules| &rules.policies);
    let policies = facts.parts.caller.identity.policies().chain(policies);
    let decision = decide(policies, &AccessRequest { principal, action, resource: &resource, facts: &*facts });
    match facts.failure() {
        Some(error) => Err(store_error(error)),
        None => Ok(decision),
    }
}

/// Whether the access control list of the bucket allows an action.
fn is_listed_on_bucket(rules: &BucketRules, principal: Principal<'_>, action: S3Action) -> bool {
    match ListedPermission::to(action) {
        Some(ListedPermission::OfBucket(permission)) => rules.lists.give(principal, permission),
        Some(ListedPermission::OfObject(_)) | None => false,
    }
}

/// Whether an access control list allows an action that no policy mentions.
///
/// # Errors
/// `NoSuchKey` for an object that does not exist, if the caller may know that.
fn is_listed(
    rules: &BucketRules,
    principal: Principal<'_>,
    action: S3Action,
    facts: &mut RequestFacts<'_>,
) -> S3Result<bool> {
    let Some(ListedPermission::OfObject(permission)) = ListedPermission::to(action) else {
        return Ok(is_listed_on_bucket(rules, principal, action));
    };
    // What an origin has is not known here, and its objects have no lists.
    if rules.has_origin {
        return Ok(false);
    }
    if let Some(object) = facts.object() {
        return rules.lists.give_on(object, principal, permission);
    }
    match facts.failure() {
        Some(error) => Err(store_error(error)),
        None if is_allowed(Some(rules), principal, LIST_BUCKET, &mut facts.of_bucket())? => {
            Err(store_error(StoreError::NoSuchKey))
        }
        None => Ok(false),
    }
}
