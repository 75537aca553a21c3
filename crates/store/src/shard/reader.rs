//! Reading of a body: from the cache or the log, a few pieces ahead of the consumer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use steadfast_flow::stages::{self, Stage};
use steadfast_log::{Location, LogError, RecordFront};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::record::keys::Id;
use crate::record::object::{Body, ObjectMeta, id_to_text};
use crate::shard::applied::Found;
use crate::shard::apply::live::manifest;
use crate::shard::follow::Follow;
use crate::shard::reads::Reads;
use crate::{ObjectInfo, PartInfo, StoreError, StoredObject};
use steadfast_log::ExtentPin;

#[derive(Clone)]
enum Source {
    Inline(Bytes),
    Chunks { chunks: Arc<[Location]>, pins: Arc<[ExtentPin]> },
}

/// An object that is being read. Its bytes stay in place while this or a clone lives.
#[derive(Clone)]
pub struct ObjectReader {
    reads: Arc<Reads>,
    index_key: Bytes,
    info: ObjectInfo,
    upload: Option<Id>,
    parts: Vec<PartInfo>,
    source: Source,
}

impl Source {
    /// The body of the record under `key`, and the parts that it was uploaded in.
    async fn open(
        reads: &Reads,
        key: &[u8],
        at: &Location,
        meta: &ObjectMeta,
    ) -> Result<(Vec<PartInfo>, Self), StoreError> {
        let shares = match &meta.body {
            Body::Inline => return Ok((Vec::new(), Self::Inline(reads.inline_body(key, at).await?))),
            Body::Chunks { shares, .. } | Body::ChunksAside { shares } => shares,
        };
        let mut pins = Vec::with_capacity(shares.len());
        for share in shares {
            pins.push(reads.log.pin(share.extent, share.epoch).ok_or(LogError::Moved)?);
        }
        let manifest = manifest(&reads.log, key, at, meta).await?;
        Ok((manifest.parts, Self::Chunks { chunks: manifest.chunks.into(), pins: pins.into() }))
    }
}

impl ObjectReader {
    /// Begins to read the object under `index_key`: later changes do not show.
    ///
    /// # Errors
    /// [`StoreError::NoSuchKey`], those of the log.
    pub(crate) async fn open(reads: &Arc<Reads>, index_key: &[u8], key: &str) -> Result<Self, StoreError> {
        let mut follow = Follow::default();
        loop {
            let Found { version, location, meta } =
                reads.applied.find_object(index_key)?.ok_or(StoreError::NoSuchKey)?;
            let (parts, source) =
                match reads.hang.unless_hanging(Source::open(reads, index_key, &location, &meta)).await? {
                    Ok(opened) => opened,
                    Err(StoreError::Log(LogError::Moved)) => {
                        follow.moved(&reads.log, &location).await?;
                        continue;
                    }
                    Err(e) => return Err(e),
                };
            let upload = meta.upload.map(|(id, _)| id);
            let info = meta.into_info(key.to_owned(), version);
            let index_key = Bytes::copy_from_slice(index_key);
            return Ok(Self { reads: reads.clone(), index_key, info, upload, parts, source });
        }
    }

    /// The object's description.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The parts that it was uploaded in; empty for one piece.
    pub fn parts(&self) -> &[PartInfo] {
        &self.parts
    }

    /// Its stored state except the bytes, to recreate the object elsewhere with
    /// [`ObjectWriter::commit_stored`](crate::ObjectWriter::commit_stored).
    pub fn stored(&self) -> StoredObject {
        StoredObject {
            modified_ms: self.info.modified_ms,
            attributes: self.info.attributes.clone(),
            parts: self.parts.clone(),
            upload_id: self.upload.as_ref().map(id_to_text),
        }
    }

    /// The bytes of `range`, cut to the object's size. The stream ends after an error.
    pub fn stream(self, range: Range<u64>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> + 'static {
        let Self { reads, index_key, info, source, .. } = self;
        let range = range.start.min(info.size)..range.end.min(info.size);
        match source {
            Source::Inline(body) => {
                let part = (range.start < range.end).then(|| {
                    let (from, to) = (range.start as usize, (range.end as usize).min(body.len()));
                    if from < to { Ok(body.slice(from..to)) } else { Err(short()) }
                });
                stream::iter(part).left_stream()
            }
            Source::Chunks { chunks, pins } => {
                let plan = plan(&chunks, range, reads.piece_bytes());
                let pieces =
                    Pieces { reads, index_key, pins, plan: plan.into_iter(), begun: VecDeque::new(), front: None };
                stream::unfold(pieces, async |mut pieces| {
                    let bytes = pieces.next().await?;
                    Some((bytes, pieces))
                })
                .right_stream()
            }
        }
    }
}

/// A piece of a body being read from the disk.
struct Piece {
    reading: Reading,
    /// Held for a piece that the consumer has not asked for yet.
    _ahead: Option<OwnedSemaphorePermit>,
}

enum Reading {
    /// From the cache.
    Here(Bytes),
    Pending(oneshot::Receiver<Result<Bytes, StoreError>>),
}

/// The pieces of a body, in order. The piece that the consumer waits for is read at once,
/// independent of other streams, so no stream depends on slow consumers. Only pieces after it need
/// the budget that all streams share, and they are read ahead only while it has space. Each has its
/// own task, since the stream is not polled while the consumer is idle: a started read still
/// returns the disk's memory.
struct Pieces {
    reads: Arc<Reads>,
    index_key: Bytes,
    pins: Arc<[ExtentPin]>,
    plan: std::vec::IntoIter<(Location, Range<u32>)>,
    begun: VecDeque<Piece>,
    /// The chunk that is being read, and its front.
    front: Option<(Location, Arc<RecordFront>)>,
}

impl Pieces {
    async fn next(&mut self) -> Option<Result<Bytes, StoreError>> {
        if self.begun.is_empty() {
            let (at, range) = self.plan.next()?;
            let first = self.begin(at, range, None);
            self.begun.push_back(first);
        }
        let first = self.begun.pop_front()?;
        self.read_ahead();
        Some(match first.reading {
            Reading::Here(bytes) => Ok(bytes),
            Reading::Pending(coming) => {
                let _lap = stages::enter(Stage::Disk);
                // A missing answer means that the runtime is stopping.
                coming.await.unwrap_or_else(|_| Err(LogError::Closed.into()))
            }
        })
    }

    fn read_ahead(&mut self) {
        while self.begun.len() + 1 < self.reads.applied.options.read_ahead_pieces {
            let Some((at, range)) = self.plan.as_slice().first().cloned() else { return };
            let kib = (range.len() as u32).div_ceil(1024);
            let Ok(room) = self.reads.ahead.clone().try_acquire_many_owned(kib) else { return };
            self.plan.next();
            let piece = self.begin(at, range, Some(room));
            self.begun.push_back(piece);
        }
    }

    fn begin(&mut self, at: Location, range: Range<u32>, ahead: Option<OwnedSemaphorePermit>) -> Piece {
        if let Some(bytes) = self.reads.cached(&at, &range) {
            return Piece { reading: Reading::Here(bytes), _ahead: ahead };
        }
        let (mut read, coming) = oneshot::channel();
        let (reads, pins) = (self.reads.clone(), self.pins.clone());
        let key = self.index_key.clone();
        let front = match &self.front {
            Some((chunk, front)) if *chunk == at => front.clone(),
            _ => self.front.insert((at, Arc::default())).1.clone(),
        };
        self.reads.applied.env.spawn("read", async move {
            let bytes = tokio::select! {
                biased;
                // The consumer was dropped.
                () = read.closed() => return,
                bytes = reads.hang.unless_hanging(reads.read_piece(&key, &at, range, &front)) => bytes,
            };
            drop(pins);
            let _ = read.send(bytes.and_then(|bytes| bytes.map_err(StoreError::from)));
        });
        Piece { reading: Reading::Pending(coming), _ahead: ahead }
    }
}

fn short() -> StoreError {
    StoreError::Index("an object's record gives a size beyond its body".into())
}

/// Splits the chunks that cover `range` at piece boundaries.
fn plan(chunks: &[Location], range: Range<u64>, piece_bytes: u32) -> Vec<(Location, Range<u32>)> {
    let mut out = Vec::new();
    let mut start = 0u64;
    for at in chunks {
        let end = start + u64::from(at.body_len);
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            let (mut from, to) = ((from - start) as u32, (to - start) as u32);
            while from < to {
                let border = (from / piece_bytes + 1).saturating_mul(piece_bytes);
                out.push((*at, from..to.min(border)));
                from = border;
            }
        }
        start = end;
    }
    out
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectReader({:?})", self.info)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn plans_cover_exactly_the_range(lens in proptest::collection::vec(0u32..20, 0..8), a in 0u64..90, b in 0u64..90) {
            let chunks: Vec<Location> = (0u32..)
                .zip(&lens)
                .map(|(offset, &body_len)| Location { extent: 0, epoch: 1, offset, head_len: 0, body_len })
                .collect();
            let total: Vec<(u32, u32)> =
                (0u32..).zip(&lens).flat_map(|(chunk, &len)| (0..len).map(move |i| (chunk, i))).collect();
            let got: Vec<(u32, u32)> = plan(&chunks, a..b, 7)
                .into_iter()
                .inspect(|(_, r)| assert!(r.start / 7 == (r.end - 1) / 7))
                .flat_map(|(at, r)| r.map(move |i| (at.offset, i)))
                .collect();
            let end = (b as usize).min(total.len());
            prop_assert_eq!(&got[..], total.get(a as usize..end).unwrap_or_default());
        }
    }
}
