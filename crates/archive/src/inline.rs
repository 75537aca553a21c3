//! Bytes of the log within documents.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::changes::{Changes, Source};
use crate::document::checksum;
use crate::image::ImageError;
use crate::name::UseId;

/// Bytes of parts whose source is [`Source::Here`], by their use and where they begin in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inline(BTreeMap<(UseId, u32), Bytes>);

impl Inline {
    pub(crate) fn put(&mut self, of: UseId, from: u32, bytes: Bytes) {
        self.0.insert((of, from), bytes);
    }

    pub(crate) fn get(&self, of: UseId, from: u32) -> Option<&Bytes> {
        self.0.get(&(of, from))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Lays out the payload of a document with these changes: sets the offset of each part that is
    /// to be in it. Returns the payload.
    pub(crate) fn lay_out(&self, changes: &mut Changes) -> Vec<Bytes> {
        let (mut payload, mut end) = (Vec::new(), 0);
        for (disk, extent, of) in changes.parts_mut() {
            let id = UseId { disk, extent, epoch: of.epoch, opening: of.opening };
            for part in &mut of.parts {
                let Source::Here { at } = &mut part.source else { continue };
                let bytes = self.get(id, part.from).expect("the bytes of a part that is named are kept");
                assert_eq!(bytes.len(), part.len as usize, "the bytes of a part");
                (*at, end) = (end, end + bytes.len() as u64);
                payload.push(bytes.clone());
            }
        }
        payload
    }

    /// Takes the bytes of a decoded document.
    ///
    /// # Errors
    /// When parts lie outside of the payload, or have another checksum.
    pub(crate) fn take(changes: &mut Changes, payload: &Bytes) -> Result<Self, ImageError> {
        let mut inline = Self::default();
        for (disk, extent, of) in changes.parts_mut() {
            let id = UseId { disk, extent, epoch: of.epoch, opening: of.opening };
            for part in &of.parts {
                let Source::Here { at } = part.source else { continue };
                let range = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(part.len as usize)?));
                let bytes = range.filter(|range| range.end <= payload.len()).map(|range| payload.slice(range));
                let bytes = bytes.filter(|bytes| checksum(bytes) == part.crc);
                let bytes = bytes.ok_or_else(|| ImageError(format!("bytes of extent {extent} are not there")))?;
                inline.put(id, part.from, bytes);
            }
        }
        Ok(inline)
    }
}
