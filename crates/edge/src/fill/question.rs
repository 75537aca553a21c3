//! The first question of a fill: it tells what the object is, and brings the first bytes wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use steadfast_store::{Attributes, ObjectInfo, StoreError, StoredObject, WEAK_ETAG};

use super::fetch::Part;
use super::{Fill, FillEnd, Opening, Plan};
use crate::error::EdgeError;
use crate::origin::{Description, OriginAnswer, OriginBody, OriginRequest, Tag, unsatisfied_size};

/// Most segments of an object: the parts of an upload.
const SEGMENTS_MAX: u64 = 10_000;
/// Name in the system attributes of every object that came from an origin: it may be evicted.
pub(crate) const CACHED: &str = "steadfast-cached";
/// Names in the attributes of a fill's upload, which a later fill compares.
const FILL_SIZE: &str = "steadfast-fill-size";
const FILL_SEGMENT: &str = "steadfast-fill-segment";

/// What the first answer brings.
pub(super) enum Answer {
    /// The object may come in segments, from answers with the same entity tag. The first answer, if
    /// it has bytes, begins at this segment.
    Ranges(Plan, Option<(u32, Part)>),
    /// The object comes in this one answer.
    Stream(Plan, OriginBody),
    /// Only headers were wanted, and no later answer can be matched with them.
    Headers(Plan),
    /// The object cannot be stored.
    NotStorable,
}

/// Segments that an earlier fill has stored.
pub(super) struct LeftOver {
    pub(super) upload: String,
    attributes: Attributes,
    /// Numbers of its parts.
    pub(super) stored: Vec<u16>,
}

impl LeftOver {
    /// Whether the segments belong to the object that an answer describes.
    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        plan.if_match.is_some() && self.attributes == upload_attributes(plan)
    }
}

/// The attributes of a fill's upload.
pub(super) fn upload_attributes(plan: &Plan) -> Attributes {
    let given = &plan.stored.attributes;
    let numbers = [(FILL_SIZE, plan.info.size), (FILL_SEGMENT, plan.segment_bytes)];
    let mut system: BTreeMap<_, _> = numbers.map(|(name, value)| (name.to_owned(), value.to_string())).into();
    for name in [WEAK_ETAG, "content-encoding"] {
        system.extend(given.system.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Attributes { etag: given.etag.clone(), system, ..Attributes::default() }
}

impl Fill {
    /// Looks for segments that an earlier fill has stored.
    pub(super) fn left_over(&self) -> Result<Option<LeftOver>, EdgeError> {
        let (store, bucket) = (&self.site.store, &self.site.options.bucket);
        let Some(upload) = store.fill_of(bucket, &self.key)? else { return Ok(None) };
        let id = upload.upload_id;
        if self.site.uploads.lock().contains(&id) {
            // A fill that others may not join uses it.
            return Ok(None);
        }
        let parts = match store.segments(bucket, &self.key, &id, 0, SEGMENTS_MAX as usize) {
            Ok((parts, _)) => parts,
            Err(StoreError::NoSuchUpload) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let stored = parts.iter().map(|part| part.number).collect();
        Ok(Some(LeftOver { upload: id, attributes: upload.attributes, stored }))
    }

    /// Asks for the headers and, if bytes are wanted, for the segment with the first of them.
    pub(super) async fn question(&self, opening: Opening, left: Option<&LeftOver>) -> Result<Answer, EdgeError> {
        let bytes = self.site.options.segment_bytes;
        let Opening::Get(first) = opening else { return self.ask_headers().await };
        let mut segment = first / bytes;
        if let Some(left) = left {
            // A segment that is stored need not come again.
            let missing = |segment: &u64| !left.stored.iter().any(|number| u64::from(*number) == segment + 1);
            segment = (segment..SEGMENTS_MAX).chain(0..segment.min(SEGMENTS_MAX)).find(missing).unwrap_or(segment);
        }
        let mut answer = self.ask_segment(segment).await?;
        if answer.status == 416 && segment > 0 && unsatisfied_size(&answer.headers) != Some(0) {
            // Behind the end. The first segment tells the size.
            segment = 0;
            answer = self.ask_segment(segment).await?;
        }
        if answer.status == 416 {
            answer = self.send(false, None).await?;
        }
        let mut described = self.describe(&answer)?;
        let whole = described.start == 0 && described.length.is_some() && described.length == described.total;
        if described.partial && !matches!(described.tag, Tag::Strong(_)) && !whole {
            // Other answers could not be matched with this one.
            answer = self.send(false, None).await?;
            described = self.describe(&answer)?;
        }
        if !described.partial {
            return self.one_answer(described, answer.body).await;
        }
        if described.start != segment * bytes {
            return Err(self.site.wrong_answer(&self.key, "it is another range than the one asked for"));
        }
        let Some(plan) = self.plan(&described) else { return Ok(Answer::NotStorable) };
        if plan.if_match.is_none() {
            return Ok(Answer::Stream(plan, answer.body));
        }
        let part = Part { body: answer.body, bytes: described.length.unwrap_or(0) };
        Ok(Answer::Ranges(plan, Some((segment as u32, part))))
    }

    async fn ask_headers(&self) -> Result<Answer, EdgeError> {
        let described = self.describe(&self.send(true, None).await?)?;
        let Some(plan) = self.plan(&described) else { return Ok(Answer::NotStorable) };
        Ok(if plan.if_match.is_some() { Answer::Ranges(plan, None) } else { Answer::Headers(plan) })
    }

    async fn ask_segment(&self, segment: u64) -> Result<OriginAnswer, EdgeError> {
        let bytes = self.site.options.segment_bytes;
        let start = segment.saturating_mul(bytes);
        self.send(false, Some(format!("bytes={start}-{}", start.saturating_add(bytes - 1)))).await
    }

    async fn send(&self, head: bool, range: Option<String>) -> Result<OriginAnswer, EdgeError> {
        let headers = range.map(|range| ("range", range)).into_iter().collect();
        self.site.ask(OriginRequest { head, key: self.key.clone(), headers }).await
    }

    fn describe(&self, answer: &OriginAnswer) -> Result<Description, EdgeError> {
        if !matches!(answer.status, 200 | 206) {
            return Err(self.site.unexpected(&self.key, answer.status));
        }
        Description::read(answer.status, &answer.headers).map_err(|reason| self.site.wrong_answer(&self.key, &reason))
    }

    /// The object in one answer. One without a length is read to its end if it is small.
    async fn one_answer(&self, mut described: Description, mut body: OriginBody) -> Result<Answer, EdgeError> {
        if described.total.is_none() && described.delimited {
            let limit = self.site.options.segment_bytes;
            let _memory = self.memory(limit).await?;
            let (mut pieces, mut bytes) = (Vec::new(), 0);
            while let Some(piece) = self.next_piece(&mut body).await? {
                bytes += piece.len() as u64;
                if bytes > limit {
                    return Ok(Answer::NotStorable);
                }
                pieces.push(piece);
            }
            described.total = Some(bytes);
            body = stream::iter(pieces).map(Ok::<Bytes, String>).boxed();
        }
        if described.total.is_none() {
            return Ok(Answer::NotStorable);
        }
        Ok(self.plan(&described).map_or(Answer::NotStorable, |plan| Answer::Stream(plan, body)))
    }

    /// The object that an answer describes; `None` if it cannot be stored.
    fn plan(&self, described: &Description) -> Option<Plan> {
        let options = &self.site.options;
        let size = described.total?;
        let segment_bytes = options.segment_bytes;
        if !described.storable || size > options.object_bytes_max || size.div_ceil(segment_bytes) > SEGMENTS_MAX {
            return None;
        }
        let mut attributes = described.attributes.clone();
        attributes.system.insert(CACHED.to_owned(), String::new());
        let modified_ms = described.modified_ms.unwrap_or_else(|| self.site.env.wall_ms());
        let info = ObjectInfo {
            key: self.key.clone(),
            size,
            modified_ms,
            version: 0,
            attributes: attributes.clone(),
            part_count: 0,
        };
        let if_match = match &described.tag {
            Tag::Strong(tag) => Some(format!("\"{tag}\"")),
            Tag::Weak(_) | Tag::None => None,
        };
        let stored = StoredObject { modified_ms, attributes, ..StoredObject::default() };
        Some(Plan { info, stored, if_match, segment_bytes })
    }

    /// Publishes the plan to all requests that wait for the headers.
    pub(super) fn publish(&self, plan: Plan, stored: &[u16]) -> Arc<Plan> {
        let plan = Arc::new(plan);
        self.state.lock().set_plan(plan.clone(), stored);
        self.progress.notify_waiters();
        plan
    }

    /// Runs the fill to its end.
    pub(super) async fn fetch_all(self: &Arc<Self>, opening: Opening) -> Result<FillEnd, EdgeError> {
        let site = &self.site;
        match site.store.object(&site.options.bucket, &self.key) {
            // Another fill has stored it just now.
            Ok(_) => return Ok(FillEnd::Stopped),
            Err(StoreError::NoSuchKey) => {}
            Err(e) => return Err(e.into()),
        }
        let connection = site.connect(&site.connections.wanted).await?;
        let left = self.left_over()?;
        match self.question(opening, left.as_ref()).await? {
            Answer::NotStorable => Ok(FillEnd::NotStorable),
            Answer::Headers(plan) => {
                self.publish(plan, &[]);
                Ok(FillEnd::Stopped)
            }
            Answer::Stream(plan, body) => {
                if let Some(left) = left {
                    self.abort(&left.upload).await;
                }
                let plan = self.publish(plan, &[]);
                self.begin_upload(&plan).await?;
                if self.fetch_stream(&plan, body).await? {
                    drop(connection);
                    return self.schedule(&plan).await;
                }
                Ok(FillEnd::Stopped)
            }
            Answer::Ranges(plan, first) => {
                let (same, other): (Option<_>, Option<_>) = match left {
                    Some(left) if left.is_of(&plan) => (Some(left), None),
                    left => (None, left),
                };
                let stored = same.as_ref().map(|left| &left.stored[..]).unwrap_or_default();
                let plan = self.publish(plan, stored);
                match same {
                    Some(left) => self.use_upload(left.upload),
                    None => self.begin_upload(&plan).await?,
                }
                if let Some(left) = other {
                    self.abort(&left.upload).await;
                }
                if let Some((segment, part)) = first
                    && self.state.lock().begin(segment, false)
                {
                    self.spawn_fetch(&plan, segment, Some(connection), Some(part));
                }
                self.schedule(&plan).await
            }
        }
    }
}
