//! Documents of an archive: values with a checksum, and bytes of the log behind them.
//!
//! ```text
//! document = magic:8 version:4 value_len:4 payload_len:8 checksum:4 value payload
//! ```
//!
//! Integers are little-endian. The checksum, CRC-32C, covers everything before it and behind it.
//! The value is in the wire format of the library `postcard`, version 1.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of the documents that this build writes.
pub(crate) const DOCUMENT_VERSION: u32 = 2;

/// From this version on, a head ends with the former owners.
const VERSION_WITH_FORMER: u32 = 2;

/// Bytes before the value.
const FRONT: usize = 28;

/// Kinds of documents, by their first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    Head,
    Segment,
    Base,
    Dropped,
    Alive,
}

impl DocumentKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Head => *b"SFAHEAD\n",
            Self::Segment => *b"SFASEGM\n",
            Self::Base => *b"SFABASE\n",
            Self::Dropped => *b"SFADROP\n",
            Self::Alive => *b"SFALIVE\n",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Segment => "segment",
            Self::Base => "base",
            Self::Dropped => "list of dropped objects",
            Self::Alive => "heartbeat",
        }
    }
}

/// Why bytes are not a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is something else.
    #[error("it is not a {0} of an archive")]
    Alien(&'static str),
    /// A newer build wrote it.
    #[error(
        "it has version {0} of the archive's format, and this build reads up to {DOCUMENT_VERSION}: use a newer build"
    )]
    Newer(u32),
    /// It was cut short or changed.
    #[error("the {0} is damaged: its checksum does not fit")]
    Damaged(&'static str),
}

/// The checksum of bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksum of bytes in pieces.
pub(crate) fn checksum_of(pieces: &[Bytes]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}

/// Encodes a value and the bytes of the log that it refers to.
pub(crate) fn encode<T: Serialize>(kind: DocumentKind, value: &T, payload: &[Bytes]) -> Bytes {
    let value = postcard::to_allocvec(value).expect("values of an archive have no form that cannot be encoded");
    let payload_len: usize = payload.iter().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(FRONT + value.len() + payload_len);
    out.extend_from_slice(&kind.magic());
    out.extend_from_slice(&DOCUMENT_VERSION.to_le_bytes());
    out.extend_from_slice(&u32::try_from(value.len()).expect("a value of less than 4 GiB").to_le_bytes());
    out.extend_from_slice(&(payload_len as u64).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&value);
    payload.iter().for_each(|bytes| out.extend_from_slice(bytes));
    let checksum = seal(&out);
    out[FRONT - 4..FRONT].copy_from_slice(&checksum.to_le_bytes());
    out.into()
}

/// The checksum of a document.
fn seal(document: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&document[..FRONT - 4]);
    digest.update(&document[FRONT..]);
    digest.finalize() as u32
}

/// Decodes a document into its value and its payload.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode<T: DeserializeOwned>(kind: DocumentKind, document: &Bytes) -> Result<(T, Bytes), DocumentError> {
    let (alien, damaged) = (DocumentError::Alien(kind.name()), DocumentError::Damaged(kind.name()));
    if document.len() < FRONT || document[..8] != kind.magic() {
        return Err(alien);
    }
    let word = |at: usize| u32::from_le_bytes(document[at..at + 4].try_into().expect("four bytes"));
    if word(8) > DOCUMENT_VERSION {
        return Err(DocumentError::Newer(word(8)));
    }
    let payload_len = u64::from_le_bytes(document[16..24].try_into().expect("eight bytes"));
    let value_end = FRONT + word(12) as usize;
    let whole = u64::try_from(value_end).ok().and_then(|end| end.checked_add(payload_len));
    if whole != Some(document.len() as u64) || seal(document) != word(24) {
        return Err(damaged);
    }
    let mut value = Cow::Borrowed(&document[FRONT..value_end]);
    if kind == DocumentKind::Head && word(8) < VERSION_WITH_FORMER {
        // An empty list.
        value.to_mut().push(0);
    }
    match postcard::take_from_bytes(&value) {
        Ok((value, [])) => Ok((value, document.slice(value_end..))),
        _ => Err(damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back_or_is_refused() {
        let value = (7u64, vec![1u32, 2, 300]);
        let payload = [Bytes::from_static(b"some"), Bytes::from_static(b"bytes")];
        let whole = encode(DocumentKind::Segment, &value, &payload);
        let back = decode::<(u64, Vec<u32>)>(DocumentKind::Segment, &whole).expect("whole");
        assert_eq!(back, (value, Bytes::from_static(b"somebytes")));
        assert_eq!(decode::<u64>(DocumentKind::Head, &whole), Err(DocumentError::Alien("head")));
        for at in 0..whole.len() {
            let mut changed = whole.to_vec();
            changed[at] ^= 1;
            assert!(decode::<(u64, Vec<u32>)>(DocumentKind::Segment, &changed.into()).is_err(), "byte {at}");
            assert!(decode::<(u64, Vec<u32>)>(DocumentKind::Segment, &whole.slice(..at)).is_err(), "cut at {at}");
        }
        assert_eq!(decode::<u64>(DocumentKind::Segment, &whole), Err(DocumentError::Damaged("segment")), "too short");
        let mut first = encode(DocumentKind::Head, &7u64, &payload).to_vec();
        first[8] = 1;
        let sum = seal(&first);
        first[FRONT - 4..FRONT].copy_from_slice(&sum.to_le_bytes());
        let read = decode::<(u64, Vec<u32>)>(DocumentKind::Head, &first.into()).map(|(value, _)| value);
        assert_eq!(read, Ok((7, Vec::new())), "a head of version 1 has no former owners");
        let mut newer = whole.to_vec();
        newer[8] = 9;
        assert_eq!(decode::<u64>(DocumentKind::Segment, &newer.into()), Err(DocumentError::Newer(9)));
    }
}
