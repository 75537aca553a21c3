//! Reads the image that a head names.

use futures::{StreamExt, TryStreamExt, stream};
use serde::de::DeserializeOwned;
use steadfast_log::format::Superblock;

use crate::attempts::Attempts;
use crate::changes::Source;
use crate::document::{DocumentKind, decode};
use crate::dropped::Dropped;
use crate::error::ArchiveError;
use crate::head::{Base, NamedCut, Period, Segment, SegmentRun};
use crate::image::Image;
use crate::inline::Inline;
use crate::name::{HEAD, ObjectName};
use crate::periods::Periods;

/// Most bytes of a segment or a base.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 30;

/// Most segments of a period: a process begins the next one earlier by far.
const SEGMENTS_MAX: u64 = 1 << 20;

/// Documents read at a time.
pub(crate) const READS: usize = 8;

/// An image, with the bytes that are in no other object than the head.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) image: Image,
    pub(crate) inline: Inline,
    /// The periods whose states can be restored.
    pub(crate) periods: Periods,
    /// What the states of this period named, and the image does not.
    pub(crate) dropped: Dropped,
}

impl Loaded {
    /// Reads the image of a cut. `payload` is that of the head which names it.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when objects are missing or were changed.
    pub(crate) async fn read(
        attempts: &Attempts,
        cut: &NamedCut,
        payload: &bytes::Bytes,
    ) -> Result<Self, ArchiveError> {
        if SegmentRun::count(&cut.segments) > SEGMENTS_MAX {
            return Err(ArchiveError::broken(HEAD, "it names an impossible number of segments"));
        }
        let (mut image, mut dropped) = (Image::default(), Dropped::default());
        let base_name = ObjectName::Base(cut.base).to_string();
        let mut base: Base = document(attempts, DocumentKind::Base, &base_name).await?;
        let by = cut.base;
        base.changes.settle(|at| Source::Base { by, at });
        image.apply(&base.changes, &mut dropped).map_err(ArchiveError::image(&base_name))?;
        let segments = stream::iter(SegmentRun::all(&cut.segments)).map(|by| async move {
            let read = document::<Segment>(attempts, DocumentKind::Segment, &ObjectName::Segment(by).to_string()).await;
            read.map(|segment| (by, segment))
        });
        let mut segments = std::pin::pin!(segments.buffered(READS));
        while let Some((by, mut segment)) = segments.try_next().await? {
            segment.changes.settle(|at| Source::Segment { by, at });
            image
                .apply(&segment.changes, &mut dropped)
                .map_err(ArchiveError::image(&ObjectName::Segment(by).to_string()))?;
        }
        let mut changes = cut.changes.clone();
        let inline = Inline::take(&mut changes, payload).map_err(ArchiveError::image(HEAD))?;
        image.apply(&changes, &mut dropped).map_err(ArchiveError::image(HEAD))?;
        let is_possible = |of: &Period| SegmentRun::count(&of.segments) <= SEGMENTS_MAX;
        if !base.before.iter().all(is_possible) {
            return Err(ArchiveError::broken(&base_name, "it names an impossible number of segments"));
        }
        let newest = Period { base: cut.base, begin_ms: base.time_ms, segments: cut.segments.clone() };
        Ok(Self { image, inline, periods: Periods::new(base.before, newest), dropped })
    }
}

/// Reads a document that must exist.
///
/// # Errors
/// [`ArchiveError::Broken`] when it is missing or was changed.
pub(crate) async fn document<T: DeserializeOwned>(
    attempts: &Attempts,
    kind: DocumentKind,
    name: &str,
) -> Result<T, ArchiveError> {
    let object = attempts.read(name, None, DOCUMENT_BYTES_MAX).await?;
    let (value, _) = decode(kind, &object.body).map_err(ArchiveError::document(name))?;
    Ok(value)
}

/// Refuses disks that this build cannot write.
///
/// # Errors
/// What to do.
pub(crate) fn refuse_newer(image: &Image) -> Result<(), ArchiveError> {
    for (disk, of) in &image.disks {
        let superblock = of.about.superblock(*disk);
        if Superblock::decode(&superblock.encode()).is_err() || superblock.features.unwritable().is_some() {
            let newer =
                format!("the disk {} has a format that this build does not write: use a newer build", of.about.name);
            return Err(ArchiveError::broken(HEAD, newer));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use steadfast_flow::Env;
    use steadfast_net::{Fate, MemoryStore};

    use super::*;
    use crate::changes::Changes;
    use crate::document::encode;
    use crate::name::Numbered;

    #[tokio::test]
    async fn impossible_numbers_of_segments_are_refused() {
        let store = MemoryStore::new(&Env::tokio(), Arc::new(|_| Fate::Answered(Duration::ZERO)));
        let by = Numbered { tenure: 1, n: 1 };
        let many = vec![SegmentRun { first: by, count: 1 << 62 }];
        let earlier = Period { base: by, begin_ms: 1, segments: many.clone() };
        let base = Base { time_ms: 2, before: vec![earlier], changes: Changes::default() };
        store.force("base/1.2", Some(encode(DocumentKind::Base, &base, &[])));
        let attempts = Attempts::new(Arc::new(store), &Env::tokio());
        for (segments, name) in [(many, HEAD), (Vec::new(), "base/1.2")] {
            let base = Numbered { tenure: 1, n: 2 };
            let cut = NamedCut { time_ms: 2, base, segments, changes: Changes::default() };
            let refused = Loaded::read(&attempts, &cut, &bytes::Bytes::new()).await.expect_err("refused");
            assert!(matches!(&refused, ArchiveError::Broken { name: of, .. } if of == name), "{refused}");
        }
    }
}
