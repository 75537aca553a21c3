//! What an operation accepts: parameters of the query string, conditions, an XML body.

use http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderValue, Method};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::conditions::{EXPECTED_OWNERS, another_owner};
use crate::error::invalid_argument;
use crate::handler::is_owner;
use crate::rights::Needed;
use crate::signed::{is_presigned, is_presigned_v2};

/// An operation that is served.
pub(crate) struct Served {
    pub(crate) name: &'static str,
    /// The allowed parameters of its query string, except those of signatures and SDKs.
    query: &'static [&'static str],
    /// The largest XML body, in bytes; 0: the operation has none.
    pub(crate) xml_bytes_max: usize,
    /// Whether it works on a bucket with an origin.
    pub(crate) with_origin: bool,
    /// What a caller must be allowed.
    pub(crate) needed: Needed,
    /// The conditions that it honours.
    conditions: Conditions,
}

/// The conditions of a write that an operation honours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conditions {
    None,
    IfMatch,
    /// `If-Match` and `If-None-Match`.
    Both,
}

/// What the names of conditions begin with.
const CONDITIONS: [&str; 3] = ["if-", "x-amz-copy-source-if-", "x-amz-if-"];

pub(crate) const RESPONSE: [&str; 6] = [
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
];
impl Served {
    /// An operation without an XML body.
    pub(crate) const fn new(name: &'static str, query: &'static [&'static str], needed: Needed) -> Self {
        Self { name, query, xml_bytes_max: 0, with_origin: false, needed, conditions: Conditions::None }
    }

    /// The operation has an XML body.
    pub(crate) const fn with_xml(mut self, xml_bytes_max: usize) -> Self {
        self.xml_bytes_max = xml_bytes_max;
        self
    }

    /// The operation honours conditions.
    pub(crate) const fn honours(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// The operation also works on a bucket with an origin: it changes nothing there.
    pub(crate) const fn with_origin(mut self) -> Self {
        self.with_origin = true;
        self
    }

    /// Refuses the conditions that an operation would ignore, because the client relies on them.
    /// `If-Modified-Since` is allowed: it has a meaning for reads only (RFC 9110, section 13.1.3).
    ///
    /// # Errors
    /// `NotImplemented`; `InvalidArgument` for an empty condition, as from an unset variable of a
    /// client; and `AccessDenied` for another [expected owner](is_owner).
    pub(crate) fn refuse_ignored(&self, method: &Method, headers: &HeaderMap) -> S3Result<()> {
        for name in &EXPECTED_OWNERS {
            if headers.get(name).is_some_and(|expected| !expected.to_str().is_ok_and(is_owner)) {
                return Err(another_owner());
            }
        }
        if *method == Method::GET || *method == Method::HEAD {
            return Ok(());
        }
        let honours = |name: &HeaderName| match self.conditions {
            Conditions::None => false,
            Conditions::IfMatch => *name == IF_MATCH,
            Conditions::Both => *name == IF_MATCH || *name == IF_NONE_MATCH,
        };
        let is_condition = |name: &str| CONDITIONS.iter().any(|begin| name.starts_with(begin));
        let is_empty = |value: &HeaderValue| value.as_bytes().trim_ascii().is_empty();
        if let Some((name, _)) = headers.iter().find(|(name, value)| is_condition(name.as_str()) && is_empty(value)) {
            return Err(invalid_argument(format!("the condition {name} is empty")));
        }
        for name in [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE] {
            if headers.contains_key(&name) && !honours(&name) {
                return Err(S3Error::with_message(
                    S3ErrorCode::NotImplemented,
                    format!(
                        "A header you provided implies functionality that is not implemented: {name} on this operation."
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Refuses parameters that mean something else than this operation, or that it cannot honour.
    /// A sub-resource must not become the plain operation: `PUT /bucket/key?renameObject` would
    /// write an empty object, and `DELETE /bucket/key?acl` would delete one. Other parameters are
    /// ignored, as S3 does, but of a change only those with a value: a sub-resource that S3 adds
    /// later has none.
    ///
    /// # Errors
    /// `NotImplemented`; `InvalidArgument` for what S3 refuses so; `AccessDenied` for another
    /// [expected owner](is_owner).
    pub(crate) fn check_query(&self, method: &Method, query: &str) -> S3Result<()> {
        let reads = *method == Method::GET || *method == Method::HEAD;
        let (presigned, v2) = (is_presigned(query), is_presigned_v2(query));
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            // `x-id`, signatures, and headers: `s3s` has already turned those of a presigned URL
            // into headers.
            let of_sdk = starts_with(&name, "x-");
            if EXPECTED_OWNERS.iter().any(|owner| name.eq_ignore_ascii_case(owner.as_str())) {
                match is_owner(&value) {
                    true => continue,
                    false => return Err(another_owner()),
                }
            }
            if self.misuses(&name) {
                return Err(invalid_argument(format!("{} has no parameter {name:.64?}.", self.name)));
            }
            let counts = presigned && starts_with(&name, "x-amz-");
            let relied_on = of_sdk && !counts && RELIED_ON.iter().any(|start| starts_with(&name, start));
            let of_v2 = v2 && V2_PARAMETERS.iter().any(|known| name.eq_ignore_ascii_case(known));
            if !relied_on && (of_sdk || of_v2 || self.query.contains(&name.as_ref())) {
                continue;
            }
            let unknown = match value.is_empty() {
                true => reads && !SUBRESOURCES.contains(&name.as_ref()),
                false => reads || !(SUBRESOURCES.contains(&name.as_ref()) || OF_UPLOADS.contains(&name.as_ref())),
            };
            if unknown && !relied_on {
                continue;
            }
            return Err(S3Error::with_message(
                S3ErrorCode::NotImplemented,
                format!(
                    "A query parameter you provided implies functionality that is not implemented: {} of {}.",
                    name.chars().take(64).collect::<String>().escape_debug(),
                    self.name
                ),
            ));
        }
        Ok(())
    }

    /// Whether the operation would silently do without a parameter that a client relies on.
    fn misuses(&self, name: &str) -> bool {
        match self.name {
            "GetObject" | "HeadObject" => name.starts_with("response-") && !RESPONSE.contains(&name),
            "ListObjects" => matches!(name, "start-after" | "continuation-token"),
            _ => false,
        }
    }
}

/// Whether a query string has parameters that only a signed request may have: those of version 4,
/// and headers.
pub(crate) fn has_signed_parameters(query: &str) -> bool {
    form_urlencoded::parse(query.as_bytes())
        .any(|(name, _)| starts_with(&name, "x-") && !name.eq_ignore_ascii_case("x-id"))
}

/// Whether a query string sets headers of the answer.
pub(crate) fn overrides_headers(query: &str) -> bool {
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| RESPONSE.contains(&name.as_ref()))
}

/// Headers that the server would ignore in a query string, and so do something else: a copy, for
/// example, would write an empty object. Those that an SDK moved there to presign the URL have
/// become headers again before this check.
const RELIED_ON: [&str; 9] = [
    "x-amz-copy-source",
    "x-amz-rename-source",
    "x-amz-write-offset-bytes",
    "x-amz-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-bucket-object-lock-",
    "x-amz-if-",
    "x-amz-mp-object-size",
    "x-steadfast-",
];

/// The sub-resources of S3, and of other vendors' servers. Each names another operation than the
/// plain one on its path.
const SUBRESOURCES: [&str; 46] = [
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "annotation",
    "append",
    "attributes",
    "cors",
    "defaultObjectAcl",
    "delete",
    "encryption",
    "events",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "select-type",
    "session",
    "storageClass",
    "symlink",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
    "worm",
];

/// Parameters with a value that make another operation of a change.
const OF_UPLOADS: [&str; 4] = ["partNumber", "uploadId", "versionId", "position"];

/// Parameters of URLs presigned with version 2, besides `x-amz-*`.
const V2_PARAMETERS: [&str; 5] = ["AWSAccessKeyId", "Expires", "Signature", "content-type", "content-md5"];

fn starts_with(name: &str, start: &str) -> bool {
    name.get(..start.len()).is_some_and(|part| part.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::find;

    #[test]
    fn unknown_parameters_are_refused() {
        let ask =
            |operation: &str, method: Method, query: &str| find(operation).unwrap().check_query(&method, query).is_ok();
        assert!(ask("PutObject", Method::PUT, "x-id=PutObject&X-Amz-Signature=0&x-amz-acl=private"));
        for query in [
            "renameObject",
            "append&position=0",
            "encryption",
            "partNumber=1",
            "uploadId=x",
            "acl=1",
            "new",
            "%61cl",
            "=",
        ] {
            assert!(!ask("PutObject", Method::PUT, query), "{query}");
        }
        assert!(ask("DeleteObject", Method::DELETE, "versionId=null&x-id=DeleteObject"));
        for query in ["X-Amz-Copy-Source=a%2Fb", "x-amz-server-side-encryption=AES256", "x%2Damz-if-match-size=1"] {
            assert!(!ask("PutObject", Method::PUT, query), "{query}");
        }
        let presigned = "X-Amz-Copy-Source=a%2Fb&x-amz-server-side-encryption=AES256&X-Amz-Signature=0";
        assert!(ask("CopyObject", Method::PUT, presigned), "they are headers by now");
        assert!(!ask("PutObject", Method::PUT, "x-steadfast-durability=sync&X-Amz-Signature=0"));
        assert!(!ask("GetObject", Method::GET, "x-amz-expected-bucket-owner=another"));
        assert!(ask("GetObject", Method::GET, "X-Amz-Expected-Bucket-Owner=steadfast"));
        assert!(ask("GetObject", Method::GET, "x-amz-checksum-mode=ENABLED&X-Amz-Security-Token=t"));
        assert!(!ask("DeleteObject", Method::DELETE, "acl"));
        assert!(!ask("DeleteBucket", Method::DELETE, "encryption"));
        assert!(ask("GetObject", Method::GET, "response-content-type=a%2Fb&partNumber=1&versionId="));
        for query in ["v=3", "1668123456", "download", "id=5", "x-id=GetObject", "policy=1"] {
            assert!(ask("GetObject", Method::GET, query), "{query}");
        }
        assert!(ask("PutObject", Method::PUT, "a=b"), "without meaning");
        for (operation, query) in [("GetObject", "response-foo=1"), ("ListObjects", "start-after=a")] {
            let refused = find(operation).unwrap().check_query(&Method::GET, query);
            assert_eq!(refused.expect_err(query).code().as_str(), "InvalidArgument");
        }
        assert!(!ask("GetObject", Method::GET, "legal-hold"));
        assert!(ask("ListObjectsV2", Method::GET, "list-type=2&prefix=&delimiter=%2F&fetch-owner=true&metadata=true"));
        assert!(find("PutBucketEncryption").is_err());
    }
}
