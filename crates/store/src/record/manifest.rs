//! Manifests: the locations of a large body's pieces, and the parts in which it was uploaded.

use std::collections::BTreeMap;

use steadfast_log::Location;

use super::object::{Sums, put_etag, take_etag};
use super::wire::{Dec, Malformed, put_location, put_varint};
use crate::{Attributes, PartInfo};
use steadfast_log::Log;

/// Chunks and parts of a body, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) parts: Vec<PartInfo>,
    pub(crate) chunks: Vec<Location>,
}

/// Bytes that a body occupies in an extent: what accounting and pinning need, without the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) extent: u32,
    pub(crate) epoch: u64,
    pub(crate) bytes: u64,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.chunks.len() * 12 + self.parts.len() * 32);
        put_varint(&mut out, self.parts.len() as u64);
        for part in &self.parts {
            put_varint(&mut out, u64::from(part.number));
            put_varint(&mut out, part.size);
            put_varint(&mut out, part.modified_ms);
            put_etag(&mut out, &part.attributes.etag);
            Sums::put(&mut out, &part.attributes);
        }
        put_varint(&mut out, self.chunks.len() as u64);
        for at in &self.chunks {
            put_location(&mut out, at);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut dec = Dec(bytes);
        let mut parts = Vec::new();
        for _ in 0..dec.varint()? {
            let number = dec.u16()?;
            let size = dec.varint()?;
            let modified_ms = dec.varint()?;
            let mut attributes = Attributes { etag: take_etag(&mut dec)?, ..Attributes::default() };
            Sums::take(&mut dec)?.into_attributes(&mut attributes);
            parts.push(PartInfo { number, size, modified_ms, attributes });
        }
        let mut chunks = Vec::new();
        for _ in 0..dec.varint()? {
            chunks.push(dec.location()?);
        }
        Ok(Self { parts, chunks })
    }

    /// The bytes of each extent that the chunks occupy.
    pub(crate) fn shares(&self) -> Vec<Share> {
        let mut sums = BTreeMap::<(u32, u64), u64>::new();
        for at in &self.chunks {
            *sums.entry((at.extent, at.epoch)).or_default() += Log::footprint(at);
        }
        sums.into_iter().map(|((extent, epoch), bytes)| Share { extent, epoch, bytes }).collect()
    }
}
