//! Short forms of permissions, for people: `read:media/public/*`.

use serde_json::{Value, json};

/// What a grant lets its user do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permission {
    List,
    Read,
    Write,
    Delete,
    Acl,
    ReadWrite,
    Full,
}

/// The actions on objects that read, write and delete them, and set their access control lists.
const READ: &[&str] = &["s3:GetObject", "s3:GetObjectAttributes", "s3:GetObjectTagging"];
const WRITE: &[&str] =
    &["s3:PutObject", "s3:PutObjectTagging", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"];
const ACL: &[&str] = &["s3:GetObjectAcl", "s3:PutObjectAcl"];
const DELETE: &[&str] = &["s3:DeleteObject", "s3:DeleteObjectTagging"];

/// A permission on buckets, or on the objects of a bucket whose keys match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    permission: Permission,
    /// A pattern of the names of buckets.
    buckets: String,
    /// A pattern of keys; `None`: all.
    keys: Option<String>,
}

impl Grant {
    /// Reads `list`, `read`, `write`, `delete`, `acl`, `read-write` or `full`, each perhaps with
    /// `:BUCKET` or `:BUCKET/KEYS`, whose names may have wildcards. `full` is of whole buckets.
    ///
    /// # Errors
    /// `text` is no grant, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (permission, resource) = text.split_once(':').map_or((text, "*"), |(name, resource)| (name, resource));
        let permission = match permission {
            "list" => Permission::List,
            "read" => Permission::Read,
            "write" => Permission::Write,
            "delete" => Permission::Delete,
            "acl" => Permission::Acl,
            "read-write" => Permission::ReadWrite,
            "full" => Permission::Full,
            _ => {
                return Err(format!(
                    "{text:?} is no grant: use list, read, write, delete, acl, read-write or full, then :BUCKET/KEYS"
                ));
            }
        };
        let (buckets, keys) = match resource.split_once('/') {
            Some((buckets, keys)) => (buckets, Some(keys).filter(|keys| !matches!(*keys, "" | "*"))),
            None => (resource, None),
        };
        if buckets.is_empty() {
            return Err(format!("{text:?} names no bucket"));
        }
        if permission == Permission::Full && keys.is_some() {
            return Err(format!("{text:?} is of some keys: full is of whole buckets"));
        }
        Ok(Self { permission, buckets: buckets.into(), keys: keys.map(str::to_owned) })
    }

    /// The document of a policy that grants all of `grants`.
    pub fn document(grants: &[Self]) -> String {
        let statements: Vec<Value> = grants.iter().flat_map(Self::statements).collect();
        json!({ "Version": "2012-10-17", "Statement": statements }).to_string()
    }

    fn statements(&self) -> Vec<Value> {
        let objects = match self.permission {
            Permission::List | Permission::Full => Vec::new(),
            Permission::Read => READ.to_vec(),
            Permission::Write => WRITE.to_vec(),
            Permission::Delete => DELETE.to_vec(),
            Permission::Acl => ACL.to_vec(),
            Permission::ReadWrite => [READ, WRITE, DELETE].concat(),
        };
        let bucket = format!("arn:aws:s3:::{}", self.buckets);
        if self.permission == Permission::Full {
            let resources = if self.buckets == "*" { json!("*") } else { json!([bucket, format!("{bucket}/*")]) };
            return vec![json!({ "Effect": "Allow", "Action": "s3:*", "Resource": resources })];
        }
        let mut statements = Vec::new();
        if !objects.is_empty() {
            let keys = format!("{bucket}/{}", self.keys.as_deref().unwrap_or("*"));
            statements.push(json!({ "Effect": "Allow", "Action": objects, "Resource": keys }));
        }
        if matches!(self.permission, Permission::List | Permission::ReadWrite) {
            let mut listing = json!({ "Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": bucket });
            if let Some(keys) = &self.keys {
                listing["Condition"] = json!({ "StringLike": { "s3:prefix": keys } });
            }
            statements.push(listing);
            let uploads = if self.permission == Permission::ReadWrite && self.keys.is_none() {
                &["s3:GetBucketLocation", "s3:ListBucketMultipartUploads"][..]
            } else {
                &["s3:GetBucketLocation"][..]
            };
            statements.push(json!({ "Effect": "Allow", "Action": uploads, "Resource": bucket }));
        }
        if self.permission == Permission::List && self.buckets == "*" {
            statements.push(json!({ "Effect": "Allow", "Action": "s3:ListAllMyBuckets", "Resource": "*" }));
        }
        statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::NoFacts;
    use crate::{AccessRequest, Policy, PolicyUse, Principal, S3Action};

    fn allows(grants: &[&str], action: &str, resource: &str) -> bool {
        let grants: Vec<Grant> = grants.iter().map(|text| Grant::parse(text).expect("a grant")).collect();
        let policy = Policy::parse(Grant::document(&grants).as_bytes(), PolicyUse::User).expect("a policy");
        let action = S3Action::named(action).expect("an action");
        let request = AccessRequest { principal: Principal::User("ada"), action, resource, facts: &NoFacts };
        crate::decide([&policy], &request).is_allowed()
    }

    #[test]
    fn a_grant_allows_nothing_else() {
        assert!(allows(&["read:media/public/*"], "GetObject", "media/public/a"));
        assert!(!allows(&["read:media/public/*"], "GetObject", "media/private/a"));
        assert!(!allows(&["read:media/public/*"], "GetObject", "media2/public/a"));
        assert!(!allows(&["read:media/public/*"], "PutObject", "media/public/a"));
        assert!(!allows(&["read:media/public/*"], "ListBucket", "media"));
        assert!(allows(&["read-write:uploads"], "PutObject", "uploads/a"));
        assert!(allows(&["read-write:uploads"], "DeleteObject", "uploads/a"));
        assert!(allows(&["read-write:uploads"], "ListBucket", "uploads"));
        assert!(!allows(&["read-write:uploads"], "DeleteBucket", "uploads"));
        assert!(!allows(&["read-write:uploads"], "PutBucketPolicy", "uploads"));
        // A key for uploads must not publish.
        assert!(!allows(&["read-write:uploads"], "PutObjectAcl", "uploads/a"));
        assert!(allows(&["acl:uploads/a*"], "PutObjectAcl", "uploads/a"));
        assert!(!allows(&["acl:uploads/a*"], "PutObjectAcl", "uploads/b"));
        assert!(!allows(&["acl:uploads"], "PutBucketAcl", "uploads"));
        assert!(allows(&["list"], "ListAllMyBuckets", ""));
        assert!(allows(&["list"], "ListBucket", "any"));
        assert!(!allows(&["list"], "GetObject", "any/a"));
        // Without the prefix, a listing shows other keys.
        assert!(!allows(&["list:media/public/*"], "ListBucket", "media"));
        assert!(allows(&["full:uploads"], "PutBucketPolicy", "uploads"));
        assert!(allows(&["full:uploads"], "DeleteObject", "uploads/a"));
        assert!(!allows(&["full:uploads"], "GetObject", "uploads2/a"));
        assert!(!allows(&["full:uploads"], "ListAllMyBuckets", ""));
        assert!(allows(&["full"], "ListAllMyBuckets", "") && allows(&["full"], "CreateBucket", "new"));
        assert!(allows(&["write:a", "read:b"], "GetObject", "b/x"));
        assert!(!allows(&["write:a", "read:b"], "GetObject", "a/x"));
    }

    #[test]
    fn what_is_no_grant_is_refused() {
        for text in ["", "admin", "read:", "read:/a", "READ:a", "full:a/b"] {
            assert!(Grant::parse(text).is_err(), "{text}");
        }
    }
}
