//! The records of a sealed extent: from its footer, or where that is missing or damaged, from its frames.

use bytes::Bytes;
use steadfast_disk::BLOCK;

use super::{Compactor, Halt};
use crate::check::{Entries, Window};
use crate::extents::ExtentInfo;
use crate::format::{FrameHeader, FrameKind};
use crate::{Location, Lsn};

/// A record or chunk of a sealed extent.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub lsn: Lsn,
    pub version: Lsn,
    pub head: Bytes,
    pub location: Location,
}

/// Goes through an extent's items.
pub(super) enum Items {
    Footer(Entries),
    Frames { window: Window, at: u64, ready: std::collections::VecDeque<Item> },
}

impl Compactor {
    /// The extent's items, from the footer if there is one that verifies as a whole.
    pub(super) async fn items(&self, info: &ExtentInfo) -> Items {
        let shared = self.shared();
        let start = shared.extents.start(info.extent);
        let id = shared.extents.id(info.extent, info.epoch);
        let bytes = shared.pool.extent_bytes;
        if let Some(mut entries) = Entries::open(shared.disk.clone(), start, bytes, id).await
            && entries.verify().await
        {
            return Items::Footer(entries);
        }
        let window = Window::new(shared.disk.clone(), start, bytes, Some(self.pace.clone()));
        Items::Frames { window, at: BLOCK as u64, ready: std::collections::VecDeque::new() }
    }
}

impl Items {
    /// The next item. Where frames have to be read, nothing that does not verify is passed over in an extent of records.
    pub(super) async fn next(&mut self, info: &ExtentInfo, pool: [u8; 16]) -> Result<Option<Item>, Halt> {
        let place = |offset: u32, head_len: usize, body_len: u32| Location {
            extent: info.extent,
            epoch: info.epoch,
            offset,
            head_len: head_len as u32,
            body_len,
        };
        match self {
            Items::Footer(entries) => {
                let entry = entries.next().await.map_err(Halt::Stuck)?;
                Ok(entry.map(|entry| Item {
                    lsn: entry.lsn,
                    version: entry.version,
                    location: place(entry.offset, entry.head.len(), entry.body_len),
                    head: entry.head,
                }))
            }
            Items::Frames { window, at, ready } => loop {
                if let Some(item) = ready.pop_front() {
                    return Ok(Some(item));
                }
                if *at >= info.data_end {
                    return Ok(None);
                }
                let unreadable = |cause: std::io::Error| Halt::Stuck(format!("cannot be read: {cause}"));
                let block = window.get(*at, BLOCK as u64).await.map_err(unreadable)?;
                let id = crate::format::ExtentId { pool, extent: info.extent, epoch: info.epoch };
                let header = match FrameHeader::decode(&block) {
                    Ok((header, _)) if header.is_at(&id, *at, info.data_end) => header,
                    // Between chunks there may be places that were never written.
                    _ if info.kind == crate::format::ExtentKind::Body => {
                        *at += BLOCK as u64;
                        continue;
                    }
                    _ => return Err(Halt::Stuck(format!("no valid frame at {at}, and no footer"))),
                };
                let frame = window.get(*at, header.total_len()).await.map_err(unreadable)?;
                for view in header.records(&frame) {
                    let view = match view {
                        Ok(view) => view,
                        Err(_) if header.kind == FrameKind::Chunk => break,
                        Err(why) => return Err(Halt::Stuck(format!("frame at {at}: {why}"))),
                    };
                    ready.push_back(Item {
                        lsn: view.header.lsn,
                        version: view.header.version,
                        location: place(view.offset, view.head.len(), view.header.body_len),
                        head: frame.slice_ref(view.head),
                    });
                }
                *at += header.total_len();
            },
        }
    }
}
