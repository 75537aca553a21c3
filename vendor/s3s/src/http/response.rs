// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use crate::HttpResponse;

use super::Body;

use hyper::HeaderMap;
use hyper::StatusCode;
use hyper::http::Extensions;

#[derive(Default)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
    pub extensions: Extensions,
}

impl From<Response> for HttpResponse {
    fn from(res: Response) -> Self {
        let mut ans = HttpResponse::default();
        *ans.status_mut() = res.status;
        *ans.headers_mut() = res.headers;
        *ans.body_mut() = res.body;
        *ans.extensions_mut() = res.extensions;
        ans
    }
}

impl Response {
    #[must_use]
    pub fn with_status(status: StatusCode) -> Self {
        Self {
            status,
            ..Default::default()
        }
    }
}

/// RFC 9110 §6.4.1: responses with a 1xx, 204, 205 or 304 status code MUST NOT
/// carry a body.
#[must_use]
pub fn is_bodyless_status(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Clears the response body and removes `Transfer-Encoding`, keeping metadata
/// headers such as `Content-Length` and `Content-Type` intact. Used for `HEAD`
/// responses (RFC 9110 §9.3.2): the body must be suppressed, but the headers
/// may still describe the equivalent `GET` response.
pub fn strip_body(res: &mut Response) {
    res.headers.remove(hyper::header::TRANSFER_ENCODING);
    res.body = Body::empty();
}
