//! Fault injection: a disk wrapper that fails on command.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::BoxFuture;
use tokio::sync::Notify;

use crate::{AlignedBuf, BLOCK, Disk, DiskStats, Geometry, IoFuture, Latencies};

/// The operations that a [`Fault`] affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// [`Disk::read`] and [`Disk::read_copy`].
    Read,
    /// [`Disk::write`], and the first half of [`Disk::write_flush`].
    Write,
    /// [`Disk::flush`], and the second half of [`Disk::write_flush`].
    Flush,
    /// [`Disk::reserve`].
    Reserve,
    /// [`Disk::discard`].
    Discard,
    /// [`Disk::reopen`].
    Reopen,
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The operation does nothing and fails with this error number (`libc::EIO`, `libc::ENOSPC`).
    Error(i32),
    /// The operation does nothing and succeeds: a lost write, a lying flush. A read returns zeros.
    Lie,
    /// A read returns the bytes with this mask applied (by xor) to the one at this offset of the
    /// disk.
    Flip {
        /// Offset on the disk in bytes.
        offset: u64,
        /// Mask of the flipped bits.
        mask: u8,
    },
    /// Only the first `bytes` of a write are written; the rest keeps its content. The write then
    /// fails, or claims success.
    Tear {
        /// Number of written bytes.
        bytes: usize,
        /// Error number; `None` to claim success.
        errno: Option<i32>,
    },
    /// A write lands at this offset instead, and succeeds.
    Misdirect {
        /// Offset on the disk in bytes.
        to: u64,
    },
    /// The operation starts only when the fault is removed, and then runs as usual.
    Hold,
}

/// A fault: the affected operations, their range and number, and the effect.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Affected operations.
    pub kind: OpKind,
    /// Range of the disk in bytes (ignored for flush, reserve and reopen); `None` for all.
    pub range: Option<Range<u64>>,
    /// Number of matching operations that pass first.
    pub after: u64,
    /// Number of operations affected after that; `None` for all.
    pub times: Option<u64>,
    /// Effect of the fault.
    pub effect: Effect,
    /// Whether the fault ends when a write has covered its whole range, as a bad sector does that
    /// the disk then replaces.
    pub until_written: bool,
}

impl Fault {
    /// Affects all operations of `kind`, from now on.
    pub fn new(kind: OpKind, effect: Effect) -> Self {
        Self { kind, range: None, after: 0, times: None, effect, until_written: false }
    }

    /// Limits the fault to operations that touch `range`, in bytes.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Starts the fault after `count` matching operations.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.after = count;
        self
    }

    /// Ends the fault when a write has covered its whole range.
    #[must_use]
    pub fn until_written(mut self) -> Self {
        self.until_written = true;
        self
    }

    /// Limits the fault to `count` operations.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = Some(count);
        self
    }
}

struct Rule {
    fault: Fault,
    matched: u64,
    harmed: u64,
}

#[derive(Default)]
struct FaultState {
    rules: BTreeMap<u64, Rule>,
    next: u64,
    /// Whether a failed flush makes all later flushes fail until the disk is reopened, and the
    /// error number of one that failed.
    latches: bool,
    latched: Option<i32>,
}

/// The handle with which a test controls a [`Faulty`]. Clones share it.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<FaultState>>,
    removed: Arc<Notify>,
}

impl Faults {
    /// Creates a handle without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault. Of several that match, the oldest applies. The returned number is for
    /// [`Faults::remove`] and [`Faults::harmed`].
    pub fn add(&self, fault: Fault) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        state.rules.insert(id, Rule { fault, matched: 0, harmed: 0 });
        id
    }

    /// Makes the disk refuse all flushes after a failed one until it is reopened, as a disk on a
    /// real device does.
    pub fn latch_flushes(&self) {
        self.state.lock().latches = true;
    }

    /// Removes a fault. Unknown numbers are ignored.
    pub fn remove(&self, id: u64) {
        self.state.lock().rules.remove(&id);
        self.removed.notify_waiters();
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
        self.removed.notify_waiters();
    }

    /// The number of operations that a fault has affected so far; 0 when it has been removed.
    pub fn harmed(&self, id: u64) -> u64 {
        self.state.lock().rules.get(&id).map_or(0, |rule| rule.harmed)
    }

    /// Counts the operation against the rules and returns the effect that applies.
    fn strike(&self, kind: OpKind, offset: u64, len: u64) -> Option<(u64, Effect)> {
        let mut state = self.state.lock();
        for (id, rule) in &mut state.rules {
            let ranged = !matches!(kind, OpKind::Flush | OpKind::Reserve | OpKind::Reopen);
            let within = |range: &Range<u64>| offset < range.end && range.start < offset.saturating_add(len);
            if rule.fault.kind != kind || ranged && !rule.fault.range.as_ref().is_none_or(within) {
                continue;
            }
            rule.matched += 1;
            if rule.matched > rule.fault.after && rule.fault.times.is_none_or(|times| rule.harmed < times) {
                rule.harmed += 1;
                return Some((*id, rule.fault.effect));
            }
        }
        None
    }

    /// Applies the faults to a flush. `None`: the flush runs.
    async fn meet_flush(&self) -> Option<io::Result<()>> {
        let latched = self.state.lock().latched;
        let result = match latched {
            Some(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
            None => instead(self.meet(OpKind::Flush, 0, 0).await),
        };
        if let Some(Err(error)) = &result {
            let mut state = self.state.lock();
            state.latched = error.raw_os_error().filter(|_| state.latches);
        }
        result
    }

    /// Ends the faults that last until their range is written.
    fn written(&self, offset: u64, len: u64) {
        let covered = |range: &Range<u64>| offset <= range.start && range.end <= offset.saturating_add(len);
        let mut state = self.state.lock();
        state.rules.retain(|_, rule| !(rule.fault.until_written && rule.fault.range.as_ref().is_some_and(covered)));
    }

    /// Like [`Faults::strike`], but waits while a fault holds the operation.
    async fn meet(&self, kind: OpKind, offset: u64, len: u64) -> Option<Effect> {
        let (id, effect) = self.strike(kind, offset, len)?;
        if effect != Effect::Hold {
            return Some(effect);
        }
        loop {
            let removed = self.removed.notified();
            tokio::pin!(removed);
            // Registers before checking the rules, so that a removal in between is not missed.
            removed.as_mut().enable();
            if !self.state.lock().rules.contains_key(&id) {
                return None;
            }
            removed.await;
        }
    }
}

/// A disk wrapper that applies its [`Faults`] and otherwise forwards to the disk below.
pub struct Faulty {
    disk: Arc<dyn Disk>,
    faults: Faults,
}

impl Faulty {
    /// Wraps `disk`.
    pub fn new(disk: Arc<dyn Disk>, faults: Faults) -> Self {
        Self { disk, faults }
    }

    fn read_from(&self, copy: Option<u32>, offset: u64, len: usize) -> IoFuture<Bytes> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            let effect = faults.meet(OpKind::Read, offset, len as u64).await;
            let flip = match effect {
                Some(Effect::Error(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                Some(Effect::Lie) => return Ok(Bytes::from(vec![0; len])),
                Some(Effect::Flip { offset: at, mask }) => at.checked_sub(offset).map(|at| (at as usize, mask)),
                _ => None,
            };
            let bytes = match copy {
                None => disk.read(offset, len).await?,
                Some(copy) => disk.read_copy(copy, offset, len).await?,
            };
            let Some((at, mask)) = flip.filter(|(at, _)| *at < len) else { return Ok(bytes) };
            let mut bytes = bytes.to_vec();
            bytes[at] ^= mask;
            Ok(bytes.into())
        })
    }
}

/// Writes with `effect` applied.
async fn write_so(disk: &Arc<dyn Disk>, effect: Option<Effect>, offset: u64, data: Bytes) -> io::Result<()> {
    match effect {
        Some(Effect::Error(errno)) => Err(io::Error::from_raw_os_error(errno)),
        Some(Effect::Lie) => Ok(()),
        Some(Effect::Misdirect { to }) => disk.write(to / BLOCK as u64 * BLOCK as u64, data).await,
        Some(Effect::Tear { bytes, errno }) => {
            let bytes = bytes.min(data.len());
            let mut torn = disk.read(offset, data.len()).await?.to_vec();
            torn[..bytes].copy_from_slice(&data[..bytes]);
            disk.write(offset, torn.into()).await?;
            errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
        }
        _ => disk.write(offset, data).await,
    }
}

/// The result of an operation without data; `None` to run the operation.
fn instead(effect: Option<Effect>) -> Option<io::Result<()>> {
    match effect? {
        Effect::Error(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
        Effect::Lie => Some(Ok(())),
        _ => None,
    }
}

impl Disk for Faulty {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.read_from(None, offset, len)
    }

    fn label_places(&self) -> Vec<[u64; 2]> {
        self.disk.label_places()
    }

    fn copies(&self) -> u32 {
        self.disk.copies()
    }

    fn read_copy(&self, copy: u32, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.read_from(Some(copy), offset, len)
    }

    fn heal(&self, offset: u64, good: Bytes) -> IoFuture<u32> {
        self.disk.heal(offset, good)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            let len = data.len() as u64;
            let effect = faults.meet(OpKind::Write, offset, len).await;
            write_so(&disk, effect, offset, data).await?;
            faults.written(offset, len);
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            match faults.meet_flush().await {
                Some(result) => result,
                None => disk.flush().await,
            }
        })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let (write, flush) = (self.write(offset, data), self.flush());
        Box::pin(async move {
            write.await?;
            flush.await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            match instead(faults.meet(OpKind::Discard, offset, len).await) {
                Some(result) => result,
                None => disk.discard(offset, len).await,
            }
        })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            match instead(faults.meet(OpKind::Reserve, 0, 0).await) {
                Some(result) => result,
                None => disk.reserve(end).await,
            }
        })
    }

    fn reopen(&self) -> IoFuture<()> {
        let (disk, faults) = (self.disk.clone(), self.faults.clone());
        Box::pin(async move {
            match instead(faults.meet(OpKind::Reopen, 0, 0).await) {
                Some(result) => result?,
                None => disk.reopen().await?,
            }
            faults.state.lock().latched = None;
            Ok(())
        })
    }

    fn zone(&self, offset: u64) -> Option<crate::Zone> {
        self.disk.zone(offset)
    }

    fn reset_zone(&self, offset: u64) -> IoFuture<()> {
        self.disk.reset_zone(offset)
    }

    fn finish_zone(&self, offset: u64) -> IoFuture<()> {
        self.disk.finish_zone(offset)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    fn latencies(&self) -> Option<Latencies> {
        self.disk.latencies()
    }

    fn describe(&self) -> String {
        format!("faulty {}", self.disk.describe())
    }
}
