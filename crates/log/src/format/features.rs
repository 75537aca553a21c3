//! Which features of the format a pool uses, so that a build that does not know one of them does not misread it.
//!
//! A feature is a bit in one of three sets. To add one: give it a bit here, add it to [`Features::KNOWN`], and have
//! [`crate::LogOptions::features`] ask for it before anything of it is written. Bits are never given a second meaning.

use std::ops::BitOr;

/// Sets of features. No bit is in use yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Who does not know one of these may ignore it.
    pub compatible: u32,
    /// Who does not know one of these may read the pool, and must not write.
    pub read_only: u32,
    /// Who does not know one of these must not open the pool.
    pub incompatible: u32,
}

impl Features {
    /// None at all.
    pub const NONE: Self = Self { compatible: 0, read_only: 0, incompatible: 0 };
    /// Those that this build knows.
    pub const KNOWN: Self = Self::NONE;

    /// Whether a build from before features, which would ignore them, has to be kept away.
    pub(super) fn keep_away(self) -> bool {
        self.read_only | self.incompatible != 0
    }

    /// Incompatible ones that this build does not know.
    pub(super) fn unreadable(self) -> u32 {
        self.incompatible & !Self::KNOWN.incompatible
    }

    /// Why this build must not write to a pool that uses these, if so; for people.
    pub(crate) fn unwritable(self) -> Option<String> {
        let unknown = self.read_only & !Self::KNOWN.read_only;
        (unknown != 0).then(|| {
            format!(
                "the pool uses features of the format (read-only compatible {unknown:#x}) that this build does not know: it can be checked \
                 with `steadfast verify`, and served by a newer build"
            )
        })
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            compatible: self.compatible | other.compatible,
            read_only: self.read_only | other.read_only,
            incompatible: self.incompatible | other.incompatible,
        }
    }
}
