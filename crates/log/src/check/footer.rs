//! Iterates over a footer, in parallel with the frames that it repeats.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::Disk;
use steadfast_flow::Pace;

use super::Window;
use crate::Lsn;
use crate::format::{ExtentId, FOOTER_BLOCK_HEADER, FooterBlock, Trailer, footer_entry_bytes};

/// An entry, with its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub lsn: Lsn,
    pub version: Lsn,
    pub moved: bool,
    pub offset: u32,
    pub body_len: u32,
    pub head: Bytes,
}

/// Reason why the footer cannot be read further.
pub(crate) struct FooterFault {
    pub offset: u64,
    pub what: String,
    /// The disk failed the read, which proves no damage.
    pub unread: bool,
}

/// Reads one footer block at a time.
pub(super) struct FooterCursor {
    window: Window,
    id: ExtentId,
    at: u64,
    end: u64,
    index: u32,
    count: u64,
    expected: u64,
    ready: VecDeque<Entry>,
    /// Set after a fault; no more entries follow.
    lost: bool,
}

impl FooterCursor {
    pub fn new(disk: Arc<dyn Disk>, start: u64, extent_bytes: u64, trailer: &Trailer, pace: Option<Pace>) -> Self {
        Self::of_window(Window::new(disk, start, extent_bytes, pace), trailer)
    }

    /// Reads through this window, which begins where the extent does.
    pub fn of_window(window: Window, trailer: &Trailer) -> Self {
        let at = u64::from(trailer.footer_offset);
        Self {
            window,
            id: trailer.id,
            at,
            end: at + u64::from(trailer.footer_len),
            index: 0,
            count: 0,
            expected: trailer.record_count,
            ready: VecDeque::new(),
            lost: false,
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    pub fn read_bytes(&self) -> u64 {
        self.window.read_bytes()
    }

    /// The next entry, without taking it; `None` at the end or if the footer is lost.
    pub async fn peek(&mut self) -> Result<Option<&Entry>, FooterFault> {
        while self.ready.is_empty() && !self.lost {
            if self.at >= self.end {
                if self.count != self.expected {
                    let what = format!("the footer has {} entries, the trailer says {}", self.count, self.expected);
                    return Err(self.fault(what));
                }
                break;
            }
            self.load().await?;
        }
        Ok(self.ready.front())
    }

    /// Takes the entry that [`FooterCursor::peek`] returned.
    pub fn take(&mut self) -> Option<Entry> {
        self.ready.pop_front()
    }

    fn fault(&mut self, what: String) -> FooterFault {
        self.lost = true;
        FooterFault { offset: self.at, what, unread: false }
    }

    async fn load(&mut self) -> Result<(), FooterFault> {
        let len_max = (FooterBlock::len_max() as u64).min(self.end - self.at);
        let bytes = match self.window.get(self.at, len_max).await {
            Ok(bytes) => bytes,
            Err(cause) => {
                let fault = self.fault(format!("the footer cannot be read: {cause}"));
                return Err(FooterFault { unread: true, ..fault });
            }
        };
        match parse(&bytes, &self.id, self.at, self.index) {
            Ok((entries, len)) => {
                self.count += entries.len() as u64;
                self.ready = entries;
                self.index += 1;
                self.at += len;
                Ok(())
            }
            Err(what) => Err(self.fault(what)),
        }
    }
}

fn parse(bytes: &Bytes, id: &ExtentId, at: u64, index: u32) -> Result<(VecDeque<Entry>, u64), String> {
    let offset = u32::try_from(at).map_err(|_| "the footer lies beyond any extent".to_owned())?;
    let block = FooterBlock::decode(bytes, id, offset, index).map_err(|e| e.to_string())?;
    let len = FooterBlock::peek_len(bytes).map_err(|e| e.to_string())?;
    let mut entries = VecDeque::new();
    let mut used = FOOTER_BLOCK_HEADER;
    for entry in block.entries() {
        let entry = entry.map_err(|e| e.to_string())?;
        used += footer_entry_bytes(entry.head.len());
        entries.push_back(Entry {
            lsn: entry.lsn,
            version: entry.version,
            moved: entry.moved,
            offset: entry.offset,
            body_len: entry.body_len,
            head: bytes.slice_ref(entry.head),
        });
    }
    if bytes.get(used..len).is_none_or(|padding| padding.iter().any(|b| *b != 0)) {
        return Err("the padding of a footer block is not zero".to_owned());
    }
    Ok((entries, len as u64))
}
