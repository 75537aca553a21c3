//! The write pointer of each zone, and what a zoned device allows next. Real devices and the
//! wrapper share the rules.

use std::io;

use parking_lot::Mutex;

use crate::{BLOCK, Disk, Geometry, Zone, ZoneGeometry, ZoneState};

const B: u64 = BLOCK as u64;

/// A zone's write pointer, in blocks from its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pointer {
    /// Blocks written, or accepted for writing.
    pub(super) blocks: u32,
    pub(super) in_flight: u32,
    pub(super) failed: bool,
    /// Declared full before its end.
    pub(super) finished: bool,
    /// Retired by the device.
    pub(super) dead: bool,
}

struct ZoneMapState {
    pointers: Vec<Pointer>,
    open: u32,
    /// Groups of zones whose pointers have moved since they were last taken.
    changed: Vec<bool>,
    refused: u64,
}

/// All zones of a disk.
pub(super) struct ZoneMap {
    pub(super) shape: ZoneGeometry,
    pub(super) zones: u64,
    /// Zones per group of [`ZoneMap::take_changed`].
    group: usize,
    state: Mutex<ZoneMapState>,
}

pub(super) fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl ZoneMap {
    /// The geometry of a disk with these zones.
    pub(super) fn geometry(&self, disk: Geometry) -> Geometry {
        Geometry { capacity_bytes: self.len(), growable: false, prefill_pays: false, zones: Some(self.shape), ..disk }
    }

    /// Discards the part in the conventional area. The space of a zone is freed by a reset.
    pub(super) async fn discard(&self, disk: &dyn Disk, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len, io::ErrorKind::InvalidInput)?;
        let end = (offset + len).min(self.shape.conventional_bytes);
        if offset < end { disk.discard(offset, end - offset).await } else { Ok(()) }
    }

    /// Succeeds only within the fixed length of the disk.
    pub(super) fn reserve(&self, end: u64) -> io::Result<()> {
        if end <= self.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
    }

    pub(super) fn new(shape: ZoneGeometry, pointers: Vec<Pointer>, group: usize) -> Self {
        let zones = pointers.len() as u64;
        let groups = pointers.len().div_ceil(group.max(1));
        let state = ZoneMapState { pointers: Vec::new(), open: 0, changed: vec![false; groups], refused: 0 };
        let map = Self { shape, zones, group: group.max(1), state: Mutex::new(state) };
        let open = pointers.iter().filter(|pointer| map.counts(**pointer)).count() as u32;
        {
            let mut state = map.state.lock();
            state.pointers = pointers;
            state.open = open;
        }
        map
    }

    pub(super) fn capacity_blocks(&self) -> u32 {
        (self.shape.zone_capacity_bytes / B) as u32
    }

    pub(super) fn len(&self) -> u64 {
        self.shape.conventional_bytes + self.zones * self.shape.zone_bytes
    }

    /// The zone of an offset; `None` in the conventional area.
    pub(super) fn zone_of(&self, offset: u64) -> Option<usize> {
        Some((offset.checked_sub(self.shape.conventional_bytes)? / self.shape.zone_bytes) as usize)
    }

    pub(super) fn start_of(&self, zone: usize) -> u64 {
        self.shape.conventional_bytes + zone as u64 * self.shape.zone_bytes
    }

    fn state_of(&self, pointer: Pointer) -> ZoneState {
        match pointer {
            Pointer { dead: true, .. } => ZoneState::Dead,
            Pointer { failed: true, .. } => ZoneState::Failed,
            Pointer { finished: true, .. } => ZoneState::Full,
            Pointer { blocks: 0, .. } => ZoneState::Empty,
            Pointer { blocks, .. } if blocks >= self.capacity_blocks() => ZoneState::Full,
            _ => ZoneState::Open,
        }
    }

    fn counts(&self, pointer: Pointer) -> bool {
        matches!(self.state_of(pointer), ZoneState::Open | ZoneState::Failed)
    }

    /// Changes a zone's pointer and counts the open zones.
    fn set(&self, state: &mut ZoneMapState, zone: usize, pointer: Pointer) {
        let before = state.pointers[zone];
        state.open = state.open + u32::from(self.counts(pointer)) - u32::from(self.counts(before));
        if before.blocks != pointer.blocks {
            state.changed[zone / self.group] = true;
        }
        state.pointers[zone] = pointer;
    }

    /// The number of zones that are partly written.
    pub(super) fn open(&self) -> u32 {
        self.state.lock().open
    }

    /// The number of requests that were refused because a zoned device would refuse them.
    pub(super) fn refusals(&self) -> u64 {
        self.state.lock().refused
    }

    /// The pointers of each group that has changed since the last call.
    pub(super) fn take_changed(&self) -> Vec<(usize, Vec<Pointer>)> {
        let mut state = self.state.lock();
        let changed: Vec<usize> = (0..state.changed.len()).filter(|group| state.changed[*group]).collect();
        let pointers = |state: &ZoneMapState, group: usize| {
            state.pointers.iter().skip(group * self.group).take(self.group).copied().collect::<Vec<_>>()
        };
        let taken = changed.iter().map(|group| (*group, pointers(&state, *group))).collect();
        changed.into_iter().for_each(|group| state.changed[group] = false);
        taken
    }

    /// Marks these groups as changed again.
    pub(super) fn changed_again(&self, groups: impl Iterator<Item = usize>) {
        let mut state = self.state.lock();
        groups.for_each(|group| state.changed[group] = true);
    }

    pub(super) fn check(&self, offset: u64, len: u64, past_the_end: io::ErrorKind) -> io::Result<()> {
        if !(offset | len).is_multiple_of(B) {
            return Err(refused(format!("{len} bytes at offset {offset}: not multiples of {BLOCK}")));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let text = format!("{len} bytes at offset {offset}: past the end of the zoned disk at {}", self.len());
            return Err(io::Error::new(past_the_end, text));
        }
        Ok(())
    }

    /// Admits a write and moves the pointer of its zone. `None` in the conventional area.
    pub(super) fn admit(&self, offset: u64, len: u64) -> io::Result<Option<usize>> {
        self.try_admit(offset, len).inspect_err(|_| self.state.lock().refused += 1)
    }

    fn try_admit(&self, offset: u64, len: u64) -> io::Result<Option<usize>> {
        self.check(offset, len, io::ErrorKind::InvalidInput)?;
        if len == 0 {
            return Ok(None);
        }
        let first = self.zone_of(offset);
        if self.zone_of(offset + len - 1) != first {
            return Err(refused(format!("a write of {len} bytes at {offset} crosses a zone boundary")));
        }
        let Some(zone) = first else { return Ok(None) };
        let mut state = self.state.lock();
        let pointer = state.pointers[zone];
        let at = self.start_of(zone) + u64::from(pointer.blocks) * B;
        let what = format!("a write of {len} bytes at {offset}, zone {zone}");
        match self.state_of(pointer) {
            ZoneState::Dead => return Err(refused(format!("{what}: the device has retired the zone"))),
            ZoneState::Failed => {
                return Err(refused(format!("{what}: a write to this zone has failed; reset it first")));
            }
            ZoneState::Full => return Err(refused(format!("{what}: the zone is full; reset it first"))),
            ZoneState::Empty | ZoneState::Open => {}
        }
        if at != offset {
            return Err(refused(format!("{what}: not at the zone's write pointer, which is at {at}")));
        }
        if offset + len > self.start_of(zone) + self.shape.zone_capacity_bytes {
            return Err(refused(format!("{what}: past the zone's capacity")));
        }
        if pointer.in_flight > 0 {
            // Neither the kernel nor the device guarantees to carry writes out in order of
            // submission.
            return Err(refused(format!("{what}: another write to the zone is in flight")));
        }
        let max = self.shape.open_zones_max;
        // A write that fills an empty zone at once still opens it.
        if pointer.blocks == 0 && max > 0 && state.open >= max {
            return Err(refused(format!("{what}: would exceed the limit of {max} open zones")));
        }
        let blocks = pointer.blocks + (len / B) as u32;
        self.set(&mut state, zone, Pointer { blocks, in_flight: pointer.in_flight + 1, ..pointer });
        Ok(Some(zone))
    }

    /// Ends an admitted write.
    pub(super) fn done(&self, zone: Option<usize>, failed: bool) {
        let Some(zone) = zone else { return };
        let mut state = self.state.lock();
        let pointer = state.pointers[zone];
        let pointer = Pointer { in_flight: pointer.in_flight - 1, failed: pointer.failed || failed, ..pointer };
        self.set(&mut state, zone, pointer);
    }

    /// The zone that begins at `offset` if it has no write in flight; `None` in the conventional
    /// area.
    pub(super) fn quiet_zone(&self, offset: u64) -> io::Result<Option<usize>> {
        let Some(zone) = self.zone_of(offset) else { return Ok(None) };
        let quiet = if zone as u64 >= self.zones || self.start_of(zone) != offset {
            Err(refused(format!("no zone begins at {offset}")))
        } else {
            match self.state.lock().pointers[zone].in_flight {
                0 => Ok(Some(zone)),
                n => Err(refused(format!("{n} writes to zone {zone} are in flight"))),
            }
        };
        quiet.inspect_err(|_| self.state.lock().refused += 1)
    }

    pub(super) fn reset(&self, zone: usize) {
        self.set(&mut self.state.lock(), zone, Pointer::default());
    }

    pub(super) fn finish(&self, zone: usize) {
        let blocks = self.capacity_blocks();
        self.set(&mut self.state.lock(), zone, Pointer { blocks, finished: true, ..Pointer::default() });
    }

    pub(super) fn zone(&self, offset: u64) -> Option<Zone> {
        let zone = self.zone_of(offset).filter(|zone| (*zone as u64) < self.zones)?;
        let pointer = self.state.lock().pointers[zone];
        let start = self.start_of(zone);
        let write_pointer = start + u64::from(pointer.blocks) * B;
        Some(Zone { start, len: self.shape.zone_capacity_bytes, write_pointer, state: self.state_of(pointer) })
    }

    /// The unwritten parts of a range, as offsets from its start.
    pub(super) fn unwritten(&self, offset: u64, len: u64) -> Vec<std::ops::Range<usize>> {
        let end = offset + len;
        let mut holes = Vec::new();
        let first = self.zone_of(offset.max(self.shape.conventional_bytes)).unwrap_or(0);
        let state = self.state.lock();
        for zone in (first..self.zones as usize).take_while(|zone| self.start_of(*zone) < end) {
            let written = u64::from(state.pointers[zone].blocks) * B;
            let from = (self.start_of(zone) + written).max(offset);
            let to = (self.start_of(zone) + self.shape.zone_bytes).min(end);
            if from < to {
                holes.push((from - offset) as usize..(to - offset) as usize);
            }
        }
        holes
    }
}

/// Ends a write in the map, even if its caller drops the future. The outcome is then unknown and
/// counts as failed.
pub(super) struct Ended<'a> {
    pub(super) map: &'a ZoneMap,
    pub(super) zone: Option<usize>,
    pub(super) failed: bool,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.map.done(self.zone, self.failed);
    }
}
