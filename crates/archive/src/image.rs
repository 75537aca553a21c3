//! The image of a pool: all of its disks as they were at one moment.

use std::collections::BTreeMap;

use bytes::Bytes;
use steadfast_log::format::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, ExtentHeader, ExtentId, ExtentKind, Lineage, Superblock,
};
use steadfast_log::{ExtentCut, LogCut, Ranges};

use crate::changes::{Changes, Counters, DiskAbout, DiskChange, ExtentChange, Part, Source, UseChange, UseKind};
use crate::dropped::Dropped;
use crate::name::{DiskId, ObjectName, UseId};

/// No log reaches this epoch.
const EPOCH_MAX: u64 = 1 << 62;

/// Most extents of a disk: those of a PiB, at the usual 64 MiB. An open disk takes some 200 bytes
/// of memory for each.
const EXTENTS_MAX: u32 = 1 << 24;

/// Changes that do not fit the image: the objects were changed by hand, or a bug wrote them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the manifest contradicts itself: {0}")]
pub struct ImageError(pub(crate) String);

/// One use of an extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UseImage {
    /// Its epoch.
    pub epoch: u64,
    /// The opening that took it.
    pub opening: u64,
    /// What it is for.
    pub kind: UseKind,
    /// Whether nothing is added any more.
    pub sealed: bool,
    /// Its durable ranges. What no part covers was never written, or is damaged on the disk.
    pub durable: Ranges,
    /// Its parts, by where they begin.
    pub parts: BTreeMap<u32, Part>,
}

impl UseImage {
    fn new(of: &UseChange) -> Self {
        Self {
            epoch: of.epoch,
            opening: of.opening,
            kind: of.kind,
            sealed: of.sealed,
            durable: Ranges::default(),
            parts: BTreeMap::new(),
        }
    }

    /// Whether it is the use of this epoch and opening.
    pub(crate) fn is(&self, epoch: u64, opening: u64) -> bool {
        (self.epoch, self.opening) == (epoch, opening)
    }

    fn apply(&mut self, id: UseId, change: &UseChange, dropped: &mut Dropped) -> Result<(), ImageError> {
        let wrong = |what: &str| ImageError(format!("{what} in epoch {}", change.epoch));
        let mut durable = Ranges::default();
        for (begin, end) in &change.durable {
            if begin >= end || (durable.end() >= *begin && !durable.is_empty()) {
                return Err(wrong("ranges out of order"));
            }
            durable.insert(*begin..*end);
        }
        self.sealed |= change.sealed;
        // What was durable stays so: damage to the disk takes nothing from the archive.
        self.durable.extend(&durable);
        if change.whole {
            dropped.note(id, self.parts.values());
            self.parts.clear();
        }
        for part in &change.parts {
            self.put(*part).ok_or_else(|| wrong("overlapping parts"))?;
        }
        Ok(())
    }

    /// Adds a part; `None` if it does not fit.
    fn put(&mut self, part: Part) -> Option<()> {
        let end = part.from.checked_add(part.len).filter(|end| *end > part.from)?;
        let before = self.parts.range(..end).next_back();
        let is_apart = before.is_none_or(|(_, before)| before.from + before.len <= part.from);
        let is_durable = Ranges::of(part.from..end).without(&self.durable).is_empty();
        (is_apart && is_durable).then(|| _ = self.parts.insert(part.from, part))
    }

    /// Whether its parts have all that is durable of it.
    fn is_whole(&self) -> bool {
        let mut stored = Ranges::default();
        self.parts.values().for_each(|part| stored.insert(part.from..part.from + part.len));
        self.durable.without(&stored).is_empty()
    }

    /// Whether its end is found by reading it: it takes records, and has no trailer yet.
    pub(crate) fn ends_unmarked(&self) -> bool {
        self.kind == UseKind::Commit && !self.sealed
    }

    /// The bytes of its parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.values().map(|part| u64::from(part.len)).sum()
    }

    /// Whether parts of it lie in documents, which hold bytes of many uses.
    pub(crate) fn is_scattered(&self) -> bool {
        self.parts.values().any(|part| !matches!(part.source, Source::Piece { .. }))
    }

    fn to_change(&self) -> UseChange {
        UseChange {
            epoch: self.epoch,
            opening: self.opening,
            kind: self.kind,
            sealed: self.sealed,
            durable: pairs(&self.durable),
            whole: true,
            parts: self.parts.values().copied().collect(),
        }
    }
}

/// Ranges as pairs of begin and end.
pub(crate) fn pairs(ranges: &Ranges) -> Vec<(u32, u32)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

/// An extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtentImage {
    /// It is not in use.
    Free {
        /// Its last epoch.
        epoch: u64,
    },
    /// Its data is gone from the disk.
    Lost {
        /// Its epoch; 0 if unknown.
        epoch: u64,
    },
    /// It is in use.
    Used(UseImage),
}

impl ExtentImage {
    /// The use, if it is this one.
    pub(crate) fn used(&self, epoch: u64, opening: u64) -> Option<&UseImage> {
        match self {
            Self::Used(of) if of.is(epoch, opening) => Some(of),
            _ => None,
        }
    }

    /// Whether the archive has all that was in it.
    fn is_whole(&self) -> bool {
        match self {
            Self::Free { .. } => true,
            Self::Lost { .. } => false,
            Self::Used(of) => of.is_whole(),
        }
    }

    fn epoch(&self) -> u64 {
        match self {
            Self::Free { epoch } | Self::Lost { epoch } => *epoch,
            Self::Used(of) => of.epoch,
        }
    }

    fn to_change(&self) -> ExtentChange {
        match self {
            Self::Free { epoch } => ExtentChange::Free { epoch: *epoch },
            Self::Lost { epoch } => ExtentChange::Lost { epoch: *epoch },
            Self::Used(of) => ExtentChange::Used(of.to_change()),
        }
    }
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskImage {
    /// What it is.
    pub about: DiskAbout,
    /// The counters of its log.
    pub counters: Counters,
    /// Its extents.
    pub extents: BTreeMap<u32, ExtentImage>,
}

impl DiskImage {
    /// The header of an extent that is not in use.
    pub(crate) fn free_header(&self, superblock: &Superblock, extent: u32, epoch: u64) -> Bytes {
        let header = ExtentHeader {
            id: ExtentId { pool: superblock.pool, extent, epoch },
            kind: ExtentKind::Free,
            base_lsn: 0,
            recycled_lsn: self.counters.recycled_lsn,
            lineage: Lineage::default(),
        };
        Bytes::copy_from_slice(&header.encode())
    }

    /// Notes that an extent of this disk is not in use any more, or otherwise.
    fn drop_use(disk: DiskId, extent: u32, was: Option<ExtentImage>, dropped: &mut Dropped) {
        if let Some(ExtentImage::Used(of)) = was {
            dropped.note(UseId { disk, extent, epoch: of.epoch, opening: of.opening }, of.parts.values());
        }
    }

    fn apply(&mut self, disk: DiskId, change: &DiskChange, dropped: &mut Dropped) -> Result<(), ImageError> {
        let extent_bytes = change.about.extent_bytes;
        if !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) {
            return Err(ImageError(format!("extents of {extent_bytes} bytes")));
        }
        if change.counters.next_epoch > EPOCH_MAX {
            return Err(ImageError(format!("epoch {}", change.counters.next_epoch)));
        }
        (self.about, self.counters) = (change.about.clone(), change.counters);
        for (extent, change) in &change.extents {
            if *extent >= EXTENTS_MAX {
                return Err(ImageError(format!("extent {extent}")));
            }
            let of = match change {
                ExtentChange::Free { epoch } => ExtentImage::Free { epoch: *epoch },
                ExtentChange::Lost { epoch } => ExtentImage::Lost { epoch: *epoch },
                ExtentChange::Used(change) => {
                    let known = match self.extents.remove(extent) {
                        Some(ExtentImage::Used(of)) if of.is(change.epoch, change.opening) => Some(of),
                        was => {
                            Self::drop_use(disk, *extent, was, dropped);
                            None
                        }
                    };
                    let id = UseId { disk, extent: *extent, epoch: change.epoch, opening: change.opening };
                    let mut of = known.unwrap_or_else(|| UseImage::new(change));
                    of.apply(id, change, dropped).map_err(|e| ImageError(format!("extent {extent}: {}", e.0)))?;
                    if u64::from(of.durable.end()) > extent_bytes {
                        return Err(ImageError(format!("extent {extent} ends behind its end")));
                    }
                    ExtentImage::Used(of)
                }
            };
            if of.epoch() > EPOCH_MAX {
                return Err(ImageError(format!("extent {extent} has epoch {}", of.epoch())));
            }
            let was = self.extents.insert(*extent, of);
            Self::drop_use(disk, *extent, was, dropped);
        }
        Ok(())
    }

    /// Whether the archive has all that was on the disk. Not so where the disk itself was damaged.
    pub(crate) fn is_whole(&self) -> bool {
        self.extents.values().all(ExtentImage::is_whole)
    }

    /// Why a log with this content, its first cut, does not have all that the image has; `None` if
    /// it does.
    pub(crate) fn lacking(&self, cut: &LogCut) -> Option<String> {
        let Counters { last_lsn, .. } = self.counters;
        if cut.last_lsn < last_lsn {
            return Some(format!("its log ends at LSN {}, and the archive has it up to {last_lsn}", cut.last_lsn));
        }
        for (extent, of) in &self.extents {
            let ExtentImage::Used(of) = of else { continue };
            let has = match cut.changed.get(extent) {
                // It was recycled since, or damage took it from the disk.
                Some(ExtentCut::Free { epoch }) => *epoch >= of.epoch,
                Some(ExtentCut::Lost { .. }) => true,
                // The header is damaged, and with it the opening.
                Some(ExtentCut::InUse(there)) if there.epoch == of.epoch && there.opening == 0 => true,
                // Damage may have taken the ends of one that was sealed.
                Some(ExtentCut::InUse(there)) if there.epoch == of.epoch => {
                    there.opening == of.opening && (of.sealed || of.durable.without(&there.durable).is_empty())
                }
                Some(ExtentCut::InUse(there)) => there.epoch > of.epoch,
                None => false,
            };
            if !has {
                return Some(format!("extent {extent} is not as the archive has it in epoch {}", of.epoch));
            }
        }
        None
    }

    fn to_change(&self) -> DiskChange {
        let extents = self.extents.iter().map(|(extent, of)| (*extent, of.to_change())).collect();
        DiskChange { about: self.about.clone(), counters: self.counters, extents }
    }
}

/// All disks of a pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The disks.
    pub disks: BTreeMap<DiskId, DiskImage>,
}

impl Image {
    /// LSN of the last record of each disk.
    pub(crate) fn last_lsns(&self) -> BTreeMap<DiskId, u64> {
        self.disks.iter().map(|(id, disk)| (*id, disk.counters.last_lsn)).collect()
    }

    /// Makes it the image of a later moment. Notes what it does not name any more.
    ///
    /// # Errors
    /// When the changes do not fit it.
    pub(crate) fn apply(&mut self, changes: &Changes, dropped: &mut Dropped) -> Result<(), ImageError> {
        for (disk, change) in &changes.disks {
            let new = || DiskImage { about: change.about.clone(), counters: change.counters, extents: BTreeMap::new() };
            let of = self.disks.entry(*disk).or_insert_with(new);
            of.apply(*disk, change, dropped).map_err(|e| ImageError(format!("disk {disk}: {}", e.0)))?;
        }
        Ok(())
    }

    /// Drops the disks that left the pool before a time, in milliseconds since the Unix epoch.
    pub(crate) fn forget_left(&mut self, before_ms: u64, dropped: &mut Dropped) {
        self.disks.retain(|disk, of| {
            let stays = of.about.left_ms.is_none_or(|left_ms| left_ms >= before_ms);
            if !stays {
                let extents = std::mem::take(&mut of.extents);
                extents.into_iter().for_each(|(extent, was)| DiskImage::drop_use(*disk, extent, Some(was), dropped));
            }
            stays
        });
    }

    /// The objects in which its bytes lie, one for each part.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectName> {
        let uses = self.disks.iter().flat_map(|(disk, of)| {
            of.extents.iter().filter_map(|(extent, of)| match of {
                ExtentImage::Used(of) => {
                    Some((UseId { disk: *disk, extent: *extent, epoch: of.epoch, opening: of.opening }, of))
                }
                _ => None,
            })
        });
        uses.flat_map(|(id, of)| of.parts.values().filter_map(move |part| part.source.object(id)))
    }

    /// Everything, as changes of nothing.
    pub(crate) fn to_changes(&self) -> Changes {
        Changes { disks: self.disks.iter().map(|(disk, of)| (*disk, of.to_change())).collect() }
    }

    /// A use, if the image has it.
    pub(crate) fn find(&self, of: UseId) -> Option<&UseImage> {
        self.disks.get(&of.disk)?.extents.get(&of.extent)?.used(of.epoch, of.opening)
    }

    /// Gives the parts that lay in one document the number under which it was stored.
    pub(crate) fn settle(&mut self, changes: &Changes, settled: impl Fn(u64) -> Source) {
        for (disk, change) in &changes.disks {
            let Some(of) = self.disks.get_mut(disk) else { continue };
            for (extent, change) in &change.extents {
                let ExtentChange::Used(change) = change else { continue };
                let Some(ExtentImage::Used(of)) = of.extents.get_mut(extent) else { continue };
                for part in &change.parts {
                    if let (Source::Here { at }, Some(known)) = (part.source, of.parts.get_mut(&part.from)) {
                        known.source = settled(at);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Numbered;

    fn used(epoch: u64, whole: bool, parts: Vec<Part>) -> ExtentChange {
        let durable = vec![(0, 8192)];
        let kind = UseKind::Commit;
        ExtentChange::Used(UseChange { epoch, opening: 1, kind, sealed: true, durable, whole, parts })
    }

    fn part(from: u32, source: Source) -> Part {
        Part { from, len: 4096, crc: 0, source }
    }

    #[test]
    fn what_an_image_does_not_name_any_more_is_noted() {
        let by = |n| Numbered { tenure: 1, n };
        let disk = DiskId([1; 16]);
        let about = |left_ms| DiskAbout {
            name: "d".to_owned(),
            extent_bytes: 1 << 20,
            created_ms: 1,
            features: [0; 3],
            left_ms,
        };
        let changes = |left_ms, extents: Vec<(u32, ExtentChange)>| {
            let of = DiskChange {
                about: about(left_ms),
                counters: Counters::default(),
                extents: extents.into_iter().collect(),
            };
            Changes { disks: BTreeMap::from([(disk, of)]) }
        };
        let (mut image, mut dropped) = (Image::default(), Dropped::default());
        let mut now = |image: &mut Image, changes: &Changes| {
            image.apply(changes, &mut dropped).expect("it fits");
            std::mem::take(&mut dropped).objects().collect::<Vec<_>>()
        };
        let in_segment = |from, n| part(from, Source::Segment { by: by(n), at: 0 });
        let first = [(0, used(1, false, vec![in_segment(0, 1)])), (1, used(2, false, vec![in_segment(0, 2)]))];
        assert_eq!(now(&mut image, &changes(None, first.to_vec())), []);
        // Further bytes of the same use.
        assert_eq!(now(&mut image, &changes(None, vec![(0, used(1, false, vec![in_segment(4096, 3)]))])), []);
        // The whole use in a piece.
        let piece = part(0, Source::Piece { from: 0, by: by(7), at: 0 });
        let whole = [(0, used(1, true, vec![piece]))];
        let segments = [1, 3].map(|n| ObjectName::Segment(by(n)));
        assert_eq!(now(&mut image, &changes(None, whole.to_vec())), segments);
        // Another use, and none.
        let next = [(0, used(5, false, vec![])), (1, ExtentChange::Free { epoch: 2 })];
        let of = UseId { disk, extent: 0, epoch: 1, opening: 1 };
        let gone = [ObjectName::Segment(by(2)), ObjectName::Piece { of, from: 0, by: by(7) }];
        assert_eq!(now(&mut image, &changes(None, next.to_vec())), gone);
        // A disk that has left.
        now(&mut image, &changes(Some(50), vec![(3, used(9, false, vec![in_segment(0, 8)]))]));
        let mut dropped = Dropped::default();
        image.forget_left(50, &mut dropped);
        assert!(!image.disks.is_empty() && dropped.objects().next().is_none());
        image.forget_left(51, &mut dropped);
        assert!(image.disks.is_empty());
        assert_eq!(dropped.objects().collect::<Vec<_>>(), [ObjectName::Segment(by(8))]);
    }

    #[test]
    fn impossible_extents_and_epochs_are_refused() {
        let about = DiskAbout {
            name: "a".to_owned(),
            extent_bytes: EXTENT_BYTES_MIN,
            created_ms: 1,
            features: [0; 3],
            left_ms: None,
        };
        let apply = |extent: u32, change: ExtentChange| {
            let extents = BTreeMap::from([(extent, change)]);
            let of = DiskChange { about: about.clone(), counters: Counters::default(), extents };
            let changes = Changes { disks: BTreeMap::from([(DiskId([1; 16]), of)]) };
            Image::default().apply(&changes, &mut Dropped::default())
        };
        let free = |epoch: u64| ExtentChange::Free { epoch };
        apply(EXTENTS_MAX - 1, free(EPOCH_MAX)).expect("both are possible");
        apply(EXTENTS_MAX, free(1)).expect_err("no disk has so many extents");
        apply(0, free(EPOCH_MAX + 1)).expect_err("no log reaches the epoch");
        apply(0, ExtentChange::Lost { epoch: u64::MAX }).expect_err("no log reaches the epoch");
    }
}
