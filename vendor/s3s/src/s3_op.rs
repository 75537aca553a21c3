// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

#![deny(missing_docs)]
/// An S3 operation.
///
/// Identifies a single S3 API operation, such as `GetObject` or `ListBuckets`.
/// Instances are passed to access control providers for fine-grained authorization.
pub struct S3Operation {
    pub(crate) name: &'static str,
}

impl S3Operation {
    /// Returns the name of the operation.
    ///
    /// # Example
    /// ```
    /// use s3s::S3Operation;
    /// fn is_basic_list_op(op: &S3Operation) -> bool {
    ///     matches!(op.name(), "ListBuckets" | "ListObjects" | "ListObjectsV2")
    /// }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }
}
