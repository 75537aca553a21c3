//! What changes in the image of a pool, from one cut to a later one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steadfast_log::format::{ExtentKind, Features, Superblock};

use crate::name::{DiskId, Numbered, ObjectName, UseId};

/// Where bytes of a use lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// In the document that names them, at this offset of its payload.
    Here {
        /// The offset.
        at: u64,
    },
    /// In a piece of the use.
    Piece {
        /// The offset in the use that its name has.
        from: u32,
        /// Its number.
        by: Numbered,
        /// Offset in it.
        at: u32,
    },
    /// In the payload of a segment.
    Segment {
        /// Its number.
        by: Numbered,
        /// Offset in the payload.
        at: u64,
    },
    /// In the payload of a base.
    Base {
        /// Its number.
        by: Numbered,
        /// Offset in the payload.
        at: u64,
    },
}

impl Source {
    /// The object in which bytes of a use lie; `None` for the document that names them.
    pub(crate) fn object(self, of: UseId) -> Option<ObjectName> {
        match self {
            Self::Here { .. } => None,
            Self::Piece { from, by, .. } => Some(ObjectName::Piece { of, from, by }),
            Self::Segment { by, .. } => Some(ObjectName::Segment(by)),
            Self::Base { by, .. } => Some(ObjectName::Base(by)),
        }
    }
}

/// Some bytes of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Where they begin in the extent.
    pub from: u32,
    /// How many they are.
    pub len: u32,
    /// Their checksum, CRC-32C.
    pub crc: u32,
    /// Where they lie.
    pub source: Source,
}

/// What an extent in use is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UseKind {
    /// Frames of records.
    Commit,
    /// Chunks of bodies.
    Body,
}

impl UseKind {
    /// The kind of an extent in use.
    ///
    /// # Panics
    /// For a free extent.
    pub(crate) fn of(kind: ExtentKind) -> Self {
        match kind {
            ExtentKind::Commit => Self::Commit,
            ExtentKind::Body => Self::Body,
            ExtentKind::Free => unreachable!("a free extent is not in use"),
        }
    }
}

/// A use of an extent, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseChange {
    /// Its epoch.
    pub epoch: u64,
    /// The opening that took it.
    pub opening: u64,
    /// What it is for.
    pub kind: UseKind,
    /// Whether nothing is added any more.
    pub sealed: bool,
    /// Its durable ranges, in ascending order, as pairs of begin and end. What no part covers of
    /// them was never written.
    pub durable: Vec<(u32, u32)>,
    /// Whether these parts replace the earlier ones of the use; else they are further ones.
    pub whole: bool,
    /// The parts, in any order.
    pub parts: Vec<Part>,
}

/// An extent, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentChange {
    /// It is not in use.
    Free {
        /// Its last epoch.
        epoch: u64,
    },
    /// Its data is gone from the disk.
    Lost {
        /// Its epoch; 0 if unknown.
        epoch: u64,
    },
    /// It is in use.
    Used(UseChange),
}

impl ExtentChange {
    /// The use, if it is in use.
    pub(crate) fn used(&self) -> Option<&UseChange> {
        match self {
            Self::Used(of) => Some(of),
            _ => None,
        }
    }

    /// Adds a later change of the same extent.
    pub(crate) fn add(&mut self, later: Self) {
        match (&mut *self, later) {
            (Self::Used(of), Self::Used(later))
                if (of.epoch, of.opening) == (later.epoch, later.opening) && !later.whole =>
            {
                of.sealed = later.sealed;
                of.durable = later.durable;
                of.parts.extend(later.parts);
            }
            (_, later) => *self = later,
        }
    }
}

/// What does not change of a disk, and its place in the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAbout {
    /// Its path or name, for operators.
    pub name: String,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// When its log was formatted, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Features of the log's format: compatible, read-only and incompatible ones.
    pub features: [u32; 3],
    /// When it was found to have left the pool, in milliseconds since the Unix epoch.
    pub left_ms: Option<u64>,
}

impl DiskAbout {
    /// A disk with this superblock.
    pub(crate) fn new(name: String, of: &Superblock) -> Self {
        let Features { compatible, read_only, incompatible } = of.features;
        let features = [compatible, read_only, incompatible];
        Self { name, extent_bytes: of.extent_bytes, created_ms: of.created_ms, features, left_ms: None }
    }

    /// The superblock of the log.
    pub fn superblock(&self, disk: DiskId) -> Superblock {
        let [compatible, read_only, incompatible] = self.features;
        Superblock {
            pool: disk.0,
            extent_bytes: self.extent_bytes,
            created_ms: self.created_ms,
            zones: None,
            features: Features { compatible, read_only, incompatible },
        }
    }
}

/// Counters of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Every epoch that was given out is lower.
    pub next_epoch: u64,
    /// The highest LSN of the recycled commit extents.
    pub recycled_lsn: u64,
    /// LSN of the last record.
    pub last_lsn: u64,
}

/// What changed on a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskChange {
    /// What it is.
    pub about: DiskAbout,
    /// Its counters now.
    pub counters: Counters,
    /// The changed extents.
    pub extents: BTreeMap<u32, ExtentChange>,
}

/// What changed in a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The changed disks.
    pub disks: BTreeMap<DiskId, DiskChange>,
}

impl Changes {
    /// Adds later changes.
    pub(crate) fn add(&mut self, later: Self) {
        for (disk, later) in later.disks {
            let Some(of) = self.disks.get_mut(&disk) else {
                self.disks.insert(disk, later);
                continue;
            };
            (of.about, of.counters) = (later.about, later.counters);
            for (extent, later) in later.extents {
                match of.extents.get_mut(&extent) {
                    Some(of) => of.add(later),
                    None => _ = of.extents.insert(extent, later),
                }
            }
        }
    }

    /// The extents that they change.
    pub(crate) fn places(&self) -> impl Iterator<Item = (DiskId, u32)> {
        self.disks.iter().flat_map(|(disk, of)| of.extents.keys().map(|extent| (*disk, *extent)))
    }

    /// All parts.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = (DiskId, u32, &mut UseChange)> {
        let disks = self.disks.iter_mut().map(|(disk, of)| (*disk, of));
        disks.flat_map(|(disk, of)| {
            of.extents.iter_mut().filter_map(move |(extent, change)| match change {
                ExtentChange::Used(of) => Some((disk, *extent, of)),
                _ => None,
            })
        })
    }

    /// Says in which document the parts lie that are in the payload.
    pub(crate) fn settle(&mut self, settled: impl Fn(u64) -> Source) {
        for (_, _, of) in self.parts_mut() {
            for part in &mut of.parts {
                if let Source::Here { at } = part.source {
                    part.source = settled(at);
                }
            }
        }
    }
}
