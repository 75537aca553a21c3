// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

use super::CompleteMultipartUpload;

use crate::dto::CompleteMultipartUploadOutput;
use crate::error::S3Result;
use crate::header::*;
use crate::http;

use sync_wrapper::SyncFuture;

fn add_complete_multipart_headers(res: &mut http::Response, x: &CompleteMultipartUploadOutput) -> S3Result<()> {
    http::add_opt_header(res, X_AMZ_SERVER_SIDE_ENCRYPTION_BUCKET_KEY_ENABLED, x.bucket_key_enabled)?;
    http::add_opt_header(res, X_AMZ_EXPIRATION, x.expiration.clone())?;
    http::add_opt_header(res, X_AMZ_REQUEST_CHARGED, x.request_charged.clone())?;
    http::add_opt_header(res, X_AMZ_SERVER_SIDE_ENCRYPTION_AWS_KMS_KEY_ID, x.ssekms_key_id.clone())?;
    http::add_opt_header(res, X_AMZ_SERVER_SIDE_ENCRYPTION, x.server_side_encryption.clone())?;
    http::add_opt_header(res, X_AMZ_VERSION_ID, x.version_id.clone())?;
    Ok(())
}

impl CompleteMultipartUpload {
    pub fn serialize_http(mut x: CompleteMultipartUploadOutput) -> S3Result<http::Response> {
        let mut res = http::Response::with_status(http::StatusCode::OK);

        if let Some(future) = x.future.take() {
            let future = SyncFuture::new(async move {
                let result = future.await;
                match result {
                    Ok(val) => {
                        let mut res = http::Response::default();
                        http::set_xml_body_no_decl(&mut res, &val)?;
                        add_complete_multipart_headers(&mut res, &val)?;
                        Ok(res)
                    }
                    Err(err) => super::serialize_error(err, true).map_err(Into::into),
                }
            });
            let duration = std::time::Duration::from_millis(100);
            http::set_keep_alive_xml_body(&mut res, future, duration)?;
        } else {
            http::set_xml_body(&mut res, &x)?;
        }

        add_complete_multipart_headers(&mut res, &x)?;
        Ok(res)
    }
}
