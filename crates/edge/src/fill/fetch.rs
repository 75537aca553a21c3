//! Fetching of one segment.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_flow::{Pass, Permit};
use steadfast_log::{Durability, LogError};
use steadfast_store::{Attributes, Condition, ObjectWriter, StoreError};

use super::{Fill, FillTarget};
use crate::bucket_state::busy;
use crate::error::EdgeError;
use crate::fresh::FetchStamp;
use crate::options::FillMode;
use crate::origin::{OriginBody, OriginRequest, Tag};
use crate::sabotage::Sabotage;
use crate::space::NoSpace;

/// How often a segment is asked for again without a byte in between.
const TRIES: u32 = 3;
/// Pause before the first repetition. It doubles each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for memory.
const MEMORY_WAIT: Duration = Duration::from_secs(60);

/// How long a segment waits while the pool is full, and the pause between two tries.
const FULL_WAIT: Duration = Duration::from_secs(30);
const FULL_PAUSE: Duration = Duration::from_millis(200);

/// A part of an answer: a body, and how many bytes of it are the object's.
pub(super) struct Part {
    pub(super) body: AnswerBody,
    pub(super) bytes: u64,
}

/// The body of an answer, with the bytes that were read of it too early.
pub(super) struct AnswerBody {
    rest: Bytes,
    stream: OriginBody,
}

impl From<OriginBody> for AnswerBody {
    fn from(stream: OriginBody) -> Self {
        Self { rest: Bytes::new(), stream }
    }
}

/// Whether the pool has no space now.
fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Log(LogError::Full))
}

/// Whether asking again can help.
fn is_temporary(error: &EdgeError) -> bool {
    matches!(error, EdgeError::Origin(_) | EdgeError::Timeout | EdgeError::Store(StoreError::Busy(_)))
}

/// Awaits the origin. An origin that stalls must not hold a budget that other writers wait for.
async fn during<T>(writer: &mut Option<ObjectWriter>, origin: impl Future<Output = T>) -> T {
    match writer {
        Some(writer) => writer.give_room_during(origin).await,
        None => origin.await,
    }
}

/// Fetches the segments of a fill.
#[derive(Clone, Copy)]
pub(super) struct Fetch<'a>(pub(super) &'a Arc<Fill>);

impl Fetch<'_> {
    /// Reserves memory for the bytes of a segment.
    pub(super) async fn memory(self, bytes: u64) -> Result<Permit, EdgeError> {
        self.0.bucket_state.gates.memory.acquire(bytes, MEMORY_WAIT).await.map_err(|refused| busy(&refused))
    }

    /// The next bytes of an answer; `None` at its end.
    pub(super) async fn next_piece(self, body: &mut AnswerBody) -> Result<Option<Bytes>, EdgeError> {
        if !body.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut body.rest)));
        }
        match self.0.bucket_state.env.timeout(self.0.bucket_state.options.timeout, body.stream.next()).await {
            Some(None) => Ok(None),
            Some(Some(Ok(piece))) => Ok(Some(piece)),
            Some(Some(Err(reason))) => Err(self.0.bucket_state.wrong_answer(&self.0.key, &reason)),
            None => Err(EdgeError::Timeout),
        }
    }

    /// Fetches a segment that has begun, in a task of its own.
    pub(super) fn spawn_fetch(
        self,
        target: &Arc<FillTarget>,
        segment: u32,
        connection: Option<Pass>,
        part: Option<Part>,
    ) {
        let (fill, target) = (self.0.clone(), target.clone());
        self.0.bucket_state.env.spawn("edge-fetch", async move {
            let connection = match connection {
                Some(connection) => Some(connection),
                None => Fetch(&fill).connect_for(segment).await,
            };
            let Some(_connection) = connection else {
                fill.state.lock().put_back(segment);
                fill.work.notify_one();
                return;
            };
            let outcome = match Fetch(&fill).fetch(&target, segment, part).await {
                // The fill has ended, and its upload with it.
                Err(EdgeError::Store(StoreError::NoSuchUpload)) => Err(EdgeError::Changed),
                outcome => outcome,
            };
            fill.state.lock().fetched(segment, outcome);
            fill.progress.notify_waiters();
            fill.work.notify_one();
        });
    }

    /// A connection for a segment that a reader waits for. `None` if no reader waits for it any
    /// more, or all connections stay in use: that must not end the fill for its other readers.
    async fn connect_for(self, segment: u32) -> Option<Pass> {
        match self.0.bucket_state.connect(&self.0.client).await {
            Ok(connection) => Some(connection).filter(|_| self.0.state.lock().is_wanted(segment)),
            Err(_) => {
                self.0.bucket_state.env.sleep(PAUSE).await;
                None
            }
        }
    }

    async fn fetch(
        self,
        target: &FillTarget,
        segment: u32,
        mut part: Option<Part>,
    ) -> Result<Option<ObjectWriter>, EdgeError> {
        let range = target.range(segment);
        let mut writer = Some(self.begin_segment(target, segment).await?);
        let mut tries = 0;
        loop {
            let before = self.received(segment);
            let from = range.start + before;
            if from == range.end {
                break;
            }
            let answered = match part.take() {
                Some(part) => Ok(part),
                None => during(&mut writer, self.request_range(target, from, range.end)).await,
            };
            let fetched = match answered {
                Ok(Part { mut body, bytes }) => {
                    self.receive(&mut body, segment, bytes.min(range.end - from), &mut writer).await
                }
                Err(e) => Err(e),
            };
            let fetched = match fetched {
                Ok(()) if self.received(segment) == before => {
                    Err(self.0.bucket_state.wrong_answer(&self.0.key, "it has no bytes"))
                }
                fetched => fetched,
            };
            match fetched {
                Err(error) if is_temporary(&error) => {
                    tries = if self.received(segment) > before { 0 } else { tries + 1 };
                    if tries == TRIES {
                        return Err(error);
                    }
                    during(&mut writer, self.0.bucket_state.env.sleep(PAUSE * (1 << tries))).await;
                }
                other => other?,
            }
        }
        self.end_segment(target, segment, writer).await
    }

    /// Fetches all segments from one answer. Returns `false` when nothing more of it was wanted.
    pub(super) async fn fetch_stream(self, target: &FillTarget, mut body: AnswerBody) -> Result<bool, EdgeError> {
        for segment in 0..target.segments() {
            {
                let mut state = self.0.state.lock();
                if !state.has_holders()
                    && (!self.0.is_attached()
                        || self.0.base.is_none() && self.0.bucket_state.options.fill == FillMode::Wanted)
                {
                    return Ok(false);
                }
                state.begin(segment, false);
            }
            let mut writer = Some(self.begin_segment(target, segment).await?);
            let range = target.range(segment);
            let mut received = 0;
            while received < range.end - range.start {
                self.receive(&mut body, segment, range.end - range.start - received, &mut writer).await?;
                let now = self.received(segment);
                if now == received {
                    return Err(self.0.bucket_state.wrong_answer(&self.0.key, "it ends before its length"));
                }
                received = now;
            }
            let outcome = self.end_segment(target, segment, writer).await?;
            self.0.state.lock().fetched(segment, Ok(outcome));
            self.0.progress.notify_waiters();
        }
        Ok(true)
    }

    fn received(self, segment: u32) -> u64 {
        self.0.state.lock().in_progress(segment).map_or(0, |received| received.bytes())
    }

    /// Takes the room and the memory for a segment, and begins to write it.
    async fn begin_segment(self, target: &FillTarget, segment: u32) -> Result<ObjectWriter, EdgeError> {
        let range = target.range(segment);
        let bytes = range.end - range.start;
        let room = self
            .0
            .bucket_state
            .inventory
            .space
            .take(bytes)
            .await
            .map_err(|NoSpace| StoreError::Busy("the edge's space"))?;
        let memory = self.memory(bytes).await?;
        {
            let mut state = self.0.state.lock();
            if state.end.is_some() {
                return Err(EdgeError::Changed);
            }
            match &mut state.room {
                Some(whole) => whole.add(room),
                None => state.room = Some(room),
            }
            if let Some(received) = state.in_progress(segment) {
                received.memory = Some(memory);
            }
        }
        Ok(self.segment_writer(segment, bytes).await?)
    }

    async fn segment_writer(self, segment: u32, bytes: u64) -> Result<ObjectWriter, StoreError> {
        let (store, bucket) = (&self.0.bucket_state.store, &self.0.bucket_state.options.bucket);
        let upload = self.0.state.lock().upload.clone();
        match upload {
            // An upload has at most 10,000 parts.
            Some(upload) => store.at(bucket, &self.0.key).fill(&upload).writer(segment as u16 + 1, Some(bytes)).await,
            None => store.at(bucket, &self.0.key).writer(Some(bytes)).await,
        }
    }

    /// Stores a segment of an upload. The writer of a small object commits later. While the pool is
    /// full, it waits for compaction: the readers have the segment from memory.
    async fn end_segment(
        self,
        target: &FillTarget,
        segment: u32,
        mut writer: Option<ObjectWriter>,
    ) -> Result<Option<ObjectWriter>, EdgeError> {
        let until = self.0.bucket_state.env.now() + FULL_WAIT;
        loop {
            let stored = match writer.take() {
                Some(writer) if target.segments() == 1 => return Ok(Some(writer)),
                Some(writer) => {
                    writer.commit(Attributes::default(), Condition::None, Some(Durability::Async)).await.map(|_| None)
                }
                None => self.write_again(target, segment).await.map(Some),
            };
            match stored {
                Ok(None) => return Ok(None),
                Ok(again) => writer = again,
                Err(error) if is_full(&error) && self.0.bucket_state.env.now() < until => {
                    self.0.bucket_state.env.sleep(FULL_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes a segment from memory.
    async fn write_again(self, target: &FillTarget, segment: u32) -> Result<ObjectWriter, StoreError> {
        let range = target.range(segment);
        let mut writer = self.segment_writer(segment, range.end - range.start).await?;
        let mut at = 0;
        loop {
            let piece = self.0.state.lock().in_progress(segment).and_then(|received| received.at(at));
            let Some(piece) = piece else { return Ok(writer) };
            at += piece.len() as u64;
            writer.write(piece).await?;
        }
    }

    /// Takes at most `limit` bytes of an answer: for the readers first, then for the disk, unless
    /// the pool is full. The answer may end earlier.
    async fn receive(
        self,
        body: &mut AnswerBody,
        segment: u32,
        limit: u64,
        writer: &mut Option<ObjectWriter>,
    ) -> Result<(), EdgeError> {
        let mut left = limit;
        while left > 0 {
            let Some(mut piece) = during(writer, self.next_piece(body)).await? else { return Ok(()) };
            if piece.is_empty() {
                continue;
            }
            // The rest of a stream belongs to the next segment; a range has no rest.
            body.rest = piece.split_off((left as usize).min(piece.len()));
            left -= piece.len() as u64;
            {
                let mut state = self.0.state.lock();
                if state.end.is_some() {
                    return Err(EdgeError::Changed);
                }
                if let Some(received) = state.in_progress(segment) {
                    received.push(&piece);
                }
            }
            self.0.progress.notify_waiters();
            if let Some(open) = writer {
                match open.write(piece).await {
                    Err(error) if is_full(&error) => *writer = None,
                    written => written?,
                }
            }
        }
        Ok(())
    }

    /// Asks for the bytes from `from` to `to` of the same object.
    async fn request_range(self, target: &FillTarget, from: u64, to: u64) -> Result<Part, EdgeError> {
        let mut headers = vec![("range", format!("bytes={from}-{}", to - 1))];
        headers.extend(target.if_match.iter().map(|tag| ("if-match", tag.clone())));
        let sent = self.0.bucket_state.moment();
        let answer = self.0.bucket_state.ask(OriginRequest { head: false, key: self.0.key.clone(), headers }).await?;
        if matches!(answer.status, 200 | 404 | 410 | 412 | 416) {
            return Err(EdgeError::Changed);
        }
        if answer.status != 206 {
            return Err(self.0.bucket_state.unexpected(&self.0.key, answer.status));
        }
        let described = self.0.bucket_state.describe(&self.0.key, &answer)?;
        let encoding = |attributes: &Attributes| attributes.system.get("content-encoding").cloned();
        let tag_counts = !self.0.bucket_state.has(Sabotage::TagsNotCompared);
        let tag = match self.0.bucket_state.has(Sabotage::WeakTagsJoin) {
            true => Tag::Strong(described.attributes.etag.clone()),
            false => described.tag,
        };
        let same = (!tag_counts || tag == Tag::Strong(target.info.attributes.etag.clone()))
            && described.total == Some(target.info.size)
            && encoding(&described.attributes) == encoding(&target.info.attributes);
        let bytes = described.length.unwrap_or(0);
        if !same || described.start != from || bytes > to - from {
            return Err(EdgeError::Changed);
        }
        // The same entity tag: the version counts from this request on.
        self.0.state.lock().stamp = Some(FetchStamp::new(&self.0.bucket_state.options, &described.cache, sent));
        Ok(Part { body: answer.body.into(), bytes })
    }
}
