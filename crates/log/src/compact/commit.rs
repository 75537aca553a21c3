//! Compaction of a commit extent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::filters::Others;
use super::source::Item;
use super::victim::{Pressure, used_bytes};
use super::{Compactor, Halt, RESERVE_WAIT};
use crate::extents::ExtentInfo;
use crate::format::{footer_entry_bytes, record_bytes};
use crate::read::read_record;
use crate::{Durability, LogError, Priority, Record, Reservation};

/// Heads checked per call, outside the threads that serve requests: the index may have to read.
const PAGE_MAX: usize = 256;

/// Bytes that a record takes in an extent, with its entry in the footer.
fn room_bytes(item: &Item) -> u64 {
    let location = &item.location;
    record_bytes(location.head_len, location.body_len) + footer_entry_bytes(location.head_len as usize) as u64
}

/// Live data of an extent, which would be appended again.
#[derive(Debug, Default)]
struct Live {
    records: u64,
    bytes: u64,
    /// Bytes of records and their footer entries.
    room: u64,
    /// Bytes of deletes, by the number of the other extent for which they are kept.
    kept: BTreeMap<usize, u64>,
    /// Deletes kept for an extent with unknown keys: their number and bytes.
    unknown: (u64, u64),
}

impl Compactor {
    /// Appends live records again, and makes them durable.
    pub(super) async fn empty_commit(&self, info: &ExtentInfo, pressure: Pressure) -> Result<(), Halt> {
        let mut others = Arc::new(self.others(info));
        let mut count = self.count_live(info, &others).await?;
        if self.asks_for_filters(info, &count, pressure) && self.learn(&others).await? {
            others = Arc::new(self.others(info));
            count = self.count_live(info, &others).await?;
        }
        if !self.worth(info, count.bytes, used_bytes(info), pressure) {
            return Err(Halt::NotWorth(self.kept_for(&others, &count.kept)));
        }
        if !self.shared().room.holds(count.room) {
            // With half of it copied, the pool would be as full as before and unable to copy the
            // other half.
            return Err(Halt::Later);
        }
        let pool = self.shared().pool.pool;
        let batch_max = self.log.limits().copied_batch_bytes_max();
        let mut items = self.items(info).await;
        let mut batch: Vec<Item> = Vec::new();
        let mut batch_bytes = 0;
        loop {
            let (page, end) = self.next_page(&mut items, info, pool).await?;
            for (item, _) in self.live_of(page, &others).await? {
                let bytes = record_bytes(item.location.head_len, item.location.body_len);
                if batch_bytes > 0 && batch_bytes + bytes > batch_max {
                    self.append(std::mem::take(&mut batch)).await?;
                    batch_bytes = 0;
                }
                batch_bytes += bytes;
                batch.push(item);
            }
            if end {
                break;
            }
        }
        self.append(batch).await?;
        self.settled().await
    }

    async fn next_page(
        &self,
        items: &mut super::source::Items,
        info: &ExtentInfo,
        pool: [u8; 16],
    ) -> Result<(Vec<Item>, bool), Halt> {
        if self.stop.is_set() {
            return Err(Halt::Later);
        }
        let mut page = Vec::new();
        while page.len() < PAGE_MAX {
            match items.next(info, pool).await? {
                Some(item) => page.push(item),
                None => return Ok((page, true)),
            }
        }
        Ok((page, false))
    }

    /// Whether to build filters of the other extents. They pay if many of the bytes to copy are
    /// deletes kept for lack of filters, or if these prevent compaction. While space is low only
    /// the second applies, because building reads footers and writers wait.
    fn asks_for_filters(&self, info: &ExtentInfo, count: &Live, pressure: Pressure) -> bool {
        let worth = |bytes: u64| self.worth(info, bytes, used_bytes(info), pressure);
        match worth(count.bytes) {
            true => pressure == Pressure::Normal && count.unknown.0 * 16 > count.records,
            false => count.unknown.0 > 0 && worth(count.bytes.saturating_sub(count.unknown.1)),
        }
    }

    async fn count_live(&self, info: &ExtentInfo, others: &Arc<Others>) -> Result<Live, Halt> {
        let mut items = self.items(info).await;
        let mut live = Live::default();
        loop {
            let (page, end) = self.next_page(&mut items, info, self.shared().pool.pool).await?;
            for (item, kept_for) in self.live_of(page, others).await? {
                let bytes = record_bytes(item.location.head_len, item.location.body_len);
                live.records += 1;
                live.bytes += bytes;
                live.room += room_bytes(&item);
                if let Some(other) = kept_for {
                    *live.kept.entry(other).or_default() += bytes;
                    if others.is_unknown(other) {
                        live.unknown = (live.unknown.0 + 1, live.unknown.1 + bytes);
                    }
                }
            }
            if end {
                return Ok(live);
            }
        }
    }

    /// Liveness of these items, and for a delete the extent for which it is kept.
    async fn live_of(&self, items: Vec<Item>, others: &Arc<Others>) -> Result<Vec<(Item, Option<usize>)>, Halt> {
        let (applier, others) = (self.shared().applier.clone(), others.clone());
        let all = move || {
            let mut kept = Vec::new();
            for item in items {
                let (oldest, kept_for) = others.oldest_for(applier.subject(&item.head), item.version);
                if applier.record_is_live(&item.head, item.version, &item.location, oldest)? {
                    kept.push((item, kept_for));
                }
            }
            Some(kept)
        };
        // No result: the runtime is stopping, or the layer above has panicked. No record counts as
        // dead then.
        let kept = self.shared().env.blocking(all).await.ok_or_else(|| {
            if !self.stop.is_set() {
                let what = "the check for live records has panicked, which is a bug: please report it";
                self.shared().latch.fail("task", &std::io::Error::other(format!("log-compact: {what}")));
            }
            Halt::Later
        })?;
        kept.ok_or(Halt::Later)
    }

    /// Appends records again, with their versions, and waits until they are applied. Records that
    /// do not fit into the last extent are appended in smaller batches.
    async fn append(&self, items: Vec<Item>) -> Result<(), Halt> {
        let mut batches = VecDeque::from([items]);
        while let Some(mut items) = batches.pop_front() {
            if items.is_empty() {
                continue;
            }
            let room = items.iter().map(room_bytes).sum();
            match self.log.reserve(room, Priority::Compaction, RESERVE_WAIT).await {
                Err(LogError::Full) if items.len() > 1 => {
                    let second = items.split_off(items.len() / 2);
                    batches.push_front(second);
                    batches.push_front(items);
                }
                Err(error) => return Err(error.into()),
                Ok(room) => self.append_batch(items, room).await?,
            }
        }
        Ok(())
    }

    async fn append_batch(&self, items: Vec<Item>, room: Reservation) -> Result<(), Halt> {
        let mut batch = Vec::with_capacity(items.len());
        let mut bytes = 0;
        for item in items {
            let len = record_bytes(item.location.head_len, item.location.body_len);
            self.pace.spend(2 * len).await;
            let record = read_record(self.shared(), item.location).await?;
            if (record.header.lsn, record.header.version) != (item.lsn, item.version) || record.head != item.head {
                return Err(Halt::Stuck(format!("footer and record differ at {}", item.location.offset)));
            }
            bytes += len;
            let body = if record.body.is_empty() { Vec::new() } else { vec![record.body] };
            batch.push(Record { head: record.head, body, version: Some(item.version) });
        }
        let count = batch.len() as u64;
        self.log.submit(room, batch, Durability::Async)?.await?;
        self.note(|status| {
            status.records_moved += count;
            status.moved_bytes += bytes;
        });
        Ok(())
    }
}
