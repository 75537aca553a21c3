//! The facts about a request that conditions and variables name.

use std::borrow::Cow;

/// Finds facts about a request when a condition or a variable needs them.
pub trait Facts {
    /// The values of a fact; none if the request does not have it.
    fn values(&self, fact: &Fact) -> Vec<Cow<'_, str>>;
}

/// A fact about a request: what AWS calls a condition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// `aws:CurrentTime`: the time in the form of RFC 3339.
    CurrentTime,
    /// `aws:EpochTime`: the time in seconds since the Unix epoch.
    EpochTime,
    /// `aws:PrincipalArn`: who makes the request, as an ARN.
    PrincipalArn,
    /// `aws:PrincipalType`: `User`, `Account` or `Anonymous`.
    PrincipalType,
    /// `aws:Referer`: the header `referer`.
    Referer,
    /// `aws:SecureTransport`: whether the request came over TLS.
    SecureTransport,
    /// `aws:SourceIp`: the address of the client.
    SourceIp,
    /// `aws:UserAgent`: the header `user-agent`.
    UserAgent,
    /// `aws:userid`: the identifier of the user.
    UserId,
    /// `aws:username`: the name of the user.
    Username,
    /// `s3:authType`: `REST-HEADER`, `REST-QUERY-STRING` or `POST`.
    AuthType,
    /// `s3:delimiter`: the delimiter of a listing.
    Delimiter,
    /// `s3:ExistingObjectTag/...`: the value of this tag of the object.
    ExistingObjectTag(String),
    /// `s3:LocationConstraint`: the region of a new bucket.
    LocationConstraint,
    /// `s3:max-keys`: the maximum number of keys of a listing.
    MaxKeys,
    /// `s3:prefix`: the prefix of a listing.
    Prefix,
    /// `s3:RequestObjectTag/...`: the value of this tag in the request.
    RequestObjectTag(String),
    /// `s3:RequestObjectTagKeys`: the names of all tags in the request.
    RequestObjectTagKeys,
    /// `s3:signatureAge`: the age of the signature in milliseconds.
    SignatureAge,
    /// `s3:signatureversion`: `AWS` or `AWS4-HMAC-SHA256`.
    SignatureVersion,
    /// `s3:VersionId`: the version that the request names.
    VersionId,
    /// `s3:x-amz-acl`: the canned ACL in the request.
    Acl,
    /// `s3:x-amz-content-sha256`: the header of that name.
    ContentSha256,
    /// `s3:x-amz-copy-source`: the source of a copy.
    CopySource,
    /// `s3:x-amz-metadata-directive`: the header of that name.
    MetadataDirective,
    /// `s3:x-amz-server-side-encryption`: the header of that name.
    ServerSideEncryption,
    /// `s3:x-amz-storage-class`: the header of that name.
    StorageClass,
}

impl Fact {
    /// The fact of this name, whose case does not matter but in names of tags; `None` if there is
    /// none.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some((kind, tag)) = name.split_once('/') {
            let tag = Some(tag).filter(|tag| !tag.is_empty())?.to_owned();
            return match kind.to_ascii_lowercase().as_str() {
                "s3:existingobjecttag" => Some(Self::ExistingObjectTag(tag)),
                "s3:requestobjecttag" => Some(Self::RequestObjectTag(tag)),
                _ => None,
            };
        }
        Some(match name.to_ascii_lowercase().as_str() {
            "aws:currenttime" => Self::CurrentTime,
            "aws:epochtime" => Self::EpochTime,
            "aws:principalarn" => Self::PrincipalArn,
            "aws:principaltype" => Self::PrincipalType,
            "aws:referer" => Self::Referer,
            "aws:securetransport" => Self::SecureTransport,
            "aws:sourceip" => Self::SourceIp,
            "aws:useragent" => Self::UserAgent,
            "aws:userid" => Self::UserId,
            "aws:username" => Self::Username,
            "s3:authtype" => Self::AuthType,
            "s3:delimiter" => Self::Delimiter,
            "s3:locationconstraint" => Self::LocationConstraint,
            "s3:max-keys" => Self::MaxKeys,
            "s3:prefix" => Self::Prefix,
            "s3:requestobjecttagkeys" => Self::RequestObjectTagKeys,
            "s3:signatureage" => Self::SignatureAge,
            "s3:signatureversion" => Self::SignatureVersion,
            "s3:versionid" => Self::VersionId,
            "s3:x-amz-acl" => Self::Acl,
            "s3:x-amz-content-sha256" => Self::ContentSha256,
            "s3:x-amz-copy-source" => Self::CopySource,
            "s3:x-amz-metadata-directive" => Self::MetadataDirective,
            "s3:x-amz-server-side-encryption" => Self::ServerSideEncryption,
            "s3:x-amz-storage-class" => Self::StorageClass,
            _ => return None,
        })
    }

    /// Whether a request may have several values of it.
    pub fn is_list(&self) -> bool {
        *self == Self::RequestObjectTagKeys
    }
}
