//! The image that the heads of an archive name, one after the other.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::attempts::Attempts;
use crate::changes::{Changes, Source};
use crate::document::DocumentKind;
use crate::dropped::Dropped;
use crate::error::ArchiveError;
use crate::head::{NamedCut, Segment, SegmentRun};
use crate::image::{DiskImage, Image};
use crate::load::{Loaded, document, refuse_newer};
use crate::name::{DiskId, HEAD, Numbered, ObjectName};

/// An extent of a disk.
type Place = (DiskId, u32);

/// The image of the last base and its segments. What the head itself has comes on top of it.
#[derive(Debug, Default)]
pub(crate) struct FollowedImage {
    image: Image,
    /// The base and the segments, if there are any yet.
    at: Option<(Numbered, Vec<SegmentRun>)>,
    /// Extents that have changed, and whose change was not taken yet.
    changed: BTreeSet<Place>,
}

fn places(image: &Image) -> impl Iterator<Item = Place> {
    image.disks.iter().flat_map(|(disk, of)| of.extents.keys().map(|extent| (*disk, *extent)))
}

impl FollowedImage {
    /// Reads what a cut has beyond the last one.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when objects are missing or were changed.
    pub(crate) async fn advance(&mut self, attempts: &Attempts, cut: &NamedCut) -> Result<(), ArchiveError> {
        let further = match &self.at {
            Some((base, known)) if *base == cut.base => further(known, &cut.segments),
            _ => None,
        };
        let Some(further) = further else { return self.load(attempts, cut).await };
        let mut segments = Vec::with_capacity(further.len());
        for by in further {
            let name = ObjectName::Segment(by).to_string();
            let mut segment: Segment = document(attempts, DocumentKind::Segment, &name).await?;
            segment.changes.settle(|at| Source::Segment { by, at });
            segments.push((name, segment.changes));
        }
        // Until all are applied, the image is of no cut.
        self.at = None;
        for (name, changes) in segments {
            self.changed.extend(changes.places());
            self.image.apply(&changes, &mut Dropped::default()).map_err(ArchiveError::image(&name))?;
        }
        self.at = Some((cut.base, cut.segments.clone()));
        Ok(())
    }

    /// Reads all that a cut has but for the changes in its head.
    async fn load(&mut self, attempts: &Attempts, cut: &NamedCut) -> Result<(), ArchiveError> {
        let documents = NamedCut { changes: Changes::default(), ..cut.clone() };
        let loaded = Loaded::read(attempts, &documents, &Bytes::new()).await?;
        refuse_newer(&loaded.image)?;
        self.changed = places(&loaded.image).collect();
        (self.image, self.at) = (loaded.image, Some((cut.base, cut.segments.clone())));
        Ok(())
    }

    /// What has changed, with the changes of the head of the same cut: all disks, each with the
    /// changed extents only.
    ///
    /// # Errors
    /// When the changes do not fit the image.
    pub(crate) fn changes(&self, of_head: &Changes) -> Result<Image, ArchiveError> {
        let changed: BTreeSet<Place> = self.changed.iter().copied().chain(of_head.places()).collect();
        let some = |(disk, of): (&DiskId, &DiskImage)| {
            let known = changed.range((*disk, 0)..=(*disk, u32::MAX));
            let extents = known.filter_map(|(_, extent)| Some((*extent, of.extents.get(extent)?.clone())));
            (*disk, DiskImage { about: of.about.clone(), counters: of.counters, extents: extents.collect() })
        };
        let image = Image { disks: self.image.disks.iter().map(some).collect() };
        Self::with(image, of_head)
    }

    /// The whole image, with the changes of the head of the same cut.
    ///
    /// # Errors
    /// When the changes do not fit the image.
    pub(crate) fn whole(&self, of_head: &Changes) -> Result<Image, ArchiveError> {
        Self::with(self.image.clone(), of_head)
    }

    fn with(mut image: Image, of_head: &Changes) -> Result<Image, ArchiveError> {
        image.apply(of_head, &mut Dropped::default()).map_err(ArchiveError::image(HEAD))?;
        refuse_newer(&image)?;
        Ok(image)
    }

    /// All changes were taken.
    pub(crate) fn taken(&mut self) {
        self.changed.clear();
    }
}

/// The segments that follow the known ones; `None` if the known ones are not the first.
fn further(known: &[SegmentRun], all: &[SegmentRun]) -> Option<Vec<Numbered>> {
    let mut all = SegmentRun::all(all);
    let is_first = SegmentRun::all(known).all(|by| all.next() == Some(by));
    is_first.then(|| all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_only_their_own_predecessors() {
        let by = |tenure, n| Numbered { tenure, n };
        let run = |tenure, n, count| SegmentRun { first: by(tenure, n), count };
        let known = [run(1, 5, 2)];
        assert_eq!(further(&known, &known), Some(vec![]));
        assert_eq!(further(&known, &[run(1, 5, 3), run(2, 1, 1)]), Some(vec![by(1, 7), by(2, 1)]));
        assert_eq!(further(&[], &known), Some(vec![by(1, 5), by(1, 6)]));
        for other in [&[run(1, 5, 1)][..], &[run(1, 6, 2)], &[run(2, 5, 2)], &[]] {
            assert_eq!(further(&known, other), None, "{other:?}");
        }
    }
}
