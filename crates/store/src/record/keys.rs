//! Keys of the index. They sort in listing order, so a page is a range scan and skipping a
//! rolled-up prefix is a seek.
//!
//! ```text
//! 00 'c'                                   the checkpoint
//! 00 'b'                                   the newest break of epochs
//! 00 'p'                                   the layout of the pool of disks
//! 00 's' snapshot:16                       a snapshot of an earlier version
//! 01 bucket:8                              a bucket
//! 02 bucket:8 key                          an object
//! 03 bucket:8 escaped-key 00 01 upload:16  an upload that is going on
//! 04 upload:16 part:2                      a part of it
//! 05 escaped-channel 00 01 offset:8        a publication
//! ```
//!
//! Integers are big-endian. Buckets are keyed by their random identity, so a recreated bucket
//! starts empty. In the keys of uploads and publications, `00` is escaped as `00 ff`, so that a key
//! sorts before those it is a prefix of.

use steadfast_flow::ring::SLOTS;

/// The identity of a bucket: random, never reused.
pub(crate) type BucketId = u64;

/// Pseudo-bucket of channels, for computing their slots.
pub(crate) const CHANNELS: BucketId = 0;

/// The identity of a multipart upload, or of one writer of chunks.
pub(crate) type Id = [u8; 16];

/// Key of the newest break of epochs.
pub(crate) const EPOCH_BREAK: &[u8] = b"\x00b";

/// Key of the checkpoint.
pub(crate) const CHECKPOINT: &[u8] = b"\x00c";

/// Prefix of the clean-close record, by the opening of the log that ended.
pub(crate) const CLOSED: &[u8] = b"\x00k";

/// Key of the pool's layout, where there are several disks.
pub(crate) const LAYOUT: &[u8] = b"\x00p";

/// Prefix of the snapshots of earlier versions. A start removes them.
pub(crate) const SNAPSHOTS: &[u8] = b"\x00s";

pub(crate) const BUCKETS: u8 = 1;
pub(crate) const OBJECTS: u8 = 2;
pub(crate) const UPLOADS: u8 = 3;
pub(crate) const PARTS: u8 = 4;
pub(crate) const PUBLICATIONS: u8 = 5;

/// The key of a clean-close record.
pub(crate) fn closed(opening: u64) -> Vec<u8> {
    [CLOSED, &opening.to_be_bytes()].concat()
}

pub(crate) fn bucket(id: BucketId) -> Vec<u8> {
    let mut out = vec![BUCKETS];
    out.extend_from_slice(&id.to_be_bytes());
    out
}

fn in_bucket(kind: u8, id: BucketId, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + room);
    out.push(kind);
    out.extend_from_slice(&id.to_be_bytes());
    out
}

/// The key of an object. With a prefix instead of a key: the start of the keys with that prefix.
pub(crate) fn object(id: BucketId, key: &[u8]) -> Vec<u8> {
    let mut out = in_bucket(OBJECTS, id, key.len());
    out.extend_from_slice(key);
    out
}

/// Bytes of an object's index key before the key itself.
pub(crate) const OBJECT_KEY_AT: usize = 9;

fn escape(out: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
}

/// The key of an upload.
pub(crate) fn upload(id: BucketId, key: &[u8], upload: &Id) -> Vec<u8> {
    let mut out = in_bucket(UPLOADS, id, key.len() + 18);
    escape(&mut out, key);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(upload);
    out
}

/// The start of the uploads whose keys begin with `prefix`.
pub(crate) fn uploads(id: BucketId, prefix: &[u8]) -> Vec<u8> {
    let mut out = in_bucket(UPLOADS, id, prefix.len());
    escape(&mut out, prefix);
    out
}

/// The first key after all uploads of `key`.
pub(crate) fn after_uploads_of(id: BucketId, key: &[u8]) -> Vec<u8> {
    let mut out = uploads(id, key);
    out.extend_from_slice(&[0, 2]);
    out
}

/// Parses an upload's key into the object's key and the upload's identity.
pub(crate) fn parse_upload(index_key: &[u8]) -> Option<(Vec<u8>, Id)> {
    let (rest, id) = index_key.get(9..)?.split_last_chunk::<16>()?;
    Some((unescape(rest.strip_suffix(&[0, 1])?)?, *id))
}

fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(&byte) = bytes.next() {
        key.push(byte);
        if byte == 0 && bytes.next() != Some(&0xff) {
            return None;
        }
    }
    Some(key)
}

/// The start of an upload's parts.
pub(crate) fn parts(upload: &Id) -> Vec<u8> {
    let mut out = Vec::with_capacity(19);
    out.push(PARTS);
    out.extend_from_slice(upload);
    out
}

/// The key of a part.
pub(crate) fn part(upload: &Id, number: u16) -> Vec<u8> {
    let mut out = parts(upload);
    out.extend_from_slice(&number.to_be_bytes());
    out
}

fn channel(name: &[u8], room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + name.len() + room);
    out.push(PUBLICATIONS);
    escape(&mut out, name);
    out
}

/// The key of a publication.
pub(crate) fn publication(name: &[u8], offset: u64) -> Vec<u8> {
    let mut out = channel(name, 10);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&offset.to_be_bytes());
    out
}

/// The start and end of a channel's publications.
pub(crate) fn publications(name: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = channel(name, 2);
    end.extend_from_slice(&[0, 2]);
    (publication(name, 0), end)
}

/// Key that represents a whole channel where deletes are remembered; no publication has it.
pub(crate) fn channel_end(name: &[u8]) -> Vec<u8> {
    publication(name, 0)
}

/// The offset in a publication's key.
pub(crate) fn offset_of(index_key: &[u8]) -> Option<u64> {
    index_key.split_last_chunk::<8>().map(|(_, offset)| u64::from_be_bytes(*offset))
}

/// The prefix that all publication keys of a channel share.
pub(crate) fn channel_of(index_key: &[u8]) -> &[u8] {
    index_key.split_last_chunk::<8>().map_or(index_key, |(channel, _)| channel)
}

/// Parses a publication's key into the channel's name and the offset.
pub(crate) fn parse_publication(index_key: &[u8]) -> Option<(Vec<u8>, u64)> {
    let escaped = channel_of(index_key).strip_prefix(&[PUBLICATIONS])?.strip_suffix(&[0, 1])?;
    Some((unescape(escaped)?, offset_of(index_key)?))
}

/// Prefix of internal channels; clients cannot use it.
const OWN: &str = "\0";

/// Whether a channel is internal to the server: an outbox. Clients cannot use it.
pub fn is_own_channel(name: &str) -> bool {
    name.starts_with(OWN)
}

/// What the name in a user's record begins with. No bucket can have such a name.
const USER: &str = "\0user/";

/// The name in the record of a user.
pub(crate) fn user(name: &str) -> String {
    format!("{USER}{name}")
}

/// The user whose record has this name; `None`: the record is a bucket's.
pub(crate) fn user_of(record_name: &str) -> Option<&str> {
    record_name.strip_prefix(USER)
}

const OUTBOX: &str = "\0outbox/";

/// The name of the channel that holds a slot's events until they have been forwarded.
pub(crate) fn outbox(slot: usize) -> String {
    format!("{OUTBOX}{slot:04}")
}

/// The slot whose events the channel holds, if it is an outbox.
pub(crate) fn outbox_slot(channel: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(channel.strip_prefix(OUTBOX.as_bytes())?).ok()?;
    digits.parse().ok().filter(|slot| *slot < SLOTS)
}

/// The start and end of the publications of all outboxes.
pub(crate) fn outboxes() -> (Vec<u8>, Vec<u8>) {
    channels_named(OUTBOX)
}

/// The start and end of the publications of all channels whose names begin with `begin`.
pub(crate) fn channels_named(begin: &str) -> (Vec<u8>, Vec<u8>) {
    let from = channel(begin.as_bytes(), 1);
    let end = past(&from).unwrap_or_default();
    (from, end)
}

/// The first key after all keys with this `prefix`; `None` when none can exist.
pub(crate) fn past(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut out = prefix[..=keep].to_vec();
    out[keep] += 1;
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn uploads_sort_by_key_then_identity(a in ".{0,6}", b in ".{0,6}", x: Id, y: Id) {
            let (ka, kb) = (upload(7, a.as_bytes(), &x), upload(7, b.as_bytes(), &y));
            prop_assert_eq!(ka.cmp(&kb), (a.as_bytes(), x).cmp(&(b.as_bytes(), y)));
            prop_assert_eq!(parse_upload(&ka), Some((a.as_bytes().to_vec(), x)));
            prop_assert!(ka < after_uploads_of(7, a.as_bytes()));
        }

        #[test]
        fn publications_sort_by_channel_then_offset(a in ".{0,6}", b in ".{0,6}", x: u64, y: u64) {
            let (ka, kb) = (publication(a.as_bytes(), x), publication(b.as_bytes(), y));
            prop_assert_eq!(ka.cmp(&kb), (a.as_bytes(), x).cmp(&(b.as_bytes(), y)));
            prop_assert_eq!(parse_publication(&ka), Some((a.as_bytes().to_vec(), x)));
            let (from, to) = publications(a.as_bytes());
            prop_assert!(from <= ka && ka < to);
            prop_assert_eq!(from <= kb && kb < to, a == b);
        }

        #[test]
        fn an_outbox_names_its_slot(slot in 0..SLOTS, offset: u64, other in ".{0,12}") {
            let name = outbox(slot);
            prop_assert!(is_own_channel(&name));
            prop_assert_eq!(outbox_slot(name.as_bytes()), Some(slot));
            prop_assert_eq!(crate::layout::slot_of(CHANNELS, name.as_bytes()), slot);
            let (from, to) = outboxes();
            let key = publication(name.as_bytes(), offset);
            prop_assert!(from <= key && key < to);
            let key = publication(other.as_bytes(), offset);
            prop_assert_eq!(from <= key && key < to, other.starts_with(OUTBOX));
        }

        #[test]
        fn past_is_the_least_key_beyond_a_prefix(prefix: Vec<u8>, tail: Vec<u8>, other: Vec<u8>) {
            if let Some(end) = past(&prefix) {
                prop_assert!([&prefix[..], &tail].concat() < end);
                prop_assert!(other < prefix || other.starts_with(&prefix) || other >= end);
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            let _ = parse_upload(&bytes);
            let _ = parse_publication(&bytes);
        }
    }
}
