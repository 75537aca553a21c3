//! Pages of other origins (CORS). One setting for all buckets lists the origins whose pages may
//! read answers in a browser. It permits no request that other clients could not send.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Request, Response, StatusCode};
use s3s::{Body, S3Error};

use crate::error::custom;

/// The origin of the requesting page, if the list allows it; `*` in the list allows all.
pub(crate) fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let known = |one: &String| one == "*" || one.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
    origins.iter().any(known).then(|| origin.clone())
}

/// Whether this is a preflight request, by which a browser asks what a page may send. It has
/// neither signature nor body.
pub(crate) fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight request of an allowed origin.
pub(crate) fn preflight(request: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, PUT, POST, DELETE"));
    if let Some(names) = request.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("300"));
    response
}

/// The error for a request with OPTIONS that is no preflight request of an allowed origin.
pub(crate) fn refused(request: &HeaderMap) -> S3Error {
    let bad = |why| custom("BadRequest", StatusCode::BAD_REQUEST, why);
    if !request.contains_key(ORIGIN) {
        return bad("Insufficient information. Origin request header needed.");
    }
    if !request.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return bad("Invalid Access-Control-Request-Method: null");
    }
    let why = "CORSResponse: This CORS request is not allowed. The setting s3.allowed_origins lists the origins.";
    custom("AccessForbidden", StatusCode::FORBIDDEN, why)
}

/// The headers that a page may read: all, and by name those that players need. Browsers of some
/// television sets do not know `*`.
const EXPOSED: &str = "*, Accept-Ranges, Age, Cache-Status, Content-Length, Content-Range, ETag";

/// Keeps a cache from serving the answer to another page, also one to a client without a page.
pub(crate) fn vary(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("Origin"));
}

/// Lets the page read an answer with all of its headers.
pub(crate) fn admit(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_as_a_whole() {
        let origins = ["https://app.example.com".to_owned()];
        let asks = |origins: &[String], origin: &'static str| {
            let headers = HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
            allowed(origins, &headers).is_some()
        };
        assert!(asks(&origins, "https://app.example.com"));
        assert!(asks(&origins, "HTTPS://app.example.com"));
        for other in
            ["https://app.example.com.evil.example", "https://app.example.com:8443", "http://app.example.com", "null"]
        {
            assert!(!asks(&origins, other), "{other}");
            assert!(asks(&["*".to_owned()], other), "{other}");
        }
        assert!(!asks(&[], "https://app.example.com"));
        assert!(allowed(&["*".to_owned()], &HeaderMap::new()).is_none());
    }
}
