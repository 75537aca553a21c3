//! The settings of a bucket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steadfast_log::Durability;

use crate::events::Notifications;

/// A document about a bucket, in the form of the protocol that set it. The store keeps it and does
/// not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketDocument {
    /// Its access control list.
    Acl,
    /// Whether its lists and those of its objects count.
    Ownership,
    /// What the bucket's policy allows and denies.
    Policy,
    /// Which public access is blocked, whatever a policy allows.
    PublicAccessBlock,
    /// Tags of the bucket.
    Tagging,
}

impl BucketDocument {
    /// All documents that this build knows.
    pub const ALL: [Self; 5] = [Self::Acl, Self::Ownership, Self::Policy, Self::PublicAccessBlock, Self::Tagging];

    /// The name in records and exports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Ownership => "ownership",
            Self::Policy => "policy",
            Self::PublicAccessBlock => "public-access-block",
            Self::Tagging => "tagging",
        }
    }
}

/// Settings of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSettings {
    /// Durability of writes that name none.
    pub durability: Durability,
    /// Notification rules for changes of its objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<Notifications>,
    /// Documents by the names of [`BucketDocument`]. A name that this build does not know keeps the
    /// pool from being opened.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub documents: BTreeMap<String, String>,
}

impl BucketSettings {
    /// A document.
    pub fn document(&self, kind: BucketDocument) -> Option<&str> {
        self.documents.get(kind.name()).map(String::as_str)
    }

    /// Sets or removes a document.
    pub fn set_document(&mut self, kind: BucketDocument, text: Option<String>) {
        match text {
            Some(text) => _ = self.documents.insert(kind.name().to_owned(), text),
            None => _ = self.documents.remove(kind.name()),
        }
    }

    /// The names of the documents that this build does not know.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        let known = |name: &&str| BucketDocument::ALL.iter().any(|kind| kind.name() == *name);
        self.documents.keys().map(String::as_str).filter(move |name| !known(name))
    }
}
