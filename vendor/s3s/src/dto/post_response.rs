// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! POST Object response DTO for `success_action_status=201`
//!
//! See: <https://docs.aws.amazon.com/AmazonS3/latest/API/RESTObjectPOST.html>

use crate::xml;

use std::io::Write;

/// The XML response body returned when `success_action_status=201` is specified
/// in a POST Object request.
#[derive(Debug, Clone)]
pub struct PostResponse<'a> {
    /// The URL of the uploaded object (format: `/{bucket}/{key}`)
    pub location: &'a str,
    /// The name of the bucket
    pub bucket: &'a str,
    /// The object key
    pub key: &'a str,
    /// The entity tag (`ETag`) of the uploaded object
    pub etag: &'a str,
}

impl xml::Serialize for PostResponse<'_> {
    fn serialize<W: Write>(&self, s: &mut xml::Serializer<W>) -> xml::SerResult {
        s.content("PostResponse", self)
    }
}

impl xml::SerializeContent for PostResponse<'_> {
    fn serialize_content<W: Write>(&self, s: &mut xml::Serializer<W>) -> xml::SerResult {
        s.content("Location", self.location)?;
        s.content("Bucket", self.bucket)?;
        s.content("Key", self.key)?;
        s.content("ETag", self.etag)?;
        Ok(())
    }
}
