//! Brings bytes of the log into the store.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use steadfast_flow::has_fault;
use steadfast_log::{LogError, Ranges, UseReader};

use crate::attempts::Attempts;
use crate::changes::{Part, Source};
use crate::document::checksum_of;
use crate::error::ArchiveError;
use crate::inline::Inline;
use crate::name::{DiskId, Numbered, ObjectName, UseId};
use crate::options::{ArchiveOptions, ArchiveSabotage};

/// Why bytes did not get into the store.
#[derive(Debug)]
pub(crate) enum TransferError {
    /// The extent was recycled.
    Recycled,
    /// The disk cannot be read.
    Unreadable(DiskId),
    /// The archive cannot be used any more.
    Archive(ArchiveError),
}

impl From<ArchiveError> for TransferError {
    fn from(e: ArchiveError) -> Self {
        Self::Archive(e)
    }
}

impl TransferError {
    fn of(disk: DiskId, e: LogError) -> Self {
        match e {
            LogError::Moved => Self::Recycled,
            e => {
                tracing::warn!(error = %e, "a disk cannot be read for the archive");
                Self::Unreadable(disk)
            }
        }
    }
}

/// What was copied of a use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copied {
    /// The ranges, with what was never written or is damaged within them.
    pub(crate) ranges: Ranges,
    /// Where their bytes are.
    pub(crate) parts: Vec<Part>,
    /// What is damaged of them on the disk.
    pub(crate) damaged: Ranges,
}

impl Copied {
    fn add(&mut self, other: Self) {
        self.ranges.extend(&other.ranges);
        self.damaged.extend(&other.damaged);
        self.parts.extend(other.parts);
    }
}

/// One run of bytes, in pieces.
struct Run {
    from: u32,
    bytes: Vec<Bytes>,
}

/// Part of a use that was read.
struct Read {
    range: Range<u32>,
    runs: Vec<Run>,
    damaged: Ranges,
}

/// A use to be copied, which is kept from being recycled meanwhile.
pub(crate) struct ToCopy {
    pub(crate) id: UseId,
    pub(crate) reader: UseReader,
    pub(crate) missing: Ranges,
}

/// Reads a part of `range` of a use, up to about `most` bytes.
async fn read(id: UseId, reader: &mut UseReader, range: Range<u32>, most: u64) -> Result<Read, TransferError> {
    let part = reader.read(range.clone(), most).await.map_err(|e| TransferError::of(id.disk, e))?;
    assert!(part.end > range.start && part.end <= range.end, "a read makes progress within its range");
    let mut runs: Vec<Run> = Vec::new();
    for (at, bytes) in part.pieces {
        match runs.last_mut() {
            Some(run) if run.from + run.len() == at => run.bytes.push(bytes),
            _ => runs.push(Run { from: at, bytes: vec![bytes] }),
        }
    }
    // A structure may end behind the range: all of it counts.
    Ok(Read { range: range.start..part.end, runs, damaged: part.damaged })
}

impl ToCopy {
    /// Reads all that is missing into documents.
    pub(crate) async fn into_inline(mut self, most: u64, inline: &mut Inline) -> Result<Copied, TransferError> {
        let mut copied = Copied::default();
        for range in self.missing.iter() {
            let mut at = range.start;
            while at < range.end {
                let read = read(self.id, &mut self.reader, at..range.end, most).await?;
                at = read.range.end;
                let mut one = Copied { ranges: Ranges::of(read.range), damaged: read.damaged, parts: Vec::new() };
                for run in read.runs {
                    one.parts.push(run.part(run.from, Source::Here { at: 0 }));
                    // A copy: the bytes keep the memory of a larger read.
                    inline.put(self.id, run.from, run.bytes.concat().into());
                }
                copied.add(one);
            }
        }
        Ok(copied)
    }
}

impl Run {
    fn len(&self) -> u32 {
        u32::try_from(self.bytes.iter().map(Bytes::len).sum::<usize>()).expect("a run within an extent")
    }

    fn part(&self, from: u32, source: Source) -> Part {
        Part { from, len: self.len(), crc: checksum_of(&self.bytes), source }
    }
}

/// Numbers for the pieces of this process.
#[derive(Debug)]
pub(crate) struct Numbers {
    tenure: u64,
    next: u64,
}

impl Numbers {
    pub(crate) fn new(tenure: u64) -> Self {
        Self { tenure, next: 1 }
    }

    /// A number that was not given out before.
    pub(crate) fn next(&mut self) -> Numbered {
        self.next += 1;
        Numbered { tenure: self.tenure, n: self.next - 1 }
    }
}

/// An upload that has ended.
type Ended = (UseId, Copied, Result<(), ArchiveError>);

/// Uploads pieces, several at a time.
pub(crate) struct Uploads<'a> {
    attempts: &'a Attempts,
    numbers: &'a mut Numbers,
    most: usize,
    piece_bytes: u64,
    running: FuturesUnordered<BoxFuture<'a, Ended>>,
    /// What was answered, by use. It serves later cuts too.
    answered: &'a mut BTreeMap<UseId, Copied>,
    /// Whether uploads count before they are answered, which is a bug.
    unanswered: bool,
}

impl<'a> Uploads<'a> {
    pub(crate) fn new(
        attempts: &'a Attempts,
        numbers: &'a mut Numbers,
        answered: &'a mut BTreeMap<UseId, Copied>,
        options: &ArchiveOptions,
    ) -> Self {
        assert!(options.uploads_max > 0, "an upload at a time");
        let (most, piece_bytes) = (options.uploads_max, options.piece_bytes);
        let unanswered = has_fault(options.sabotage, ArchiveSabotage::UnansweredPieces);
        Self { attempts, numbers, most, piece_bytes, running: FuturesUnordered::new(), answered, unanswered }
    }

    /// Reads all that is missing of a use, and uploads it.
    ///
    /// # Errors
    /// [`TransferError`]. What was answered until then counts.
    pub(crate) async fn take(&mut self, mut source: ToCopy) -> Result<(), TransferError> {
        for range in source.missing.iter() {
            let mut at = range.start;
            while at < range.end {
                while self.running.len() >= self.most {
                    self.next().await?;
                }
                let read = read(source.id, &mut source.reader, at..range.end, self.piece_bytes).await?;
                at = read.range.end;
                self.upload(source.id, read);
            }
        }
        Ok(())
    }

    /// Reads the first piece that is missing of a use, and uploads it.
    ///
    /// # Errors
    /// [`TransferError`]
    pub(crate) async fn take_piece(&mut self, mut source: ToCopy) -> Result<(), TransferError> {
        let Some(range) = source.missing.iter().next().cloned() else { return Ok(()) };
        let read = read(source.id, &mut source.reader, range, self.piece_bytes).await?;
        self.upload(source.id, read);
        Ok(())
    }

    /// Waits for all uploads.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`]
    pub(crate) async fn finish(mut self) -> Result<(), ArchiveError> {
        if self.unanswered {
            return Ok(());
        }
        while !self.running.is_empty() {
            self.next().await?;
        }
        Ok(())
    }

    fn upload(&mut self, id: UseId, read: Read) {
        let mut copied = Copied { ranges: Ranges::of(read.range), damaged: read.damaged, parts: Vec::new() };
        let Some(first) = read.runs.first().map(|run| run.from) else {
            self.answered.entry(id).or_default().add(copied);
            return;
        };
        let (by, mut at) = (self.numbers.next(), 0);
        for run in &read.runs {
            let part = run.part(run.from, Source::Piece { from: first, by, at });
            at += part.len;
            copied.parts.push(part);
        }
        let body: Vec<Bytes> = read.runs.into_iter().flat_map(|run| run.bytes).collect();
        let (attempts, name) = (self.attempts, ObjectName::Piece { of: id, from: first, by }.to_string());
        if self.unanswered {
            self.answered.entry(id).or_default().add(copied.clone());
        }
        let upload = async move {
            let created = attempts.create(&name, &body).await;
            (id, copied, created)
        };
        self.running.push(upload.boxed());
    }

    async fn next(&mut self) -> Result<(), ArchiveError> {
        let Some((id, copied, created)) = self.running.next().await else { return Ok(()) };
        created?;
        if !self.unanswered {
            self.answered.entry(id).or_default().add(copied);
        }
        Ok(())
    }
}
