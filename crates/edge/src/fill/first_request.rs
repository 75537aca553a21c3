//! The first request of a fill: its response tells what the object is, and brings the first bytes
//! wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use futures::{StreamExt, stream};
use steadfast_flow::{Pass, shortened};
use steadfast_log::Durability;
use steadfast_store::{Attributes, ObjectInfo, StoreError, StoredObject, WEAK_ETAG};

use super::commit::Commit;
use super::fetch::Fetch;
use super::fetch::{AnswerBody, Part};
use super::schedule::schedule;
use super::{Base, Fill, FillEnd, FillTarget, Opening};
use crate::error::EdgeError;
use crate::fresh::{CacheHeaders, FetchStamp, Moment};
use crate::options::EdgeBucket;
use crate::origin::{Description, NOT_WHOLE, OriginAnswer, OriginRequest, Tag, unsatisfied_size};
use crate::sabotage::Sabotage;

/// Most segments of an object: the parts of an upload.
const SEGMENTS_MAX: u64 = 10_000;
/// Names in the attributes of a fill's upload, which a later fill compares.
const FILL_SIZE: &str = "steadfast-fill-size";
const FILL_SEGMENT: &str = "steadfast-fill-segment";
const FILL_ORIGIN: &str = "steadfast-fill-origin";

/// What the first answer brings.
pub(super) enum FirstResponse {
    /// The object may come in segments, from answers with the same entity tag. The first answer, if
    /// it has bytes, begins at this segment.
    Ranges(FillTarget, Option<(u32, Part)>),
    /// The object comes in this one answer.
    Stream(FillTarget, AnswerBody),
    /// Only headers were wanted, and no later answer can be matched with them.
    Headers(FillTarget),
    /// The stored object is still the one that the origin has.
    Unchanged(CacheHeaders),
    /// The object cannot be stored.
    NotStorable,
    /// Only headers were wanted, and they do not say how long the object is.
    NoLength,
}

/// Segments that an earlier fill has stored.
pub(super) struct PartialUpload {
    pub(super) upload: String,
    attributes: Attributes,
    /// Numbers of its parts.
    pub(super) stored: Vec<u16>,
}

impl PartialUpload {
    /// Whether the segments belong to the object that an answer describes.
    pub(super) fn is_of(&self, target: &FillTarget, options: &EdgeBucket) -> bool {
        let mut attributes = upload_attributes(target, options);
        if !self.attributes.system.contains_key(FILL_ORIGIN) {
            // Stored by a version that did not keep it.
            attributes.system.remove(FILL_ORIGIN);
        }
        target.if_match.is_some() && self.attributes == attributes
    }
}

/// The attributes of a fill's upload.
pub(super) fn upload_attributes(target: &FillTarget, options: &EdgeBucket) -> Attributes {
    let given = &target.stored.attributes;
    let origin = options.origin.number();
    let numbers = [(FILL_SIZE, target.info.size), (FILL_SEGMENT, target.segment_bytes), (FILL_ORIGIN, origin)];
    let mut system: BTreeMap<_, _> = numbers.map(|(name, value)| (name.to_owned(), value.to_string())).into();
    for name in [WEAK_ETAG, "content-encoding"] {
        system.extend(given.system.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Attributes { etag: given.etag.clone(), system, ..Attributes::default() }
}

/// The first request of a fill, and what follows from its response.
#[derive(Clone, Copy)]
pub(super) struct FirstRequest<'a>(pub(super) &'a Arc<Fill>);

impl<'a> FirstRequest<'a> {
    /// Looks for segments that an earlier fill has stored.
    pub(super) fn partial_upload(self) -> Result<Option<PartialUpload>, EdgeError> {
        let (store, bucket) = (&self.0.bucket_state.store, &self.0.bucket_state.options.bucket);
        let Some(upload) = store.at(bucket, &self.0.key).first_fill()? else { return Ok(None) };
        let id = upload.upload_id;
        if !self.0.bucket_state.inventory.stopped.lock().contains_key(&id) {
            // A fill that others may not join uses it, or it is being removed.
            return Ok(None);
        }
        let parts = match store.at(bucket, &self.0.key).fill(&id).parts(0, SEGMENTS_MAX as usize) {
            Ok((parts, _)) => parts,
            Err(StoreError::NoSuchUpload) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let stored = parts.iter().map(|part| part.number).collect();
        Ok(Some(PartialUpload { upload: id, attributes: upload.attributes, stored }))
    }

    /// Asks for the headers and, if bytes are wanted, for the segment with the first of them.
    pub(super) async fn first_response(
        self,
        opening: Opening,
        left: Option<&PartialUpload>,
    ) -> Result<FirstResponse, EdgeError> {
        let bytes = self.0.bucket_state.options.segment_bytes;
        let Opening::Get(first) = opening else { return self.request_headers().await };
        let mut segment = first / bytes;
        if let Some(left) = left {
            // A segment that is stored need not come again.
            let missing = |segment: &u64| !left.stored.iter().any(|number| u64::from(*number) == segment + 1);
            segment = (segment..SEGMENTS_MAX).chain(0..segment.min(SEGMENTS_MAX)).find(missing).unwrap_or(segment);
        }
        let mut answer = self.request_segment(segment).await?;
        if answer.status == 304 && self.base_here().is_some() {
            return Ok(self.unchanged(&answer));
        }
        if answer.status == 416 && segment > 0 && unsatisfied_size(&answer.headers) != Some(0) {
            // Behind the end. The first segment tells the size.
            segment = 0;
            answer = self.request_segment(segment).await?;
        }
        if answer.status == 416 {
            answer = self.send(false, None).await?;
        }
        let mut described = self.describe(&answer)?;
        let whole = described.start == 0 && described.length.is_some() && described.length == described.total;
        let joins = matches!(described.tag, Tag::Strong(_)) || self.0.bucket_state.has(Sabotage::WeakTagsJoin);
        if described.partial && !joins && !whole {
            // Other answers could not be matched with this one.
            answer = self.send(false, None).await?;
            described = self.describe(&answer)?;
        }
        if !described.partial {
            return self.one_answer(described, answer.body.into()).await;
        }
        if described.start != segment * bytes {
            return Err(self.0.bucket_state.wrong_answer(&self.0.key, "it is another range than the one wanted"));
        }
        let Some(target) = self.target(&described) else { return Ok(FirstResponse::NotStorable) };
        if target.if_match.is_none() {
            return Ok(FirstResponse::Stream(target, answer.body.into()));
        }
        let part = Part { body: answer.body.into(), bytes: described.length.unwrap_or(0) };
        Ok(FirstResponse::Ranges(target, Some((segment as u32, part))))
    }

    async fn request_headers(self) -> Result<FirstResponse, EdgeError> {
        let answer = self.send(true, None).await?;
        if answer.status == 304 && self.base_here().is_some() {
            return Ok(self.unchanged(&answer));
        }
        let described = self.describe(&answer)?;
        if described.total.is_none() && !described.cache.private {
            // The answer to a GET may say it.
            return Ok(FirstResponse::NoLength);
        }
        let Some(target) = self.target(&described) else { return Ok(FirstResponse::NotStorable) };
        Ok(if target.if_match.is_some() { FirstResponse::Ranges(target, None) } else { FirstResponse::Headers(target) })
    }

    /// The stored object, unless it is of another origin, which says nothing about it.
    fn base_here(self) -> Option<&'a Base> {
        self.0.base.as_deref().filter(|base| base.stamp.is_of(&self.0.bucket_state.options))
    }

    fn unchanged(self, answer: &OriginAnswer) -> FirstResponse {
        FirstResponse::Unchanged(CacheHeaders::read(&answer.headers, self.0.bucket_state.env.wall_ms()))
    }

    async fn request_segment(self, segment: u64) -> Result<OriginAnswer, EdgeError> {
        let bytes = self.0.bucket_state.options.segment_bytes;
        let start = segment.saturating_mul(bytes);
        self.send(false, Some(format!("bytes={start}-{}", start.saturating_add(bytes - 1)))).await
    }

    async fn send(self, head: bool, range: Option<String>) -> Result<OriginAnswer, EdgeError> {
        let condition = self.base_here().map(Base::condition);
        let whole = range.is_none();
        let headers = range.map(|range| ("range", range)).into_iter().chain(condition).collect();
        let answer = self.0.bucket_state.ask(OriginRequest { head, key: self.0.key.clone(), headers }).await?;
        if whole && answer.status == 206 {
            return Err(self.0.bucket_state.wrong_answer(&self.0.key, NOT_WHOLE));
        }
        Ok(answer)
    }

    fn describe(self, answer: &OriginAnswer) -> Result<Description, EdgeError> {
        if !matches!(answer.status, 200 | 206) {
            return Err(self.0.bucket_state.unexpected(&self.0.key, answer.status));
        }
        self.0.bucket_state.describe(&self.0.key, answer)
    }

    /// The object in one answer. One without a length is read to its end if it is small.
    async fn one_answer(self, mut described: Description, mut body: AnswerBody) -> Result<FirstResponse, EdgeError> {
        if described.total.is_none() && (described.delimited || self.0.bucket_state.has(Sabotage::CloseIsEnd)) {
            let limit = self.0.bucket_state.options.segment_bytes;
            let _memory = Fetch(self.0).memory(limit).await?;
            let mut whole = BytesMut::new();
            while let Some(piece) = Fetch(self.0).next_piece(&mut body).await? {
                if (whole.len() + piece.len()) as u64 > limit {
                    return Ok(FirstResponse::NotStorable);
                }
                whole.extend_from_slice(&piece);
            }
            described.total = Some(whole.len() as u64);
            body = stream::iter([Ok(whole.freeze())]).boxed().into();
        }
        if described.total.is_none() {
            return Ok(FirstResponse::NotStorable);
        }
        Ok(self.target(&described).map_or(FirstResponse::NotStorable, |target| FirstResponse::Stream(target, body)))
    }

    /// The object that an answer describes; `None` if it cannot be stored.
    fn target(self, described: &Description) -> Option<FillTarget> {
        let options = &self.0.bucket_state.options;
        let size = described.total?;
        let segment_bytes = options.segment_bytes;
        let space = options.retention.space_bytes;
        if !described.storable
            || space > 0 && size > space
            || size > options.object_bytes_max
            || size.div_ceil(segment_bytes) > SEGMENTS_MAX
        {
            return None;
        }
        let headers = described.cache;
        if headers.private {
            return None;
        }
        let attributes = described.attributes.clone();
        let modified_ms = described.modified_ms.unwrap_or_else(|| self.0.bucket_state.env.wall_ms());
        let info = ObjectInfo {
            key: self.0.key.clone(),
            size,
            modified_ms,
            version: 0,
            attributes: attributes.clone(),
            part_count: 0,
        };
        let if_match = match &described.tag {
            Tag::Strong(tag) => Some(format!("\"{tag}\"")),
            _ if self.0.bucket_state.has(Sabotage::WeakTagsJoin) => Some(format!("\"{}\"", attributes.etag)),
            Tag::Weak(_) | Tag::None => None,
        };
        let stored = StoredObject { modified_ms, attributes, ..StoredObject::default() };
        Some(FillTarget { info, stored, if_match, segment_bytes, headers })
    }

    /// Publishes the plan to all requests that wait for the headers.
    fn publish(self, target: FillTarget, sent: Moment, stored: &[u16]) -> Arc<FillTarget> {
        let target = Arc::new(target);
        let stamp = FetchStamp::new(&self.0.bucket_state.options, &target.headers, sent);
        self.0.state.lock().set_plan(target.clone(), stamp, stored);
        self.0.progress.notify_waiters();
        target
    }

    /// Whether the key is as it was when the fill began.
    fn is_current(self) -> Result<bool, EdgeError> {
        let found = match self.0.bucket_state.store.at(&self.0.bucket_state.options.bucket, &self.0.key).info() {
            Ok(info) => Some(info.version),
            Err(StoreError::NoSuchKey) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(found == self.0.base.as_ref().map(|base| base.info.version))
    }

    /// Removes the stored object: the origin does not have it any more, or not for all clients.
    async fn remove_base(self) {
        let Some(base) = &self.0.base else { return };
        let version = base.info.version;
        let (store, bucket) = (&self.0.bucket_state.store, &self.0.bucket_state.options.bucket);
        match store.at(bucket, &self.0.key).delete_version(version, Durability::Async).await {
            Ok(_) => self.0.bucket_state.inventory.space.deleted(&self.0.key, base.info.size),
            Err(StoreError::ConditionFailed) => {}
            Err(error) => {
                tracing::warn!(%bucket, key = ?shortened(&self.0.key), %error, "an old object could not be removed")
            }
        }
    }

    /// Runs the fill to its end.
    pub(super) async fn fetch_all(self, opening: Opening) -> Result<FillEnd, EdgeError> {
        let bucket_state = &self.0.bucket_state;
        if !self.is_current()? {
            // Another fill has stored or removed it just now.
            return Ok(FillEnd::Stopped);
        }
        bucket_state.inventory.space.counted().await;
        let connection = bucket_state.connect(&self.0.client).await?;
        if !self.0.is_wanted() {
            return Ok(FillEnd::Stopped);
        }
        let left = self.partial_upload()?;
        let sent = bucket_state.moment();
        let answer = self.first_response(opening, left.as_ref()).await;
        if bucket_state.has(Sabotage::LateMissingRemembered)
            && matches!(answer, Err(EdgeError::Store(StoreError::NoSuchKey)))
        {
            bucket_state.remember_missing(&self.0.key, sent);
        }
        match answer {
            // What a purge has overtaken is not used.
            _ if !self.0.is_attached() => Ok(FillEnd::Stopped),
            Err(EdgeError::Store(StoreError::NoSuchKey)) => {
                self.0.state.lock().stamp = Some(FetchStamp::missing(&bucket_state.options, sent));
                if self.0.if_attached(|| bucket_state.remember_missing(&self.0.key, sent)) {
                    self.remove_base().await;
                }
                Err(StoreError::NoSuchKey.into())
            }
            Err(error) => {
                if self.0.base.is_some() {
                    bucket_state.remember_failing(&self.0.key);
                } else if matches!(error, EdgeError::Origin(_)) {
                    self.0.if_attached(|| bucket_state.remember_refused(&self.0.key));
                }
                Err(error)
            }
            Ok(FirstResponse::NotStorable) => {
                if self.0.if_attached(|| bucket_state.remember_not_storable(&self.0.key)) {
                    self.remove_base().await;
                }
                Ok(FillEnd::NotStorable)
            }
            Ok(FirstResponse::NoLength) => Ok(FillEnd::NoLength),
            Ok(FirstResponse::Unchanged(headers)) => Ok(self.renew(&headers, sent)),
            Ok(FirstResponse::Headers(target)) => {
                self.publish(target, sent, &[]);
                Ok(FillEnd::Stopped)
            }
            Ok(FirstResponse::Stream(target, body)) => {
                if let Some(left) = left {
                    self.0.abort(&left.upload).await;
                }
                if !self.reserve(&target) {
                    return Ok(FillEnd::NotStorable);
                }
                let target = self.publish(target, sent, &[]);
                Commit(self.0).begin_upload(&target).await?;
                if Fetch(self.0).fetch_stream(&target, body).await? {
                    drop(connection);
                    return schedule(self.0, &target).await;
                }
                Ok(FillEnd::Stopped)
            }
            Ok(FirstResponse::Ranges(target, first)) => self.fetch_ranges(target, sent, left, first, connection).await,
        }
    }

    /// Notes that the stored object is still the one that the origin has.
    fn renew(self, headers: &CacheHeaders, sent: Moment) -> FillEnd {
        let Some(base) = &self.0.base else { return FillEnd::Stopped };
        let stamp = base.stamp.renewed(&self.0.bucket_state.options, headers, sent);
        let version = base.info.version;
        self.0.state.lock().stamp = Some(stamp);
        self.0.if_attached(|| self.0.bucket_state.renewals.put(&self.0.key, (version, stamp)));
        FillEnd::Renewed(version)
    }

    /// Whether there will be space for the object.
    fn reserve(self, target: &FillTarget) -> bool {
        let reservation = self.0.bucket_state.inventory.space.reserve(target.info.size).ok();
        let mut state = self.0.state.lock();
        state.reservation = reservation;
        state.reservation.is_some()
    }

    /// Continues the upload of a fill that has stopped, unless it was removed meanwhile.
    fn take_over(self, left: &PartialUpload) -> bool {
        let stopped = self.0.bucket_state.inventory.stopped.lock().remove(&left.upload);
        let mut state = self.0.state.lock();
        state.upload = stopped.is_some().then(|| left.upload.clone());
        state.room = stopped.map(|stopped| stopped.room);
        state.upload.is_some()
    }

    async fn fetch_ranges(
        self,
        target: FillTarget,
        sent: Moment,
        left: Option<PartialUpload>,
        first: Option<(u32, Part)>,
        connection: Pass,
    ) -> Result<FillEnd, EdgeError> {
        if !self.reserve(&target) {
            return Ok(FillEnd::NotStorable);
        }
        let is_same = |left: &&PartialUpload| {
            self.0.bucket_state.has(Sabotage::LeftOverBelieved) || left.is_of(&target, &self.0.bucket_state.options)
        };
        let continued = left.as_ref().filter(is_same).is_some_and(|left| self.take_over(left));
        let stored = left.as_ref().filter(|_| continued).map(|left| &left.stored[..]).unwrap_or_default();
        let target = self.publish(target, sent, stored);
        if !continued {
            Commit(self.0).begin_upload(&target).await?;
            if let Some(left) = left {
                self.0.abort(&left.upload).await;
            }
        }
        match first {
            Some((segment, part)) if self.0.state.lock().begin(segment, false) => {
                Fetch(self.0).spawn_fetch(&target, segment, Some(connection), Some(part));
            }
            _ => drop(connection),
        }
        schedule(self.0, &target).await
    }
}
