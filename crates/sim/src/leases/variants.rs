//! Broken leases that test the simulator: it must catch each.

use steadfast_archive::ArchiveSabotage as A;

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseVariant(pub(super) A);

const NAMES: [(&str, A); 2] = [("lease-from-answer", A::LeaseFromAnswer), ("unmarked-take-over", A::UnmarkedTakeOver)];

impl LeaseVariant {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, defect)| Self(*defect))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, defect)| *defect == self.0).map_or("", |(name, _)| name)
    }

    /// The variant with this name.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, defect)| Self(*defect))
    }
}
