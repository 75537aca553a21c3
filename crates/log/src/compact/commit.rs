//! Emptying an extent of records.

use std::collections::VecDeque;

use super::source::Item;
use super::victim::{Pressure, used_bytes};
use super::{Compactor, Halt, RESERVE_WAIT};
use crate::extents::ExtentInfo;
use crate::format::{footer_entry_bytes, record_bytes};
use crate::read::read_record;
use crate::{Durability, LogError, Lsn, Priority, Record, Reservation};

/// Heads asked about at a time, off the threads that serve requests: the index may have to read.
const ASK_MAX: usize = 256;

/// Bytes that a record takes in an extent, with its entry in the footer.
fn room_bytes(item: &Item) -> u64 {
    let location = &item.location;
    record_bytes(location.head_len, location.body_len) + footer_entry_bytes(location.head_len as usize) as u64
}

impl Compactor {
    /// Appends again what is live, and makes it durable.
    pub(super) async fn empty_commit(&self, info: &ExtentInfo, oldest: Lsn, pressure: Pressure) -> Result<(), Halt> {
        let (live, room) = self.count_live(info, oldest).await?;
        if !self.worth(info, live, used_bytes(info), pressure) {
            return Err(Halt::NotWorth);
        }
        if !self.shared().room.holds(room) {
            // Half of it copied, the pool would be as full as before, and with nothing left to copy the other half into.
            return Err(Halt::Later);
        }
        let pool = self.shared().pool.pool;
        let batch_max = (self.log.limits().batch_bytes_max / 2).clamp(64 << 10, 1 << 20);
        let mut items = self.items(info).await;
        let mut batch: Vec<Item> = Vec::new();
        let mut batch_bytes = 0;
        loop {
            let (asked, end) = self.ask(&mut items, info, pool).await?;
            for item in self.live_of(asked, oldest).await? {
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

    async fn ask(
        &self,
        items: &mut super::source::Items,
        info: &ExtentInfo,
        pool: [u8; 16],
    ) -> Result<(Vec<Item>, bool), Halt> {
        if self.stop.is_set() {
            return Err(Halt::Later);
        }
        let mut asked = Vec::new();
        while asked.len() < ASK_MAX {
            match items.next(info, pool).await? {
                Some(item) => asked.push(item),
                None => return Ok((asked, true)),
            }
        }
        Ok((asked, false))
    }

    /// Bytes that would have to be appended again, and the room that they take with their entries in the footer.
    async fn count_live(&self, info: &ExtentInfo, oldest: Lsn) -> Result<(u64, u64), Halt> {
        let mut items = self.items(info).await;
        let (mut live, mut room) = (0, 0);
        loop {
            let (asked, end) = self.ask(&mut items, info, self.shared().pool.pool).await?;
            for item in self.live_of(asked, oldest).await? {
                live += record_bytes(item.location.head_len, item.location.body_len);
                room += room_bytes(&item);
            }
            if end {
                return Ok((live, room));
            }
        }
    }

    async fn live_of(&self, items: Vec<Item>, oldest: Lsn) -> Result<Vec<Item>, Halt> {
        let applier = self.shared().applier.clone();
        let is_live = move |item: &Item| applier.record_is_live(&item.head, item.version, &item.location, oldest);
        let kept = self.shared().env.blocking(move || items.into_iter().filter(is_live).collect()).await;
        // Nothing came of it: the runtime is stopping, or the layer above has panicked. Nothing is dead for that.
        kept.ok_or_else(|| {
            if !self.stop.is_set() {
                let what = "what says which records are live has panicked, which is a bug: please report it";
                self.shared().latch.fail("task", &std::io::Error::other(format!("log-compact: {what}")));
            }
            Halt::Later
        })
    }

    /// Appends records again, with their versions, and waits until they have been applied. What does not fit into the rest of an extent
    /// when there is no other is appended in smaller batches.
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
