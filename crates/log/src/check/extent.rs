//! Checks one extent, from its header to its trailer.

use std::sync::Arc;

use serde::Serialize;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Pace;

use super::footer::FooterCursor;
use super::{Counts, Damage, Findings, Window};
use crate::format::{ExtentHeader, ExtentId, ExtentKind, FormatError, FrameHeader, FrameKind, Superblock, Trailer};

/// State of a checked extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckedState {
    /// Never used by this pool, or past the end of the disk.
    Unused,
    /// Free.
    Free,
    /// Without a trailer of its epoch.
    Open(ExtentKind),
    /// With a trailer of its epoch.
    Sealed(ExtentKind),
    /// So damaged that no data in it can be read.
    Lost,
}

/// Checks extents of one pool.
#[derive(Clone)]
pub struct ExtentCheck {
    disk: Arc<dyn Disk>,
    superblock: Superblock,
    pace: Option<Pace>,
}

/// One extent during its check.
pub(super) struct Walk<'a> {
    pub id: ExtentId,
    pub extent_bytes: u64,
    pub window: Window,
    pub footer: Option<FooterCursor>,
    pub findings: &'a mut dyn Findings,
    pub counts: Counts,
}

/// Identity of an extent, from its header. If that is damaged, from the trailer or the first frame.
struct Identity {
    id: ExtentId,
    kind: ExtentKind,
}

impl ExtentCheck {
    /// A check of the extents of the pool with this superblock, limited by `pace`.
    pub fn new(disk: Arc<dyn Disk>, superblock: Superblock, pace: Option<Pace>) -> Self {
        Self { disk, superblock, pace }
    }

    /// Reads the extent from end to end and reports differences to `findings`.
    pub async fn run(&self, extent: u32, findings: &mut dyn Findings) -> (CheckedState, Counts) {
        let start = self.superblock.extent_start(extent);
        let mut window = self.window(start);
        if window.end() == 0 {
            return (CheckedState::Unused, Counts::default());
        }
        let (trailer_at, trailer) = self.trailer(extent, start, &mut window).await;
        let identity = self.identity(extent, &mut window, trailer.as_ref().ok(), findings).await;
        let (id, kind) = match identity {
            Ok(Identity { id, kind }) => (id, kind),
            Err(state) => return (state, Counts { read_bytes: window.read_bytes(), ..Counts::default() }),
        };
        if kind == ExtentKind::Free {
            return (CheckedState::Free, Counts { read_bytes: window.read_bytes(), ..Counts::default() });
        }
        let trailer = self.judge_trailer(id, kind, (trailer_at, trailer), findings);
        let bytes = self.superblock.extent_bytes;
        let footer = trailer.as_ref().map(|t| FooterCursor::new(self.disk.clone(), start, bytes, t, self.pace.clone()));
        let mut walk = Walk { id, extent_bytes: bytes, window, footer, findings, counts: Counts::default() };
        match kind {
            ExtentKind::Commit => walk.commit(trailer.as_ref()).await,
            _ => walk.body(trailer.as_ref()).await,
        }
        let mut counts = walk.counts;
        counts.read_bytes = walk.window.read_bytes() + walk.footer.as_ref().map_or(0, FooterCursor::read_bytes);
        (if trailer.is_some() { CheckedState::Sealed(kind) } else { CheckedState::Open(kind) }, counts)
    }

    fn window(&self, start: u64) -> Window {
        Window::new(self.disk.clone(), start, self.superblock.extent_bytes, self.pace.clone())
    }

    /// The trailer of any epoch, with its actual or expected offset.
    async fn trailer(&self, extent: u32, start: u64, window: &mut Window) -> (u64, Result<Trailer, BadTrailer>) {
        let bytes = self.superblock.extent_bytes;
        let last = bytes - BLOCK as u64;
        if window.end() < bytes {
            return (last, Err(BadTrailer::Nothing));
        }
        let header = window.get(0, BLOCK as u64).await.ok().and_then(|block| ExtentHeader::decode(&block).ok());
        let epoch = header.filter(|h| h.id.pool == self.superblock.pool).map(|h| h.id.epoch);
        if let Some((at, trailer)) = crate::trailer::find(&self.disk, &self.superblock, extent, epoch).await {
            return (at, Ok(trailer));
        }
        for at in crate::trailer::places(&self.disk, &self.superblock, extent) {
            let found = self.trailer_at(extent, start, at).await;
            if !matches!(found, Err(BadTrailer::Nothing)) {
                return (at, found);
            }
        }
        (last, Err(BadTrailer::Nothing))
    }

    async fn trailer_at(&self, extent: u32, start: u64, at: u64) -> Result<Trailer, BadTrailer> {
        let bytes = self.superblock.extent_bytes;
        // A separate window, so that the end of the extent is not read ahead of its beginning.
        let block = match Window::new(self.disk.clone(), start + at, BLOCK as u64, None).get(0, BLOCK as u64).await {
            Ok(block) => block,
            Err(cause) => return Err(BadTrailer::Unreadable(cause.to_string())),
        };
        match Trailer::decode(&block, bytes) {
            Ok(trailer) if trailer.id.pool == self.superblock.pool && trailer.id.extent == extent => Ok(trailer),
            Ok(trailer) if trailer.id.pool == self.superblock.pool => {
                Err(BadTrailer::Bad(format!("the trailer of extent {} is here", trailer.id.extent)))
            }
            Ok(_) => Err(BadTrailer::Nothing),
            Err(why) => {
                // A flipped byte in the magic or the identity must not hide a trailer.
                let model = Trailer { id: ExtentId { pool: self.superblock.pool, extent, epoch: 0 }, ..BLANK }.encode();
                let alike = block[..36].iter().zip(&model[..36]).filter(|(a, b)| a == b).count();
                let blank = block[..36].iter().all(|b| *b == 0);
                if alike >= 30 && !blank { Err(BadTrailer::Bad(why.to_string())) } else { Err(BadTrailer::Nothing) }
            }
        }
    }

    async fn identity(
        &self,
        extent: u32,
        window: &mut Window,
        trailer: Option<&Trailer>,
        findings: &mut dyn Findings,
    ) -> Result<Identity, CheckedState> {
        let epoch = trailer.map_or(0, |t| t.id.epoch);
        let damage = |findings: &mut dyn Findings, what: String| {
            findings.damage(Damage { len: BLOCK as u64, ..Damage::new(extent, epoch, 0, what) });
        };
        let block = match window.get(0, BLOCK as u64).await {
            Ok(block) => block,
            Err(cause) => {
                damage(findings, format!("the extent header cannot be read: {cause}"));
                return self.substitute(extent, window, trailer).await.ok_or(CheckedState::Lost);
            }
        };
        match ExtentHeader::decode(&block) {
            Ok(header) if header.id.pool != self.superblock.pool => Err(CheckedState::Unused),
            Ok(header) if header.id.extent == extent => {
                findings.extent(&header);
                Ok(Identity { id: header.id, kind: header.kind })
            }
            Ok(header) => {
                damage(findings, format!("the header of extent {} is here", header.id.extent));
                self.substitute(extent, window, trailer).await.ok_or(CheckedState::Lost)
            }
            Err(why) => {
                let substitute = self.substitute(extent, window, trailer).await;
                if substitute.is_some() || !matches!(why, FormatError::Magic(_)) {
                    damage(findings, why.to_string());
                    return substitute.ok_or(CheckedState::Lost);
                }
                // No data of this pool: earlier contents of the device.
                Err(CheckedState::Unused)
            }
        }
    }

    /// The identity of the extent from its trailer or its first frame.
    async fn substitute(&self, extent: u32, window: &mut Window, trailer: Option<&Trailer>) -> Option<Identity> {
        if let Some(trailer) = trailer {
            return Some(Identity { id: trailer.id, kind: trailer.kind });
        }
        let block = window.get(BLOCK as u64, BLOCK as u64).await.ok()?;
        let (header, _) = FrameHeader::decode(&block).ok()?;
        let kind = match header.kind {
            FrameKind::Commit => ExtentKind::Commit,
            FrameKind::Chunk => ExtentKind::Body,
        };
        (header.id.pool == self.superblock.pool && header.id.extent == extent)
            .then_some(Identity { id: header.id, kind })
    }

    /// Selects the trailer of this epoch. One of an earlier epoch belongs to an earlier use.
    fn judge_trailer(
        &self,
        id: ExtentId,
        kind: ExtentKind,
        (at, trailer): (u64, Result<Trailer, BadTrailer>),
        findings: &mut dyn Findings,
    ) -> Option<Trailer> {
        let what = match trailer {
            Ok(trailer) if trailer.id.epoch < id.epoch => return None,
            Ok(trailer) if trailer.id == id && trailer.kind == kind => return Some(trailer),
            Ok(trailer) => format!(
                "the trailer says epoch {}, {:?}; the header {}, {kind:?}",
                trailer.id.epoch, trailer.kind, id.epoch
            ),
            Err(BadTrailer::Nothing) => return None,
            Err(BadTrailer::Bad(what)) => what,
            Err(BadTrailer::Unreadable(cause)) => format!("the trailer cannot be read: {cause}"),
        };
        findings.damage(Damage { len: BLOCK as u64, ..Damage::new(id.extent, id.epoch, at, what) });
        None
    }
}

enum BadTrailer {
    /// No trailer.
    Nothing,
    /// A damaged trailer.
    Bad(String),
    Unreadable(String),
}

const BLANK: Trailer = Trailer {
    id: ExtentId { pool: [0; 16], extent: 0, epoch: 0 },
    kind: ExtentKind::Commit,
    data_end: 0,
    footer_offset: 0,
    footer_len: 0,
    record_count: 0,
    first_lsn: 0,
    last_lsn: 0,
    min_version: 0,
    last_checksum: 0,
    prev_lsn: 0,
};

impl Damage {
    /// Damage without further details.
    pub(crate) fn new(extent: u32, epoch: u64, offset: u64, what: String) -> Self {
        Self { extent, epoch, offset, len: 0, what, lsns: None, heads: Vec::new(), records: 0 }
    }
}
