//! Who may do what: the policies of users and buckets, and the judge of requests.
//!
//! - `needed` is what an operation needs, in the terms of policies.
//! - `facts` are what conditions of policies can look at; `signature` has those of a signature.
//! - `rules` are the policies and lists of a bucket, parsed once; `public_block` limits them.
//! - `lists` are the access control lists of a bucket and its objects; `ownership` turns them off.
//! - `judge` decides.

mod facts;
mod judge;
mod lists;
mod needed;
mod ownership;
mod public_block;
mod rules;
mod signature;

pub(crate) use facts::{RequestFacts, RequestParts};
pub(crate) use judge::Judge;
pub(crate) use lists::BucketLists;
pub(crate) use needed::{Needed, action};
pub(crate) use ownership::Ownership;
pub(crate) use public_block::PublicBlock;

/// S3's answer to a request that nothing allows.
pub(crate) fn denied() -> s3s::S3Error {
    s3s::s3_error!(AccessDenied, "Access Denied")
}
