//! The S3 door: protocol only.
