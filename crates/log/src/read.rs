//! Reading bodies: only the needed blocks, and only bytes that match their checksum.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryFutureExt as _;
use futures::future::try_join;
use steadfast_disk::BLOCK;
use steadfast_flow::has_fault;

use crate::extents::ExtentInfo;
use crate::format::{CHECK_BYTES, RECORD_HEADER, RecordHeader, RecordView, check_count, record_bytes, verify_body};
use crate::shared::Shared;
use crate::{Location, LogError, Sabotage};

/// Bytes of a body from which on a read keeps the memory that the disk filled. Less is copied: the
/// memory of the disk is in whole blocks.
const KEPT_BYTES_MIN: u64 = 128 << 10;

/// Interval between log messages about failed reads.
pub(crate) const FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// A record read back whole and verified. It is a copy: a batch of small records that kept the
/// disk's memory would hold a block or more for each of them.
#[derive(Debug, Clone)]
pub(crate) struct OwnedRecord {
    pub(crate) header: RecordHeader,
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
}

/// The front of one record: its header, head and checksums, once a read of its body has verified
/// the head. Later reads of the body need only the body.
#[derive(Debug, Default)]
pub struct RecordFront(OnceLock<(Location, Bytes)>);

impl RecordFront {
    fn get(&self, location: &Location) -> Option<Bytes> {
        self.0.get().filter(|(known, _)| known == location).map(|(_, front)| front.clone())
    }

    fn set(&self, location: &Location, front: &[u8]) {
        let _ = self.0.get_or_init(|| (*location, Bytes::copy_from_slice(front)));
    }
}

enum Failure {
    Damaged(String),
    Read(io::Error),
}

/// Reads bytes of the body of the record at `location`, if `mine` accepts its head. They do not
/// hold the disk's memory for reads.
pub(crate) async fn read(
    shared: &Shared,
    location: Location,
    range: Range<u32>,
    mine: &(dyn Fn(&[u8]) -> bool + Sync),
    front: &RecordFront,
) -> Result<Bytes, LogError> {
    if range.start > range.end || range.end > location.body_len {
        return Err(LogError::TooLarge(format!(
            "bytes {} to {} of a body of {}",
            range.start, range.end, location.body_len
        )));
    }
    resolve(shared, &location).inspect_err(|error| report(shared, error))?;
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let attempt = async |range: Range<u32>| {
        with_second_try(shared, &location, |copy| read_range(shared, &location, range.clone(), mine, front, copy)).await
    };
    let whole = attempt(range.clone()).await;
    let pieces = range.end.div_ceil(CHECK_BYTES as u32) - range.start / CHECK_BYTES as u32;
    if !matches!(whole, Err(LogError::Damaged { .. } | LogError::Read { .. }))
        || shared.disk.copies() == 1
        || pieces == 1
    {
        return whole.inspect_err(|error| report(shared, error));
    }
    // Each copy may be bad in another place.
    let mut assembled = BytesMut::with_capacity((range.end - range.start) as usize);
    let mut at = range.start;
    while at < range.end {
        let end = (at / CHECK_BYTES as u32 + 1).saturating_mul(CHECK_BYTES as u32).min(range.end);
        assembled.extend_from_slice(&attempt(at..end).await.inspect_err(|error| report(shared, error))?);
        at = end;
    }
    Ok(assembled.freeze())
}

/// Reports a lost record: the layer above still has it, but the log does not.
pub(crate) fn lost(shared: &Shared, location: &Location) -> LogError {
    let what = "a record in the index, or one that it names, is no longer in the pool";
    let (extent, offset) = (location.extent, u64::from(location.offset));
    let error = LogError::Damaged { extent, offset, what: what.into() };
    report(shared, &error);
    error
}

/// Counts a read that no copy could answer.
fn report(shared: &Shared, error: &LogError) {
    if matches!(error, LogError::Damaged { .. } | LogError::Read { .. }) {
        shared.metrics.read_damage.fetch_add(1, Relaxed);
        // A failed disk fails every read. One message covers them all; the metrics count them.
        if let Some(more) = shared.read_failure_reports.pass(&shared.env) {
            tracing::error!(%error, more, "a read failed (and `more` since the last such line)");
        }
    }
}

/// The whole record at `location`.
pub(crate) async fn read_record(shared: &Shared, location: Location) -> Result<OwnedRecord, LogError> {
    resolve(shared, &location).inspect_err(|error| report(shared, error))?;
    let record = with_second_try(shared, &location, |copy| read_whole(shared, &location, copy)).await;
    record.inspect_err(|error| report(shared, error))
}

fn resolve(shared: &Shared, location: &Location) -> Result<ExtentInfo, LogError> {
    let Some(info) = shared.extents.get(location.extent, location.epoch) else {
        if !shared.extents.is_lost(location.extent, location.epoch) {
            return Err(LogError::Moved);
        }
        let what = "the extent is lost".into();
        return Err(LogError::Damaged { extent: location.extent, offset: u64::from(location.offset), what });
    };
    let end = u64::from(location.offset) + record_bytes(location.head_len, location.body_len);
    if u64::from(location.offset) < BLOCK as u64 || end > shared.pool.extent_bytes {
        return Err(LogError::Damaged {
            extent: location.extent,
            offset: u64::from(location.offset),
            what: "the location is not within its extent".into(),
        });
    }
    Ok(info)
}

/// Reads again from each copy of the disk after a checksum mismatch. Bad copies are healed in the
/// background. With one copy this is a retry, because the error may have occurred in transfer.
async fn with_second_try<T, F>(
    shared: &Shared,
    location: &Location,
    attempt: impl Fn(Option<u32>) -> F,
) -> Result<T, LogError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut failure = match attempt(None).await {
        Ok(value) => return Ok(value),
        Err(failure) => failure,
    };
    for copy in 0..shared.disk.copies() {
        match attempt(Some(copy)).await {
            Ok(value) => {
                shared.metrics.reads_healed.fetch_add(1, Relaxed);
                if shared.disk.copies() > 1 {
                    shared.heal_queue.push(location);
                }
                return Ok(value);
            }
            Err(Failure::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
            // The error of the first copy names what must be repaired.
            Err(other) if copy == 0 => failure = other,
            Err(_) => {}
        }
    }
    if shared.extents.get(location.extent, location.epoch).is_none() {
        return Err(LogError::Moved);
    }
    let (extent, offset) = (location.extent, u64::from(location.offset));
    Err(match failure {
        Failure::Damaged(what) => LogError::Damaged { extent, offset, what },
        Failure::Read(error) => LogError::Read { extent, offset, cause: error.to_string() },
    })
}

/// How bytes of an extent are read.
#[derive(Clone, Copy)]
enum Reading {
    /// Briefly: they hold the disk's memory for reads.
    Lent,
    /// The same, from one copy.
    LentFrom(u32),
    /// For as long as they are needed.
    Kept,
}

impl Reading {
    /// To read briefly, from one copy if there is a number.
    fn lent(copy: Option<u32>) -> Self {
        copy.map_or(Self::Lent, Self::LentFrom)
    }
}

/// Reads bytes of an extent: whole blocks, trimmed to the range.
async fn read_bytes(shared: &Shared, extent: u32, range: Range<u64>, how: Reading) -> Result<Bytes, Failure> {
    debug_assert!(range.end <= shared.pool.extent_bytes, "{range:?} of extent {extent}");
    let block = BLOCK as u64;
    let from = range.start / block * block;
    let to = range.end.next_multiple_of(block);
    let offset = shared.extents.start(extent) + from;
    let len = (to - from) as usize;
    let read = match how {
        Reading::Lent => shared.disk.read(offset, len),
        Reading::LentFrom(copy) => shared.disk.read_copy(copy, offset, len),
        Reading::Kept => shared.disk.read_kept(offset, len),
    };
    let bytes = read.await.map_err(Failure::Read)?;
    let (start, end) = ((range.start - from) as usize, (range.end - from) as usize);
    if bytes.len() < end {
        return Err(Failure::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes.slice(start..end))
}

async fn read_range(
    shared: &Shared,
    location: &Location,
    range: Range<u32>,
    mine: &(dyn Fn(&[u8]) -> bool + Sync),
    known: &RecordFront,
    copy: Option<u32>,
) -> Result<Bytes, Failure> {
    let record = u64::from(location.offset);
    let check = CHECK_BYTES as u32;
    assert!(range.start < range.end && range.end <= location.body_len, "{range:?} of {location:?}");
    let first = range.start / check;
    let last = range.end.div_ceil(check);
    let from = first * check;
    let to = last.saturating_mul(check).min(location.body_len);
    let table_at = RecordHeader::table_start(location.head_len) + u64::from(first) * 4;
    let table_end = table_at + u64::from(last - first) * 4;
    let body_start = record + RecordHeader::body_start(location.head_len, location.body_len);
    let front = record..body_start;
    let blocks = body_start + u64::from(from)..body_start + u64::from(to);
    debug_assert!(last as usize <= check_count(location.body_len));
    // The checksums of a front are verified only with the blocks that they belong to. So another
    // attempt reads them again.
    let known_front = known.get(location).filter(|_| copy.is_none());
    // Header and head are read too: they are in the block with the checksums, or next to it.
    let together = known_front.is_none() && first == 0;
    let first_byte = if together { front.start } else { blocks.start };
    let wanted_bytes = u64::from(range.end - range.start);
    let kept = copy.is_none() && wanted_bytes >= KEPT_BYTES_MIN && wanted_bytes * 4 >= (blocks.end - first_byte) * 3;
    let how = if kept { Reading::Kept } else { Reading::lent(copy) };
    let (front, blocks) = if together {
        let both = read_bytes(shared, location.extent, front.start..blocks.end, how).await?;
        (both.slice(..(front.end - front.start) as usize), both.slice((blocks.start - front.start) as usize..))
    } else {
        let blocks = read_bytes(shared, location.extent, blocks, how);
        match known_front {
            Some(front) => (front, blocks.await?),
            None => {
                // What has arrived is copied, as the other read may wait for its memory.
                let copied = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
                let front = read_bytes(shared, location.extent, front, Reading::lent(copy)).map_ok(copied);
                try_join(front, blocks.map_ok(|blocks| if kept { blocks } else { copied(blocks) })).await?
            }
        }
    };
    let seed = shared.extents.id(location.extent, location.epoch).seed();
    if !has_fault(shared.options.sabotage, Sabotage::UnverifiedReads) {
        let damaged = |error: crate::format::FormatError| Failure::Damaged(error.to_string());
        let (header, head) = RecordView::parse_head(&front, seed, location.offset).map_err(damaged)?;
        // A body alone does not identify its record.
        if (header.head_len, header.body_len) != (location.head_len, location.body_len) || !mine(head) {
            return Err(Failure::Damaged("another record is there".into()));
        }
        let table = &front[table_at as usize..table_end as usize];
        verify_body(seed, body_start as u32, first as usize, table, &blocks).map_err(damaged)?;
        if copy.is_none() && range.end < location.body_len {
            known.set(location, &front);
        }
    }
    let body = (range.start - from) as usize..(range.end - from) as usize;
    Ok(if kept { blocks.slice(body) } else { Bytes::copy_from_slice(&blocks[body]) })
}

async fn read_whole(shared: &Shared, location: &Location, copy: Option<u32>) -> Result<OwnedRecord, Failure> {
    let record = u64::from(location.offset);
    let len = record_bytes(location.head_len, location.body_len);
    let bytes = read_bytes(shared, location.extent, record..record + len, Reading::lent(copy)).await?;
    let seed = shared.extents.id(location.extent, location.epoch).seed();
    let damaged = |error: crate::format::FormatError| Failure::Damaged(error.to_string());
    let view = RecordView::parse(&bytes, seed, location.offset).map_err(damaged)?;
    if (view.header.head_len, view.header.body_len) != (location.head_len, location.body_len) {
        return Err(Failure::Damaged("another record is there".into()));
    }
    view.verify_body(seed).map_err(damaged)?;
    let header = view.header;
    let head = RECORD_HEADER..RECORD_HEADER + header.head_len as usize;
    let body = RecordHeader::body_start(header.head_len, header.body_len) as usize..;
    let copy = |part: &[u8]| Bytes::copy_from_slice(part);
    Ok(OwnedRecord { header, head: copy(&bytes[head]), body: copy(&bytes[body]) })
}
