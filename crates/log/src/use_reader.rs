//! Raw reads of a use of an extent, for a copy of the log that is kept elsewhere.
//!
//! Every structure is verified before it is given out, and taken from another copy of the disk
//! where the first one is bad. So rot is never copied.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::BLOCK;

use crate::check::Window;
use crate::copies::{FooterAt, FrameAt, HeaderOf, Structure, TrailerOf, Whole, read};
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::{ExtentId, ExtentKind, FooterBlock, FrameHeader, FrameKind, Trailer};
use crate::pins::YieldingPin;
use crate::shared::Shared;
use crate::{LogError, Ranges};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Part of a use, verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsePart {
    /// Where the part ends: a later read continues there.
    pub end: u32,
    /// The structures in it, by their offsets: one or more in each piece. Blocks between the pieces
    /// hold nothing. A piece keeps up to a megabyte of memory.
    pub pieces: Vec<(u32, Bytes)>,
    /// Bytes of the pieces.
    pub bytes: u64,
    /// Where structures are missing that no copy of the disk has whole.
    pub damaged: Ranges,
}

impl UsePart {
    /// Adds a structure, which the window may have read.
    fn push(&mut self, at: u64, bytes: Bytes, window: &Window) {
        self.bytes += bytes.len() as u64;
        if let Some((last_at, last)) = self.pieces.last_mut()
            && u64::from(*last_at) + last.len() as u64 == at
            && let Some(joined) = window.joined(last, &bytes)
        {
            *last = joined;
        } else {
            self.pieces.push((at as u32, bytes));
        }
    }
}

/// What lies at an offset of a use.
enum UsePlace {
    Header,
    /// Frames, up to this offset.
    Frames(u64),
    Footer,
    Trailer,
    /// Nothing, up to this offset.
    Gap(u64),
}

/// Reads one use of an extent. While it exists, the extent is kept from being recycled, unless free
/// extents run low.
pub struct UseReader {
    shared: Arc<Shared>,
    _pin: YieldingPin,
    id: ExtentId,
    /// The use when the read began.
    info: ExtentInfo,
    start: u64,
    window: Window,
    /// The frames of a sealed body extent, by its footer, once they were needed.
    chunks: Option<BTreeSet<u64>>,
    /// The next block of the footer: its offset and its number.
    footer_at: Option<(u64, u32)>,
}

impl UseReader {
    /// A reader of a use; `None` if the extent has been recycled.
    pub(crate) async fn open(shared: &Arc<Shared>, extent: u32, epoch: u64) -> Option<Self> {
        let pin = YieldingPin::new(&shared.extents, extent, epoch)?;
        let info = shared.extents.get(extent, epoch)?;
        let (id, start) = (shared.extents.id(extent, epoch), shared.extents.start(extent));
        let window = Window::new(shared.disk.clone(), start, shared.pool.extent_bytes, None);
        Some(Self { shared: shared.clone(), _pin: pin, id, info, start, window, chunks: None, footer_at: None })
    }

    /// Reads `range`, which a cut has named as durable, up to the end of the structure with which
    /// `most` bytes are reached.
    ///
    /// # Errors
    /// [`LogError::Moved`] if the extent has been recycled meanwhile; [`LogError::Read`] if the
    /// disk cannot be read at all.
    pub async fn read(&mut self, range: Range<u32>, most: u64) -> Result<UsePart, LogError> {
        assert!(u64::from(range.start).is_multiple_of(BLOCK_BYTES), "a part begins at a block, not at {}", range.start);
        assert!(most > 0, "a read makes progress");
        let (mut at, to) = (u64::from(range.start), u64::from(range.end));
        // It may have been sealed since the last read, and what lay ahead may have been written.
        self.info = self.shared.extents.get(self.info.extent, self.info.epoch).ok_or(LogError::Moved)?;
        self.window = Window::new(self.shared.disk.clone(), self.start, self.extent_bytes(), None);
        let mut part = UsePart::default();
        while at < to && part.bytes < most {
            at = match self.place(at, to) {
                UsePlace::Header => {
                    let header = HeaderOf { id: self.id, exact: true };
                    self.take(&mut part, at, BLOCK_BYTES, &header, |_| true).await?
                }
                UsePlace::Frames(end) => self.frame(&mut part, at, end).await?,
                UsePlace::Footer => self.footer(&mut part, at).await?,
                UsePlace::Trailer => {
                    let info = self.info;
                    // An interrupted start may have sealed the extent twice.
                    let accept = move |t: &Trailer| {
                        info.footer == Some((t.footer_offset, t.footer_len)) && u64::from(t.data_end) == info.data_end
                    };
                    let trailer = TrailerOf { id: self.id, extent_bytes: self.extent_bytes() };
                    self.take(&mut part, at, BLOCK_BYTES, &trailer, accept).await?
                }
                UsePlace::Gap(end) => end,
            };
        }
        part.end = at.min(to) as u32;
        // Bytes that verify are of this use. But what was missing may have made room for the next.
        match self.shared.extents.get(self.info.extent, self.info.epoch) {
            Some(_) => Ok(part),
            None => Err(LogError::Moved),
        }
    }

    fn extent_bytes(&self) -> u64 {
        self.shared.pool.extent_bytes
    }

    fn place(&self, at: u64, to: u64) -> UsePlace {
        if at < BLOCK_BYTES {
            return UsePlace::Header;
        }
        let data_end = if self.info.state == ExtentState::Open { to } else { self.info.data_end };
        if at < data_end {
            return UsePlace::Frames(data_end.min(to));
        }
        let Some((footer, len)) = self.info.footer else { return UsePlace::Gap(to) };
        let (footer, end) = (u64::from(footer), u64::from(footer) + u64::from(len));
        let trailer = self.shared.pool.trailer_after(end);
        match at {
            _ if at < footer => UsePlace::Gap(footer),
            _ if at < end => UsePlace::Footer,
            _ if at < trailer => UsePlace::Gap(trailer),
            _ if at == trailer => UsePlace::Trailer,
            _ => UsePlace::Gap(to),
        }
    }

    /// The structure at `at`, from the first copy of the disk that has it.
    ///
    /// # Errors
    /// [`LogError::Read`] if the disk cannot be read at all.
    async fn whole<S: Structure>(
        &mut self,
        at: u64,
        structure: &S,
        accept: impl Fn(&S::Value) -> bool,
    ) -> Result<Option<Whole<S::Value>>, LogError> {
        let found = match read(&mut self.window, at, structure).await {
            Ok(whole) if accept(&whole.value) => Some(whole),
            _ => self.shared.copies.rescue(self.start + at, structure, accept).await,
        };
        if found.is_none() {
            // A bad sector is damage. A disk that is gone may come back, with everything on it.
            let gone = self.shared.disk.read(0, BLOCK).await.err();
            gone.map_or(Ok(()), |e| {
                Err(LogError::Read { extent: self.info.extent, offset: at, cause: e.to_string() })
            })?;
        }
        Ok(found)
    }

    /// Takes a structure of `len` bytes. Returns where it ends.
    async fn take<S: Structure>(
        &mut self,
        part: &mut UsePart,
        at: u64,
        len: u64,
        structure: &S,
        accept: impl Fn(&S::Value) -> bool,
    ) -> Result<u64, LogError> {
        match self.whole(at, structure, accept).await? {
            Some(whole) => part.push(at, whole.bytes, &self.window),
            None => part.damaged.insert(at as u32..(at + len) as u32),
        }
        Ok(at + len)
    }

    /// Takes the frame at `at`. Returns where the next one begins, at most `end`.
    async fn frame(&mut self, part: &mut UsePart, at: u64, end: u64) -> Result<u64, LogError> {
        let kind = if self.info.kind == ExtentKind::Body { FrameKind::Chunk } else { FrameKind::Commit };
        let place = FrameAt { id: self.id, at, end: self.extent_bytes(), kind };
        if let Some(whole) = self.whole(at, &place, |_| true).await? {
            let next = at + whole.bytes.len() as u64;
            part.push(at, whole.bytes, &self.window);
            return Ok(next);
        }
        let next = self.next_frame(at + BLOCK_BYTES, end).await;
        let missing = match (self.info.kind, self.info.state, self.info.footer) {
            // It was open at a power cut: what is not whole may never have been written whole.
            (ExtentKind::Body, ExtentState::Sealed, None) => false,
            (ExtentKind::Body, ExtentState::Sealed, Some(_)) => {
                self.load_chunks().await?;
                // Without the footer nothing is known of the chunks.
                self.chunks.as_ref().is_none_or(|chunks| chunks.range(at..next).next().is_some())
            }
            _ => true,
        };
        if missing {
            part.damaged.insert(at as u32..next as u32);
        }
        Ok(next)
    }

    /// Finds where the frames of a sealed body extent begin.
    async fn load_chunks(&mut self) -> Result<(), LogError> {
        let Some((mut at, len)) = self.info.footer.filter(|_| self.chunks.is_none()) else { return Ok(()) };
        let (end, mut index, mut chunks) = (u64::from(at) + u64::from(len), 0, BTreeSet::new());
        while u64::from(at) < end {
            let place = FooterAt { id: self.id, at: at.into(), index, end };
            let Some(block) = self.whole(at.into(), &place, |_| true).await? else { return Ok(()) };
            let Ok(decoded) = FooterBlock::decode(&block.bytes, &self.id, at, index) else { return Ok(()) };
            let starts = decoded.entries().filter_map(|entry| Some(u64::from(entry.ok()?.offset).max(1) - 1));
            chunks.extend(starts.map(|before| before / BLOCK_BYTES * BLOCK_BYTES));
            (at, index) = (at + block.bytes.len() as u32, index + 1);
        }
        self.chunks = Some(chunks);
        Ok(())
    }

    /// Offset of the next frame from `at` on; `end` if there is none before it.
    async fn next_frame(&mut self, mut at: u64, end: u64) -> u64 {
        while at < end {
            let block = self.window.get(at, BLOCK_BYTES).await;
            let is_frame = block.is_ok_and(|block| {
                FrameHeader::looks_like(&block)
                    && FrameHeader::decode(&block)
                        .is_ok_and(|(header, _)| header.is_at(&self.id, at, self.extent_bytes()))
            });
            if is_frame {
                return at;
            }
            at += BLOCK_BYTES;
        }
        end
    }

    /// Takes the block of the footer at `at`. Returns where the next one begins.
    async fn footer(&mut self, part: &mut UsePart, at: u64) -> Result<u64, LogError> {
        let (begin, len) = self.info.footer.unwrap_or_default();
        let end = u64::from(begin) + u64::from(len);
        let (mut block_at, mut index) =
            self.footer_at.take().filter(|(known, _)| *known <= at).unwrap_or((begin.into(), 0));
        loop {
            let place = FooterAt { id: self.id, at: block_at, index, end };
            let Some(whole) = self.whole(block_at, &place, |_| true).await? else {
                // What follows cannot be found.
                part.damaged.insert(at as u32..end as u32);
                return Ok(end);
            };
            let next = block_at + whole.bytes.len() as u64;
            self.footer_at = Some((next, index + 1));
            if block_at >= at {
                part.push(block_at, whole.bytes, &self.window);
                return Ok(next);
            }
            (block_at, index) = (next, index + 1);
        }
    }
}

impl std::fmt::Debug for UseReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UseReader({} epoch {})", self.info.extent, self.info.epoch)
    }
}
