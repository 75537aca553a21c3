//! Requests that only MinIO's tools send to the S3 port: the health checks of charts, compose files
//! and `mc ready`, which are answered, and what is not served of the administration.

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use s3s::Body;

const PATHS: [&str; 4] =
    ["/minio/health/live", "/minio/health/ready", "/minio/health/cluster", "/minio/health/cluster/read"];

/// Requests of the administration, with what does the same here. The first that fits counts.
const ADMINISTRATION: [(&str, &str); 14] = [
    ("/minio/v2/metrics", "/metrics of the admin port has the metrics"),
    ("/minio/metrics/", "/metrics of the admin port has the metrics"),
    ("/minio/prometheus/", "/metrics of the admin port has the metrics"),
    ("/minio/admin/v3/heal", "`steadfast scrub` verifies all data, and `steadfast disk` replaces a disk"),
    ("/minio/admin/v3/background-heal", "`steadfast scrub` verifies all data"),
    ("/minio/admin/v3/trace", "the server's log and `steadfast status` show slow and failed requests"),
    ("/minio/admin/v3/log", "the server writes its log to the standard error"),
    ("/minio/admin/v3/get-config", "`steadfast serve --print-config` shows the configuration"),
    ("/minio/admin/v3/set-config", "the configuration is a file, of which `steadfast serve --print-config` makes one"),
    ("/minio/admin/v3/service", "the service manager of the machine restarts the server"),
    ("/minio/admin/v3/update-group-members", "there are no groups: attach policies to each user"),
    ("/minio/admin/v3/set-bucket-quota", "buckets have no quotas"),
    ("/minio/admin/", "`steadfast status` shows the state, and `steadfast help` lists the commands"),
    ("/minio/kms/", "the server does not encrypt; encrypt its disks"),
];

/// Whether a request is a health check: it has neither a signature nor a query string.
pub(crate) fn is_probe<B>(request: &Request<B>) -> bool {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let uri = request.uri();
    reads && PATHS.contains(&uri.path()) && uri.query().is_none() && !request.headers().contains_key(AUTHORIZATION)
}

/// The answer: the port serves requests. `/health/ready` of the admin port has the state of the
/// disks.
pub(crate) fn answer() -> Response<Body> {
    Response::new(Body::empty())
}

fn instead(path: &str) -> Option<&'static str> {
    ADMINISTRATION.iter().find(|(start, _)| path.starts_with(start)).map(|(_, instead)| *instead)
}

/// Whether a request is one of the administration (`mc admin`, scrapes of metrics).
pub(crate) fn is_administration<B>(request: &Request<B>) -> bool {
    instead(request.uri().path()).is_some()
}

/// The answer to a request of the administration: 501, in the form of MinIO's.
pub(crate) fn refuse(path: &str) -> Response<Body> {
    let instead = instead(path).unwrap_or_default();
    let text = format!(
        r#"{{"Code":"NotImplemented","Message":"Steadfast does not do this over HTTP as MinIO does: {instead}. See from-minio.md."}}"#
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administration_is_refused_with_what_does_it_here() {
        for (path, words) in [
            ("/minio/admin/v3/top/locks", "steadfast status"),
            ("/minio/admin/v3/heal/bucket/", "steadfast scrub"),
            ("/minio/v2/metrics/cluster", "/metrics of the admin port"),
        ] {
            let response = refuse(path);
            assert_eq!(response.status(), 501);
            let text = response.body().bytes().expect("in memory");
            assert!(String::from_utf8_lossy(&text).contains(words), "{path}");
            let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(json["Code"], "NotImplemented");
        }
        assert_eq!(instead("/minio/health/live"), None);
        assert_eq!(instead("/minio/admins"), None);
    }
}
