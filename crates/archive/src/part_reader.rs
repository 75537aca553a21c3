//! Reads the bytes that an image names.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use crate::attempts::Attempts;
use crate::changes::{Part, Source};
use crate::document::{self, DocumentKind, checksum};
use crate::error::ArchiveError;
use crate::head::{Base, Segment};
use crate::inline::Inline;
use crate::load::DOCUMENT_BYTES_MAX;
use crate::name::{HEAD, UseId};

/// Payloads of documents, and parts, that are kept for further reads.
const KEPT: usize = 16;

/// A payload of a document, or a part, once it was read.
type Kept = Arc<OnceCell<Bytes>>;

/// Reads the bytes of parts, and verifies them.
pub(crate) struct PartReader {
    attempts: Attempts,
    inline: Inline,
    /// The last ones, the newest at the end.
    kept: Mutex<VecDeque<(String, Kept)>>,
}

impl PartReader {
    pub(crate) fn new(attempts: Attempts, inline: Inline) -> Self {
        Self { attempts, inline, kept: Mutex::default() }
    }

    /// The bytes of a part.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when they are not there.
    pub(crate) async fn read(&self, of: UseId, part: &Part) -> Result<Bytes, ArchiveError> {
        let name = part.source.object(of).map_or_else(|| HEAD.to_owned(), |object| object.to_string());
        let bytes = match part.source {
            Source::Here { .. } => self.inline.get(of, part.from).cloned(),
            Source::Piece { at, .. } => {
                let range = u64::from(at)..u64::from(at) + u64::from(part.len);
                Some(self.attempts.read(&name, Some(range), u64::from(part.len)).await?.body)
            }
            Source::Segment { at, .. } => {
                let payload = self.payload::<Segment>(DocumentKind::Segment, &name).await?;
                slice(&payload, at, part.len)
            }
            Source::Base { at, .. } => {
                let payload = self.payload::<Base>(DocumentKind::Base, &name).await?;
                slice(&payload, at, part.len)
            }
        };
        let bytes = bytes.ok_or_else(|| ArchiveError::broken(&name, "it is missing"))?;
        if bytes.len() != part.len as usize || checksum(&bytes) != part.crc {
            return Err(ArchiveError::broken(&name, "its bytes were changed: the checksum does not fit"));
        }
        Ok(bytes)
    }

    /// Some bytes of a part. `within` is in bytes from the part's beginning. Those of a piece are
    /// not verified, unless they are all of the part: the log does that.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when they are not there.
    pub(crate) async fn read_some(&self, of: UseId, part: &Part, within: Range<u32>) -> Result<Bytes, ArchiveError> {
        assert!(within.start < within.end && within.end <= part.len, "{within:?} of {part:?}");
        let Source::Piece { at, .. } = part.source else {
            return Ok(self.read(of, part).await?.slice(within.start as usize..within.end as usize));
        };
        if within.len() == part.len as usize {
            return self.read(of, part).await;
        }
        let name = part.source.object(of).map_or_else(|| HEAD.to_owned(), |object| object.to_string());
        let (at, wanted) = (u64::from(at), u64::from(within.end - within.start));
        let in_object = at + u64::from(within.start)..at + u64::from(within.end);
        let bytes = self.attempts.read(&name, Some(in_object), wanted).await?.body;
        if bytes.len() as u64 != wanted {
            return Err(ArchiveError::broken(&name, "it is shorter than it was"));
        }
        Ok(bytes)
    }

    /// As [`PartReader::read_some`], but the whole part is read and verified. It is kept for a
    /// while.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when they are not there.
    pub(crate) async fn read_verified(
        &self,
        of: UseId,
        part: &Part,
        within: Range<u32>,
    ) -> Result<Bytes, ArchiveError> {
        assert!(within.start < within.end && within.end <= part.len, "{within:?} of {part:?}");
        let kept = self.kept(format!("{of:?} {}", part.from));
        let bytes = kept.get_or_try_init(|| self.read(of, part)).await?;
        Ok(bytes.slice(within.start as usize..within.end as usize))
    }

    /// The payload of a document. Tasks that need it at the same time read it once.
    async fn payload<T: DeserializeOwned>(&self, kind: DocumentKind, name: &str) -> Result<Bytes, ArchiveError> {
        let kept = self.kept(name.to_owned());
        let read = kept.get_or_try_init(|| async {
            let object = self.attempts.read(name, None, DOCUMENT_BYTES_MAX).await?;
            let decoded = document::decode::<T>(kind, &object.body);
            decoded.map(|(_, payload)| payload).map_err(ArchiveError::document(name))
        });
        read.await.cloned()
    }

    /// The place where the bytes with a name are kept. The one that was not used for longest goes.
    fn kept(&self, name: String) -> Kept {
        let mut all = self.kept.lock();
        let known = all.iter().position(|(known, _)| *known == name);
        let kept = known.and_then(|at| all.remove(at)).map(|(_, kept)| kept).unwrap_or_default();
        if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back((name, kept.clone()));
        kept
    }
}

fn slice(payload: &Bytes, at: u64, len: u32) -> Option<Bytes> {
    let at = usize::try_from(at).ok()?;
    let end = at.checked_add(len as usize).filter(|end| *end <= payload.len())?;
    Some(payload.slice(at..end))
}
