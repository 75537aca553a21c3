//! The bytes of an object while it is fetched.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream};
use futures::{StreamExt, TryStreamExt};
use steadfast_flow::Pass;
use steadfast_store::{ObjectInfo, ObjectReader, StoreError};

use super::state::Segment;
use super::{FillEnd, FillTarget, Holder};
use crate::error::EdgeError;
use crate::sabotage::Sabotage;

/// Reads an object while it is fetched. It stays with this version of the object.
pub struct FillReader {
    holder: Holder,
    target: Arc<FillTarget>,
    /// The place among the requests that wait, until the first bytes.
    waiting: Option<Pass>,
}

/// Where the next bytes are.
enum Place {
    Memory(Bytes),
    /// A stored segment of this upload.
    Segment(String, u32),
    Object(Arc<ObjectReader>),
    /// They have not come yet.
    Later,
}

struct Cursor {
    reader: FillReader,
    /// The bytes that are left.
    left: Range<u64>,
    /// Bytes from the disk.
    stored: Option<BoxStream<'static, Result<Bytes, StoreError>>>,
}

impl FillReader {
    pub(crate) fn new(holder: Holder, target: Arc<FillTarget>, waiting: Option<Pass>) -> Self {
        Self { holder, target, waiting }
    }

    /// The object's description.
    pub fn info(&self) -> &ObjectInfo {
        &self.target.info
    }

    /// The bytes of `range`, cut to the object's size. The stream ends after an error.
    pub fn stream(self, range: Range<u64>) -> impl Stream<Item = Result<Bytes, EdgeError>> + Send + use<> + 'static {
        let size = self.target.info.size;
        let left = range.start.min(size)..range.end.min(size);
        let cursor = Cursor { reader: self, left, stored: None };
        stream::try_unfold(cursor, async |mut cursor| Ok(cursor.next().await?.map(|piece| (piece, cursor))))
    }

    fn place(&self, at: u64) -> Result<Place, EdgeError> {
        let fill = &self.holder.fill;
        let segment = self.target.segment_of(at);
        let mut state = fill.state.lock();
        match &state.end {
            Some(FillEnd::Stored(reader)) => return Ok(Place::Object(reader.clone())),
            Some(FillEnd::Failed(error)) => return Err(error.clone()),
            Some(_) => return Err(EdgeError::Changed),
            None => {}
        }
        if state.want(self.holder.id, segment) {
            fill.work.notify_one();
        }
        let offset = at - self.target.range(segment).start;
        Ok(match (&state.segments[segment as usize], &state.upload) {
            (Segment::Fetching(received), _) => received.at(offset).map_or(Place::Later, Place::Memory),
            (Segment::Stored, Some(upload)) => Place::Segment(upload.clone(), segment),
            _ => Place::Later,
        })
    }
}

impl Cursor {
    async fn next(&mut self) -> Result<Option<Bytes>, EdgeError> {
        while !self.left.is_empty() {
            if let Some(stored) = &mut self.stored {
                match stored.try_next().await? {
                    Some(piece) => return Ok(Some(self.take(piece))),
                    None => self.stored = None,
                }
                continue;
            }
            let fill = self.reader.holder.fill.clone();
            let progress = fill.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            let mut place = self.reader.place(self.left.start);
            if place.is_err() && fill.bucket_state.has(Sabotage::ReaderTakesNext) {
                let next = fill.bucket_state.store.at(&fill.bucket_state.options.bucket, &fill.key).reader().await;
                let next = next.ok().filter(|next| next.info().size >= self.left.end);
                place = next.map_or(place, |next| Ok(Place::Object(Arc::new(next))));
            }
            match place? {
                Place::Memory(piece) => return Ok(Some(self.take(piece))),
                Place::Object(reader) => {
                    let reader = ObjectReader::clone(&reader);
                    self.stored = Some(reader.stream(self.left.clone()).boxed());
                }
                Place::Segment(upload, segment) => {
                    let range = self.reader.target.range(segment);
                    let within = self.left.start - range.start..self.left.end.min(range.end) - range.start;
                    let (store, bucket) = (&fill.bucket_state.store, &fill.bucket_state.options.bucket);
                    match store.at(bucket, &fill.key).fill(&upload).reader(segment as u16 + 1).await {
                        Ok(reader) => self.stored = Some(reader.stream(within).boxed()),
                        // The commit of the object has just ended the upload.
                        Err(StoreError::NoSuchKey) => {
                            let limit = fill.bucket_state.options.timeout;
                            fill.bucket_state.env.timeout(limit, progress).await.ok_or(EdgeError::Changed)?;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                Place::Later => progress.await,
            }
        }
        Ok(None)
    }

    /// Takes the bytes that are wanted of a piece.
    fn take(&mut self, mut piece: Bytes) -> Bytes {
        piece.truncate(usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX));
        self.left.start += piece.len() as u64;
        self.reader.waiting = None;
        piece
    }
}
