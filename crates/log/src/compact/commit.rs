//! Emptying an extent of records.

use super::source::Item;
use super::victim::{Pressure, used_bytes};
use super::{Compactor, Halt, RESERVE_WAIT};
use crate::extents::ExtentInfo;
use crate::format::record_bytes;
use crate::read::read_record;
use crate::{Durability, Lsn, Priority, Record};

/// Heads asked about at a time, off the threads that serve requests: the index may have to read.
const ASK_MAX: usize = 256;

impl Compactor {
    /// Appends again what is live, and makes it durable.
    pub(super) async fn empty_commit(
        &mut self,
        info: &ExtentInfo,
        oldest: Lsn,
        pressure: Pressure,
    ) -> Result<(), Halt> {
        let live = self.count_live(info, oldest).await?;
        if !self.worth(live, used_bytes(info), pressure) {
            return Err(Halt::NotWorth);
        }
        let pool = self.shared().pool.pool;
        let batch_max = (self.log.limits().batch_bytes_max / 4).clamp(64 << 10, 1 << 20);
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

    /// Bytes that would have to be appended again.
    async fn count_live(&self, info: &ExtentInfo, oldest: Lsn) -> Result<u64, Halt> {
        let mut items = self.items(info).await;
        let mut live = 0;
        loop {
            let (asked, end) = self.ask(&mut items, info, self.shared().pool.pool).await?;
            let kept = self.live_of(asked, oldest).await?;
            live += kept.iter().map(|i| record_bytes(i.location.head_len, i.location.body_len)).sum::<u64>();
            if end {
                return Ok(live);
            }
        }
    }

    async fn live_of(&self, items: Vec<Item>, oldest: Lsn) -> Result<Vec<Item>, Halt> {
        let applier = self.shared().applier.clone();
        let is_live = move |item: &Item| applier.record_is_live(&item.head, item.version, &item.location, oldest);
        let kept = self.shared().env.blocking(move || items.into_iter().filter(is_live).collect()).await;
        // Nothing came of it: the runtime is stopping, or the layer above has failed. Nothing is dead for that.
        kept.ok_or(Halt::Later)
    }

    /// Appends records again, with their versions, and waits until they have been applied.
    async fn append(&mut self, items: Vec<Item>) -> Result<(), Halt> {
        if items.is_empty() {
            return Ok(());
        }
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
        let room = self.log.reserve(bytes, Priority::Compaction, RESERVE_WAIT).await?;
        self.log.submit(room, batch, Durability::Async)?.await?;
        self.note(|status| {
            status.records_moved += count;
            status.moved_bytes += bytes;
        });
        Ok(())
    }
}
