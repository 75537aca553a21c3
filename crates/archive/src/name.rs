//! The names of an archive's objects, under its prefix.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Says what the archive is. Created once.
pub(crate) const ARCHIVE: &str = "archive";

/// The only object that is ever replaced, but for [`ALIVE`]. What it does not name does not count.
pub(crate) const HEAD: &str = "head";

/// The heartbeat of an owner that answers under a lease. It is replaced too.
pub(crate) const ALIVE: &str = "alive";

/// A disk of the pool, by the identity of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiskId(pub [u8; 16]);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Number of an object. The tenure is that of the process that wrote it, and no process gives out a
/// number twice. So no name is ever used for two contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Numbered {
    /// The tenure.
    pub tenure: u64,
    /// Number within the tenure.
    pub n: u64,
}

/// One use of an extent: an epoch may have been given out by two openings of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UseId {
    /// The disk.
    pub disk: DiskId,
    /// The extent.
    pub extent: u32,
    /// Its epoch.
    pub epoch: u64,
    /// The opening that took it.
    pub opening: u64,
}

/// An object that has a number: it is created once, and never replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectName {
    /// What changed since the segment or base before.
    Segment(Numbered),
    /// A complete manifest.
    Base(Numbered),
    /// What no state names any more since the base of the same number.
    Dropped(Numbered),
    /// Bytes of a use.
    Piece {
        /// The use.
        of: UseId,
        /// Offset in the use where they begin.
        from: u32,
        /// The number.
        by: Numbered,
    },
}

impl ObjectName {
    /// Kind and number, which no other object has.
    pub(crate) fn key(self) -> (u8, Numbered) {
        match self {
            Self::Segment(by) => (0, by),
            Self::Base(by) => (1, by),
            Self::Dropped(by) => (2, by),
            Self::Piece { by, .. } => (3, by),
        }
    }

    /// The tenure of the process that wrote it.
    pub(crate) fn tenure(self) -> u64 {
        self.key().1.tenure
    }

    /// The object of this name; `None` for other names.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let numbered = |text: &str| {
            let (tenure, n) = text.split_once('.')?;
            Some(Numbered { tenure: tenure.parse().ok()?, n: n.parse().ok()? })
        };
        let (kind, rest) = name.split_once('/')?;
        let parsed = match kind {
            "seg" => Self::Segment(numbered(rest)?),
            "base" => Self::Base(numbered(rest)?),
            "dropped" => Self::Dropped(numbered(rest)?),
            "p" => {
                let [disk, of, piece] = rest.split('/').collect::<Vec<_>>().try_into().ok()?;
                let [extent, epoch, opening] = of.split('.').collect::<Vec<_>>().try_into().ok()?;
                let disk = DiskId(hex::decode(disk).ok()?.try_into().ok()?);
                let (from, by) = piece.split_once('.')?;
                let (extent, epoch) = (extent.parse().ok()?, epoch.parse().ok()?);
                let of = UseId { disk, extent, epoch, opening: opening.parse().ok()? };
                Self::Piece { of, from: from.parse().ok()?, by: numbered(by)? }
            }
            _ => return None,
        };
        // Numbers have further forms, such as 01.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(by) => write!(f, "seg/{}.{}", by.tenure, by.n),
            Self::Base(by) => write!(f, "base/{}.{}", by.tenure, by.n),
            Self::Dropped(by) => write!(f, "dropped/{}.{}", by.tenure, by.n),
            Self::Piece { of: UseId { disk, extent, epoch, opening }, from, by } => {
                write!(f, "p/{disk}/{extent}.{epoch}.{opening}/{from}.{}.{}", by.tenure, by.n)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let by = Numbered { tenure: 3, n: u64::MAX };
        let of = UseId { disk: DiskId([0xa7; 16]), extent: 5, epoch: 1 << 40, opening: 9 };
        let all = [
            ObjectName::Segment(by),
            ObjectName::Base(by),
            ObjectName::Dropped(by),
            ObjectName::Piece { of, from: 70_000, by },
        ];
        for name in all {
            assert_eq!(ObjectName::parse(&name.to_string()), Some(name));
        }
        let piece = all[3].to_string();
        let others =
            ["head", "archive", "seg/1", "seg/1.2.3", "seg/01.2", "base/+1.2", "other/1.2", "p/1.2", "seg/1.2/3"];
        for other in others.into_iter().map(str::to_owned).chain([piece.to_uppercase(), format!("{piece}/1")]) {
            assert_eq!(ObjectName::parse(&other), None, "{other}");
        }
    }
}
