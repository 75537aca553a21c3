//! The records of a sealed extent: from its footer, or if that is missing or damaged, from its
//! frames.

use bytes::Bytes;
use steadfast_disk::BLOCK;
use steadfast_flow::Pace;

use super::{Compactor, Halt};
use crate::check::{Entries, Window};
use crate::copies::{Copies, FrameAt};
use crate::extents::ExtentInfo;
use crate::format::{ExtentId, ExtentKind, FrameHeader, FrameKind};
use crate::shared::Shared;
use crate::{Location, Lsn, heal};

/// A record or chunk of a sealed extent. Its head is a copy: callers collect many items, and each
/// of them would keep the piece of the extent that its head was read with.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) lsn: Lsn,
    pub(crate) version: Lsn,
    pub(crate) head: Bytes,
    pub(crate) location: Location,
}

/// Iterates over an extent's items.
pub(crate) enum Items {
    Footer(Entries),
    Frames { copies: Copies, window: Window, at: u64, ready: std::collections::VecDeque<Item> },
}

impl Compactor {
    /// The extent's items, from its footer if that verifies as a whole.
    pub(super) async fn items(&self, info: &ExtentInfo) -> Items {
        Items::open(self.shared(), info, &self.pace).await
    }
}

impl Items {
    /// The items of an extent, from its footer if that verifies as a whole.
    pub(crate) async fn open(shared: &Shared, info: &ExtentInfo, pace: &Pace) -> Self {
        let start = shared.extents.start(info.extent);
        let id = shared.extents.id(info.extent, info.epoch);
        let bytes = shared.pool.extent_bytes;
        if let Some(mut entries) = Entries::open(shared.disk.clone(), &shared.pool, id).await
            && entries.verify().await
        {
            return Items::Footer(entries);
        }
        if shared.copies.count() > 1 {
            // Another copy may have the lost part of the footer.
            heal::extent(&shared.copies, &shared.pool, info, Some(pace.clone())).await;
            if let Some(mut entries) = Entries::open(shared.disk.clone(), &shared.pool, id).await
                && entries.verify().await
            {
                return Items::Footer(entries);
            }
        }
        let window = Window::new(shared.disk.clone(), start, bytes, Some(pace.clone()));
        let copies = shared.copies.clone();
        Items::Frames { copies, window, at: BLOCK as u64, ready: std::collections::VecDeque::new() }
    }

    /// The next item. If frames are read, invalid data in a commit extent is an error, never
    /// skipped.
    pub(crate) async fn next(&mut self, info: &ExtentInfo, pool: [u8; 16]) -> Result<Option<Item>, Halt> {
        let place = |offset: u32, head_len: usize, body_len: u32| Location {
            extent: info.extent,
            epoch: info.epoch,
            offset,
            head_len: head_len as u32,
            body_len,
        };
        match self {
            Items::Footer(entries) => {
                let entry = entries.next().await.map_err(Halt::from)?;
                Ok(entry.map(|entry| Item {
                    lsn: entry.lsn,
                    version: entry.version,
                    location: place(entry.offset, entry.head.len(), entry.body_len),
                    head: Bytes::copy_from_slice(&entry.head),
                }))
            }
            Items::Frames { copies, window, at, ready } => loop {
                if let Some(item) = ready.pop_front() {
                    return Ok(Some(item));
                }
                if *at >= info.data_end {
                    return Ok(None);
                }
                let id = ExtentId { pool, extent: info.extent, epoch: info.epoch };
                let (header, frame) = match frame_at(copies, window, id, *at, info).await {
                    Ok(found) => found,
                    // Places between chunks may never have been written.
                    Err(FrameFault::NoFrame) if info.kind == ExtentKind::Body => {
                        *at += BLOCK as u64;
                        continue;
                    }
                    Err(FrameFault::NoFrame) => {
                        return Err(Halt::Stuck(format!("no valid frame at {at}, and no footer")));
                    }
                    Err(FrameFault::Unreadable(cause)) => {
                        return Err(Halt::Unread { offset: *at, cause: cause.to_string() });
                    }
                };
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
                        head: Bytes::copy_from_slice(view.head),
                    });
                }
                *at += header.total_len();
            },
        }
    }
}

enum FrameFault {
    NoFrame,
    Unreadable(std::io::Error),
}

/// The frame at `at`, from another copy of the disk if the first lacks it.
async fn frame_at(
    copies: &Copies,
    window: &mut Window,
    id: ExtentId,
    at: u64,
    info: &ExtentInfo,
) -> Result<(FrameHeader, Bytes), FrameFault> {
    let found = first_copy(window, &id, at, info.data_end).await;
    let whole = found.as_ref().is_ok_and(|(header, frame)| header.verify_payload(frame).is_ok());
    if whole || copies.count() == 1 {
        return found;
    }
    let kind = if info.kind == ExtentKind::Body { FrameKind::Chunk } else { FrameKind::Commit };
    let offset = window.start() + at;
    match copies.rescue(offset, &FrameAt { id, at, end: info.data_end, kind }, |_| true).await {
        Some(other) => Ok((other.value.0, other.bytes)),
        None => found,
    }
}

async fn first_copy(window: &mut Window, id: &ExtentId, at: u64, end: u64) -> Result<(FrameHeader, Bytes), FrameFault> {
    let block = window.get(at, BLOCK as u64).await.map_err(FrameFault::Unreadable)?;
    let header = match FrameHeader::decode(&block) {
        Ok((header, _)) if header.is_at(id, at, end) => header,
        _ => return Err(FrameFault::NoFrame),
    };
    Ok((header, window.get(at, header.total_len()).await.map_err(FrameFault::Unreadable)?))
}
