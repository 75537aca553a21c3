//! The policies and access control lists of buckets, parsed once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use s3s::{S3Error, S3Result, s3_error};
use serde_json::json;
use steadfast_access::{Policy, PolicyUse};
use steadfast_edge::Edge;
use steadfast_store::{BucketDocument, BucketSettings, Store, StoreError};

use crate::error::store_error;
use crate::rights::lists::BucketLists;
use crate::rights::public_block::PublicBlock;

/// Buckets whose parsed policies are kept, at most.
const KEPT_MAX: usize = 4096;

/// The policies of a bucket, and its access control lists.
pub(crate) struct BucketRules {
    /// What they were parsed from.
    settings: Arc<BucketSettings>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) lists: BucketLists,
    /// Whether anyone learns which keys do not exist: with the setting `s3.public_read`, and no
    /// other policy.
    pub(crate) shows_absence: bool,
    /// Whether anonymous clients get nothing, whatever a policy allows.
    pub(crate) restricted: bool,
    /// Whether the objects come from an origin.
    pub(crate) has_origin: bool,
}

/// The policies of all buckets.
pub(crate) struct RulesOfBuckets {
    store: Store,
    /// The buckets whose objects anyone can read.
    public_read: BTreeSet<String>,
    edge: Option<Edge>,
    kept: RwLock<HashMap<String, Arc<BucketRules>>>,
}

impl RulesOfBuckets {
    pub(crate) fn new(store: Store, public_read: BTreeSet<String>, edge: Option<Edge>) -> Self {
        Self { store, public_read, edge, kept: RwLock::default() }
    }

    /// The rules of a bucket as it is now.
    ///
    /// # Errors
    /// `NoSuchBucket`; `InternalError` for a policy that cannot be read.
    pub(crate) fn of(&self, bucket: &str) -> S3Result<Arc<BucketRules>> {
        let settings = match self.store.buckets().settings(bucket) {
            Ok(settings) => settings,
            Err(error) => {
                if matches!(error, StoreError::NoSuchBucket) && self.kept.read().contains_key(bucket) {
                    self.kept.write().remove(bucket);
                }
                return Err(store_error(error));
            }
        };
        // The kept rules hold their settings, so no other settings can be at the same address.
        if let Some(rules) = self.kept.read().get(bucket).filter(|rules| Arc::ptr_eq(&rules.settings, &settings)) {
            return Ok(rules.clone());
        }
        let rules = Arc::new(self.parse(bucket, settings)?);
        let mut kept = self.kept.write();
        if kept.len() >= KEPT_MAX && !kept.contains_key(bucket) {
            kept.clear();
        }
        kept.insert(bucket.to_owned(), rules.clone());
        Ok(rules)
    }

    fn parse(&self, bucket: &str, settings: Arc<BucketSettings>) -> S3Result<BucketRules> {
        let damaged = |e| s3_error!(InternalError, "The policy of the bucket cannot be read: {}", e);
        let configured = self.configured(bucket);
        let documents = settings.document(BucketDocument::Policy).into_iter().chain(configured.as_deref());
        let policies: Result<Vec<Policy>, S3Error> = documents
            .map(|document| Policy::parse(document.as_bytes(), PolicyUse::Bucket(bucket)).map_err(damaged))
            .collect();
        let policies = policies?;
        let blocked = PublicBlock::of(&settings)?.is_some_and(|block| block.restrict);
        Ok(BucketRules {
            restricted: blocked && policies.iter().any(Policy::is_public),
            shows_absence: configured.is_some() && policies.len() == 1,
            has_origin: self.edge.as_ref().is_some_and(|edge| edge.has_origin(bucket)),
            policies,
            lists: BucketLists::of(&settings)?,
            settings,
        })
    }

    /// The policy that the setting `s3.public_read` stands for.
    pub(crate) fn configured(&self, bucket: &str) -> Option<String> {
        let policy = json!({
            "Version": "2012-10-17",
            "Statement": [{
                "Sid": "s3.public_read",
                "Effect": "Allow",
                "Principal": { "AWS": ["*"] },
                "Action": ["s3:GetObject"],
                "Resource": [format!("arn:aws:s3:::{bucket}/*")],
            }],
        });
        self.public_read.contains(bucket).then(|| policy.to_string())
    }
}
