//! Deliberately broken builds, to test the tester: each must be caught.

use serde::Serialize;
use steadfast_log::Sabotage;

use crate::plan::{Finish, Plan};

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
    /// Recovery trusts frames that were torn.
    TornFrames,
    /// Compaction drops deletes too early.
    EarlyTombstones,
    /// Extents are recycled before the copies are durable and the index's checkpoint has passed.
    EarlyRecycle,
    /// Extents are recycled while somebody reads them.
    PinsIgnored,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SkipFlush,
        Self::EarlyAck,
        Self::UnverifiedReads,
        Self::CommitBeforeChunks,
        Self::TornFrames,
        Self::EarlyTombstones,
        Self::EarlyRecycle,
        Self::PinsIgnored,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SkipFlush => "skip-flush",
            Self::EarlyAck => "early-ack",
            Self::UnverifiedReads => "unverified-reads",
            Self::CommitBeforeChunks => "commit-before-chunks",
            Self::TornFrames => "torn-frames",
            Self::EarlyTombstones => "early-tombstones",
            Self::EarlyRecycle => "early-recycle",
            Self::PinsIgnored => "pins-ignored",
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
            Self::TornFrames => {
                plan.store.log.sabotage = Sabotage::TornFrames;
                // Frames tear where the power goes while many write.
                plan.clients = 8;
                for life in plan.lives.iter_mut().filter(|life| life.finish == Finish::Clean) {
                    life.finish = Finish::CutAtWork(700);
                }
            }
            Self::EarlyTombstones => plan.store.log.sabotage = Sabotage::EarlyTombstones,
            Self::EarlyRecycle => plan.store.log.sabotage = Sabotage::EarlyRecycle,
            Self::PinsIgnored => plan.store.log.sabotage = Sabotage::PinsIgnored,
        }
    }
}
