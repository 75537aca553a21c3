//! The settings of a bucket in its record.
//!
//! ```text
//! settings = durability:1 [notifications]                      without documents
//! settings = durability|2:1 count:v { name text }*             with documents
//! ```
//!
//! The notifications of a bucket with documents are the text of the name `notification`. A build
//! from before documents finds no durability in such a record. A build that lacks a kind of
//! document refuses the pool by the document's name: without it the bucket would have other rules.

use steadfast_log::Durability;

use super::wire::{Dec, Malformed, put_bytes, put_varint};
use crate::BucketSettings;
use crate::events::Notifications;

/// The flag of documents beside the durability.
const DOCUMENTS: u8 = 2;

/// The name of the notifications among documents.
const NOTIFICATION: &str = "notification";

/// Appends the settings to a record.
pub(super) fn encode(settings: &BucketSettings, out: &mut Vec<u8>) {
    let durability = match settings.durability {
        Durability::Sync => 0,
        Durability::Async => 1,
    };
    if settings.documents.is_empty() {
        out.push(durability);
        // Absent where there are none, as in records of builds without notifications.
        if let Some(notifications) = &settings.notifications {
            notifications.encode(out);
        }
        return;
    }
    out.push(durability | DOCUMENTS);
    put_varint(out, settings.documents.len() as u64 + u64::from(settings.notifications.is_some()));
    if let Some(notifications) = &settings.notifications {
        let mut text = Vec::new();
        notifications.encode(&mut text);
        put_bytes(out, NOTIFICATION.as_bytes());
        put_bytes(out, &text);
    }
    for (name, text) in &settings.documents {
        put_bytes(out, name.as_bytes());
        put_bytes(out, text.as_bytes());
    }
}

/// The settings at the end of a record.
pub(super) fn decode(dec: &mut Dec<'_>) -> Result<BucketSettings, Malformed> {
    let first = dec.u8()?;
    let durability = match first & !DOCUMENTS {
        0 => Durability::Sync,
        1 => Durability::Async,
        _ => return Err(Malformed("bucket: durability")),
    };
    let mut settings = BucketSettings { durability, ..BucketSettings::default() };
    if first & DOCUMENTS == 0 {
        settings.notifications = match dec.0 {
            [] => None,
            _ => Some(Notifications::decode(dec)?),
        };
        return Ok(settings);
    }
    for _ in 0..dec.varint()? {
        match dec.str()? {
            NOTIFICATION => settings.notifications = Some(Notifications::decode(&mut Dec(dec.bytes()?))?),
            name => _ = settings.documents.insert(name.to_owned(), dec.str()?.to_owned()),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::BucketDocument;

    proptest! {
        #[test]
        fn settings_come_back(
            is_async: bool,
            notifies: bool,
            documents: BTreeMap<String, String>,
            junk: Vec<u8>,
        ) {
            let durability = if is_async { Durability::Async } else { Durability::Sync };
            let notifications = notifies.then(|| Notifications { rules: Vec::new(), document: "[]".into() });
            let mut settings = BucketSettings { durability, notifications, documents };
            settings.documents.remove(NOTIFICATION);
            let mut bytes = Vec::new();
            encode(&settings, &mut bytes);
            prop_assert_eq!(decode(&mut Dec(&bytes)), Ok(settings));
            let _ = decode(&mut Dec(&junk));
        }
    }

    #[test]
    fn settings_without_documents_are_those_of_earlier_builds() {
        let encoded = |settings: &BucketSettings| {
            let mut out = Vec::new();
            encode(settings, &mut out);
            out
        };
        let mut settings = BucketSettings { durability: Durability::Async, ..BucketSettings::default() };
        assert_eq!(encoded(&settings), [1]);
        settings.set_document(BucketDocument::Tagging, Some("x".into()));
        assert_eq!(encoded(&settings), b"\x03\x01\x07tagging\x01x", "earlier builds know durabilities 0 and 1");
        assert_eq!((settings.document(BucketDocument::Tagging), settings.unknown().next()), (Some("x"), None));
        settings.documents.insert("policy-of-a-later-build".into(), String::new());
        assert_eq!(settings.unknown().next(), Some("policy-of-a-later-build"));
        settings.documents.clear();
        assert_eq!(encoded(&settings), [1]);
    }
}
