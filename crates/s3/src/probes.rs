//! The health checks that charts and compose files of MinIO send to the S3 port, and `mc ready`.

use http::header::AUTHORIZATION;
use http::{Method, Request, Response};
use s3s::Body;

const PATHS: [&str; 4] =
    ["/minio/health/live", "/minio/health/ready", "/minio/health/cluster", "/minio/health/cluster/read"];

/// Whether a request is such a check: it has neither a signature nor a query string.
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
