//! What access control lists of a bucket and its objects give.

use std::borrow::Cow;

use s3s::{S3Result, s3_error};
use steadfast_access::{AccessList, AclPermission, Principal};
use steadfast_store::{Attributes, BucketDocument, BucketSettings};

use crate::rights::denied;
use crate::rights::ownership::Ownership;
use crate::rights::public_block::PublicBlock;

/// The access control list of a bucket, and whether it and those of the objects count.
#[derive(Debug)]
pub(crate) struct BucketLists {
    /// The list that was set.
    pub(crate) own: AccessList,
    /// Lists give nothing and cannot be set.
    pub(crate) disabled: bool,
    /// No list that is public can be set.
    public_refused: bool,
    /// What lists give to groups counts for nothing.
    public_ignored: bool,
}

fn read(text: Option<&str>) -> S3Result<AccessList> {
    text.map_or_else(|| Ok(AccessList::default()), AccessList::parse).map_err(|e| s3_error!(InternalError, "{}", e))
}

impl BucketLists {
    /// Those of the bucket with these settings.
    ///
    /// # Errors
    /// `InternalError` for a document that cannot be read.
    pub(crate) fn of(settings: &BucketSettings) -> S3Result<Self> {
        let block = PublicBlock::of(settings)?.unwrap_or_default();
        Ok(Self {
            own: read(settings.document(BucketDocument::Acl))?,
            disabled: Ownership::of(settings)? == Some(Ownership::BucketOwnerEnforced),
            public_refused: block.acls,
            public_ignored: block.ignore_acls,
        })
    }

    /// The list of an object of the bucket.
    ///
    /// # Errors
    /// `InternalError` for a list that cannot be read.
    pub(crate) fn of_object(&self, attributes: &Attributes) -> S3Result<AccessList> {
        if self.disabled { Ok(AccessList::default()) } else { read(attributes.acl()) }
    }

    /// Whether the list of the bucket gives `permission` to `principal`.
    pub(super) fn give(&self, principal: Principal<'_>, permission: AclPermission) -> bool {
        !self.disabled && self.counting(&self.own).gives(principal, permission)
    }

    /// Whether the list of an object gives `permission` to `principal`.
    ///
    /// # Errors
    /// Those of [`BucketLists::of_object`].
    pub(super) fn give_on(
        &self,
        attributes: &Attributes,
        principal: Principal<'_>,
        permission: AclPermission,
    ) -> S3Result<bool> {
        Ok(!self.disabled && self.counting(&self.of_object(attributes)?).gives(principal, permission))
    }

    /// What counts of a list.
    fn counting<'a>(&self, list: &'a AccessList) -> Cow<'a, AccessList> {
        match self.public_ignored {
            true => Cow::Owned(list.clone().without_public()),
            false => Cow::Borrowed(list),
        }
    }

    /// Refuses a list that cannot be set on the bucket or an object of it. `named` is the canned
    /// list that a header names.
    ///
    /// # Errors
    /// `AccessControlListNotSupported`, `AccessDenied`.
    pub(crate) fn check(&self, list: &AccessList, named: Option<&str>) -> S3Result<()> {
        let of_owner = named.map_or_else(|| *list == AccessList::default(), |name| name == "bucket-owner-full-control");
        if self.disabled && !of_owner {
            return Err(s3_error!(AccessControlListNotSupported, "The bucket does not allow ACLs"));
        }
        if self.public_refused && list.is_public() { Err(denied()) } else { Ok(()) }
    }
}
