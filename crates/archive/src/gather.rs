//! Ships bytes of sealed extents once more, as pieces. They lie in many documents, and a restore is
//! to read few objects. And bytes of a body would keep a document as long as the body lives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use steadfast_log::Ranges;

use crate::attempts::Attempts;
use crate::changes::{Changes, DiskChange, ExtentChange, UseChange, UseKind};
use crate::dropped::Dropped;
use crate::error::ArchiveError;
use crate::following::Following;
use crate::image::{ExtentImage, Image, UseImage, pairs};
use crate::name::{ObjectName, UseId};
use crate::options::ArchiveOptions;
use crate::transfer::{Copied, Numbers, ToCopy, Uploads};

/// Gathers the bytes of one use after the other.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// The uses whose bytes are scattered.
    scattered: BTreeSet<UseId>,
    /// What was copied of them.
    copied: BTreeMap<UseId, Copied>,
    /// Those that are whole, and not yet named.
    ready: BTreeMap<UseId, UseChange>,
    /// What was copied for nothing.
    given_up: Dropped,
}

fn is_scattered(of: &UseImage) -> bool {
    of.sealed && of.is_scattered()
}

/// What need not be copied of a use: of bodies, what lies in pieces already. Records lie in so many
/// that a restore is to read fewer.
fn kept(id: UseId, of: &UseImage) -> Copied {
    let mut kept = Copied::default();
    if of.kind == UseKind::Commit {
        return kept;
    }
    let mut scattered = Ranges::default();
    for part in of.parts.values() {
        match part.source.object(id) {
            Some(ObjectName::Piece { .. }) => kept.parts.push(*part),
            _ => scattered.insert(part.from..part.from + part.len),
        }
    }
    kept.ranges = of.durable.without(&scattered);
    kept
}

impl Gather {
    /// What an image has to be gathered.
    pub(crate) fn new(image: &Image) -> Self {
        let mut gather = Self::default();
        for (disk, of) in &image.disks {
            for (extent, of) in &of.extents {
                if let ExtentImage::Used(of) = of
                    && is_scattered(of)
                {
                    let id = UseId { disk: *disk, extent: *extent, epoch: of.epoch, opening: of.opening };
                    gather.scattered.insert(id);
                }
            }
        }
        gather
    }

    /// Whether something is to be named.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Notes what the changes, which the image has by now, have sealed.
    pub(crate) fn note(&mut self, changes: &Changes, image: &Image) {
        for (disk, of) in &changes.disks {
            for (extent, change) in &of.extents {
                let ExtentChange::Used(change) = change else { continue };
                let id = UseId { disk: *disk, extent: *extent, epoch: change.epoch, opening: change.opening };
                if image.find(id).is_some_and(is_scattered) {
                    self.scattered.insert(id);
                }
            }
        }
    }

    /// Adds what was gathered to changes of the image.
    pub(crate) fn add_to(&mut self, changes: &mut Changes, image: &Image) {
        for (id, whole) in std::mem::take(&mut self.ready) {
            let Some(disk) = image.disks.get(&id.disk).filter(|_| image.find(id).is_some()) else {
                self.given_up.note(id, &whole.parts);
                continue;
            };
            let about = || DiskChange { about: disk.about.clone(), counters: disk.counters, extents: BTreeMap::new() };
            let change = changes.disks.entry(id.disk).or_insert_with(about);
            // A change of the extent means that it was recycled, as nothing is added to it.
            match change.extents.entry(id.extent) {
                Entry::Vacant(place) => _ = place.insert(ExtentChange::Used(whole)),
                Entry::Occupied(_) => self.given_up.note(id, &whole.parts),
            }
        }
    }

    /// Takes what was copied for nothing: no state will name it.
    pub(crate) fn take_given_up(&mut self) -> Dropped {
        std::mem::take(&mut self.given_up)
    }

    /// Whether something is to be copied.
    pub(crate) fn has_work(&self) -> bool {
        !self.scattered.is_empty()
    }

    /// Copies a piece.
    pub(crate) async fn step(
        &mut self,
        following: &Following,
        image: &Image,
        (attempts, numbers): (&Attempts, &mut Numbers),
        options: &ArchiveOptions,
    ) -> Result<(), ArchiveError> {
        let Some(id) = self.scattered.first().copied() else { return Ok(()) };
        let known = image.find(id).filter(|of| is_scattered(of));
        let log = following.log(id.disk);
        let (Some(known), Some(log)) = (known, log) else {
            self.forget(id);
            return Ok(());
        };
        let copied = self.copied.entry(id).or_insert_with(|| kept(id, known));
        let missing = known.durable.without(&copied.ranges);
        let Some(next) = missing.iter().next() else {
            let parts = std::mem::take(&mut copied.parts);
            self.forget(id);
            let UseImage { epoch, opening, kind, sealed, durable, .. } = known;
            let (epoch, opening, kind, sealed) = (*epoch, *opening, *kind, *sealed);
            let whole = UseChange { epoch, opening, kind, sealed, durable: pairs(durable), whole: true, parts };
            self.ready.insert(id, whole);
            return Ok(());
        };
        let Some(reader) = log.read_use(id.extent, id.epoch).await else {
            self.forget(id);
            return Ok(());
        };
        let copy = ToCopy { id, reader, missing: Ranges::of(next.clone()) };
        let mut uploads = Uploads::new(attempts, numbers, &mut self.copied, options);
        let taken = uploads.take_piece(copy).await;
        uploads.finish().await?;
        // What the segments have of it may still be whole.
        let is_damaged = self.copied.get(&id).is_some_and(|copied| !copied.damaged.is_empty());
        if is_damaged || taken.is_err() {
            self.forget(id);
        }
        Ok(())
    }

    fn forget(&mut self, id: UseId) {
        self.scattered.remove(&id);
        if let Some(copied) = self.copied.remove(&id) {
            self.given_up.note(id, &copied.parts);
        }
    }
}
