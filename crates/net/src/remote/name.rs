//! Places of stores, and the names of objects in them.

use std::path::PathBuf;

use crate::sign::S3Credentials;

/// Most bytes of a name, so that every file system and S3 endpoint takes it.
const NAME_BYTES_MAX: usize = 512;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemotePlace {
    /// A directory.
    Directory(PathBuf),
    /// A bucket, and a prefix without `/` at its ends; empty for the whole bucket.
    Bucket {
        /// The bucket.
        bucket: String,
        /// The prefix.
        prefix: String,
    },
}

/// A bucket of an S3 endpoint, with what is needed to reach it.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Place {
    /// URL of the endpoint, without bucket, path or query.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// The prefix, without `/` at its ends; empty for the whole bucket.
    pub prefix: String,
    /// The credentials.
    pub credentials: S3Credentials,
}

impl RemotePlace {
    /// Parses `s3://BUCKET/PREFIX` or `file:///DIRECTORY`.
    ///
    /// # Errors
    /// What is wrong; the text is for operators.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("file://") {
            if !path.starts_with('/') {
                return Err(format!("{url}: write file:///DIRECTORY, with the whole path of the directory"));
            }
            return Ok(Self::Directory(PathBuf::from(path)));
        }
        let Some(rest) = url.strip_prefix("s3://") else {
            return Err(format!("{url}: write s3://BUCKET/PREFIX or file:///DIRECTORY"));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if bucket.is_empty() || !is_part(bucket) {
            return Err(format!("{url}: {bucket:?} is not the name of a bucket"));
        }
        if !prefix.is_empty() {
            check_name(prefix).map_err(|why| format!("{url}: the prefix {why}"))?;
        }
        Ok(Self::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// Whether it may be a part of a name.
pub(super) fn is_part(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    !part.is_empty() && !part.starts_with('.') && part.len() <= 255 && part.bytes().all(is_plain)
}

/// Checks the name of an object.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX || !name.split('/').all(is_part) {
        return Err(format!(
            "{name:?}: use parts of letters, digits and -_.~ between slashes, none beginning with a dot, at most \
             {NAME_BYTES_MAX} bytes together"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_urls() {
        let bucket = |bucket: &str, prefix: &str| RemotePlace::Bucket { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(RemotePlace::parse("s3://acme"), Ok(bucket("acme", "")));
        assert_eq!(RemotePlace::parse("s3://acme/"), Ok(bucket("acme", "")));
        assert_eq!(RemotePlace::parse("s3://acme/chat/a/"), Ok(bucket("acme", "chat/a")));
        assert_eq!(RemotePlace::parse("file:///mnt/backup"), Ok(RemotePlace::Directory("/mnt/backup".into())));
        for url in ["acme", "file://mnt", "file:mnt", "s3:///x", "s3://a b", "s3://a//b", "s3://a/../b", "s3://a/ä"] {
            assert!(RemotePlace::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn names_have_plain_parts() {
        for name in ["head", "p/0/1.2.3/4.5.6", "seg/1.2", "a~b-c_d"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", ".a", "a b", "a\nb", "ä", &"x".repeat(600)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
