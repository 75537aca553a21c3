//! The payload of an upload's record: the future object's metadata and the precondition.
//!
//! ```text
//! payload   = that of an object; where bit 7 of its flags is set, a condition follows
//! condition = kind:1 [etag]
//! kind      = 1 the key has no object, 2 the key's object has this entity tag,
//!             3 none, and the upload is internal
//! ```

use super::object::{Body, ObjectMeta, put_etag, take_etag};
use super::wire::{Dec, Malformed};
use crate::{Attributes, Condition};

/// Flag in an object's payload that no other format uses.
const CONDITION: u8 = 1 << 7;
const ABSENT: u8 = 1;
const MATCHES: u8 = 2;
const INTERNAL: u8 = 3;

/// Who began an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadOwner {
    /// A client.
    Client,
    /// The server, to fill its cache. Clients can neither see nor change the upload.
    Server,
}

/// An upload as stored in its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UploadMeta {
    pub(crate) created_ms: u64,
    pub(crate) attributes: Attributes,
    /// Precondition of its completion, in addition to the completion's own.
    pub(crate) condition: Condition,
    /// An upload of the server has no condition.
    pub(crate) owner: UploadOwner,
}

impl UploadMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = ObjectMeta {
            size: 0,
            modified_ms: self.created_ms,
            revision: 0,
            upload: None,
            body: Body::Inline,
            attributes: self.attributes.clone(),
        }
        .encode();
        match (self.owner, &self.condition) {
            (UploadOwner::Server, _) => out.push(INTERNAL),
            (UploadOwner::Client, Condition::None) => return out,
            (UploadOwner::Client, Condition::Absent) => out.push(ABSENT),
            (UploadOwner::Client, Condition::Matches(etag)) => {
                out.push(MATCHES);
                put_etag(&mut out, etag);
            }
        }
        if let Some(flags) = out.first_mut() {
            *flags |= CONDITION;
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let (meta, mut rest) = ObjectMeta::decode_front(payload)?;
        let (owner, condition) = match payload.first() {
            Some(flags) if flags & CONDITION != 0 => take_condition(&mut rest)?,
            _ => (UploadOwner::Client, Condition::None),
        };
        Ok(Self { created_ms: meta.modified_ms, attributes: meta.attributes, condition, owner })
    }
}

fn take_condition(dec: &mut Dec<'_>) -> Result<(UploadOwner, Condition), Malformed> {
    match dec.u8()? {
        ABSENT => Ok((UploadOwner::Client, Condition::Absent)),
        MATCHES => Ok((UploadOwner::Client, Condition::Matches(take_etag(dec)?))),
        INTERNAL => Ok((UploadOwner::Server, Condition::None)),
        // A later version wrote it: ignoring the condition could overwrite an object that must be
        // kept.
        _ => Err(Malformed("upload: condition")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::object::First;

    fn meta(condition: Condition) -> UploadMeta {
        let mut attributes = Attributes::default();
        attributes.user.insert("who".into(), "me".into());
        attributes.tags.insert("a".into(), "b".into());
        UploadMeta { created_ms: 1_700_000_000_123, attributes, condition, owner: UploadOwner::Client }
    }

    #[test]
    fn one_without_a_condition_has_the_bytes_of_earlier_versions() {
        let UploadMeta { created_ms, attributes, .. } = meta(Condition::None);
        let before =
            ObjectMeta { size: 0, modified_ms: created_ms, revision: 0, upload: None, body: Body::Inline, attributes };
        assert_eq!(meta(Condition::None).encode(), before.encode());
        assert_eq!(UploadMeta::decode(&before.encode()), Ok(meta(Condition::None)));
    }

    #[test]
    fn one_with_a_condition_is_read_by_what_does_not_know_of_it() {
        let bytes = meta(Condition::Absent).encode();
        assert_eq!(First::decode(&bytes).expect("the front").modified_ms, 1_700_000_000_123);
        assert_eq!(ObjectMeta::decode(&bytes).expect("all of it").attributes, meta(Condition::Absent).attributes);
    }

    #[test]
    fn the_owner_comes_back() {
        let internal = UploadMeta { owner: UploadOwner::Server, ..meta(Condition::None) };
        assert_eq!(UploadMeta::decode(&internal.encode()), Ok(internal));
    }

    proptest! {
        #[test]
        fn conditions_come_back(etag in prop_oneof!["[0-9a-f]{32}", "[0-9a-f]{32}-[0-9]{1,4}", ".{0,20}"], kind in 0..3) {
            let condition = match kind {
                0 => Condition::None,
                1 => Condition::Absent,
                _ => Condition::Matches(etag),
            };
            let bytes = meta(condition.clone()).encode();
            prop_assert_eq!(UploadMeta::decode(&bytes), Ok(meta(condition)));
            for cut in 0..bytes.len() {
                let _ = UploadMeta::decode(&bytes[..cut]);
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = UploadMeta::decode(&bytes);
        }
    }
}
