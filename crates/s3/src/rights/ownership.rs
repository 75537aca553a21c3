//! S3's ownership controls of a bucket: whether access control lists count.

use s3s::dto::ObjectOwnership;
use s3s::{S3Result, s3_error};
use steadfast_access::AccessList;
use steadfast_store::{BucketDocument, BucketSettings};

use crate::error::invalid_argument;

/// The ownership of the objects of a bucket. The text of its document is the name in S3. The owner
/// of a bucket owns its objects, so the last two are the same here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Lists do not count and cannot be set.
    BucketOwnerEnforced,
    BucketOwnerPreferred,
    ObjectWriter,
}

impl Ownership {
    const ALL: [Self; 3] = [Self::BucketOwnerEnforced, Self::BucketOwnerPreferred, Self::ObjectWriter];

    /// Its name in S3.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BucketOwnerEnforced => ObjectOwnership::BUCKET_OWNER_ENFORCED,
            Self::BucketOwnerPreferred => ObjectOwnership::BUCKET_OWNER_PREFERRED,
            Self::ObjectWriter => ObjectOwnership::OBJECT_WRITER,
        }
    }

    /// # Errors
    /// `InvalidArgument` for a name that S3 does not have.
    pub(crate) fn parse(name: &str) -> S3Result<Self> {
        let found = Self::ALL.into_iter().find(|ownership| ownership.name() == name);
        found.ok_or_else(|| invalid_argument("Invalid x-amz-object-ownership header"))
    }

    /// Refuses itself for a bucket with this list.
    ///
    /// # Errors
    /// `InvalidBucketAclWithObjectOwnership`.
    pub(crate) fn check(self, list: &AccessList) -> S3Result<()> {
        if self == Self::BucketOwnerEnforced && *list != AccessList::default() {
            return Err(s3_error!(
                InvalidBucketAclWithObjectOwnership,
                "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting"
            ));
        }
        Ok(())
    }

    /// That of a bucket; `None`: it was not set, and lists count.
    ///
    /// # Errors
    /// `InternalError` for a document that is none.
    pub(crate) fn of(settings: &BucketSettings) -> S3Result<Option<Self>> {
        let found = settings.document(BucketDocument::Ownership).map(Self::parse).transpose();
        found.map_err(|_| s3_error!(InternalError, "The bucket's ownership controls are damaged."))
    }
}
