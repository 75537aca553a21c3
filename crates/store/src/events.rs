//! Events of objects: that one was created or removed, for those who want to know.
//!
//! An event is committed with the change that it tells of, in one batch: it is there if and only if the change is. Until it has been forwarded it
//! is in an *outbox*, a channel of the store's own. There is one for each slot, at home where the slot's keys are, so events of a key are in the
//! order of its changes, and move with it.

use serde::{Deserialize, Serialize};

use crate::channels::Position;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// It was written in one piece.
    Put,
    /// It was copied from another, or from itself.
    Copy,
    /// It was completed from an upload in parts.
    Complete,
    /// It was deleted.
    Delete,
}

impl EventKind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Put, Self::Copy, Self::Complete, Self::Delete];
}

/// Who is told of what happens to a bucket's objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notifications {
    /// The rules.
    pub rules: Vec<NotificationRule>,
    /// What they were made from, as the door wants it back.
    pub document: String,
}

/// Who is told of which events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationRule {
    /// What it is called by whoever made it.
    pub id: String,
    /// Who is told. The store does not interpret it.
    pub target: String,
    /// Of these,
    pub kinds: Vec<EventKind>,
    /// when the key begins with this
    pub prefix: String,
    /// and ends with this.
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

/// Objects of whose events somebody wants to know, whatever the settings of their bucket say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// The bucket.
    pub bucket: String,
    /// What their keys begin with.
    pub prefix: String,
}

/// Who is to be told of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTarget {
    /// The rule that says so.
    pub rule: String,
    /// Who.
    pub target: String,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// What.
    pub kind: EventKind,
    /// In which bucket.
    pub bucket: String,
    /// To which object.
    pub key: String,
    /// Its bytes; 0 when it was deleted.
    pub size: u64,
    /// Its entity tag; empty when it was deleted.
    pub etag: String,
    /// Who is to be told, by the rules at the time of the commit.
    pub targets: Vec<EventTarget>,
}

/// An event that is to be forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The slot of its key.
    pub slot: usize,
    /// Its place among the slot's events. Higher for a later event of the same key.
    pub position: Position,
    /// When it happened, milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What happened.
    pub event: ObjectEvent,
    /// It may have been forwarded before the store was opened.
    pub again: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_wants_what_it_says() {
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
