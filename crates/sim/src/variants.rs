//! Deliberately broken builds, to test the tester: each must be caught.

use serde::Serialize;

use crate::plan::Plan;

/// A way to be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Flushes do nothing.
    SkipFlush,
    /// Commits are answered before their flush.
    EarlyAck,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::SkipFlush, Self::EarlyAck];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SkipFlush => "skip-flush",
            Self::EarlyAck => "early-ack",
        }
    }

    /// The variant of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    pub(crate) fn apply(self, plan: &mut Plan) {
        match self {
            Self::SkipFlush => plan.disk.sabotage.skip_flush = true,
            Self::EarlyAck => plan.disk.sabotage.early_ack = true,
        }
    }
}
