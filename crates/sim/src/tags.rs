//! Tags of writes in entity tags and attributes.

use steadfast_store::Attributes;

use crate::outcome::Outcome;

pub(crate) fn etag(tag: u64) -> String {
    format!("{tag:016x}")
}

/// Parses the tag in an entity tag.
pub(crate) fn tag_of(etag: &str) -> Outcome<u64> {
    u64::from_str_radix(etag, 16).map_err(|_| format!("WRONG: entity tag {etag:?} was never written"))
}

pub(crate) fn attributes(tag: u64) -> Attributes {
    let mut attributes = Attributes { etag: etag(tag), ..Attributes::default() };
    attributes.user.insert("tag".to_owned(), etag(tag));
    attributes.system.insert("content-type".to_owned(), format!("x/{}", tag % 7));
    attributes
}
