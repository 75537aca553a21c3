//! Requests that are refused before they are parsed.

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use s3s::{S3Error, s3_error};

use crate::error::{invalid_argument, invalid_request};
use crate::signed::{is_presigned_v2, is_presigned_v4};

/// Names the setting: for SDKs that choose version 2 by themselves (boto3 does for presigned URLs),
/// it is one line.
const VERSION_2: &str = "The authorization mechanism you have provided is AWS signature version 2, which s3.signature_v2 turns off. Please use \
    AWS4-HMAC-SHA256 (version 4). boto3, django-storages, s3fs: signature_version=\"s3v4\" (in boto3: \
    config=botocore.config.Config(signature_version=\"s3v4\")). AWS CLI 1: aws configure set default.s3.signature_version s3v4. \
    AWS SDK for JavaScript 2: signatureVersion: \"v4\". s3cmd: signature_v2 = False; its signurl makes version 2 only.";

/// Refuses form uploads, which `s3s` would gather in memory, and signature version 2 unless
/// `version_2` accepts it. A request with two signatures is refused, so that the signature that is
/// verified is the only one.
pub(crate) fn refuse_early<B>(request: &Request<B>, version_2: bool) -> Option<S3Error> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let query = request.uri().query().unwrap_or_default();
    let presigned = is_presigned_v2(query);
    if !version_2 && (presigned || header(AUTHORIZATION).is_some_and(|v| v.starts_with(b"AWS "))) {
        return Some(invalid_request(VERSION_2));
    }
    let ways = [presigned, is_presigned_v4(query), request.headers().contains_key(AUTHORIZATION)];
    if ways.into_iter().filter(|used| *used).count() > 1 {
        return Some(invalid_argument(
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
             parameter or the Authorization header should be specified",
        ));
    }
    let form = request.method() == Method::POST
        && header(CONTENT_TYPE).is_some_and(|v| v.to_ascii_lowercase().starts_with(b"multipart/form-data"));
    form.then(|| s3_error!(NotImplemented, "Uploads by form (POST Object) are not offered; a presigned PUT is."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_signatures_and_forms_are_refused() {
        let request = |method: &str, uri: &str, header: (&str, &str)| {
            Request::builder().method(method).uri(uri).header(header.0, header.1).body(()).unwrap()
        };
        let off = |request| refuse_early(&request, false);
        assert!(off(request("GET", "/b/k", ("authorization", "AWS AKID:sig"))).is_some());
        for uri in [
            "/b/k?AWSAccessKeyId=A&Signature=x&Expires=1",
            "/b/k?%53ignature=x&AWSAccessKeyI%64=A&Expires=1",
            "/b/k?Expires=1&%53ignatur%65=x",
        ] {
            let error = off(request("GET", uri, ("a", "b"))).expect(uri);
            assert!(error.message().unwrap().contains("s3v4"), "{uri}");
            assert!(refuse_early(&request("GET", uri, ("a", "b")), true).is_none(), "{uri}");
            let twice = request("GET", &format!("{uri}&X-Amz-Signature=0"), ("a", "b"));
            assert_eq!(refuse_early(&twice, true).expect(uri).code().as_str(), "InvalidArgument");
            assert!(refuse_early(&request("GET", uri, ("authorization", "AWS A:b")), true).is_some());
        }
        for header in ["AWS A:b", "AWS4-HMAC-SHA256 Credential=A"] {
            let twice = request("GET", "/b/k?X-Amz-Signature=0", ("authorization", header));
            assert_eq!(refuse_early(&twice, true).expect(header).code().as_str(), "InvalidArgument");
        }
        assert!(off(request("POST", "/b", ("content-type", "Multipart/Form-Data; boundary=x"))).is_some());
        assert!(off(request("GET", "/b/k?X-Amz-Signature=x", ("a", "b"))).is_none());
        assert!(off(request("PUT", "/b/k", ("content-type", "multipart/form-data"))).is_none());
    }
}
