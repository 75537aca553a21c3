//! Access control lists of buckets and objects: read from requests, set, and answered.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use steadfast_access::{ACL_GRANTS_MAX, AccessList, AclPermission, Grantee as AclGrantee, canonical_id};
use steadfast_store::{BucketDocument, ObjectInfo, StoreError};

use crate::conditions::only_null_version;
use crate::error::{invalid_argument, invalid_request, store_error};
use crate::handler::{Handler, context, durable_header, owner, request_parts};
use crate::rights::{BucketLists, action, denied};

/// The group of all clients, also those without a key.
const EVERYONE: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
/// The group of all users.
const AUTHENTICATED: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";
/// The group of what writes access logs in S3.
const LOG_DELIVERY: &str = "http://acs.amazonaws.com/groups/s3/LogDelivery";

const GET_LIST: steadfast_access::S3Action = action("GetObjectAcl");
const GET_VERSION_LIST: steadfast_access::S3Action = action("GetObjectVersionAcl");
const PUT_LIST: steadfast_access::S3Action = action("PutObjectAcl");
const PUT_VERSION_LIST: steadfast_access::S3Action = action("PutObjectVersionAcl");

/// An access control list as a request gives it, in one of three ways.
pub(crate) struct GivenList<'a> {
    /// Its name in the header `x-amz-acl`.
    pub(crate) canned: Option<&'a str>,
    /// The headers `x-amz-grant-*`: `id="..."`, `uri="..."`.
    pub(crate) headers: [(AclPermission, Option<&'a String>); 5],
    /// The body.
    pub(crate) body: Option<&'a AccessControlPolicy>,
}

/// The list of the headers of an input. One of a bucket has a fifth.
macro_rules! given_list {
    ($input:expr, $write:expr) => {
        $crate::ops::acl::GivenList {
            canned: $input.acl.as_ref().map(|acl| acl.as_str()),
            headers: [
                (steadfast_access::AclPermission::FullControl, $input.grant_full_control.as_ref()),
                (steadfast_access::AclPermission::Read, $input.grant_read.as_ref()),
                (steadfast_access::AclPermission::Write, $write),
                (steadfast_access::AclPermission::ReadAcp, $input.grant_read_acp.as_ref()),
                (steadfast_access::AclPermission::WriteAcp, $input.grant_write_acp.as_ref()),
            ],
            body: None,
        }
    };
    ($input:expr) => {
        $crate::ops::acl::given_list!($input, None)
    };
}
pub(crate) use given_list;

fn malformed(why: &str) -> S3Error {
    s3_error!(MalformedACLError, "The ACL that you provided was not well formed: {why}")
}

impl GivenList<'_> {
    /// The list; `None`: the request gives none.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidRequest`, `MalformedACLError`, `NotImplemented`,
    /// `UnexpectedContent`, `UnresolvableGrantByEmailAddress`, `AccessDenied` for another owner;
    /// those of reading the users.
    pub(crate) fn read(&self, handler: &Handler) -> S3Result<Option<AccessList>> {
        let by_headers = self.headers.iter().any(|(_, value)| value.is_some());
        match (self.canned, by_headers, self.body) {
            (None, false, None) => Ok(None),
            (Some(name), false, None) => canned(name).map(Some),
            (None, true, None) => self.of_headers(handler).map(Some),
            (None, false, Some(body)) => of_body(handler, body).map(Some),
            (Some(_), true, _) => Err(invalid_request("Specifying both Canned ACLs and Header Grants is not allowed")),
            _ => Err(s3_error!(UnexpectedContent, "This request does not support content")),
        }
    }

    fn of_headers(&self, handler: &Handler) -> S3Result<AccessList> {
        let mut grants = Vec::new();
        for (permission, value) in &self.headers {
            for named in value.iter().flat_map(|value| value.split(',')) {
                let (kind, name) = named.trim().split_once('=').map_or(("", ""), |(kind, name)| (kind.trim(), name));
                let name = name.trim().trim_matches('"');
                let grantee = match kind {
                    _ if kind.eq_ignore_ascii_case("id") => of_id(handler, name)?,
                    _ if kind.eq_ignore_ascii_case("uri") => of_group(name)?,
                    _ if kind.eq_ignore_ascii_case("emailAddress") => return Err(no_addresses()),
                    _ => return Err(invalid_argument("Argument format not recognized")),
                };
                grants.push((grantee, *permission));
            }
        }
        list_of(grants)
    }
}

/// # Errors
/// `MalformedACLError` for too many grants.
fn list_of(grants: Vec<(AclGrantee, AclPermission)>) -> S3Result<AccessList> {
    if grants.len() > ACL_GRANTS_MAX {
        return Err(malformed(&format!("it has more than {ACL_GRANTS_MAX} grants")));
    }
    Ok(AccessList::new(grants))
}

/// The list that S3 gives a name.
fn canned(name: &str) -> S3Result<AccessList> {
    let further: &[(AclGrantee, AclPermission)] = match name {
        // The owner of an object is that of its bucket.
        ObjectCannedACL::PRIVATE | ObjectCannedACL::BUCKET_OWNER_FULL_CONTROL | ObjectCannedACL::BUCKET_OWNER_READ => {
            &[]
        }
        ObjectCannedACL::PUBLIC_READ => &[(AclGrantee::Everyone, AclPermission::Read)],
        ObjectCannedACL::PUBLIC_READ_WRITE => {
            &[(AclGrantee::Everyone, AclPermission::Read), (AclGrantee::Everyone, AclPermission::Write)]
        }
        ObjectCannedACL::AUTHENTICATED_READ => &[(AclGrantee::Authenticated, AclPermission::Read)],
        "log-delivery-write" | ObjectCannedACL::AWS_EXEC_READ => {
            return Err(s3_error!(NotImplemented, "The canned ACL {name} gives access to a service of AWS."));
        }
        _ => return Err(invalid_argument(format!("The canned ACL {name:.64?} does not exist."))),
    };
    let owner = (AclGrantee::Owner, AclPermission::FullControl);
    Ok(AccessList::new(std::iter::once(&owner).chain(further).cloned().collect()))
}

fn of_body(handler: &Handler, body: &AccessControlPolicy) -> S3Result<AccessList> {
    let another = |owner: &Owner| owner.id.as_ref().is_some_and(|id| *id != canonical_id(None));
    if body.owner.as_ref().is_some_and(another) {
        return Err(denied());
    }
    let mut grants = Vec::new();
    for grant in body.grants.iter().flatten() {
        let named = grant.permission.as_ref().map_or("", Permission::as_str);
        let permission = AclPermission::ALL.into_iter().find(|permission| permission.name() == named);
        let permission = permission.ok_or_else(|| malformed("a grant has no permission of S3"))?;
        let grantee = match &grant.grantee {
            Some(Grantee { uri: Some(uri), .. }) => of_group(uri)?,
            Some(Grantee { id: Some(id), .. }) => of_id(handler, id)?,
            Some(Grantee { email_address: Some(_), .. }) => return Err(no_addresses()),
            _ => return Err(malformed("a grant has no grantee")),
        };
        grants.push((grantee, permission));
    }
    list_of(grants)
}

fn no_addresses() -> S3Error {
    s3_error!(UnresolvableGrantByEmailAddress, "The e-mail address you provided does not match any account on record.")
}

fn of_group(uri: &str) -> S3Result<AclGrantee> {
    match uri {
        EVERYONE => Ok(AclGrantee::Everyone),
        AUTHENTICATED => Ok(AclGrantee::Authenticated),
        LOG_DELIVERY => Err(s3_error!(NotImplemented, "The server writes no access logs to buckets.")),
        _ => Err(invalid_argument("Invalid group uri")),
    }
}

fn of_id(handler: &Handler, id: &str) -> S3Result<AclGrantee> {
    if id == canonical_id(None) {
        return Ok(AclGrantee::Owner);
    }
    let user = handler.options.users.as_ref().map_or(Ok(None), |users| users.name_of(id)).map_err(store_error)?;
    user.map(AclGrantee::User).ok_or_else(|| invalid_argument("Invalid id"))
}

/// A list as S3 answers it.
fn answered(list: &AccessList) -> Vec<Grant> {
    let user = |id: String, name: Option<String>| Grantee {
        display_name: name,
        email_address: None,
        id: Some(id),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let group = |uri: &str| Grantee {
        display_name: None,
        email_address: None,
        id: None,
        type_: Type::from_static(Type::GROUP),
        uri: Some(uri.to_owned()),
    };
    let grant = |(grantee, permission): &(AclGrantee, AclPermission)| Grant {
        grantee: Some(match grantee {
            AclGrantee::Owner => user(canonical_id(None), owner().display_name),
            AclGrantee::Everyone => group(EVERYONE),
            AclGrantee::Authenticated => group(AUTHENTICATED),
            AclGrantee::User(name) => user(canonical_id(Some(name)), Some(name.clone())),
        }),
        permission: Some(Permission::from_static(permission.name())),
    };
    list.grants().iter().map(grant).collect()
}

/// The list that a write gives its object, in the store's form.
///
/// # Errors
/// Those of [`GivenList::read`]; those of setting a list on the bucket's objects.
pub(crate) fn of_write(handler: &Handler, bucket: &str, given: &GivenList<'_>) -> S3Result<Option<String>> {
    let Some(list) = given.read(handler)? else { return Ok(None) };
    let settings = handler.store.buckets().settings(bucket).map_err(store_error)?;
    BucketLists::of(&settings)?.check(&list, given.canned)?;
    Ok(list.text())
}

fn missing() -> S3Error {
    s3_error!(MissingSecurityHeader, "Your request was missing a required header: x-amz-acl")
}

pub(crate) async fn of_bucket(
    handler: &Handler,
    req: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    let settings = handler.store.buckets().settings(&req.input.bucket).map_err(store_error)?;
    let lists = BucketLists::of(&settings)?;
    let list = if lists.disabled { AccessList::default() } else { lists.own };
    Ok(S3Response::new(GetBucketAclOutput { grants: Some(answered(&list)), owner: Some(owner()) }))
}

pub(crate) async fn put_of_bucket(
    handler: &Handler,
    req: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = req.input;
    let settings = handler.store.buckets().settings(&input.bucket).map_err(store_error)?;
    let given =
        GivenList { body: input.access_control_policy.as_ref(), ..given_list!(input, input.grant_write.as_ref()) };
    let list = given.read(handler)?.ok_or_else(missing)?;
    BucketLists::of(&settings)?.check(&list, given.canned)?;
    handler.set_document(&input.bucket, BucketDocument::Acl, list.text()).await?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

/// An object, and the lists of its bucket.
fn object_and_lists(handler: &Handler, bucket: &str, key: &str) -> S3Result<(BucketLists, ObjectInfo)> {
    let settings = handler.store.buckets().settings(bucket).map_err(store_error)?;
    let info = handler.store.at(bucket, key).info().map_err(store_error)?;
    Ok((BucketLists::of(&settings)?, info))
}

pub(crate) async fn of_object(
    handler: &Handler,
    req: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let context = context(&req);
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let (lists, info) = object_and_lists(handler, &input.bucket, &input.key)?;
    let facts = handler.judge.facts(parts, &input.bucket, Some(&input.key));
    handler.judge.check_opened((GET_LIST, GET_VERSION_LIST), facts, &info.attributes)?;
    let list = lists.of_object(&info.attributes)?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(answered(&list)),
        owner: Some(owner()),
        ..GetObjectAclOutput::default()
    }))
}

pub(crate) async fn put_of_object(
    handler: &Handler,
    req: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let context = context(&req);
    let parts = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let input = req.input;
    only_null_version(input.version_id.as_deref())?;
    let (lists, info) = object_and_lists(handler, &input.bucket, &input.key)?;
    let given =
        GivenList { body: input.access_control_policy.as_ref(), ..given_list!(input, input.grant_write.as_ref()) };
    let list = given.read(handler)?.ok_or_else(missing)?;
    lists.check(&list, given.canned)?;
    // Another request may have replaced the object whose own list allows this.
    let facts = handler.judge.facts(parts, &input.bucket, Some(&input.key));
    handler.judge.check_opened((PUT_LIST, PUT_VERSION_LIST), facts, &info.attributes)?;
    let version = parts.caller.was_object_judged().then_some(info.version);
    let set = handler.store.at(&input.bucket, &input.key).set_acl(list.text(), version).await;
    let written = set.map_err(|error| match error {
        StoreError::ConditionFailed => S3Error::with_message(
            S3ErrorCode::OperationAborted,
            "Another request changed the object. Please try again.",
        ),
        error => store_error(error),
    })?;
    Ok(S3Response::with_headers(PutObjectAclOutput::default(), durable_header(written.durable)))
}
