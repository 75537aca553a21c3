//! Bucket notifications: events for created and deleted objects, committed with the change and
//! delivered in order.
//!
//! An event is committed in the same batch as its change, so it exists if and only if the change
//! does. Until it has been forwarded it stays in an *outbox*, an internal channel of the store.
//! Each slot has one outbox, at home on the slot's disk. So events of a key are in the order of its
//! changes and move with it.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::channels::Position;

/// Kind of a change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// The object was written in one piece.
    Put,
    /// The object was copied from another, or from itself.
    Copy,
    /// The object was completed from a multipart upload.
    Complete,
    /// The object was deleted.
    Delete,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Put, Self::Copy, Self::Complete, Self::Delete];
}

/// Notification settings of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notifications {
    /// The rules.
    pub rules: Vec<NotificationRule>,
    /// The document they were made from, as the front end returns it.
    pub document: String,
}

/// A notification rule: which events go to which target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationRule {
    /// Identifier chosen by the client.
    pub id: String,
    /// Target of the events. The store does not interpret it.
    pub target: String,
    /// Kinds of matching events.
    pub kinds: Vec<EventKind>,
    /// Prefix of matching keys.
    pub prefix: String,
    /// Suffix of matching keys.
    pub suffix: String,
}

impl NotificationRule {
    pub(crate) fn wants(&self, kind: EventKind, key: &str) -> bool {
        self.kinds.contains(&kind)
            && key.starts_with(&self.prefix)
            && key.ends_with(&self.suffix)
            && key.len() >= self.prefix.len().max(self.suffix.len())
    }
}

/// Objects whose events are always recorded, whatever their bucket's notification settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// The bucket.
    pub bucket: String,
    /// Prefix of their keys.
    pub prefix: String,
}

/// A target of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTarget {
    /// Identifier of the matching rule.
    pub rule: String,
    /// The target.
    pub target: String,
}

/// The client that makes a change, for its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Its name, in the form of the front end, [`Cause::NAME_BYTES_MAX`] at most.
    pub principal: Arc<str>,
    /// Its address, if it is known.
    pub address: Option<IpAddr>,
}

impl Cause {
    /// Bytes of [`Cause::principal`], at most.
    pub const NAME_BYTES_MAX: usize = 128;
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Kind of the change.
    pub kind: EventKind,
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Bytes; 0 for a delete.
    pub size: u64,
    /// Entity tag; empty for a delete.
    pub etag: String,
    /// Targets by the rules at the time of the commit.
    pub targets: Vec<EventTarget>,
    /// The client that made the change; `None`: the server did, or an earlier build.
    pub cause: Option<Cause>,
}

/// An event to be forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The slot of its key.
    pub slot: usize,
    /// Position among the slot's events. A later event of the same key has a higher one.
    pub position: Position,
    /// Time of the change, milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The change.
    pub event: ObjectEvent,
    /// Whether it may have been forwarded before the store was opened.
    pub maybe_redelivered: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_matches_its_kinds_prefix_and_suffix() {
        let rule = |prefix: &str, suffix: &str| NotificationRule {
            id: "r".into(),
            target: "t".into(),
            kinds: vec![EventKind::Put],
            prefix: prefix.into(),
            suffix: suffix.into(),
        };
        assert!(rule("", "").wants(EventKind::Put, "a"));
        assert!(!rule("", "").wants(EventKind::Delete, "a"));
        assert!(rule("a/", ".png").wants(EventKind::Put, "a/b.png"));
        assert!(!rule("a/", ".png").wants(EventKind::Put, "b/b.png"));
        assert!(!rule("a/", ".png").wants(EventKind::Put, "a/b.jpg"));
    }
}
