//! Deliberately broken builds, to test the tester: each must be caught.

use serde::Serialize;
use steadfast_log::Sabotage;

use crate::plan::Plan;

/// A way to be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Flushes do nothing.
    SkipFlush,
    /// Commits are answered before their flush.
    EarlyAck,
    /// Checksums of bodies are not looked at when they are read, from a disk that sometimes flips a bit.
    UnverifiedReads,
    /// A commit record may reach the disk before the chunks that it names.
    CommitBeforeChunks,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::SkipFlush, Self::EarlyAck, Self::UnverifiedReads, Self::CommitBeforeChunks];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SkipFlush => "skip-flush",
            Self::EarlyAck => "early-ack",
            Self::UnverifiedReads => "unverified-reads",
            Self::CommitBeforeChunks => "commit-before-chunks",
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
            Self::UnverifiedReads => {
                plan.disk.sabotage.flip_on_read = true;
                plan.store.log.sabotage = Sabotage::UnverifiedReads;
            }
            Self::CommitBeforeChunks => plan.store.log.sabotage = Sabotage::CommitBeforeChunks,
        }
    }
}
