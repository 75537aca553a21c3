//! S3's block of public access to a bucket.

use s3s::dto::PublicAccessBlockConfiguration;
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};
use steadfast_store::{BucketDocument, BucketSettings};

/// Which public access to a bucket is blocked. The text of its document is this as JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublicBlock {
    /// No ACL that gives public access can be set. Source: S3, as the names of all four.
    pub(super) acls: bool,
    /// ACLs give no public access.
    pub(super) ignore_acls: bool,
    /// No public policy can be set.
    pub(crate) policy: bool,
    /// A public policy gives nothing to anonymous clients.
    pub(crate) restrict: bool,
}

impl PublicBlock {
    /// The block of a bucket; `None` if it has none.
    ///
    /// # Errors
    /// `InternalError` for a document that is none.
    pub(crate) fn of(settings: &BucketSettings) -> S3Result<Option<Self>> {
        let Some(document) = settings.document(BucketDocument::PublicAccessBlock) else { return Ok(None) };
        let block = serde_json::from_str(document);
        block.map(Some).map_err(|e| s3_error!(InternalError, "The bucket's block of public access is damaged: {}", e))
    }

    /// Its document.
    pub(crate) fn document(self) -> S3Result<String> {
        serde_json::to_string(&self).map_err(|e| s3_error!(InternalError, "{}", e))
    }
}

impl From<PublicAccessBlockConfiguration> for PublicBlock {
    fn from(given: PublicAccessBlockConfiguration) -> Self {
        let is = |setting: Option<bool>| setting.unwrap_or(false);
        Self {
            acls: is(given.block_public_acls),
            ignore_acls: is(given.ignore_public_acls),
            policy: is(given.block_public_policy),
            restrict: is(given.restrict_public_buckets),
        }
    }
}

impl From<PublicBlock> for PublicAccessBlockConfiguration {
    fn from(block: PublicBlock) -> Self {
        Self {
            block_public_acls: Some(block.acls),
            ignore_public_acls: Some(block.ignore_acls),
            block_public_policy: Some(block.policy),
            restrict_public_buckets: Some(block.restrict),
        }
    }
}
