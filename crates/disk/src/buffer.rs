//! Aligned memory for direct I/O, from a bounded pool.
//!
//! Direct I/O transfers between the device and the caller's pages. Those pages must therefore be
//! aligned, and must stay in place until the kernel is done. The pool bounds them in bytes and
//! returns memory whose pages are already mapped: mapping a megabyte costs more than writing it to
//! a fast disk. Large buffers are within huge pages.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::task::{HeldByTasks, HeldPart};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ages::{Ages, now};
use crate::block::BLOCK;
use crate::pool_memory::{Memory, Missing, Raw};

struct PoolShared {
    room: Arc<Semaphore>,
    limit_bytes: usize,
    memory: Mutex<Memory>,
    waiting: Ages,
    /// When a waiting caller last got its memory.
    granted: Mutex<Option<Instant>>,
    /// Frozen buffers by the task that froze them; `None` where a waiting task may hold some.
    frozen: Option<HeldByTasks>,
}

/// A bounded pool of aligned buffers. Clones share it. Kept buffers do not count against the limit,
/// nor does an eighth of them for the holes between them in huge pages. Memory above that is in
/// holes of huge pages that had more buffers.
#[derive(Clone)]
pub struct BufPool(Arc<PoolShared>);

impl BufPool {
    /// Creates a pool of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, None)
    }

    /// Creates a pool of `limit_bytes` for the results of reads. A task that holds a result must
    /// not read again: enough such tasks would hold the whole pool while all of them wait for it.
    /// So each task copies a result, or drops it, before its next read. Debug builds panic where a
    /// task waits for memory while it holds a frozen buffer.
    pub fn for_results(limit_bytes: usize) -> Self {
        Self::with(limit_bytes, Some(HeldByTasks::new("the memory for reads")))
    }

    fn with(limit_bytes: usize, frozen: Option<HeldByTasks>) -> Self {
        let limit_bytes = limit_bytes.next_multiple_of(BLOCK);
        Self(Arc::new(PoolShared {
            room: Arc::new(Semaphore::new(limit_bytes / BLOCK)),
            limit_bytes,
            memory: Mutex::new(Memory::new(limit_bytes)),
            waiting: Ages::default(),
            granted: Mutex::new(None),
            frozen,
        }))
    }

    /// Returns an empty buffer with a capacity of at least `capacity` bytes; waits for free memory
    /// in the pool.
    ///
    /// # Panics
    /// When `capacity` is more than the whole pool, because that would wait forever. In debug
    /// builds also as [`BufPool::for_results`] says.
    pub async fn get(&self, capacity: usize) -> AlignedBuf {
        if let Some(buf) = self.try_get(capacity) {
            return buf;
        }
        let bytes = self.0.bytes_of(capacity);
        assert!(bytes <= self.0.limit_bytes, "a buffer of {bytes} bytes from a pool of {}", self.0.limit_bytes);
        if let Some(frozen) = &self.0.frozen {
            frozen.assert_none();
        }
        let waiting = Waiting::begin(&self.0);
        let room = self.0.room.clone().acquire_many_owned((bytes / BLOCK) as u32).await.expect("never closed");
        *self.0.granted.lock() = Some(now());
        drop(waiting);
        self.take(capacity, room)
    }

    /// How long callers have waited while none of them got memory, in milliseconds; 0 when no
    /// caller waits. On a busy pool this stays short, because buffers return all the time.
    pub fn stalled_ms(&self) -> u64 {
        let since = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let granted_ms = self.0.granted.lock().map_or(u64::MAX, since);
        self.0.waiting.oldest_ms().min(granted_ms)
    }

    /// Like [`BufPool::get`], but returns `None` at once when the pool has not enough free memory.
    pub fn try_get(&self, capacity: usize) -> Option<AlignedBuf> {
        let bytes = self.0.bytes_of(capacity);
        let room = self.0.room.clone().try_acquire_many_owned((bytes / BLOCK) as u32).ok()?;
        Some(self.take(capacity, room))
    }

    /// Whether the pool can ever return a buffer of `capacity` bytes.
    pub fn fits(&self, capacity: usize) -> bool {
        capacity <= self.0.limit_bytes && self.0.bytes_of(capacity) <= self.0.limit_bytes
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.0.limit_bytes - self.0.room.available_permits() * BLOCK
    }

    /// Limit of [`BufPool::used_bytes`].
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }

    fn take(&self, capacity: usize, room: OwnedSemaphorePermit) -> AlignedBuf {
        let mut freed = Vec::new();
        let found = self.0.memory.lock().take(capacity, &mut freed);
        drop(freed);
        let raw = found.unwrap_or_else(Missing::allocate);
        AlignedBuf { raw: Some(raw), len: 0, pool: self.0.clone(), room: Some(room), _frozen: None }
    }
}

impl PoolShared {
    /// The bytes that a buffer of this capacity takes.
    fn bytes_of(&self, capacity: usize) -> usize {
        Memory::bytes_of(self.limit_bytes, capacity)
    }
}

/// A caller that waits for memory. Dropping it ends the wait.
struct Waiting<'a> {
    pool: &'a PoolShared,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn begin(pool: &'a PoolShared) -> Self {
        Self { pool, number: pool.waiting.begin() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool.waiting.end(self.number);
    }
}

/// Memory aligned to [`BLOCK`], of a fixed capacity, filled from the front. Dropping it returns it
/// to its pool.
pub struct AlignedBuf {
    raw: Option<Raw>,
    len: usize,
    pool: Arc<PoolShared>,
    /// `None` in a kept buffer.
    room: Option<OwnedSemaphorePermit>,
    /// Of a frozen buffer of a pool for results.
    _frozen: Option<HeldPart>,
}

impl AlignedBuf {
    fn raw(&self) -> &Raw {
        self.raw.as_ref().expect("present until drop")
    }

    /// Capacity in bytes: a multiple of [`BLOCK`].
    pub fn capacity(&self) -> usize {
        self.raw().capacity
    }

    /// Free capacity in bytes.
    pub fn room(&self) -> usize {
        self.capacity() - self.len
    }

    /// Appends `data`.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn put(&mut self, data: &[u8]) {
        assert!(data.len() <= self.room(), "{} bytes into a room of {}", data.len(), self.room());
        let at = self.len;
        self.len += data.len();
        self[at..].copy_from_slice(data);
    }

    /// Sets the length. New bytes keep the content of the memory: zeros, or bytes of an earlier
    /// use.
    ///
    /// # Panics
    /// When the length is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a length of {len} in a capacity of {}", self.capacity());
        self.len = len;
    }

    /// Fills with zeros up to the next multiple of [`BLOCK`].
    pub fn pad(&mut self) {
        let at = self.len;
        self.len = at.next_multiple_of(BLOCK);
        self[at..].fill(0);
    }

    /// The address, for system calls.
    pub fn as_ptr(&self) -> *mut u8 {
        self.raw().ptr.as_ptr()
    }

    /// Makes the buffer immutable and shareable without a copy. The memory returns to the pool with
    /// the last clone.
    pub fn freeze(mut self) -> Bytes {
        self._frozen = self.pool.frozen.as_ref().map(HeldByTasks::hold);
        Bytes::from_owner(self)
    }

    /// As [`AlignedBuf::freeze`], but from now on the memory does not count against the limit of
    /// the pool. The caller bounds the bytes that it keeps.
    pub fn keep(mut self) -> Bytes {
        self.pool.memory.lock().keep(self.raw());
        self.room = None;
        Bytes::from_owner(self)
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let mut freed = Vec::new();
        self.pool.memory.lock().give_back(raw, self.room.is_none(), &mut freed);
        drop(freed);
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, all of it was initialised (zeroed when allocated),
        // and `self` owns it.
        unsafe { std::slice::from_raw_parts(self.raw().ptr.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.raw().ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {})", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge_pages::{HUGE_BLOCKS, HUGE_BYTES};
    use crate::pool_memory::HUGE_LIMIT_MIN;

    #[test]
    fn pool_is_bounded_and_reuses() {
        let pool = BufPool::new(8 * BLOCK);
        let a = pool.try_get(5 * BLOCK).expect("room");
        assert!(pool.try_get(4 * BLOCK).is_none());
        let at = a.as_ptr();
        assert_eq!(at as usize % BLOCK, 0);
        drop(a);
        assert_eq!(pool.used_bytes(), 0);
        assert_eq!(pool.try_get(5 * BLOCK).expect("room").as_ptr(), at);
    }

    #[test]
    fn frozen_bytes_return_to_the_pool_with_the_last_clone() {
        let pool = BufPool::new(4 * BLOCK);
        let mut buf = pool.try_get(10).expect("room");
        buf.put(b"abc");
        buf.pad();
        let bytes = buf.freeze();
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_eq!(&part[..], b"bc");
        assert_eq!(pool.used_bytes(), BLOCK);
        drop(part);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn large_buffers_share_huge_pages_and_idle_memory_keeps_the_limit() {
        let pool = BufPool::new(HUGE_LIMIT_MIN);
        let bytes = || pool.0.memory.lock().bytes();
        let piece = 65 * BLOCK;
        let held: Vec<AlignedBuf> = std::iter::from_fn(|| pool.try_get(piece)).collect();
        assert_eq!(held.len(), HUGE_LIMIT_MIN / piece, "no block is unused");
        assert_eq!(pool.used_bytes(), held.len() * piece);
        // Seven pieces fit into a huge page. The last ones come from the allocator.
        let pages = bytes() - held.iter().filter(|buf| !buf.raw().is_of_huge_page()).count() * piece;
        assert_eq!(pages % HUGE_BYTES, 0);
        assert!(bytes() <= HUGE_LIMIT_MIN + 8 * (HUGE_BYTES - 7 * piece), "{} bytes", bytes());
        drop(held);
        let idle = bytes();
        assert!(idle > 0 && idle <= pages && idle <= HUGE_LIMIT_MIN);
        let again = pool.try_get(piece).expect("room");
        assert!(again.raw().is_of_huge_page() && bytes() == idle, "a huge page is used again");
        drop(again);
        // Small buffers take the memory of the idle huge pages, and those that of idle buffers.
        let small: Vec<AlignedBuf> = std::iter::from_fn(|| pool.try_get(BLOCK)).collect();
        assert!(small.len() == HUGE_LIMIT_MIN / BLOCK && bytes() == HUGE_LIMIT_MIN);
        drop(small);
        assert!(pool.try_get(piece).expect("room").raw().is_of_huge_page() && bytes() == HUGE_LIMIT_MIN);
    }

    #[test]
    fn kept_buffers_do_not_count_and_their_memory_is_freed_or_used_again() {
        let pool = BufPool::new(HUGE_LIMIT_MIN);
        let bytes = || pool.0.memory.lock().bytes();
        for blocks in [1, 64, 65, HUGE_BLOCKS + 1] {
            let one = blocks * BLOCK;
            let mut kept: Vec<Bytes> = Vec::new();
            for n in 0..3 * HUGE_LIMIT_MIN / one {
                let mut buf = pool.try_get(one).expect("kept memory does not count");
                buf.put(&n.to_le_bytes());
                kept.push(buf.keep());
            }
            assert_eq!(pool.used_bytes(), 0);
            let (class, total) = (pool.0.bytes_of(one), bytes());
            let kept_bytes = kept.len() * class;
            assert!(total >= kept_bytes && total <= kept_bytes * 9 / 8 + HUGE_LIMIT_MIN, "{total} bytes");
            assert!(kept.iter().enumerate().all(|(n, data)| data[..] == n.to_le_bytes()), "none was used again");
            kept.truncate(1);
            assert!(bytes() <= HUGE_LIMIT_MIN + class * 9 / 8, "{} bytes", bytes());
        }
        assert!(bytes() <= HUGE_LIMIT_MIN);
    }

    #[tokio::test]
    async fn a_pool_is_stalled_while_nothing_returns() {
        let pool = BufPool::new(BLOCK);
        let held = pool.try_get(1).expect("room");
        assert_eq!(pool.stalled_ms(), 0);
        let [mut first, mut second, mut third] = [(); 3].map(|()| Box::pin(pool.get(1)));
        assert!(futures::poll!(&mut first).is_pending());
        while pool.stalled_ms() < 20 {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut second).is_pending());
        drop(held);
        drop(first.await);
        assert!(pool.stalled_ms() < 20, "a caller has just got memory");
        drop(second.await);
        let held = pool.try_get(1).expect("room");
        assert!(futures::poll!(&mut third).is_pending());
        drop(third);
        assert_eq!(pool.stalled_ms(), 0, "no caller waits");
        drop(held);
    }

    /// Runs `work` as a task; returns its panic message.
    async fn panic_of(work: impl Future<Output = ()> + Send + 'static) -> Option<String> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        steadfast_flow::Env::tokio().spawn("test", async move {
            let end = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(work)).await;
            let _ = tx.send(end.err().and_then(|panic| panic.downcast_ref::<String>().cloned()));
        });
        rx.await.expect("ended")
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    async fn a_task_that_waits_for_memory_holds_no_result() {
        let pool = BufPool::for_results(2 * BLOCK);
        let (first, other) = (pool.clone(), pool.clone());
        let panic = panic_of(async move {
            let _held = first.get(1).await.freeze();
            let _free = first.get(1).await;
            first.get(1).await;
        });
        assert!(panic.await.is_some_and(|text| text.contains("the memory for reads")));
        assert_eq!(pool.used_bytes(), 0);

        // Memory that is being filled, and results of other tasks, may be held.
        let held = pool.get(1).await.freeze();
        let (begun, waits) = tokio::sync::oneshot::channel();
        let releases = async move {
            waits.await.expect("waits");
            drop(held);
        };
        let waits = panic_of(async move {
            let _filling = other.get(1).await;
            let mut second = Box::pin(other.get(1));
            assert!(futures::poll!(&mut second).is_pending());
            begun.send(()).expect("received");
            second.await;
        });
        assert_eq!(futures::join!(waits, releases).0, None);
    }
}
