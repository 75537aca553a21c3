//! Requests to S3 endpoints.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::http_client::check_url;
use crate::sign::{S3Credentials, encode, signed_headers};

/// An S3 endpoint and the credentials for it, if it wants any. Buckets are named in the path, not
/// in the host.
#[derive(Debug, Clone)]
pub struct S3Endpoint {
    url: http::Uri,
    /// Value of the `Host` header.
    authority: String,
    /// Scheme and authority.
    base: String,
    credentials: Option<S3Credentials>,
}

/// A request to an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct S3Request<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// The bucket; empty for a request to the endpoint itself.
    pub bucket: &'a str,
    /// The key; empty for a request to the bucket itself.
    pub key: &'a str,
    /// The query string, already encoded and sorted by name, with `=` after every name.
    pub query: &'a str,
    /// Further headers, such as `range` and `if-match`. They are not signed, so `x-amz-` headers,
    /// which S3 wants signed, are not possible.
    pub headers: &'a [(&'a str, &'a str)],
}

impl S3Endpoint {
    /// Checks the URL of an endpoint.
    ///
    /// # Errors
    /// It is no URL over HTTP, or has a path or a query; the text is for operators.
    pub fn new(endpoint: &str, credentials: Option<S3Credentials>) -> Result<Self, String> {
        let url: http::Uri = endpoint.parse().map_err(|_| "not a URL".to_owned())?;
        check_url(&url)?;
        if url.path().len() > 1 || url.query().is_some() {
            return Err("give the endpoint alone, without bucket, path or query".to_owned());
        }
        let host = url.host().unwrap_or_default();
        let authority = url.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let base = format!("{}://{authority}", url.scheme_str().unwrap_or_default());
        Ok(Self { url, authority, base, credentials })
    }

    /// The URL, for the client of this endpoint.
    pub fn url(&self) -> &http::Uri {
        &self.url
    }

    /// Builds a request, signed if there are credentials. `wall_ms` is the time in milliseconds
    /// since the Unix epoch; an endpoint accepts the signature for some minutes.
    ///
    /// # Errors
    /// The method, the query or a header has characters that HTTP does not allow.
    pub fn request(
        &self,
        request: &S3Request<'_>,
        wall_ms: u64,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let S3Request { method, bucket, key, query, headers } = *request;
        let path = match (bucket, key) {
            ("", _) => "/".to_owned(),
            (bucket, "") => format!("/{}", encode(bucket, false)),
            (bucket, key) => format!("/{}/{}", encode(bucket, false), encode(key, true)),
        };
        let mark = if query.is_empty() { "" } else { "?" };
        let mut built = Request::builder().method(method).uri(format!("{}{path}{mark}{query}", self.base));
        let signed = |credentials| signed_headers(credentials, &self.authority, wall_ms, method, (&path, query), &body);
        for (name, value) in self.credentials.as_ref().map(signed).unwrap_or_default() {
            built = built.header(name, value);
        }
        for (name, value) in headers {
            built = built.header(*name, *value);
        }
        built.body(Full::new(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::Secret;

    fn endpoint(url: &str) -> Result<S3Endpoint, String> {
        let (region, access_key, secret_key) = ("us-east-1".into(), "key".into(), Secret("secret".into()));
        let credentials = S3Credentials { region, access_key, secret_key, session_token: Some(Secret("t".into())) };
        S3Endpoint::new(url, Some(credentials))
    }

    #[test]
    fn an_endpoint_is_a_url_without_path_and_query() {
        for url in ["http://h", "https://h/", "http://h:9000", "http://[::1]:9000/"] {
            assert!(endpoint(url).is_ok(), "{url}");
        }
        for (url, expected) in [
            ("http://h/bucket", "alone"),
            ("http://h/?a", "alone"),
            ("h:9000", "begins with http://"),
            ("ftp://h", "begins with http://"),
            ("http://", "not a URL"),
        ] {
            assert!(endpoint(url).is_err_and(|e| e.contains(expected)), "{url}: {:?}", endpoint(url));
        }
    }

    #[test]
    fn requests_name_the_bucket_in_the_path() {
        let endpoint = endpoint("http://h:9000/").expect("valid");
        let url = |bucket, key, query| {
            let request = S3Request { method: "GET", bucket, key, query, headers: &[] };
            endpoint.request(&request, 0, Bytes::new()).expect("valid").uri().to_string()
        };
        assert_eq!(url("b", "a b/ä", ""), "http://h:9000/b/a%20b/%C3%A4");
        assert_eq!(url("b", "", "list-type=2"), "http://h:9000/b?list-type=2");
        assert_eq!(url("", "", ""), "http://h:9000/");
    }

    #[test]
    fn further_headers_are_sent_and_do_not_change_the_signature() {
        let endpoint = endpoint("https://h").expect("valid");
        let request = |headers: &[(&str, &str)]| {
            let request = S3Request { method: "GET", bucket: "b", key: "k", query: "", headers };
            endpoint.request(&request, 1_369_353_600_000, Bytes::new())
        };
        let plain = request(&[]).expect("valid");
        assert_eq!(
            (&plain.headers()["host"], &plain.headers()["x-amz-security-token"]),
            (&"h".parse().expect("valid"), &"t".parse().expect("valid"))
        );
        let further = request(&[("range", "bytes=0-1"), ("if-match", "\"e\"")]).expect("valid");
        assert_eq!(
            (further.headers()["range"].as_bytes(), further.headers()["if-match"].as_bytes()),
            (&b"bytes=0-1"[..], &b"\"e\""[..])
        );
        assert_eq!(further.headers()["authorization"], plain.headers()["authorization"]);
        assert!(request(&[("range", "\n")]).is_err());
    }
}
