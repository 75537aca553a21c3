//! The memory of a pool of buffers: idle buffers by size class, and parts of huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::block::BLOCK;
use crate::huge_pages::{HUGE_BLOCKS, HUGE_BYTES, HugePages};

/// Blocks of the smallest buffer within a huge page. Smaller ones would leave it in pieces.
const LARGE_BLOCKS_MIN: usize = 32;
/// Bytes of the smallest pool with huge pages: a few of them must not be most of the pool.
pub(crate) const HUGE_LIMIT_MIN: usize = 8 * HUGE_BYTES;

/// Four size classes per doubling: at most a quarter of a buffer is unused.
fn class_of(bytes: usize) -> (usize, usize) {
    let blocks = bytes.div_ceil(BLOCK).max(1);
    if blocks <= 4 {
        return (blocks - 1, blocks * BLOCK);
    }
    let shift = (usize::BITS - 1 - (blocks - 1).leading_zeros()) as usize;
    let step = 1usize << (shift - 2);
    let quarter = (blocks - 1 - (1 << shift)) / step;
    ((shift - 2) * 4 + 4 + quarter, ((1 << shift) + (quarter + 1) * step) * BLOCK)
}

/// Where the memory of a buffer comes from, and returns to.
#[derive(Clone, Copy)]
enum Origin {
    /// The idle buffers of its size class.
    Class(usize),
    /// A huge page.
    HugePage,
    /// The allocator.
    Allocator,
}

/// Memory of a buffer.
pub(crate) struct Raw {
    pub(crate) ptr: NonNull<u8>,
    /// Bytes: a multiple of [`BLOCK`].
    pub(crate) capacity: usize,
    origin: Origin,
}

// SAFETY: `Raw` owns its allocation exclusively, as a `Vec` does.
unsafe impl Send for Raw {}
// SAFETY: shared access only reads the bytes.
unsafe impl Sync for Raw {}

impl Raw {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BLOCK).expect("a multiple of BLOCK below isize::MAX")
    }

    fn allocate(capacity: usize, origin: Origin) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, capacity, origin }
    }
}

impl Raw {
    pub(crate) fn is_of_huge_page(&self) -> bool {
        matches!(self.origin, Origin::HugePage)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.is_of_huge_page() {
            return;
        }
        // SAFETY: allocated in `allocate` with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// Memory that a pool has no idle buffer for.
pub(crate) struct Missing {
    bytes: usize,
    origin: Origin,
}

impl Missing {
    /// The memory from the allocator.
    pub(crate) fn allocate(self) -> Raw {
        Raw::allocate(self.bytes, self.origin)
    }
}

/// The memory of a pool, in use and idle. What it frees is left to the caller, who may hold a lock.
pub(crate) struct Memory {
    limit_bytes: usize,
    /// Idle buffers by their size classes.
    classes: Vec<Vec<Raw>>,
    /// Bytes of `classes`.
    idle_bytes: usize,
    /// Bytes in use that no huge page has.
    alone_bytes: usize,
    /// Bytes in use that do not count against the limit.
    kept_bytes: usize,
    huge_pages: HugePages,
}

impl Memory {
    /// No memory yet; `limit_bytes` for all of it that is not kept.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let huge_pages = HugePages::default();
        Self { limit_bytes, classes: Vec::new(), idle_bytes: 0, alone_bytes: 0, kept_bytes: 0, huge_pages }
    }

    /// Bytes in use and idle.
    pub(crate) fn bytes(&self) -> usize {
        self.idle_bytes + self.alone_bytes + self.huge_pages.bytes()
    }

    /// The bytes that a buffer of this capacity takes in a pool of `limit_bytes`.
    pub(crate) fn bytes_of(limit_bytes: usize, capacity: usize) -> usize {
        if is_large(limit_bytes, capacity) { capacity.next_multiple_of(BLOCK) } else { class_of(capacity).1 }
    }

    /// Takes the memory for a buffer, which is in use from now on.
    pub(crate) fn take(&mut self, capacity: usize, freed: &mut Vec<Raw>) -> Result<Raw, Missing> {
        let (large, (class, _)) = (is_large(self.limit_bytes, capacity), class_of(capacity));
        let bytes = Self::bytes_of(self.limit_bytes, capacity);
        if large {
            if let Some(part) = self.take_part(bytes / BLOCK, freed) {
                return Ok(part);
            }
        } else if let Some(raw) = self.classes.get_mut(class).and_then(Vec::pop) {
            self.idle_bytes -= raw.capacity;
            self.alone_bytes += raw.capacity;
            return Ok(raw);
        }
        self.make_room(bytes, freed);
        self.alone_bytes += bytes;
        Err(Missing { bytes, origin: if large { Origin::Allocator } else { Origin::Class(class) } })
    }

    /// A part of a huge page, if there is one or may be another one.
    fn take_part(&mut self, blocks: usize, freed: &mut Vec<Raw>) -> Option<Raw> {
        let ptr = self.huge_pages.take(blocks).or_else(|| {
            // Nothing is freed where that would not be enough.
            let in_use = self.bytes() - self.idle_bytes - self.huge_pages.empty_bytes();
            let fits = in_use + HUGE_BYTES <= self.bytes_max();
            let may_grow = fits && self.make_room(HUGE_BYTES, freed) && self.huge_pages.grow();
            may_grow.then(|| self.huge_pages.take(blocks)).flatten()
        })?;
        Some(Raw { ptr, capacity: blocks * BLOCK, origin: Origin::HugePage })
    }

    /// The bytes that it may have: the limit, the kept bytes, and an eighth of those for the holes
    /// between them.
    fn bytes_max(&self) -> usize {
        self.limit_bytes + self.kept_bytes + self.kept_bytes / 8
    }

    /// Frees idle memory until `more` bytes are within the bound. Returns whether they are: huge
    /// pages in use may have holes.
    fn make_room(&mut self, more: usize, freed: &mut Vec<Raw>) -> bool {
        while self.bytes() + more > self.bytes_max() {
            if let Some(raw) = self.classes.iter_mut().rev().find_map(Vec::pop) {
                self.idle_bytes -= raw.capacity;
                freed.push(raw);
            } else if !self.huge_pages.shrink() {
                return false;
            }
        }
        true
    }

    /// A buffer in use no longer counts against the limit.
    pub(crate) fn keep(&mut self, raw: &Raw) {
        self.kept_bytes += raw.capacity;
    }

    /// Ends the use of a buffer; `kept` as [`Memory::keep`] was called for it.
    pub(crate) fn give_back(&mut self, raw: Raw, kept: bool, freed: &mut Vec<Raw>) {
        if kept {
            self.kept_bytes -= raw.capacity;
        }
        match raw.origin {
            Origin::Class(class) => {
                self.alone_bytes -= raw.capacity;
                self.idle_bytes += raw.capacity;
                if self.classes.len() <= class {
                    self.classes.resize_with(class + 1, Vec::new);
                }
                self.classes[class].push(raw);
            }
            Origin::HugePage => self.huge_pages.give_back(raw.ptr, raw.capacity / BLOCK),
            Origin::Allocator => {
                self.alone_bytes -= raw.capacity;
                freed.push(raw);
            }
        }
        self.make_room(0, freed);
    }
}

/// Whether a buffer of this capacity is a part of a huge page.
fn is_large(limit_bytes: usize, capacity: usize) -> bool {
    limit_bytes >= HUGE_LIMIT_MIN && (LARGE_BLOCKS_MIN..=HUGE_BLOCKS).contains(&capacity.div_ceil(BLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_their_size_with_little_waste() {
        let mut last = (0, 0);
        for blocks in 1..5000usize {
            let want = blocks * BLOCK;
            let (class, bytes) = class_of(want);
            assert!(bytes >= want && bytes * 4 <= want * 5 + 4 * BLOCK, "{blocks}: {bytes}");
            assert!(class >= last.0 && class <= last.0 + 1, "{blocks}: class {class} after {}", last.0);
            assert_eq!(class == last.0, bytes == last.1 || blocks == 1 && last.1 == 0, "{blocks}");
            last = (class, bytes);
        }
    }
}
