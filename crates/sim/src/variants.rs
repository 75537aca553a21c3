//! Deliberately broken builds, to test the tester: each must be caught.

use std::time::Duration;

use serde::Serialize;
use steadfast_disk::SuperdiskSabotage;
use steadfast_log::Sabotage;
use steadfast_store::StoreSabotage;

use crate::array::FastFate;
use crate::indexes::{IndexFate, IndexTrouble};
use crate::plan::{Finish, Life, Plan};
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
    /// Compaction drops deletes although a filter of keys has theirs.
    BlindFilters,
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
    /// Chunks reach a zone in any order.
    ZoneOrder,
    /// A zone is written anew without having been reset.
    ZoneReset,
    /// Zones that are sealed stay open.
    ZoneFinish,
    /// One disk of several does nothing when it is told to flush.
    OneSkipsFlush,
    /// While a disk of several is missing, listings are of what the others have.
    ListWithoutMissing,
    /// A slot's home changes before what was copied to the new one is durable there.
    EarlySwitch,
    /// What changes of a slot while it is copied to another disk is left behind.
    ChangesLeftBehind,
    /// Extents are recycled though a snapshot holds them.
    HoldsIgnored,
    /// Publications are answered and delivered before their flush.
    PublishBeforeFlush,
    /// Publications are delivered in any order.
    FanOutOrder,
    /// After a restart a channel's last offset is used again.
    OffsetReused,
    /// An index that is older than what the pool still knows the changes of is gone on with.
    OlderIndex,
    /// An index of another history of the pool is gone on with.
    ForeignIndex,
    /// What cannot be taken into the index, since that cannot be read, is left out.
    IndexErrors,
    /// Where clients never pause, the flush of asynchronous commits never comes.
    LateFlush,
    /// The next event of a slot removes those before it, whether they were forwarded or not.
    EventsTrimmed,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::SkipFlush,
        Self::EarlyAck,
        Self::UnverifiedReads,
        Self::CommitBeforeChunks,
        Self::TornFrames,
        Self::EarlyTombstones,
        Self::BlindFilters,
        Self::EarlyRecycle,
        Self::PinsIgnored,
        Self::AckOnFast,
        Self::TrustStaleLeg,
        Self::SkipVerify,
        Self::ZoneOrder,
        Self::ZoneReset,
        Self::ZoneFinish,
        Self::OneSkipsFlush,
        Self::ListWithoutMissing,
        Self::EarlySwitch,
        Self::ChangesLeftBehind,
        Self::HoldsIgnored,
        Self::PublishBeforeFlush,
        Self::FanOutOrder,
        Self::OffsetReused,
        Self::EventsTrimmed,
        Self::OlderIndex,
        Self::ForeignIndex,
        Self::IndexErrors,
        Self::LateFlush,
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
            Self::BlindFilters => "blind-filters",
            Self::EarlyRecycle => "early-recycle",
            Self::PinsIgnored => "pins-ignored",
            Self::AckOnFast => "ack-on-fast",
            Self::TrustStaleLeg => "trust-stale-leg",
            Self::SkipVerify => "skip-verify",
            Self::ZoneOrder => "zone-order",
            Self::ZoneReset => "zone-reset",
            Self::ZoneFinish => "zone-finish",
            Self::OneSkipsFlush => "one-skips-flush",
            Self::ListWithoutMissing => "list-without-missing",
            Self::EarlySwitch => "early-switch",
            Self::ChangesLeftBehind => "changes-left-behind",
            Self::HoldsIgnored => "holds-ignored",
            Self::PublishBeforeFlush => "publish-before-flush",
            Self::FanOutOrder => "fan-out-order",
            Self::OffsetReused => "offset-reused",
            Self::EventsTrimmed => "events-trimmed",
            Self::OlderIndex => "older-index",
            Self::ForeignIndex => "foreign-index",
            Self::IndexErrors => "index-errors",
            Self::LateFlush => "late-flush",
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

    /// Whether only a disk of zones shows it.
    pub(crate) fn is_of_zones(self) -> bool {
        matches!(self, Self::ZoneOrder | Self::ZoneReset | Self::ZoneFinish)
    }

    /// Whether only a pool of several disks can be broken in this way.
    pub(crate) fn is_of_pools(self) -> bool {
        matches!(self, Self::OneSkipsFlush | Self::ListWithoutMissing) || self.is_of_moves()
    }

    /// Whether only a pool whose keys move between disks shows it.
    pub(crate) fn is_of_moves(self) -> bool {
        matches!(self, Self::EarlySwitch | Self::ChangesLeftBehind)
    }

    /// Whether only snapshots show it.
    pub(crate) fn is_of_snapshots(self) -> bool {
        self == Self::HoldsIgnored
    }

    /// Whether only channels show it.
    pub(crate) fn is_of_channels(self) -> bool {
        matches!(self, Self::PublishBeforeFlush | Self::FanOutOrder | Self::OffsetReused)
    }

    /// Whether only what becomes of indexes shows it.
    pub(crate) fn is_of_indexes(self) -> bool {
        matches!(self, Self::OlderIndex | Self::ForeignIndex | Self::IndexErrors)
    }

    pub(crate) fn apply(self, plan: &mut Plan) {
        match self {
            Self::SkipFlush => plan.disks[0].profile.sabotage.skip_flush = true,
            Self::EarlyAck => plan.disks[0].profile.sabotage.early_ack = true,
            Self::UnverifiedReads => {
                plan.disks[0].profile.sabotage.flip_on_read = true;
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
                let first = plan.lives[0].clone();
                for more in plan.lives.len() as u64..12 {
                    plan.lives.push(Life { finish: Finish::CutAtWork(300 + 150 * more), ..first.clone() });
                }
            }
            Self::EarlyTombstones | Self::BlindFilters => {
                plan.store.log.sabotage = match self {
                    Self::BlindFilters => Sabotage::BlindFilters,
                    _ => Sabotage::EarlyTombstones,
                };
                // What a delete hides stays for longer where the rest of its extent is live.
                plan.cold_keys = 10;
            }
            Self::EarlyRecycle => plan.store.log.sabotage = Sabotage::EarlyRecycle,
            Self::PinsIgnored => plan.store.log.sabotage = Sabotage::PinsIgnored,
            Self::AckOnFast => {
                calm(plan, SuperdiskSabotage::AckOnFast);
                // What only the fast leg had is gone with it.
                plan.lives.iter_mut().skip(1).for_each(|life| life.disks[0].fast = FastFate::Gone);
            }
            Self::TrustStaleLeg => {
                calm(plan, SuperdiskSabotage::TrustStale);
                // It is there, away, and there again.
                for (number, life) in plan.lives.iter_mut().enumerate() {
                    life.disks[0].fast = if number % 2 == 1 { FastFate::Gone } else { FastFate::Kept };
                    life.finish = Finish::Clean;
                }
            }
            Self::ZoneOrder => plan.store.log.sabotage = Sabotage::ZoneOrder,
            Self::ZoneReset => plan.store.log.sabotage = Sabotage::ZoneReset,
            Self::ZoneFinish => plan.store.log.sabotage = Sabotage::ZoneFinish,
            Self::OneSkipsFlush => {
                if let Some(disk) = plan.disks.last_mut() {
                    disk.profile.sabotage.skip_flush = true;
                }
            }
            Self::ListWithoutMissing => plan.lists_without_missing = true,
            Self::EarlySwitch => {
                plan.store.sabotage = StoreSabotage::EarlySwitch;
                // The moment is short: what is copied stays in memory for longer, a key or two move at a time, and the power goes then.
                plan.store.log.async_window = Duration::from_millis(200);
                plan.store.move_batch_bytes = 16 << 10;
                plan.keys = 16;
                plan.requests_each = plan.requests_each.max(60);
                if let Some(moves) = &mut plan.moves {
                    moves.pause_us_max = 20_000;
                }
                let first = plan.lives[0].clone();
                plan.lives =
                    (0..6).map(|n| Life { finish: Finish::CutAtWork(700 + 600 * n), ..first.clone() }).collect();
            }
            Self::ChangesLeftBehind => plan.store.sabotage = StoreSabotage::ChangesLeftBehind,
            Self::HoldsIgnored => plan.store.log.sabotage = Sabotage::HoldsIgnored,
            Self::PublishBeforeFlush => plan.store.sabotage = StoreSabotage::PublishBeforeFlush,
            Self::FanOutOrder => plan.store.sabotage = StoreSabotage::FanOutOrder,
            Self::OffsetReused => plan.store.sabotage = StoreSabotage::OffsetReused,
            Self::EventsTrimmed => plan.store.sabotage = StoreSabotage::EventsTrimmed,
            Self::LateFlush => plan.store.log.sabotage = Sabotage::LateFlush,
            Self::OlderIndex => {
                plan.store.sabotage = StoreSabotage::AnyIndex;
                indexes(plan, IndexFate::Older, false);
            }
            Self::ForeignIndex => {
                plan.store.sabotage = StoreSabotage::AnyIndex;
                indexes(plan, IndexFate::Kept, true);
            }
            Self::IndexErrors => {
                plan.store.sabotage = StoreSabotage::IndexErrors;
                indexes(plan, IndexFate::Kept, false);
                plan.lives.iter_mut().for_each(|life| life.trouble.refuse_at_work());
            }
            Self::SkipVerify => {
                calm(plan, SuperdiskSabotage::None);
                plan.store.log.sabotage = Sabotage::UnverifiedReads;
                plan.lives.iter_mut().skip(1).for_each(|life| life.disks[0].fast = FastFate::Rotten(60));
                if let Some(fast) = &mut plan.disks[0].fast {
                    fast.rot_every = Some(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Nothing but this becomes of indexes, before each life but the first.
fn indexes(plan: &mut Plan, fate: IndexFate, back: bool) {
    for (number, life) in plan.lives.iter_mut().enumerate() {
        life.index = if number > 0 { fate } else { IndexFate::Kept };
        life.back = back && number > 1;
        life.trouble = IndexTrouble::default();
    }
}

/// Nothing but the variant is wrong with the super-disk.
fn calm(plan: &mut Plan, sabotage: SuperdiskSabotage) {
    if let Some(fast) = &mut plan.disks[0].fast {
        fast.rates = FaultRates::default();
        fast.rot_every = None;
        fast.options.sabotage = sabotage;
    }
    plan.lives.iter_mut().for_each(|life| life.disks[0].covered_flips = 0);
}
