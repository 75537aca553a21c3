//! The kind of entity that a key stands for, and what is counted of it.

use crate::record::object::Account;
use crate::record::wire::Malformed;

/// The kind of entity that a key stands for, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Bucket,
    Object,
    Upload,
    Part,
    Layout,
    Snapshot,
    Publication,
}

impl Account {
    pub(super) fn of(class: Class, payload: &[u8]) -> Result<Self, Malformed> {
        match class {
            Class::Object | Class::Part => Self::decode(payload),
            Class::Bucket | Class::Upload | Class::Layout | Class::Snapshot | Class::Publication => {
                Ok(Self { size: 0, revision: 0, shares: Vec::new() })
            }
        }
    }
}
