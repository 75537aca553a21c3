//! Deliberately broken builds, to test the tester: each must be caught.

use std::time::Duration;

use serde::Serialize;
use steadfast_disk::SuperdiskSabotage;
use steadfast_log::Sabotage;

use crate::array::FastFate;
use crate::plan::{Finish, Plan};
use crate::platter::FaultRates;

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
    /// A super-disk acknowledges what only its fast leg has.
    AckOnFast,
    /// A super-disk believes a fast leg that was away for a while.
    TrustStaleLeg,
    /// Checksums of bodies are not looked at when they are read, from a super-disk whose fast leg rots.
    SkipVerify,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::SkipFlush,
        Self::EarlyAck,
        Self::UnverifiedReads,
        Self::CommitBeforeChunks,
        Self::TornFrames,
        Self::EarlyTombstones,
        Self::EarlyRecycle,
        Self::PinsIgnored,
        Self::AckOnFast,
        Self::TrustStaleLeg,
        Self::SkipVerify,
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
            Self::AckOnFast => "ack-on-fast",
            Self::TrustStaleLeg => "trust-stale-leg",
            Self::SkipVerify => "skip-verify",
        }
    }

    /// The variant of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// Whether only a super-disk can be broken in this way.
    pub(crate) fn is_of_pairs(self) -> bool {
        matches!(self, Self::AckOnFast | Self::TrustStaleLeg | Self::SkipVerify)
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
            Self::AckOnFast => {
                calm(plan, SuperdiskSabotage::AckOnFast);
                // What only the fast leg had is gone with it.
                plan.lives.iter_mut().skip(1).for_each(|life| life.fast = FastFate::Gone);
            }
            Self::TrustStaleLeg => {
                calm(plan, SuperdiskSabotage::TrustStale);
                // It is there, away, and there again.
                for (number, life) in plan.lives.iter_mut().enumerate() {
                    life.fast = if number % 2 == 1 { FastFate::Gone } else { FastFate::Kept };
                    life.finish = Finish::Clean;
                }
            }
            Self::SkipVerify => {
                calm(plan, SuperdiskSabotage::None);
                plan.store.log.sabotage = Sabotage::UnverifiedReads;
                plan.lives.iter_mut().skip(1).for_each(|life| life.fast = FastFate::Rotten(60));
                if let Some(fast) = &mut plan.fast {
                    fast.rot_every = Some(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Nothing but the variant is wrong with the super-disk.
fn calm(plan: &mut Plan, sabotage: SuperdiskSabotage) {
    if let Some(fast) = &mut plan.fast {
        fast.rates = FaultRates::default();
        fast.rot_every = None;
        fast.options.sabotage = sabotage;
    }
    plan.lives.iter_mut().for_each(|life| life.covered_flips = 0);
}
