//! Access rules: policies in the language of AWS, and what they decide. Pure: no storage, no
//! network, no clock.
//!
//! - `policy` reads a document and refuses what it does not know; a `PolicyStatement` applies to a
//!   request or does not.
//! - `action` names the actions of S3, `wildcard` matches texts, `condition` tests facts about a
//!   request, and `fact` names these facts.
//! - `request` is what is judged, and `decision` judges it by all policies.
//! - `grant` makes a policy from a short form, such as `read:media/public/*`.
//! - `acl` is the older way: a list of grants beside a bucket or an object.

mod acl;
mod action;
mod condition;
mod decision;
mod document;
mod fact;
mod grant;
mod operator;
mod policy;
mod principal;
mod request;
mod statement;
mod wildcard;

pub use acl::{ACL_GRANTS_MAX, AccessList, AclPermission, Grantee, ListedPermission};
pub use action::{ActionSet, S3Action};
pub use decision::{AccessDecision, decide};
pub use fact::{Fact, Facts};
pub use grant::Grant;
pub use policy::{POLICY_BYTES_MAX, Policy, PolicyError};
pub use principal::{ACCOUNT, Principal, canonical_id};
pub use request::AccessRequest;
pub use statement::{Effect, PolicyUse};

#[cfg(test)]
mod aws_cases;
#[cfg(test)]
mod reference;
