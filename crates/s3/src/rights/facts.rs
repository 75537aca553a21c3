//! The facts about a request that conditions of policies look at.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;

use http::header::{HeaderName, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Uri};
use s3s::S3Result;
use s3s::dto::{CopySource, TimestampFormat};
use steadfast_access::{Fact, Facts};
use steadfast_flow::Env;
use steadfast_store::{Attributes, Store, StoreError};

use crate::caller::Caller;
use crate::conditions::timestamp;
use crate::error::invalid_argument;
use crate::rights::denied;
use crate::rights::signature::SignatureFacts;

/// The longest header that a condition looks at, in bytes, and the longest query string of a
/// request that policies judge. The time to compare a text with a pattern grows with its length.
const HEADER_BYTES_MAX: usize = 4 << 10;
const QUERY_BYTES_MAX: usize = 16 << 10;

pub(crate) static ACL: HeaderName = HeaderName::from_static("x-amz-acl");
static CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
static COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");
static METADATA_DIRECTIVE: HeaderName = HeaderName::from_static("x-amz-metadata-directive");
static ENCRYPTION: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
static STORAGE_CLASS: HeaderName = HeaderName::from_static("x-amz-storage-class");
static TAGGING_DIRECTIVE: HeaderName = HeaderName::from_static("x-amz-tagging-directive");
pub(crate) static TAGGING: HeaderName = HeaderName::from_static("x-amz-tagging");

/// The parts of a request that conditions look at.
#[derive(Clone, Copy)]
pub(crate) struct RequestParts<'a> {
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) caller: &'a Caller,
}

impl<'a> RequestParts<'a> {
    fn query(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        form_urlencoded::parse(self.uri.query().unwrap_or_default().as_bytes())
    }

    fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The version that the request names.
    fn version(&self) -> Option<Cow<'a, str>> {
        self.parameter("versionId").filter(|version| !version.is_empty())
    }

    /// Whether the request names a version.
    pub(crate) fn names_version(&self) -> bool {
        self.version().is_some()
    }

    /// Refuses what a policy could see otherwise than the operation does, and what takes long to
    /// compare.
    ///
    /// # Errors
    /// `InvalidArgument`; `AccessDenied` if the address of the client is unknown.
    pub(crate) fn check(&self) -> S3Result<()> {
        if self.caller.link.address.is_none() {
            return Err(denied());
        }
        if self.uri.query().is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
            return Err(invalid_argument(format!("The query string has more than {QUERY_BYTES_MAX} bytes.")));
        }
        let mut names: Vec<Cow<'_, str>> = self.query().map(|(name, _)| name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(invalid_argument(format!("The query parameter {:.64} appears twice.", pair[0].escape_debug())));
        }
        let looked_at = [
            &REFERER,
            &USER_AGENT,
            &ACL,
            &CONTENT_SHA256,
            &COPY_SOURCE,
            &METADATA_DIRECTIVE,
            &ENCRYPTION,
            &STORAGE_CLASS,
            &TAGGING,
        ];
        for name in looked_at {
            let mut lines = self.headers.get_all(name).iter();
            let (first, second) = (lines.next(), lines.next());
            if second.is_some() || first.is_some_and(|value| value.len() > HEADER_BYTES_MAX) {
                return Err(invalid_argument(format!(
                    "The header {name} appears twice or has more than {HEADER_BYTES_MAX} bytes."
                )));
            }
        }
        Ok(())
    }

    /// The signature; `None`: the request has none.
    fn signature(&self) -> Option<SignatureFacts<'a>> {
        SignatureFacts::of(self.uri, self.headers)
    }

    fn header(&self, name: &HeaderName) -> Option<Cow<'a, str>> {
        self.headers.get(name).map(HeaderValue::as_bytes).map(String::from_utf8_lossy)
    }

    /// The tags that the request sets by a header. A copy that keeps its source's tags ignores it.
    fn tags(&self) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        let replaces = || self.headers.get(&TAGGING_DIRECTIVE).is_some_and(|directive| directive == "REPLACE");
        if self.headers.contains_key(&COPY_SOURCE) && !replaces() {
            return Vec::new();
        }
        let text = self.headers.get(&TAGGING).map(HeaderValue::as_bytes).unwrap_or_default();
        form_urlencoded::parse(text).collect()
    }

    /// The source of a copy, as `bucket/key`.
    fn copy_source(&self) -> Option<Cow<'a, str>> {
        match CopySource::parse(&self.header(&COPY_SOURCE)?) {
            Ok(CopySource::Bucket { bucket, key, .. }) => Some(format!("{bucket}/{key}").into()),
            // The operation refuses it.
            _ => None,
        }
    }
}

/// The facts about a request, and the resource that it is about.
pub(crate) struct RequestFacts<'a> {
    pub(crate) parts: RequestParts<'a>,
    pub(crate) bucket: &'a str,
    pub(crate) key: Option<&'a str>,
    /// The tags in the body.
    tags: Option<&'a BTreeMap<String, String>>,
    /// The version of the object.
    version: Option<Cow<'a, str>>,
    /// The request lists the bucket.
    lists: bool,
    store: &'a Store,
    env: &'a Env,
    /// The object; `None`: it does not exist.
    object: OnceCell<Result<Option<Attributes>, StoreError>>,
}

impl<'a> RequestFacts<'a> {
    pub(super) fn new(
        (store, env): (&'a Store, &'a Env),
        parts: RequestParts<'a>,
        bucket: &'a str,
        key: Option<&'a str>,
    ) -> Self {
        let version = key.and_then(|_| parts.version());
        Self { parts, bucket, key, tags: None, version, lists: key.is_none(), store, env, object: OnceCell::new() }
    }

    /// The body of the request, or the source of a copy, names this version.
    pub(crate) fn with_version(mut self, version: Option<&'a str>) -> Self {
        self.version = version.filter(|version| !version.is_empty()).map(Cow::Borrowed);
        self
    }

    /// Whether it is about a version of an object.
    pub(crate) fn names_version(&self) -> bool {
        self.version.is_some()
    }

    /// The body of the request sets these tags.
    pub(crate) fn with_tags(mut self, tags: &'a BTreeMap<String, String>) -> Self {
        self.tags = Some(tags);
        self
    }

    /// The object is this one.
    pub(crate) fn with_object(mut self, attributes: &Attributes) -> Self {
        self.object = OnceCell::from(Ok(Some(attributes.clone())));
        self
    }

    /// The same request about its bucket, as if it listed the whole.
    pub(super) fn of_bucket(&self) -> Self {
        Self { lists: false, ..Self::new((self.store, self.env), self.parts, self.bucket, None) }
    }

    /// The name of the resource in policies.
    pub(super) fn resource(&self) -> Cow<'a, str> {
        match self.key {
            Some(key) => format!("{}/{key}", self.bucket).into(),
            None => self.bucket.into(),
        }
    }

    /// Why a fact could not be found out. A decision without it counts for nothing.
    pub(super) fn failure(&mut self) -> Option<StoreError> {
        match self.object.get() {
            Some(Err(_)) => self.object.take().and_then(Result::err),
            _ => None,
        }
    }

    /// The object; `None`: it does not exist, or cannot be found out.
    pub(super) fn object(&self) -> Option<&Attributes> {
        let object = self.object.get_or_init(|| {
            self.parts.caller.object_is_judged();
            let key = self.key.unwrap_or_default();
            match self.store.at(self.bucket, key).info() {
                Ok(info) => Ok(Some(info.attributes)),
                Err(StoreError::NoSuchKey | StoreError::NoSuchBucket) => Ok(None),
                Err(error) => Err(error),
            }
        });
        object.as_ref().ok()?.as_ref()
    }

    fn request_tags(&self) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        match self.tags {
            Some(tags) => tags.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect(),
            None => self.parts.tags(),
        }
    }
}

impl Facts for RequestFacts<'_> {
    fn values(&self, fact: &Fact) -> Vec<Cow<'_, str>> {
        let parts = &self.parts;
        let value: Option<Cow<'_, str>> = match fact {
            Fact::CurrentTime => {
                let mut text = Vec::with_capacity(32);
                let written = timestamp(self.env.wall_ms()).format(TimestampFormat::DateTime, &mut text);
                written.ok().and_then(|()| String::from_utf8(text).ok()).map(Cow::Owned)
            }
            Fact::EpochTime => Some((self.env.wall_ms() / 1000).to_string().into()),
            Fact::SourceIp => parts.caller.link.address.map(|address| address.to_canonical().to_string().into()),
            Fact::SecureTransport => Some(parts.caller.link.secure.to_string().into()),
            Fact::Referer => parts.header(&REFERER),
            Fact::UserAgent => parts.header(&USER_AGENT),
            Fact::Delimiter => parts.parameter("delimiter").filter(|_| self.lists),
            Fact::Prefix => parts.parameter("prefix").filter(|_| self.lists),
            Fact::MaxKeys => parts.parameter("max-keys").filter(|_| self.lists),
            Fact::VersionId => self.version.as_deref().map(Cow::Borrowed),
            Fact::Acl => parts.header(&ACL),
            Fact::ContentSha256 => parts.header(&CONTENT_SHA256),
            Fact::CopySource => parts.copy_source(),
            Fact::MetadataDirective => parts.header(&METADATA_DIRECTIVE),
            Fact::ServerSideEncryption => parts.header(&ENCRYPTION),
            Fact::StorageClass => parts.header(&STORAGE_CLASS),
            Fact::ExistingObjectTag(name) => {
                self.object().and_then(|object| object.tags.get(name)).map(|value| value.as_str().into())
            }
            Fact::RequestObjectTag(name) => {
                return self
                    .request_tags()
                    .into_iter()
                    .filter(|(tag, _)| tag == name)
                    .map(|(_, value)| value)
                    .collect();
            }
            Fact::RequestObjectTagKeys => {
                return self.request_tags().into_iter().map(|(name, _)| name).collect();
            }
            // The principal has them.
            Fact::PrincipalArn | Fact::PrincipalType | Fact::UserId | Fact::Username => None,
            Fact::AuthType => parts.signature().map(|signature| signature.kind().into()),
            Fact::SignatureVersion => parts.signature().map(|signature| signature.version().into()),
            Fact::SignatureAge => parts
                .signature()
                .and_then(|signature| signature.age_ms(self.env.wall_ms()))
                .map(|age| age.to_string().into()),
            // Every bucket is in one region.
            Fact::LocationConstraint => None,
        };
        value.into_iter().collect()
    }
}
