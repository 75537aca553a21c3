//! A stripe (RAID 0): one disk over several equal ones, chunk by chunk in turn.
//!
//! ```text
//! member    0          512 KiB    1 MiB
//!           +----------+----------+---------+---------+---
//!           | label    | label,   | chunk   | chunk   | ...
//!           |          | copy     | i       | i + n   |
//!           +----------+----------+---------+---------+---
//! ```
//!
//! The figure shows member i of n. Chunk c of the stripe is chunk c / n of member c % n.
//!
//! A stripe is as safe as its weakest member: losing one loses the pool. It is meant for the fast
//! leg of a super-disk.

mod member;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use steadfast_flow::{BoxFuture, Env};

pub(crate) use self::member::Member;
use self::member::{LABELS, read_label};
use crate::label::{Found, new_uuid, uuid_text};
use crate::{AlignedBuf, BLOCK, BufPool, CacheClaim, Disk, DiskStats, Geometry, IoFuture};

/// Start of the chunks on a member, in bytes.
const DATA_START: u64 = 1 << 20;
/// Maximum number of members, above that of any machine.
const MEMBERS_MAX: usize = 1024;
/// Memory to assemble reads that touch several members, in bytes. A read takes it first, and each
/// member's memory only until the part is copied, so reads never wait for one another in a cycle.
const GATHER_BYTES: usize = 32 << 20;

/// Options of a new stripe.
#[derive(Debug, Clone)]
pub struct StripeOptions {
    /// Bytes on one member before the next member follows. A power of two from 4 KiB to 512 MiB.
    ///
    /// The default is 512 KiB, like that of md. Small objects and commits stay on one member, so
    /// many of them use all members without waiting for one another. A 1 MiB piece of a large body
    /// keeps two members busy.
    pub chunk_bytes: u64,
}

impl Default for StripeOptions {
    fn default() -> Self {
        Self { chunk_bytes: 512 << 10 }
    }
}

/// One disk over several, striped in chunks.
#[derive(Clone)]
pub struct Stripe(Arc<StripeInner>);

struct StripeInner {
    members: Vec<Part>,
    stripe: [u8; 16],
    chunk_bytes: u64,
    gather: BufPool,
}

struct Part {
    disk: Arc<dyn Disk>,
    /// Number of completed writes.
    written: AtomicU64,
    /// Number of writes that a flush has covered.
    flushed: AtomicU64,
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn valid_chunk(bytes: u64) -> bool {
    bytes.is_power_of_two() && (BLOCK as u64..=512 << 20).contains(&bytes)
}

fn check_members(members: &[Arc<dyn Disk>]) -> io::Result<()> {
    if members.is_empty() || members.len() > MEMBERS_MAX {
        return Err(invalid(format!("a stripe of {} disks: give 1 to {MEMBERS_MAX}", members.len())));
    }
    for (i, disk) in members.iter().enumerate() {
        if members[..i].iter().any(|other| Arc::ptr_eq(other, disk)) {
            return Err(invalid(format!("{} is given twice as a member of one stripe", disk.describe())));
        }
        if disk.geometry().zones.is_some() {
            return Err(invalid(format!("{} is zoned: zoned disks cannot be striped", disk.describe())));
        }
    }
    Ok(())
}

/// Adds the member to an error.
fn member_error(disk: &Arc<dyn Disk>, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("stripe member {}: {error}", disk.describe()))
}

impl Stripe {
    /// Formats `members` as a stripe, in this order. Their content is lost.
    ///
    /// # Errors
    /// `InvalidInput` for disks that cannot be striped, `AlreadyExists` when one holds data and
    /// `force` is not set.
    pub async fn format(members: &[Arc<dyn Disk>], env: &Env, options: &StripeOptions, force: bool) -> io::Result<()> {
        check_members(members)?;
        if !valid_chunk(options.chunk_bytes) {
            return Err(invalid(format!(
                "a chunk of {} bytes: must be a power of two from {BLOCK} to {}",
                options.chunk_bytes,
                512 << 20
            )));
        }
        for disk in members {
            if disk.geometry().capacity_bytes < DATA_START + options.chunk_bytes {
                return Err(invalid(format!("{} is too small for a stripe", disk.describe())));
            }
            if !force && let Some(what) = contents(disk).await? {
                let text = format!("{} holds {what}: not made into a stripe", disk.describe());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
        }
        let stripe = new_uuid(env);
        for (index, disk) in members.iter().enumerate() {
            let member =
                Member { stripe, index: index as u32, count: members.len() as u32, chunk_bytes: options.chunk_bytes };
            disk.reserve(DATA_START).await.map_err(|e| member_error(disk, &e))?;
            for offset in LABELS {
                let block = Bytes::copy_from_slice(&member.encode());
                disk.write_flush(offset, block).await.map_err(|e| member_error(disk, &e))?;
            }
        }
        Ok(())
    }

    /// Opens a stripe with all its members, in the order of its formatting.
    ///
    /// # Errors
    /// `InvalidData` when a member is missing, foreign or at the wrong place; the message names the
    /// member and the remedy.
    pub async fn open(members: Vec<Arc<dyn Disk>>) -> io::Result<Arc<dyn Disk>> {
        check_members(&members)?;
        let mut labels = Vec::new();
        for disk in &members {
            labels.push(read_label(disk).await?);
        }
        let first = labels[0];
        let wrong = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        for (disk, label) in members.iter().zip(&labels) {
            if (label.stripe, label.count, label.chunk_bytes) != (first.stripe, first.count, first.chunk_bytes) {
                return wrong(format!(
                    "{} belongs to stripe {}, but {} to stripe {}: give the members of one stripe",
                    disk.describe(),
                    uuid_text(&label.stripe),
                    members[0].describe(),
                    uuid_text(&first.stripe)
                ));
            }
        }
        if first.count as usize != members.len() {
            let missing: Vec<_> = (0..first.count).filter(|i| labels.iter().all(|l| l.index != *i)).collect();
            let of = format!("stripe {} has {} members", uuid_text(&first.stripe), first.count);
            return wrong(format!("{of}, {} are given; missing: {missing:?} (counted from 0)", members.len()));
        }
        for (place, (disk, label)) in members.iter().zip(&labels).enumerate() {
            if label.index as usize != place {
                return wrong(format!(
                    "{} is member {} of stripe {}, but given at place {place}: list the members in their order",
                    disk.describe(),
                    label.index,
                    uuid_text(&first.stripe)
                ));
            }
        }
        if !valid_chunk(first.chunk_bytes) {
            return wrong(format!("stripe {}: chunks of {} bytes", uuid_text(&first.stripe), first.chunk_bytes));
        }
        // An earlier process may have written without flushing.
        let part = |disk| Part { disk, written: AtomicU64::new(1), flushed: AtomicU64::new(0) };
        let members = members.into_iter().map(part).collect();
        Ok(Arc::new(Self(Arc::new(StripeInner {
            members,
            stripe: first.stripe,
            chunk_bytes: first.chunk_bytes,
            gather: BufPool::for_results(GATHER_BYTES),
        }))))
    }

    /// Whether `disk` is labelled as a member of a stripe.
    ///
    /// # Errors
    /// Those of reading it.
    pub async fn is_member(disk: &Arc<dyn Disk>) -> io::Result<bool> {
        for offset in LABELS {
            if offset + BLOCK as u64 <= disk.len()
                && matches!(
                    Member::look(&disk.read(offset, BLOCK).await?),
                    Found::Label(_) | Found::Damaged | Found::Version(_)
                )
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The content of a disk before it becomes a member: `None` where its beginning is blank.
async fn contents(disk: &Arc<dyn Disk>) -> io::Result<Option<&'static str>> {
    let end = disk.len().min(DATA_START) / BLOCK as u64 * BLOCK as u64;
    let mut at = 0;
    while at < end {
        let len = (end - at).min(256 << 10);
        let bytes = disk.read(at, len as usize).await.map_err(|e| member_error(disk, &e))?;
        if LABELS.contains(&at) && !matches!(Member::look(&bytes[..BLOCK]), Found::Blank | Found::Other) {
            return Ok(Some("a member of a stripe"));
        }
        if bytes.iter().any(|b| *b != 0) {
            return Ok(Some("something"));
        }
        at += len;
    }
    Ok(None)
}

/// A part of a request: one range of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    member: usize,
    /// Offset on the member, including its label.
    offset: u64,
    /// Offset in the request's bytes.
    at: usize,
    len: usize,
}

impl StripeInner {
    /// Splits a range at the chunk boundaries.
    fn pieces(&self, offset: u64, len: usize) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(len / self.chunk_bytes as usize + 2);
        let mut at = 0;
        while at < len {
            let (chunk, within) = ((offset + at as u64) / self.chunk_bytes, (offset + at as u64) % self.chunk_bytes);
            let n = ((self.chunk_bytes - within) as usize).min(len - at);
            let members = self.members.len() as u64;
            let offset = DATA_START + chunk / members * self.chunk_bytes + within;
            pieces.push(Piece { member: (chunk % members) as usize, offset, at, len: n });
            at += n;
        }
        pieces
    }

    /// The capacity of the stripe when each member holds `bytes`.
    fn usable(&self, bytes: impl Fn(&Part) -> u64) -> u64 {
        let rows = self.members.iter().map(|part| bytes(part).saturating_sub(DATA_START) / self.chunk_bytes).min();
        rows.unwrap_or(0) * self.chunk_bytes * self.members.len() as u64
    }

    fn len(&self) -> u64 {
        self.usable(|part| part.disk.len())
    }

    fn check(&self, offset: u64, len: u64, past_the_end: io::ErrorKind) -> io::Result<()> {
        if !(offset | len).is_multiple_of(BLOCK as u64) {
            return Err(invalid(format!("{len} bytes at offset {offset}: not multiples of {BLOCK}")));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let text = format!("{len} bytes at offset {offset}: past the end of the stripe at {}", self.len());
            return Err(io::Error::new(past_the_end, text));
        }
        Ok(())
    }

    /// Reads bytes, which the caller keeps if it is `kept`.
    async fn read(&self, offset: u64, len: usize, kept: bool) -> io::Result<Bytes> {
        self.check(offset, len as u64, io::ErrorKind::UnexpectedEof)?;
        let pieces = self.pieces(offset, len);
        match pieces[..] {
            [] => return Ok(Bytes::new()),
            [piece] if kept => return self.members[piece.member].disk.read_kept(piece.offset, piece.len).await,
            [piece] => return self.members[piece.member].disk.read(piece.offset, piece.len).await,
            _ => {}
        }
        if !self.gather.fits(len) {
            return Err(invalid(format!("a read of {len} bytes exceeds the stripe's pool of {GATHER_BYTES} bytes")));
        }
        let mut whole = self.gather.get(len).await;
        whole.set_len(len);
        // Each part is copied when it arrives: the other parts may wait for its memory.
        let read = |piece: &Piece| self.members[piece.member].disk.read(piece.offset, piece.len);
        let mut reads: FuturesUnordered<_> =
            pieces.iter().map(|piece| read(piece).map(move |part| (piece, part))).collect();
        while let Some((piece, part)) = reads.next().await {
            whole[piece.at..piece.at + piece.len].copy_from_slice(&part?);
        }
        Ok(if kept { whole.keep() } else { whole.freeze() })
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.check(offset, data.len() as u64, io::ErrorKind::InvalidInput)?;
        let writes = self.pieces(offset, data.len()).into_iter().map(|piece| {
            let data = data.slice(piece.at..piece.at + piece.len);
            async move {
                let part = &self.members[piece.member];
                let result = part.disk.write(piece.offset, data).await;
                // The write counts after an error too, because a part of it may be on the disk.
                part.written.fetch_add(1, Ordering::AcqRel);
                result
            }
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Flushes the members that were written since their last flush. A member whose flush failed is
    /// flushed again each time, so it keeps failing.
    async fn flush(&self) -> io::Result<()> {
        let flushes = self.members.iter().filter_map(|part| {
            let written = part.written.load(Ordering::Acquire);
            (part.flushed.load(Ordering::Acquire) < written).then_some(async move {
                part.disk.flush().await?;
                part.flushed.fetch_max(written, Ordering::AcqRel);
                Ok(())
            })
        });
        join_all(flushes).await.into_iter().collect()
    }

    async fn write_flush(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.check(offset, data.len() as u64, io::ErrorKind::InvalidInput)?;
        let dirty = |part: &Part| part.flushed.load(Ordering::Acquire) < part.written.load(Ordering::Acquire);
        if let [piece] = self.pieces(offset, data.len())[..]
            && !self.members.iter().enumerate().any(|(i, part)| i != piece.member && dirty(part))
        {
            // The usual commit: one request to one member.
            let part = &self.members[piece.member];
            let written = part.written.load(Ordering::Acquire);
            let result = part.disk.write_flush(piece.offset, data).await;
            match &result {
                Ok(()) => drop(part.flushed.fetch_max(written, Ordering::AcqRel)),
                Err(_) => drop(part.written.fetch_add(1, Ordering::AcqRel)),
            }
            return result;
        }
        self.write(offset, data).await?;
        self.flush().await
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len, io::ErrorKind::InvalidInput)?;
        // Consecutive chunks of the stripe are consecutive on each member: one range per member.
        let mut ranges: Vec<Option<(u64, u64)>> = vec![None; self.members.len()];
        let mut at = 0;
        while at < len {
            let left = usize::try_from(len - at).unwrap_or(usize::MAX).min(1 << 30);
            for piece in self.pieces(offset + at, left) {
                let end = piece.offset + piece.len as u64;
                let range = &mut ranges[piece.member];
                *range = Some(range.map_or((piece.offset, end), |(start, _)| (start, end)));
            }
            at += left as u64;
        }
        let discards = self.members.iter().zip(ranges).filter_map(|(part, range)| {
            let (start, end) = range?;
            Some(part.disk.discard(start, end - start))
        });
        join_all(discards).await.into_iter().collect()
    }

    /// Reopens a member, and refuses another disk in its place.
    async fn reopen(&self, index: usize) -> io::Result<()> {
        let part = &self.members[index];
        part.disk.reopen().await.map_err(|e| member_error(&part.disk, &e))?;
        // As in `open`: earlier writes may be unflushed.
        part.written.fetch_add(1, Ordering::AcqRel);
        let label = read_label(&part.disk).await?;
        if (label.stripe, label.index as usize) != (self.stripe, index) {
            let of = format!("it is now member {} of stripe {}", label.index, uuid_text(&label.stripe));
            let text = format!("stripe member {}: {of}", part.disk.describe());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }

    async fn reserve(&self, end: u64) -> io::Result<()> {
        let row = self.chunk_bytes * self.members.len() as u64;
        let Some(each) = end.div_ceil(row).checked_mul(self.chunk_bytes).and_then(|n| n.checked_add(DATA_START)) else {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        };
        let growing = self.members.iter().map(|part| part.disk.reserve(each));
        join_all(growing).await.into_iter().collect()
    }
}

impl Disk for Stripe {
    fn geometry(&self) -> Geometry {
        let all = || self.0.members.iter().map(|part| part.disk.geometry());
        let claims = |claim| all().any(|g| g.cache == claim);
        Geometry {
            capacity_bytes: self.0.usable(|part| part.disk.geometry().capacity_bytes),
            growable: all().any(|g| g.growable),
            prefill_pays: all().any(|g| g.prefill_pays),
            align_bytes: all().map(|g| g.align_bytes).max().unwrap_or(BLOCK),
            max_io_bytes: all().map(|g| g.max_io_bytes).min().unwrap_or(BLOCK).min(self.0.chunk_bytes as usize),
            zones: None,
            cache: match () {
                () if claims(CacheClaim::WriteBack) => CacheClaim::WriteBack,
                () if claims(CacheClaim::Unknown) => CacheClaim::Unknown,
                () => CacheClaim::WriteThrough,
            },
        }
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { inner.read(offset, len, false).await })
    }

    fn read_kept(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        let inner = self.0.clone();
        Box::pin(async move { inner.read(offset, len, true).await })
    }

    fn label_places(&self) -> Vec<[u64; 2]> {
        let (chunk, members) = (self.0.chunk_bytes, self.0.members.len() as u64);
        // In the first chunk of each member; where that is one block, the second place is in its
        // second chunk.
        let second = if chunk > BLOCK as u64 { chunk / 2 } else { members * chunk };
        (0..members).map(|member| [member * chunk, member * chunk + second]).collect()
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write(offset, data).await })
    }

    fn flush(&self) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.flush().await })
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.write_flush(offset, data).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { inner.discard(offset, len).await })
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move { if end <= inner.len() { Ok(()) } else { inner.reserve(end).await } })
    }

    fn reopen(&self) -> IoFuture<()> {
        let inner = self.0.clone();
        Box::pin(async move {
            join_all((0..inner.members.len()).map(|index| inner.reopen(index))).await.into_iter().collect()
        })
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.0.members[0].disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        let mut sum = DiskStats::default();
        for part in &self.0.members {
            let one = part.disk.stats();
            sum.reads += one.reads;
            sum.read_bytes += one.read_bytes;
            sum.writes += one.writes;
            sum.write_bytes += one.write_bytes;
            sum.flushes += one.flushes;
            sum.flush_us += one.flush_us;
            sum.errors += one.errors;
            sum.in_flight += one.in_flight;
            sum.queue_depth += one.queue_depth;
            sum.pool_used_bytes += one.pool_used_bytes;
            sum.pool_limit_bytes += one.pool_limit_bytes;
            sum.copied_bytes += one.copied_bytes;
            sum.oldest_read_ms = sum.oldest_read_ms.max(one.oldest_read_ms);
            sum.oldest_write_ms = sum.oldest_write_ms.max(one.oldest_write_ms);
        }
        sum.oldest_read_ms = sum.oldest_read_ms.max(self.0.gather.stalled_ms());
        sum.pool_used_bytes += self.0.gather.used_bytes() as u64;
        sum.pool_limit_bytes += self.0.gather.limit_bytes() as u64;
        sum
    }

    fn describe(&self) -> String {
        let members: Vec<_> = self.0.members.iter().map(|part| part.disk.describe()).collect();
        format!("stripe of {}: {}", members.len(), members.join(", "))
    }
}
