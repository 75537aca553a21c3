//! What the disks of a standby hold.

use std::collections::BTreeMap;

use steadfast_log::Ranges;

use crate::image::{ExtentImage, Image};
use crate::name::{DiskId, UseId};

/// The last use of an extent that a disk got something of.
#[derive(Debug, Default)]
struct HeldUse {
    epoch: u64,
    opening: u64,
    ranges: Ranges,
}

/// The ranges of each use that the disks of a standby hold. A range of a use has the same bytes in
/// all states that have it.
#[derive(Debug, Default)]
pub(crate) struct HeldUses(BTreeMap<(DiskId, u32), HeldUse>);

impl HeldUses {
    /// All that an image names, but for disks that have left the pool: they are not copied.
    pub(crate) fn of(image: &Image) -> Self {
        let mut held = Self::default();
        for (disk, of) in image.disks.iter().filter(|(_, of)| of.about.left_ms.is_none()) {
            for (extent, of) in &of.extents {
                let ExtentImage::Used(of) = of else { continue };
                let id = UseId { disk: *disk, extent: *extent, epoch: of.epoch, opening: of.opening };
                held.begin(id, false);
                of.parts.values().for_each(|part| held.add(id, part.from..part.from + part.len));
            }
        }
        held
    }

    /// Whether an extent had a use.
    pub(crate) fn had_use(&self, disk: DiskId, extent: u32) -> bool {
        self.0.contains_key(&(disk, extent))
    }

    /// Begins with a use of an extent, if it is another one than before. With `keeps`, which is a
    /// bug, the disk seems to have what it had of that.
    pub(crate) fn begin(&mut self, id: UseId, keeps: bool) {
        let of = self.0.entry((id.disk, id.extent)).or_default();
        if (of.epoch, of.opening) != (id.epoch, id.opening) {
            let ranges = if keeps { std::mem::take(&mut of.ranges) } else { Ranges::default() };
            *of = HeldUse { epoch: id.epoch, opening: id.opening, ranges };
        }
    }

    /// Whether the disk has a range of a use.
    pub(crate) fn has(&self, id: UseId, range: std::ops::Range<u32>) -> bool {
        let of = self.0.get(&(id.disk, id.extent)).filter(|of| (of.epoch, of.opening) == (id.epoch, id.opening));
        of.is_some_and(|of| Ranges::of(range).without(&of.ranges).is_empty())
    }

    /// The disk has got a range of a use, which was begun with.
    pub(crate) fn add(&mut self, id: UseId, range: std::ops::Range<u32>) {
        let of = self.0.get_mut(&(id.disk, id.extent)).expect("the use was begun with");
        assert_eq!((of.epoch, of.opening), (id.epoch, id.opening), "the use was begun with");
        of.ranges.insert(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_for_their_use_only() {
        let id = |epoch| UseId { disk: DiskId([1; 16]), extent: 3, epoch, opening: 1 };
        let mut held = HeldUses::default();
        assert!(!held.had_use(DiskId([1; 16]), 3));
        held.begin(id(5), false);
        assert!(held.had_use(DiskId([1; 16]), 3) && !held.had_use(DiskId([2; 16]), 3));
        held.add(id(5), 0..4096);
        held.add(id(5), 8192..12288);
        held.begin(id(5), false);
        assert!(held.has(id(5), 0..4096) && !held.has(id(5), 0..12288));
        assert!(!held.has(id(6), 0..4096) && !held.has(UseId { opening: 2, ..id(5) }, 0..4096));
        held.begin(id(6), false);
        assert!(!held.has(id(6), 0..4096) && !held.has(id(5), 0..4096));
    }
}
