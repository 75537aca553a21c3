//! Access control lists. Keys and policies decide who may do what; a list that says what is true
//! anyway is accepted without effect.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::conditions::only_null_version;
use crate::error::{invalid_request, store_error};
use crate::handler::{Handler, OWNER, owner};

/// The group of all clients, also those without a key.
const EVERYONE: &str = "http://acs.amazonaws.com/groups/global/AllUsers";

/// One whom a grant names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Owner,
    Everyone,
    Another,
}

/// The grants of a list, as far as they matter here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Grants {
    owner: bool,
    everyone_reads: bool,
    /// Whether anyone gets a right that no setting can give.
    others: bool,
}

impl Grants {
    fn add(&mut self, receiver: Receiver, permission: &str) {
        match (receiver, permission) {
            (Receiver::Owner, _) => self.owner = true,
            (Receiver::Everyone, Permission::READ) => self.everyone_reads = true,
            _ => self.others = true,
        }
    }

    fn canned(name: &str) -> Self {
        let reads = name == ObjectCannedACL::PUBLIC_READ;
        // The owner of an object is that of its bucket.
        let owner_only = matches!(
            name,
            ObjectCannedACL::PRIVATE | ObjectCannedACL::BUCKET_OWNER_FULL_CONTROL | ObjectCannedACL::BUCKET_OWNER_READ
        );
        Self { owner: true, everyone_reads: reads, others: !reads && !owner_only }
    }

    fn of_policy(policy: &AccessControlPolicy) -> Self {
        let mut this = Self::default();
        for grant in policy.grants.iter().flatten() {
            let receiver = match &grant.grantee {
                Some(Grantee { id: Some(id), .. }) if id == OWNER => Receiver::Owner,
                Some(Grantee { uri: Some(uri), .. }) if uri == EVERYONE => Receiver::Everyone,
                _ => Receiver::Another,
            };
            this.add(receiver, grant.permission.as_ref().map_or("", Permission::as_str));
        }
        let another = |owner: &Owner| owner.id.as_ref().is_some_and(|id| id != OWNER);
        this.others |= policy.owner.as_ref().is_some_and(another);
        this
    }

    /// Reads the headers `x-amz-grant-*`: `id="..."`, `uri="..."`, `emailAddress="..."`.
    fn of_headers(headers: &[(&str, Option<&String>)]) -> Option<Self> {
        let mut this = None;
        for (permission, value) in headers {
            for grantee in value.iter().flat_map(|value| value.split(',')) {
                let receiver = match grantee.trim().split_once('=').map(|(kind, name)| (kind, name.trim_matches('"'))) {
                    Some(("id", OWNER)) => Receiver::Owner,
                    Some(("uri", EVERYONE)) => Receiver::Everyone,
                    _ => Receiver::Another,
                };
                this.get_or_insert_with(Self::default).add(receiver, permission);
            }
        }
        this
    }

    /// The grants that a request sets, which it may give in one of three ways.
    ///
    /// # Errors
    /// `MissingSecurityHeader`, `UnexpectedContent`, `InvalidRequest`.
    fn read(canned: Option<&str>, headers: Option<Self>, policy: Option<&AccessControlPolicy>) -> S3Result<Self> {
        match (canned, headers, policy) {
            (Some(name), None, None) => Ok(Self::canned(name)),
            (None, Some(grants), None) => Ok(grants),
            (None, None, Some(policy)) => Ok(Self::of_policy(policy)),
            (None, None, None) => {
                Err(s3_error!(MissingSecurityHeader, "Your request was missing a required header: x-amz-acl"))
            }
            (Some(_), Some(_), _) => {
                Err(invalid_request("Specifying both Canned ACLs and Header Grants is not allowed"))
            }
            _ => Err(s3_error!(UnexpectedContent, "This request does not support content")),
        }
    }

    /// # Errors
    /// `NotImplemented` unless the grants are those that hold anyway.
    fn check(self, everyone_reads: bool) -> S3Result<()> {
        if !self.others && self.everyone_reads == everyone_reads && (self.owner || self.everyone_reads) {
            return Ok(());
        }
        let holds = if everyone_reads { "anyone may read the objects of this bucket" } else { "only keys give access" };
        Err(S3Error::with_message(
            S3ErrorCode::NotImplemented,
            format!(
                "An ACL cannot change access: {holds}. A bucket policy, or the setting s3.public_read, lets anyone read objects."
            ),
        ))
    }
}

macro_rules! grant_headers {
    ($input:expr) => {
        Grants::of_headers(&[
            (Permission::FULL_CONTROL, $input.grant_full_control.as_ref()),
            (Permission::READ, $input.grant_read.as_ref()),
            (Permission::READ_ACP, $input.grant_read_acp.as_ref()),
            (Permission::WRITE, $input.grant_write.as_ref()),
            (Permission::WRITE_ACP, $input.grant_write_acp.as_ref()),
        ])
    };
}

/// The grants of the owner, and of everyone to read.
fn listed(everyone_reads: bool) -> Vec<Grant> {
    let grant =
        |grantee, permission| Grant { grantee: Some(grantee), permission: Some(Permission::from_static(permission)) };
    let mut grants = vec![grant(
        Grantee {
            display_name: Some(OWNER.into()),
            email_address: None,
            id: Some(OWNER.into()),
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        },
        Permission::FULL_CONTROL,
    )];
    if everyone_reads {
        let everyone = Grantee {
            display_name: None,
            email_address: None,
            id: None,
            type_: Type::from_static(Type::GROUP),
            uri: Some(EVERYONE.into()),
        };
        grants.push(grant(everyone, Permission::READ));
    }
    grants
}

pub(crate) async fn of_bucket(
    handler: &Handler,
    req: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    // That of a bucket is about listings, which always need a key.
    Ok(S3Response::new(GetBucketAclOutput { grants: Some(listed(false)), owner: Some(owner()) }))
}

pub(crate) async fn put_of_bucket(
    handler: &Handler,
    req: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = req.input;
    handler.store.buckets().get(&input.bucket).map_err(store_error)?;
    let canned = input.acl.as_ref().map(BucketCannedACL::as_str);
    Grants::read(canned, grant_headers!(input), input.access_control_policy.as_ref())?.check(false)?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

pub(crate) async fn of_object(
    handler: &Handler,
    req: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    only_null_version(req.input.version_id.as_deref())?;
    handler.store.at(&req.input.bucket, &req.input.key).info().map_err(store_error)?;
    let public = handler.options.public_read.contains(&req.input.bucket);
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(listed(public)),
        owner: Some(owner()),
        ..GetObjectAclOutput::default()
    }))
}

pub(crate) async fn put_of_object(
    handler: &Handler,
    req: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    handler.store.at(&input.bucket, &input.key).info().map_err(store_error)?;
    let canned = input.acl.as_ref().map(ObjectCannedACL::as_str);
    let grants = Grants::read(canned, grant_headers!(input), input.access_control_policy.as_ref())?;
    grants.check(handler.options.public_read.contains(&input.bucket))?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(grants: Grants, public: bool) -> bool {
        grants.check(public).is_ok()
    }

    #[test]
    fn only_what_is_true_anyway_is_accepted() {
        for name in ["private", "bucket-owner-full-control", "bucket-owner-read"] {
            assert!(holds(Grants::canned(name), false), "{name}");
            assert!(!holds(Grants::canned(name), true), "{name}: anyone reads the bucket's objects");
        }
        assert!(holds(Grants::canned("public-read"), true));
        for name in ["public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write", "Private", ""] {
            assert!(!holds(Grants::canned(name), false) && !holds(Grants::canned(name), true), "{name}");
        }
        assert!(!holds(Grants::canned("public-read"), false));
        assert!(!holds(Grants::default(), false), "a list without a grant takes the owner's access away");
    }

    #[test]
    fn the_answered_list_is_accepted() {
        for public in [false, true] {
            let policy = AccessControlPolicy { grants: Some(listed(public)), owner: Some(owner()) };
            assert!(holds(Grants::of_policy(&policy), public));
            assert!(!holds(Grants::of_policy(&policy), !public));
            let given = AccessControlPolicy {
                owner: Some(Owner { display_name: None, id: Some("another".into()) }),
                ..policy.clone()
            };
            assert!(!holds(Grants::of_policy(&given), public), "another owner");
        }
    }

    #[test]
    fn grants_in_headers() {
        let of = |permission, text: &str| Grants::of_headers(&[(permission, Some(&text.to_owned()))]).expect("grants");
        assert!(holds(of(Permission::FULL_CONTROL, "id=\"steadfast\""), false));
        assert!(holds(of(Permission::READ, &format!("id=steadfast, uri=\"{EVERYONE}\"")), true));
        for (permission, text) in [
            (Permission::WRITE, format!("uri=\"{EVERYONE}\"")),
            (Permission::READ, "id=\"steadfast\", id=\"another\"".to_owned()),
            (Permission::READ, "emailAddress=\"a@example.com\"".to_owned()),
            (Permission::READ, "nonsense".to_owned()),
        ] {
            assert!(!holds(of(permission, &text), false) && !holds(of(permission, &text), true), "{text}");
        }
        assert_eq!(Grants::of_headers(&[(Permission::READ, None)]), None);
        assert!(Grants::read(Some("private"), Some(Grants::default()), None).is_err());
        assert!(Grants::read(None, None, None).is_err());
    }
}
