//! Pins: they keep single extents from being recycled.

use std::collections::btree_map::Entry;

use crate::extents::Extents;

/// While held, the extent is not recycled, unless free extents run low.
pub(crate) struct YieldingPin {
    extents: Extents,
    extent: u32,
    epoch: u64,
}

impl YieldingPin {
    /// A pin of an extent; `None` if it has been recycled.
    pub(crate) fn new(extents: &Extents, extent: u32, epoch: u64) -> Option<Self> {
        extents.with(|table| {
            table.get(extent).filter(|slot| slot.epoch == epoch && slot.in_use())?;
            *table.yielding_pins.entry((extent, epoch)).or_default() += 1;
            Some(Self { extents: extents.clone(), extent, epoch })
        })
    }
}

impl Drop for YieldingPin {
    fn drop(&mut self) {
        self.extents.with(|table| {
            let Entry::Occupied(mut pins) = table.yielding_pins.entry((self.extent, self.epoch)) else {
                unreachable!("an extent lost a yielding pin");
            };
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        });
    }
}

/// While held, the extent is not recycled.
pub struct ExtentPin {
    extents: Extents,
    extent: u32,
    epoch: u64,
}

impl ExtentPin {
    /// A pin of an extent; `None` if it has been recycled.
    pub(crate) fn new(extents: &Extents, extent: u32, epoch: u64) -> Option<Self> {
        extents.slot(extent, epoch, |slot| slot.pins += 1)?;
        Some(Self { extents: extents.clone(), extent, epoch })
    }
}

impl Drop for ExtentPin {
    fn drop(&mut self) {
        self.extents.slot(self.extent, self.epoch, |slot| {
            assert!(slot.pins > 0, "an extent lost a pin");
            slot.pins -= 1;
        });
    }
}

impl std::fmt::Debug for ExtentPin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExtentPin({} epoch {})", self.extent, self.epoch)
    }
}
