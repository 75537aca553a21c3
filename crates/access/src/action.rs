//! The actions of S3, and sets of them.

use crate::wildcard::Wildcard;

/// The names of all actions that a policy may name, without `s3:`. Source: AWS's service
/// authorization reference for S3, buckets and objects; the last ones are MinIO's.
const NAMES: &[&str] = &[
    "AbortMultipartUpload",
    "BypassGovernanceRetention",
    "CreateBucket",
    "CreateBucketMetadataTableConfiguration",
    "DeleteBucket",
    "DeleteBucketMetadataTableConfiguration",
    "DeleteBucketPolicy",
    "DeleteBucketWebsite",
    "DeleteObject",
    "DeleteObjectTagging",
    "DeleteObjectVersion",
    "DeleteObjectVersionTagging",
    "GetAccelerateConfiguration",
    "GetAnalyticsConfiguration",
    "GetBucketAcl",
    "GetBucketCORS",
    "GetBucketLocation",
    "GetBucketLogging",
    "GetBucketMetadataTableConfiguration",
    "GetBucketNotification",
    "GetBucketObjectLockConfiguration",
    "GetBucketOwnershipControls",
    "GetBucketPolicy",
    "GetBucketPolicyStatus",
    "GetBucketPublicAccessBlock",
    "GetBucketRequestPayment",
    "GetBucketTagging",
    "GetBucketVersioning",
    "GetBucketWebsite",
    "GetEncryptionConfiguration",
    "GetIntelligentTieringConfiguration",
    "GetInventoryConfiguration",
    "GetLifecycleConfiguration",
    "GetMetricsConfiguration",
    "GetObject",
    "GetObjectAcl",
    "GetObjectAttributes",
    "GetObjectLegalHold",
    "GetObjectRetention",
    "GetObjectTagging",
    "GetObjectTorrent",
    "GetObjectVersion",
    "GetObjectVersionAcl",
    "GetObjectVersionAttributes",
    "GetObjectVersionForReplication",
    "GetObjectVersionTagging",
    "GetObjectVersionTorrent",
    "GetReplicationConfiguration",
    "InitiateReplication",
    "ListAllMyBuckets",
    "ListBucket",
    "ListBucketMultipartUploads",
    "ListBucketVersions",
    "ListMultipartUploadParts",
    "ObjectOwnerOverrideToBucketOwner",
    "PutAccelerateConfiguration",
    "PutAnalyticsConfiguration",
    "PutBucketAcl",
    "PutBucketCORS",
    "PutBucketLogging",
    "PutBucketNotification",
    "PutBucketObjectLockConfiguration",
    "PutBucketOwnershipControls",
    "PutBucketPolicy",
    "PutBucketPublicAccessBlock",
    "PutBucketRequestPayment",
    "PutBucketTagging",
    "PutBucketVersioning",
    "PutBucketWebsite",
    "PutEncryptionConfiguration",
    "PutIntelligentTieringConfiguration",
    "PutInventoryConfiguration",
    "PutLifecycleConfiguration",
    "PutMetricsConfiguration",
    "PutObject",
    "PutObjectAcl",
    "PutObjectLegalHold",
    "PutObjectRetention",
    "PutObjectTagging",
    "PutObjectVersionAcl",
    "PutObjectVersionTagging",
    "PutReplicationConfiguration",
    "ReplicateDelete",
    "ReplicateObject",
    "ReplicateTags",
    "RestoreObject",
    "ForceDeleteBucket",
    "HeadBucket",
    "ListenBucketNotification",
    "ListenNotification",
];

const _: () = assert!(NAMES.len() <= u128::BITS as usize, "a set of actions has a bit for each");

/// An action of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct S3Action(usize);

impl S3Action {
    /// The action of this name, without `s3:`; `None` if S3 has none.
    pub const fn named(name: &str) -> Option<Self> {
        let mut at = 0;
        while at < NAMES.len() {
            if is_same(NAMES[at].as_bytes(), name.as_bytes()) {
                return Some(Self(at));
            }
            at += 1;
        }
        None
    }

    /// Its name, without `s3:`.
    pub fn name(self) -> &'static str {
        NAMES[self.0]
    }

    /// All actions.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..NAMES.len()).map(Self)
    }
}

/// Whether two texts are equal, where the compiler evaluates it.
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// A set of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActionSet(u128);

impl ActionSet {
    /// The actions that a pattern such as `s3:Get*` names, in any case; empty if it names none.
    pub(crate) fn matching(pattern: &str) -> Self {
        if pattern == "*" {
            return S3Action::all().collect();
        }
        let pattern = pattern.to_ascii_lowercase();
        let Some(name) = pattern.strip_prefix("s3:") else { return Self::default() };
        let name = Wildcard::plain(name);
        S3Action::all().filter(|action| name.matches(&action.name().to_ascii_lowercase())).collect()
    }

    /// Whether `action` is in it.
    pub fn contains(self, action: S3Action) -> bool {
        self.0 & 1 << action.0 != 0
    }

    /// Whether it has no action.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its actions and those of `other`.
    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// All actions that are not in it.
    pub(crate) fn complement(self) -> Self {
        S3Action::all().filter(|action| !self.contains(*action)).collect()
    }
}

impl FromIterator<S3Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = S3Action>>(actions: I) -> Self {
        Self(actions.into_iter().fold(0, |set, action| set | 1 << action.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
        for action in S3Action::all() {
            assert_eq!(S3Action::named(action.name()), Some(action));
        }
        for unknown in ["", "GetObjec", "GetObjects", "getobject"] {
            assert_eq!(S3Action::named(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn patterns_name_actions_in_any_case() {
        let get = S3Action::named("GetObject").expect("known");
        let put = S3Action::named("PutObject").expect("known");
        for pattern in ["s3:GetObject", "S3:getobject", "s3:Get*", "s3:?etObjec?", "*", "s3:*"] {
            assert!(ActionSet::matching(pattern).contains(get), "{pattern}");
        }
        assert!(!ActionSet::matching("s3:Get*").contains(put));
        assert!(ActionSet::matching("s3:Get*").complement().contains(put));
        for unknown in ["s3:Fly", "sqs:*", "GetObject", "s3", "", "s*"] {
            assert!(ActionSet::matching(unknown).is_empty(), "{unknown}");
        }
    }
}
