//! The payload of an object's or a part's record: listing fields first, then the body's location,
//! then the rest.
//!
//! ```text
//! payload = flags:1 size modified revision etag [checksums] [upload:16 part_count]
//!           [shares [manifest]] [system] [user] [tags]
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast_log::{Location, Log, Usage};

use super::keys::Id;
use super::manifest::Share;
use super::wire::{Dec, Malformed, put_bytes, put_map, put_varint};
use crate::{Attributes, ListEntry, ObjectInfo};

const BODY: u8 = 0b11;
const BODY_INLINE: u8 = 0;
const BODY_MANIFEST_IN_HEAD: u8 = 1;
const BODY_MANIFEST_IN_BODY: u8 = 2;
const SUMS: u8 = 1 << 2;
const PARTS: u8 = 1 << 3;
const SYSTEM: u8 = 1 << 4;
const USER: u8 = 1 << 5;
const TAGS: u8 = 1 << 6;

/// Location of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the record's body.
    Inline,
    /// In chunks, listed here.
    Chunks { shares: Vec<Share>, manifest: Bytes },
    /// In chunks, listed in the record's body.
    ChunksAside { shares: Vec<Share> },
}

/// An object or a part as stored in its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectMeta {
    pub(crate) size: u64,
    pub(crate) modified_ms: u64,
    /// Number of rewrites of the manifest for moved chunks, without a new version.
    pub(crate) revision: u64,
    /// The upload that it was completed from, with the number of its parts.
    pub(crate) upload: Option<(Id, u16)>,
    pub(crate) body: Body,
    pub(crate) attributes: Attributes,
}

impl ObjectMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let a = &self.attributes;
        let has_sums = !a.checksums.is_empty() || !a.checksum_type.is_empty();
        let mut flags = match self.body {
            Body::Inline => BODY_INLINE,
            Body::Chunks { .. } => BODY_MANIFEST_IN_HEAD,
            Body::ChunksAside { .. } => BODY_MANIFEST_IN_BODY,
        };
        for (bit, set) in [
            (SUMS, has_sums),
            (PARTS, self.upload.is_some()),
            (SYSTEM, !a.system.is_empty()),
            (USER, !a.user.is_empty()),
            (TAGS, !a.tags.is_empty()),
        ] {
            flags |= if set { bit } else { 0 };
        }
        let mut out = Vec::with_capacity(128);
        out.push(flags);
        put_varint(&mut out, self.size);
        put_varint(&mut out, self.modified_ms);
        put_varint(&mut out, self.revision);
        put_etag(&mut out, &a.etag);
        if has_sums {
            Sums::put(&mut out, a);
        }
        if let Some((id, parts)) = &self.upload {
            out.extend_from_slice(id);
            put_varint(&mut out, u64::from(*parts));
        }
        match &self.body {
            Body::Inline => {}
            Body::Chunks { shares, manifest } => {
                put_shares(&mut out, shares);
                put_bytes(&mut out, manifest);
            }
            Body::ChunksAside { shares } => put_shares(&mut out, shares),
        }
        for map in [&a.system, &a.user, &a.tags] {
            if !map.is_empty() {
                put_map(&mut out, map);
            }
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        Self::decode_front(payload).map(|(meta, _)| meta)
    }

    /// Decodes the front and returns the rest.
    pub(crate) fn decode_front(payload: &[u8]) -> Result<(Self, Dec<'_>), Malformed> {
        let mut first = First::decode(payload)?;
        let flags = first.flags;
        let dec = &mut first.rest;
        let mut attributes = Attributes { etag: first.etag, ..Attributes::default() };
        if let Some(sums) = first.sums {
            sums.into_attributes(&mut attributes);
        }
        let upload = if flags & PARTS != 0 { Some((dec.array()?, dec.u16()?)) } else { None };
        let body = match flags & BODY {
            BODY_INLINE => Body::Inline,
            BODY_MANIFEST_IN_HEAD => {
                Body::Chunks { shares: take_shares(dec)?, manifest: Bytes::copy_from_slice(dec.bytes()?) }
            }
            BODY_MANIFEST_IN_BODY => Body::ChunksAside { shares: take_shares(dec)? },
            _ => return Err(Malformed("object: body")),
        };
        let mut map = |bit| if flags & bit != 0 { dec.map() } else { Ok(BTreeMap::new()) };
        attributes.system = map(SYSTEM)?;
        attributes.user = map(USER)?;
        attributes.tags = map(TAGS)?;
        let meta = Self {
            size: first.size,
            modified_ms: first.modified_ms,
            revision: first.revision,
            upload,
            body,
            attributes,
        };
        Ok((meta, first.rest))
    }

    /// The object as front ends see it.
    pub(crate) fn into_info(self, key: String, version: u64) -> ObjectInfo {
        ObjectInfo {
            key,
            size: self.size,
            modified_ms: self.modified_ms,
            version,
            attributes: self.attributes,
            part_count: self.upload.map_or(0, |(_, parts)| parts),
        }
    }
}

/// The front of a payload: the fields that a listing or a condition needs.
pub(crate) struct First<'a> {
    flags: u8,
    pub(crate) size: u64,
    pub(crate) modified_ms: u64,
    pub(crate) revision: u64,
    pub(crate) etag: String,
    sums: Option<Sums>,
    rest: Dec<'a>,
}

impl<'a> First<'a> {
    pub(crate) fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let flags = dec.u8()?;
        let (size, modified_ms, revision) = (dec.varint()?, dec.varint()?, dec.varint()?);
        let etag = take_etag(&mut dec)?;
        let sums = if flags & SUMS != 0 { Some(Sums::take(&mut dec)?) } else { None };
        Ok(Self { flags, size, modified_ms, revision, etag, sums, rest: dec })
    }

    pub(crate) fn into_entry(self, key: String) -> ListEntry {
        let sums = self.sums.unwrap_or_default();
        ListEntry {
            key,
            size: self.size,
            modified_ms: self.modified_ms,
            etag: self.etag,
            checksum_algorithms: sums.sums.into_keys().collect(),
            checksum_type: sums.kind,
        }
    }
}

/// The fields of a payload that accounting needs.
pub(crate) struct Account {
    pub(crate) size: u64,
    pub(crate) revision: u64,
    pub(crate) shares: Vec<Share>,
}

impl Account {
    /// Counts the record at `at` and the chunks that it names as live.
    pub(crate) fn credit(&self, usage: &mut Usage, at: &Location) {
        usage.credit(at.extent, at.epoch, Log::footprint(at));
        for share in &self.shares {
            usage.credit(share.extent, share.epoch, share.bytes);
        }
    }

    /// Counts the record at `at` and the chunks that it names as dead.
    pub(crate) fn retire(&self, usage: &mut Usage, at: &Location) {
        usage.retire(at.extent, at.epoch, Log::footprint(at));
        for share in &self.shares {
            usage.retire(share.extent, share.epoch, share.bytes);
        }
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(payload);
        let flags = dec.u8()?;
        let size = dec.varint()?;
        dec.varint()?;
        let revision = dec.varint()?;
        if flags & BODY == BODY_INLINE {
            return Ok(Self { size, revision, shares: Vec::new() });
        }
        skip_etag(&mut dec)?;
        if flags & SUMS != 0 {
            Sums::skip(&mut dec)?;
        }
        if flags & PARTS != 0 {
            dec.take(16)?;
            dec.varint()?;
        }
        Ok(Self { size, revision, shares: take_shares(&mut dec)? })
    }
}

fn put_shares(out: &mut Vec<u8>, shares: &[Share]) {
    put_varint(out, shares.len() as u64);
    for share in shares {
        put_varint(out, u64::from(share.extent));
        put_varint(out, share.epoch);
        put_varint(out, share.bytes);
    }
}

fn take_shares(dec: &mut Dec<'_>) -> Result<Vec<Share>, Malformed> {
    let mut shares = Vec::new();
    for _ in 0..dec.varint()? {
        shares.push(Share { extent: dec.u32()?, epoch: dec.varint()?, bytes: dec.varint()? });
    }
    Ok(shares)
}

const ETAG_TEXT: u8 = 0;
const ETAG_MD5: u8 = 1;
const ETAG_MD5_PARTS: u8 = 2;

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn unhex(text: &[u8]) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if text.len() != 32 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
    }
    Some(out)
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
}

/// Appends an entity tag; an MD5 in hexadecimal, alone or with a part count, takes half the bytes.
pub(crate) fn put_etag(out: &mut Vec<u8>, etag: &str) {
    let (text, parts) = match etag.split_once('-') {
        // Only a count that is written back in the same form.
        Some((text, parts)) => (text, parts.parse::<u16>().ok().filter(|n| n.to_string() == parts).map(Some)),
        None => (etag, Some(None)),
    };
    match (unhex(text.as_bytes()), parts) {
        (Some(md5), Some(parts)) => {
            out.push(if parts.is_some() { ETAG_MD5_PARTS } else { ETAG_MD5 });
            out.extend_from_slice(&md5);
            if let Some(parts) = parts {
                put_varint(out, u64::from(parts));
            }
        }
        _ => {
            out.push(ETAG_TEXT);
            put_bytes(out, etag.as_bytes());
        }
    }
}

pub(crate) fn take_etag(dec: &mut Dec<'_>) -> Result<String, Malformed> {
    let kind = dec.u8()?;
    if kind == ETAG_TEXT {
        return Ok(dec.str()?.to_owned());
    }
    let mut etag = String::with_capacity(38);
    push_hex(&mut etag, &dec.array::<16>()?);
    match kind {
        ETAG_MD5 => {}
        ETAG_MD5_PARTS => {
            etag.push('-');
            etag.push_str(&dec.u16()?.to_string());
        }
        _ => return Err(Malformed("object: entity tag")),
    }
    Ok(etag)
}

fn skip_etag(dec: &mut Dec<'_>) -> Result<(), Malformed> {
    match dec.u8()? {
        ETAG_TEXT => dec.bytes().map(drop),
        ETAG_MD5 => dec.take(16).map(drop),
        ETAG_MD5_PARTS => dec.take(16).and_then(|_| dec.varint()).map(drop),
        _ => Err(Malformed("object: entity tag")),
    }
}

/// The checksums of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    kind: String,
    sums: BTreeMap<String, String>,
}

impl Sums {
    pub(crate) fn put(out: &mut Vec<u8>, attributes: &Attributes) {
        put_bytes(out, attributes.checksum_type.as_bytes());
        put_map(out, &attributes.checksums);
    }

    pub(crate) fn take(dec: &mut Dec<'_>) -> Result<Self, Malformed> {
        Ok(Self { kind: dec.str()?.to_owned(), sums: dec.map()? })
    }

    fn skip(dec: &mut Dec<'_>) -> Result<(), Malformed> {
        dec.bytes()?;
        dec.skip_map()
    }

    pub(crate) fn into_attributes(self, attributes: &mut Attributes) {
        attributes.checksum_type = self.kind;
        attributes.checksums = self.sums;
    }
}

/// 16 bytes as 32 hexadecimal digits.
pub(crate) fn id_to_text(id: &Id) -> String {
    let mut out = String::with_capacity(32);
    push_hex(&mut out, id);
    out
}

/// The reverse of [`id_to_text`]; `None` for anything else.
pub(crate) fn id_from_text(text: &str) -> Option<Id> {
    unhex(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use steadfast_log::Location;

    use super::*;
    use crate::PartInfo;
    use crate::record::manifest::Manifest;

    fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
        btree_map(".{0,5}", ".{0,5}", 0..3)
    }

    fn etag() -> impl Strategy<Value = String> {
        prop_oneof!["[0-9a-f]{32}", "[0-9a-f]{32}-[0-9]{1,6}", "[0-9a-fA-F]{32}", ".{0,40}", "[0-9a-f]{32}-.{0,3}"]
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        (etag(), map(), map(), map(), map(), ".{0,9}").prop_map(
            |(etag, system, user, tags, checksums, checksum_type)| Attributes {
                etag,
                system,
                user,
                tags,
                checksums,
                checksum_type,
            },
        )
    }

    fn location() -> impl Strategy<Value = Location> {
        any::<(u32, u64, u32, u32, u32)>().prop_map(|(extent, epoch, offset, head_len, body_len)| Location {
            extent,
            epoch,
            offset,
            head_len,
            body_len,
        })
    }

    fn share() -> impl Strategy<Value = Share> {
        any::<(u32, u64, u64)>().prop_map(|(extent, epoch, bytes)| Share { extent, epoch, bytes })
    }

    fn body() -> impl Strategy<Value = Body> {
        prop_oneof![
            Just(Body::Inline),
            (vec(share(), 0..4), any::<Vec<u8>>())
                .prop_map(|(shares, manifest)| Body::Chunks { shares, manifest: manifest.into() }),
            vec(share(), 0..4).prop_map(|shares| Body::ChunksAside { shares }),
        ]
    }

    proptest! {
        #[test]
        fn payloads_come_back(
            size: u64, modified_ms: u64, revision: u64, upload: Option<(Id, u16)>, body in body(), attributes in attributes(),
        ) {
            let meta = ObjectMeta { size, modified_ms, revision, upload, body, attributes };
            let bytes = meta.encode();
            let account = Account::decode(&bytes).expect("ours");
            let shares = match &meta.body {
                Body::Inline => Vec::new(),
                Body::Chunks { shares, .. } | Body::ChunksAside { shares } => shares.clone(),
            };
            prop_assert_eq!((account.size, account.revision, account.shares), (size, revision, shares));
            let entry = First::decode(&bytes).expect("ours").into_entry("k".into());
            prop_assert_eq!(&entry.etag, &meta.attributes.etag);
            prop_assert_eq!(&entry.checksum_type, &meta.attributes.checksum_type);
            prop_assert!(entry.checksum_algorithms.iter().eq(meta.attributes.checksums.keys()));
            for cut in 0..bytes.len() {
                let _ = ObjectMeta::decode(&bytes[..cut]);
                let _ = Account::decode(&bytes[..cut]);
            }
            prop_assert_eq!(ObjectMeta::decode(&bytes), Ok(meta));
        }

        #[test]
        fn manifests_come_back(
            parts in vec((any::<(u16, u64, u64)>(), attributes()), 0..4), chunks in vec(location(), 0..8),
        ) {
            let parts = parts
                .into_iter()
                .map(|((number, size, modified_ms), mut attributes)| {
                    attributes.system.clear();
                    attributes.user.clear();
                    attributes.tags.clear();
                    PartInfo { number, size, modified_ms, attributes }
                })
                .collect();
            let manifest = Manifest { parts, chunks };
            prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = ObjectMeta::decode(&bytes);
            let _ = Account::decode(&bytes);
            let _ = First::decode(&bytes);
            let _ = Manifest::decode(&bytes);
        }
    }

    #[test]
    fn an_md5_takes_half_the_room() {
        let mut out = Vec::new();
        put_etag(&mut out, "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(out.len(), 17);
    }
}
