//! Verifies all that can be restored from an archive.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempts::Attempts;
use crate::changes::{Changes, Source};
use crate::document::{DocumentKind, checksum, decode};
use crate::dropped::Dropped;
use crate::error::ArchiveError;
use crate::head::{Base, NamedCut, Period, Segment, SegmentRun};
use crate::head_writer::KnownHeadObject;
use crate::history::History;
use crate::image::Image;
use crate::inline::Inline;
use crate::load::{DOCUMENT_BYTES_MAX, Loaded, READS};
use crate::name::{HEAD, ObjectName, UseId};
use crate::named_objects::NamedObjects;
use crate::transfer_progress::TransferProgress;

/// Most damaged objects that are listed; all are counted.
const DAMAGE_LISTED_MAX: usize = 100;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveCheck {
    /// When the oldest state was taken that can be restored, in milliseconds since the Unix epoch.
    pub oldest_ms: u64,
    /// When the newest state was taken, in milliseconds since the Unix epoch.
    pub newest_ms: u64,
    /// States that can be restored.
    pub points: u64,
    /// Objects that were read.
    pub objects: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Objects that are damaged or missing.
    pub damaged: u64,
    /// What is wrong with the first of them.
    pub damage: Vec<String>,
}

/// Where bytes lie in an object: offset and length, with their checksum.
type Span = (u64, u32, u32);

/// A verification under way.
pub(crate) struct Check<'a> {
    attempts: &'a Attempts,
    named: BTreeMap<ObjectName, BTreeSet<Span>>,
    /// Names of objects, and what is wrong with them.
    damage: Vec<(String, String)>,
    found: ArchiveCheck,
}

/// Reads an object, and verifies what lies in it. Returns how many bytes were read.
async fn verify(holder: ObjectName, attempts: &Attempts, places: &BTreeSet<Span>) -> Result<u64, ArchiveError> {
    let name = holder.to_string();
    let object = attempts.read(&name, None, DOCUMENT_BYTES_MAX).await?;
    let read = object.body.len() as u64;
    let payload = match holder {
        ObjectName::Piece { .. } => object.body,
        ObjectName::Segment(_) => payload::<Segment>(DocumentKind::Segment, &name, &object.body)?,
        ObjectName::Base(_) => payload::<Base>(DocumentKind::Base, &name, &object.body)?,
        ObjectName::Dropped(_) => unreachable!("no part of a use lies in a list of dropped objects"),
    };
    let is_whole = |(at, len, crc): &Span| {
        let end = at.checked_add(u64::from(*len)).filter(|end| *end <= payload.len() as u64);
        end.is_some_and(|end| checksum(&payload[*at as usize..end as usize]) == *crc)
    };
    match places.iter().all(is_whole) {
        true => Ok(read),
        false => Err(ArchiveError::broken(&name, "its bytes were changed: the checksum does not fit")),
    }
}

fn payload<T: DeserializeOwned>(kind: DocumentKind, name: &str, body: &Bytes) -> Result<Bytes, ArchiveError> {
    decode::<T>(kind, body).map(|(_, payload)| payload).map_err(ArchiveError::document(name))
}

impl<'a> Check<'a> {
    pub(crate) fn new(attempts: &'a Attempts) -> Self {
        let (named, found) = (BTreeMap::new(), ArchiveCheck::default());
        Self { attempts, named, damage: Vec::new(), found }
    }

    /// Verifies all that can be reached from the cut of a head.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub(crate) async fn run(
        mut self,
        cut: &NamedCut,
        payload: &Bytes,
        progress: &TransferProgress,
    ) -> Result<ArchiveCheck, ArchiveError> {
        match History::read(self.attempts, cut).await {
            Ok(history) => self.states(&history, cut, payload, progress).await?,
            Err(e) => self.result(Err(e))?,
        }
        if !self.damage.is_empty()
            && let Some(named) = self.named_now().await?
        {
            // What has expired since is deleted.
            self.damage.retain(|(name, _)| ObjectName::parse(name).is_none_or(|object| named.has(object)));
        }
        self.found.damaged = self.damage.len() as u64;
        self.found.damage =
            self.damage.into_iter().take(DAMAGE_LISTED_MAX).map(|(name, why)| format!("{name}: {why}")).collect();
        Ok(self.found)
    }

    /// What the head and the kept states name by now; `None` if that cannot be read.
    async fn named_now(&self) -> Result<Option<NamedObjects>, ArchiveError> {
        let head = KnownHeadObject::read(self.attempts).await?;
        let Some(cut) = &head.head.cut else { return Ok(None) };
        let named = match Loaded::read(self.attempts, cut, &head.payload).await {
            Ok(loaded) => NamedObjects::new(&loaded).complete(self.attempts).await,
            Err(e) => Err(e),
        };
        match named {
            Ok(named) => Ok(Some(named)),
            Err(ArchiveError::Broken { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn states(
        &mut self,
        history: &History,
        cut: &NamedCut,
        payload: &Bytes,
        progress: &TransferProgress,
    ) -> Result<(), ArchiveError> {
        self.found.newest_ms = cut.time_ms;
        self.found.oldest_ms = history.0.first().map_or(cut.time_ms, |period| period.begin_ms);
        let mut image = Image::default();
        for period in &history.0 {
            image = self.manifests(period).await?;
        }
        for period in history.0.iter().skip(1) {
            // Without it, deletes stop.
            let list = ObjectName::Dropped(period.base).to_string();
            self.document::<Vec<ObjectName>>(DocumentKind::Dropped, &list).await?;
        }
        let mut changes = cut.changes.clone();
        let inline = Inline::take(&mut changes, payload);
        let applied =
            inline.and_then(|_| image.apply(&changes, &mut Dropped::default())).map_err(ArchiveError::image(HEAD));
        self.note(&changes);
        self.found.points += u64::from(!changes.disks.is_empty());
        self.result(applied)?;
        self.holders(progress).await
    }

    /// Verifies the manifests of a period. Returns its last image.
    async fn manifests(&mut self, period: &Period) -> Result<Image, ArchiveError> {
        let mut image = Image::default();
        let (by, name) = (period.base, ObjectName::Base(period.base).to_string());
        if let Some(mut base) = self.document::<Base>(DocumentKind::Base, &name).await? {
            base.changes.settle(|at| Source::Base { by, at });
            let applied = image.apply(&base.changes, &mut Dropped::default()).map_err(ArchiveError::image(&name));
            self.accept(applied, &base.changes)?;
        }
        for by in SegmentRun::all(&period.segments) {
            let name = ObjectName::Segment(by).to_string();
            let Some(mut segment) = self.document::<Segment>(DocumentKind::Segment, &name).await? else { continue };
            segment.changes.settle(|at| Source::Segment { by, at });
            let applied = image.apply(&segment.changes, &mut Dropped::default()).map_err(ArchiveError::image(&name));
            self.accept(applied, &segment.changes)?;
        }
        Ok(image)
    }

    fn accept(&mut self, applied: Result<(), ArchiveError>, changes: &Changes) -> Result<(), ArchiveError> {
        self.note(changes);
        self.found.points += u64::from(applied.is_ok());
        self.result(applied)
    }

    async fn document<T: DeserializeOwned>(
        &mut self,
        kind: DocumentKind,
        name: &str,
    ) -> Result<Option<T>, ArchiveError> {
        let read = match self.attempts.read(name, None, DOCUMENT_BYTES_MAX).await {
            Ok(object) => {
                self.found.objects += 1;
                self.found.bytes += object.body.len() as u64;
                decode(kind, &object.body).map(|(value, _)| value).map_err(ArchiveError::document(name))
            }
            Err(e) => Err(e),
        };
        match read {
            Ok(value) => Ok(Some(value)),
            Err(e) => self.result(Err(e)).map(|()| None),
        }
    }

    /// Notes which bytes are named.
    fn note(&mut self, changes: &Changes) {
        for (disk, of) in &changes.disks {
            for (extent, change) in &of.extents {
                let Some(change) = change.used() else { continue };
                let id = UseId { disk: *disk, extent: *extent, epoch: change.epoch, opening: change.opening };
                for part in &change.parts {
                    let Some(holder) = part.source.object(id) else { continue };
                    let at = match part.source {
                        Source::Piece { at, .. } => u64::from(at),
                        Source::Here { at } | Source::Segment { at, .. } | Source::Base { at, .. } => at,
                    };
                    self.named.entry(holder).or_default().insert((at, part.len, part.crc));
                }
            }
        }
    }

    /// Verifies the objects that hold bytes of the log.
    async fn holders(&mut self, progress: &TransferProgress) -> Result<(), ArchiveError> {
        let named = std::mem::take(&mut self.named);
        let bytes = |spans: &BTreeSet<Span>| spans.iter().map(|(_, len, _)| u64::from(*len)).sum::<u64>();
        progress.expect(named.values().map(bytes).sum());
        let attempts = self.attempts;
        let reads = stream::iter(named).map(|(holder, spans)| async move {
            let read = verify(holder, attempts, &spans).await;
            progress.copied(bytes(&spans));
            read
        });
        let mut reads = std::pin::pin!(reads.buffer_unordered(READS));
        while let Some(read) = reads.next().await {
            match read {
                Ok(bytes) => {
                    self.found.objects += 1;
                    self.found.bytes += bytes;
                }
                Err(e) => self.result(Err(e))?,
            }
        }
        Ok(())
    }

    /// Notes damage; other errors end the verification.
    fn result(&mut self, of: Result<(), ArchiveError>) -> Result<(), ArchiveError> {
        match of {
            Ok(()) => Ok(()),
            Err(ArchiveError::Broken { name, why }) => {
                self.damage.push((name, why));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}
