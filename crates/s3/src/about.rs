//! The elements that identify the request in an error document, besides code and message.

use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use s3s::Body;
use s3s::host::S3Host as _;
use s3s::xml::is_unfit;

use crate::access::Domains;
use crate::attributes::percent_decode;

const END: &[u8] = b"</Error>";
/// The conditions of requests, as `Condition` of an error names them.
const CONDITIONS: [(&str, &str); 7] = [
    ("if-match", "If-Match"),
    ("if-none-match", "If-None-Match"),
    ("if-unmodified-since", "If-Unmodified-Since"),
    ("x-amz-copy-source-if-match", "x-amz-copy-source-If-Match"),
    ("x-amz-copy-source-if-none-match", "x-amz-copy-source-If-None-Match"),
    ("x-amz-copy-source-if-modified-since", "x-amz-copy-source-If-Modified-Since"),
    ("x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-If-Unmodified-Since"),
];

/// The parts of a request that its error document repeats.
pub(crate) struct About {
    uri: Uri,
    host: Option<HeaderValue>,
    condition: Option<&'static str>,
}

impl About {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let names = request.headers().keys().map(HeaderName::as_str);
        Self { uri: request.uri().clone(), host: request.headers().get(HOST).cloned(), condition: condition(names) }
    }

    /// The bucket and the key that the request names; each may be empty.
    pub(crate) fn names(&self, domains: &[String]) -> (String, String) {
        let decoded = |text: &str| percent_decode(text).unwrap_or_else(|| text.to_owned());
        let path = self.uri.path().trim_start_matches('/');
        let host = self.host.as_ref().and_then(|host| host.to_str().ok()).or(self.uri.host()).unwrap_or_default();
        if let Some(bucket) =
            Domains::new(domains).parse_host_header(host).ok().and_then(|host| host.bucket().map(str::to_owned))
        {
            return (bucket, decoded(path));
        }
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        (decoded(bucket), decoded(key))
    }

    /// Adds what clients look for: the bucket, the key, the resource, the request's id,
    /// and the condition that did not hold.
    pub(crate) fn complete(&self, response: &mut Response<Body>, id: &str, domains: &[String]) {
        if response.status().as_u16() < 400 {
            return;
        }
        let bytes = response.body().bytes().unwrap_or_default();
        let Some(start) = bytes.strip_suffix(END) else { return };
        let mut xml = Vec::with_capacity(bytes.len() + 256 + 2 * self.uri.path().len());
        xml.extend_from_slice(start);
        let mut element = |name: &str, text: &str| {
            xml.extend_from_slice(format!("<{name}>{}</{name}>", escape(text)).as_bytes());
        };
        let (bucket, key) = self.names(domains);
        for (name, text) in [("BucketName", &bucket), ("Key", &key)] {
            if !text.is_empty() {
                element(name, text);
            }
        }
        if response.status() == StatusCode::PRECONDITION_FAILED {
            // The query string of a presigned URL may carry the headers of a copy.
            let query = form_urlencoded::parse(self.uri.query().unwrap_or_default().as_bytes());
            let moved = query.map(|(name, _)| name.to_ascii_lowercase()).filter(|name| name.starts_with("x-amz-"));
            if let Some(condition) = self.condition.or_else(|| condition(moved)) {
                element("Condition", condition);
            }
        }
        element("Resource", self.uri.path());
        element("RequestId", id);
        xml.extend_from_slice(END);
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = Body::from(xml);
    }
}

/// The condition of a request that has exactly one. With several, the failed one is not recorded.
fn condition(names: impl Iterator<Item = impl AsRef<str>>) -> Option<&'static str> {
    let known = |name: &str| CONDITIONS.iter().find(|(known, _)| *known == name).map(|(_, shown)| *shown);
    // Most requests have no condition, so one pass over the header names is cheaper than one lookup
    // for each condition.
    let mut given = names.filter_map(|name| known(name.as_ref()));
    given.next().filter(|_| given.next().is_none())
}

/// Escapes a path or a name, which may have characters that XML cannot carry.
fn escape(text: &str) -> String {
    let text = text.replace(is_unfit, "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
