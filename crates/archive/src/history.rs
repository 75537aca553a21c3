//! The states that an archive has.

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::attempts::Attempts;
use crate::changes::Changes;
use crate::document::{DocumentKind, decode};
use crate::error::ArchiveError;
use crate::head::{Base, NamedCut, Period, Segment, SegmentRun};
use crate::load::{DOCUMENT_BYTES_MAX, READS};
use crate::name::ObjectName;

/// A complete state of an archive, and those that followed until the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArchivePoint {
    /// When it was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The base that has it.
    pub base: String,
    /// Further states before the next one, each of which can be restored too.
    pub further: u64,
}

/// The periods of an archive, the oldest first. The base of the head lists them: one that was found
/// otherwise proves nothing, as no head may ever have named it.
pub(crate) struct History(pub(crate) Vec<Period>);

impl History {
    /// Reads the periods that can be restored, from the base that a cut names.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when it is missing or was changed.
    pub(crate) async fn read(attempts: &Attempts, cut: &NamedCut) -> Result<Self, ArchiveError> {
        let name = ObjectName::Base(cut.base).to_string();
        let object = attempts.read(&name, None, DOCUMENT_BYTES_MAX).await?;
        let (base, _) = decode::<Base>(DocumentKind::Base, &object.body).map_err(ArchiveError::document(&name))?;
        let mut periods = base.before;
        periods.push(Period { base: cut.base, begin_ms: base.time_ms, segments: cut.segments.clone() });
        Ok(Self(periods))
    }

    /// The cut of the last state that is not later than a time; `None` if all are later.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when a segment is missing or was changed.
    pub(crate) async fn find(&self, attempts: &Attempts, time_ms: u64) -> Result<Option<NamedCut>, ArchiveError> {
        let Some(period) = self.0.iter().rev().find(|period| period.begin_ms <= time_ms) else { return Ok(None) };
        let (mut found_ms, mut segments) = (period.begin_ms, Vec::new());
        let times = stream::iter(SegmentRun::all(&period.segments)).map(|by| async move {
            let name = ObjectName::Segment(by).to_string();
            let object = attempts.read(&name, None, DOCUMENT_BYTES_MAX).await?;
            let segment = decode::<Segment>(DocumentKind::Segment, &object.body);
            segment.map(|(segment, _)| (by, segment.time_ms)).map_err(ArchiveError::document(&name))
        });
        let mut times = std::pin::pin!(times.buffered(READS));
        while let Some((by, at_ms)) = times.try_next().await?.filter(|(_, at_ms)| *at_ms <= time_ms) {
            found_ms = at_ms;
            SegmentRun::push(&mut segments, by);
        }
        Ok(Some(NamedCut { time_ms: found_ms, base: period.base, segments, changes: Changes::default() }))
    }

    /// The complete states, the oldest first.
    pub(crate) fn points(&self) -> Vec<ArchivePoint> {
        let point = |period: &Period| ArchivePoint {
            time_ms: period.begin_ms,
            base: ObjectName::Base(period.base).to_string(),
            further: period.segments.iter().fold(0, |sum, run| sum.saturating_add(run.count)),
        };
        self.0.iter().map(point).collect()
    }
}
