//! Features of the format that a pool uses. They keep a build without a feature from misreading the
//! pool.
//!
//! A feature is a bit in one of three sets. To add one: give it a bit here, add it to
//! [`Features::KNOWN`], and let [`crate::LogOptions::features`] ask for it before any of its data
//! is written. A bit never gets a second meaning.

use std::ops::BitOr;

/// Sets of features. No bit is in use yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// A build may ignore unknown features of this set.
    pub compatible: u32,
    /// A build with an unknown feature of this set may read the pool but must not write.
    pub read_only: u32,
    /// A build with an unknown feature of this set must not open the pool.
    pub incompatible: u32,
}

impl Features {
    /// None at all.
    pub const NONE: Self = Self { compatible: 0, read_only: 0, incompatible: 0 };
    /// The features of this build.
    pub const KNOWN: Self = Self::NONE;

    /// Whether a build older than features, which would ignore them, must be kept from opening the
    /// pool.
    pub(super) fn keep_away(self) -> bool {
        self.read_only | self.incompatible != 0
    }

    /// Incompatible features that this build does not know.
    pub(super) fn unreadable(self) -> u32 {
        self.incompatible & !Self::KNOWN.incompatible
    }

    /// Message for the operator if this build must not write to a pool with these features.
    pub fn unwritable(self) -> Option<String> {
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
