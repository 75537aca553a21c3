//! The space of an edge bucket: its bound, and what of it is in use.
//!
//! Before a fill begins, it makes a [`Reservation`] of the space that all of its object will need,
//! so that the objects being fetched fit together. Before a segment is fetched, the fill takes a
//! [`Room`] of its size; `evict` deletes what was not used for long until there is one. So the
//! bytes in use, those of fills included, never exceed the bound.

mod last_use;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::PoolSpace;
use tokio::sync::Notify;

use last_use::LastUse;

/// Longest wait for room.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for the first count after a start.
const COUNT_WAIT: Duration = Duration::from_secs(5);
/// Part of the pool's capacity that live data may take before objects are evicted, in percent.
/// Compaction works with the rest.
const POOL_PERCENT: u64 = 85;
/// Part of the pool's capacity that readers of deleted objects may keep before fills need free
/// space, in percent. Eviction may free none while they read. Writes of clients have the rest.
const PINNED_PERCENT: u64 = 7;

/// How far the first count of what is stored has come.
enum Count {
    /// All keys up to this one.
    UpTo(String),
    Done,
}

struct Usage {
    /// Bytes of cached objects.
    objects: u64,
    /// Bytes of rooms: the segments of fills that are running or have stopped.
    rooms: u64,
    /// Bytes of the objects being fetched.
    reserved: u64,
    /// Bytes that segments wait for.
    wanted: u64,
    /// Largest sum of `objects` and `rooms` that the pool allows.
    pool_limit: u64,
    /// Most bytes that may be reserved, because eviction frees nothing.
    pool_room: u64,
    /// Number of waits so far.
    waits: u64,
    /// The last wait for which nothing more could be evicted; 0 since eviction succeeded.
    failed: u64,
    count: Count,
}

/// A fill that has stopped, and left segments in the store.
pub(crate) struct StoppedFill {
    pub(crate) key: String,
    /// The room of its segments.
    pub(crate) room: Room,
}

/// What a bucket has stored, and what of it may go.
pub(crate) struct Inventory {
    pub(crate) space: Arc<Space>,
    pub(crate) last_use: LastUse,
    /// The fills that have stopped, by upload. A later fill of the key continues one.
    pub(crate) stopped: Mutex<BTreeMap<String, StoppedFill>>,
    /// Keys whose objects are being stored. They are not evicted before their readers have them.
    kept: Mutex<Vec<String>>,
}

/// Keeps a key from being evicted.
pub(crate) struct Kept<'a> {
    inventory: &'a Inventory,
    key: &'a str,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut kept = self.inventory.kept.lock();
        if let Some(place) = kept.iter().position(|key| key == self.key) {
            kept.swap_remove(place);
        }
    }
}

impl Inventory {
    /// `space_bytes` 0: the pool alone bounds the space.
    pub(crate) fn new(space_bytes: u64, last_use_bytes: u64, env: &Env) -> Self {
        Self {
            space: Space::new(space_bytes, env.clone()),
            last_use: LastUse::new(last_use_bytes, env.random_u64()),
            stopped: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Keeps a key from being evicted, as long as the result lives.
    pub(crate) fn keep<'a>(&'a self, key: &'a str) -> Kept<'a> {
        self.kept.lock().push(key.to_owned());
        Kept { inventory: self, key }
    }

    pub(crate) fn is_kept(&self, key: &str) -> bool {
        self.kept.lock().iter().any(|kept| kept == key)
    }
}

/// The bound of a bucket, and the bytes that count against it.
pub(crate) struct Space {
    env: Env,
    /// The bound in bytes.
    limit: u64,
    usage: Mutex<Usage>,
    /// Something was freed, or nothing could be.
    changed: Notify,
    /// Objects are to be evicted.
    pub(crate) low: Notify,
}

/// The space cannot be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// Bytes in use by segments. Dropping it frees them.
pub(crate) struct Room {
    space: Arc<Space>,
    pub(crate) bytes: u64,
}

/// Bytes that a fill may take. Dropping it ends that.
pub(crate) struct Reservation {
    space: Arc<Space>,
    bytes: u64,
}

/// Bytes that a segment waits for.
struct Waiting<'a>(&'a Space, u64);

impl Usage {
    fn used(&self) -> u64 {
        self.objects + self.rooms
    }
}

impl Space {
    /// `limit` in bytes; 0 for the pool alone.
    pub(crate) fn new(limit: u64, env: Env) -> Arc<Self> {
        let usage = Usage {
            objects: 0,
            rooms: 0,
            reserved: 0,
            wanted: 0,
            pool_limit: u64::MAX,
            pool_room: u64::MAX,
            waits: 0,
            failed: 0,
            count: Count::UpTo(String::new()),
        };
        let limit = if limit == 0 { u64::MAX } else { limit };
        Arc::new(Self { env, limit, usage: Mutex::new(usage), changed: Notify::new(), low: Notify::new() })
    }

    fn limit(&self, usage: &Usage) -> u64 {
        self.limit.min(usage.pool_limit)
    }

    /// Space that eviction keeps free, so that a segment seldom waits for it.
    fn headroom(limit: u64) -> u64 {
        if limit == u64::MAX { 0 } else { limit / 64 }
    }

    /// Bytes in use, and the bound; `None` without one.
    pub(crate) fn level(&self) -> (u64, Option<u64>) {
        let usage = self.usage.lock();
        (usage.used(), Some(self.limit(&usage)).filter(|limit| *limit < u64::MAX))
    }

    /// Sets the bound that follows from the pool.
    pub(crate) fn set_pool(&self, pool: PoolSpace) {
        let mut usage = self.usage.lock();
        let others = pool.live_bytes.saturating_sub(usage.used());
        let percent = pool.capacity_bytes / 100;
        usage.pool_limit = (percent * POOL_PERCENT).saturating_sub(others);
        usage.pool_room = match pool.pinned_bytes > percent * PINNED_PERCENT {
            true => (percent * (POOL_PERCENT + PINNED_PERCENT)).saturating_sub(pool.live_bytes + pool.pinned_bytes),
            false => u64::MAX,
        };
    }

    /// Bytes to be evicted, and the number of the last wait for them.
    pub(crate) fn excess(&self) -> (u64, u64) {
        let usage = self.usage.lock();
        let limit = self.limit(&usage);
        ((usage.used() + usage.wanted + Self::headroom(limit)).saturating_sub(limit), usage.waits)
    }

    /// Whether most of the space is in use.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let usage = self.usage.lock();
        usage.used() >= self.limit(&usage) / 10 * 9
    }

    /// Ends the waits up to this one: what they wait for cannot be evicted.
    pub(crate) fn fail(&self, last: u64) {
        {
            let mut usage = self.usage.lock();
            usage.failed = if usage.wanted > 0 { last } else { 0 };
        }
        self.changed.notify_waiters();
    }

    /// Notes that enough was evicted.
    pub(crate) fn succeed(&self) {
        self.usage.lock().failed = 0;
    }

    /// Waits until `ready` returns a result; `None` after `wait`.
    async fn until<T>(&self, wait: Duration, mut ready: impl FnMut(&mut Usage) -> Option<T>) -> Option<T> {
        let end = self.env.now() + wait;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(result) = ready(&mut self.usage.lock()) {
                return Some(result);
            }
            self.env.timeout(end.saturating_sub(self.env.now()), changed).await?;
        }
    }

    /// Waits until what is stored has been counted, after a start.
    pub(crate) async fn counted(&self) {
        self.until(COUNT_WAIT, |usage| matches!(usage.count, Count::Done).then_some(())).await;
    }

    /// Admits an object of this size, unless it and the others being fetched are too large together
    /// or nothing can be evicted.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, NoSpace> {
        let mut usage = self.usage.lock();
        let limit = self.limit(&usage);
        if !matches!(usage.count, Count::Done) {
            return Err(NoSpace);
        }
        if usage.reserved.saturating_add(bytes) > limit.min(usage.pool_room) {
            return Err(NoSpace);
        }
        if usage.failed > 0 && usage.used().saturating_add(bytes) > limit {
            self.low.notify_one();
            return Err(NoSpace);
        }
        usage.reserved += bytes;
        Ok(Reservation { space: self.clone(), bytes })
    }

    /// Takes room for a segment, and waits until objects are evicted if there is none.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> Result<Room, NoSpace> {
        let mut waiting = None;
        let mut take = |usage: &mut Usage| {
            let limit = self.limit(usage);
            if usage.used() + bytes <= limit {
                usage.rooms += bytes;
                if usage.used() + Self::headroom(limit) > limit {
                    self.low.notify_one();
                }
                return Some(Ok(()));
            }
            match &waiting {
                Some((number, _)) if *number <= usage.failed => Some(Err(NoSpace)),
                Some(_) => None,
                None => {
                    usage.waits += 1;
                    usage.wanted += bytes;
                    waiting = Some((usage.waits, Waiting(self, bytes)));
                    self.low.notify_one();
                    None
                }
            }
        };
        self.until(ROOM_WAIT, &mut take).await.ok_or(NoSpace)??;
        Ok(Room { space: self.clone(), bytes })
    }

    /// The room of a fill's segments has become an object of `size` bytes, in place of one of
    /// `replaced` bytes.
    pub(crate) fn stored(&self, mut room: Room, size: u64, replaced: u64) {
        {
            let mut usage = self.usage.lock();
            usage.objects = (usage.objects + size).saturating_sub(replaced);
            let bytes = std::mem::take(&mut room.bytes);
            assert!(usage.rooms >= bytes, "the room of a fill was not counted");
            usage.rooms -= bytes;
        }
        self.changed.notify_waiters();
    }

    /// A cached object was deleted.
    pub(crate) fn deleted(&self, key: &str, size: u64) {
        {
            let mut usage = self.usage.lock();
            // The first count has not come to it yet.
            let counted = match &usage.count {
                Count::UpTo(last) => key <= last.as_str(),
                Count::Done => true,
            };
            if counted {
                usage.objects = usage.objects.saturating_sub(size);
            }
        }
        self.changed.notify_waiters();
    }

    /// Adds the room of segments that an earlier run of the server has stored.
    pub(crate) fn account(self: &Arc<Self>, bytes: u64) -> Room {
        self.usage.lock().rooms += bytes;
        Room { space: self.clone(), bytes }
    }

    /// Counts a page of objects: `page` returns their bytes and the last key, or `None` after the
    /// last. Returns whether there are more. No object is deleted meanwhile.
    pub(crate) fn count<E>(&self, page: impl FnOnce(&str) -> Result<(u64, Option<String>), E>) -> Result<bool, E> {
        let mut usage = self.usage.lock();
        let Count::UpTo(after) = &usage.count else { return Ok(false) };
        let (bytes, last) = page(after)?;
        usage.objects += bytes;
        let more = last.is_some();
        usage.count = last.map_or(Count::Done, Count::UpTo);
        drop(usage);
        if !more {
            self.changed.notify_waiters();
        }
        Ok(more)
    }
}

impl Room {
    /// Adds the room of another segment of the same fill.
    pub(crate) fn add(&mut self, mut other: Room) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Frees what is more than `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        drop(Room { space: self.space.clone(), bytes: rest });
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes > 0 {
            {
                let mut usage = self.space.usage.lock();
                assert!(usage.rooms >= self.bytes, "the room of a fill was not counted");
                usage.rooms -= self.bytes;
            }
            self.space.changed.notify_waiters();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut usage = self.space.usage.lock();
        assert!(usage.reserved >= self.bytes, "a reservation was not counted");
        usage.reserved -= self.bytes;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        assert!(usage.wanted >= self.1, "a wish was not counted");
        usage.wanted -= self.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fills_leave_room_when_readers_keep_deleted_objects() {
        let space = Space::new(0, Env::tokio());
        space.count(|_| Ok::<_, ()>((0, None))).expect("counted");
        let admits = |pinned_bytes, bytes| {
            space.set_pool(PoolSpace { capacity_bytes: 1000, live_bytes: 800, pinned_bytes });
            space.reserve(bytes).is_ok()
        };
        // Eviction frees space.
        assert!(admits(0, 50) && admits(70, 50) && !admits(0, 51));
        // It does not; 920 bytes of the pool are the bound.
        assert!(admits(80, 40) && !admits(80, 41) && admits(119, 1) && !admits(500, 1));
        assert!(admits(0, 50));
    }
}
