//! The defects of the variants, and the settings that expose them.

use std::time::Duration;

use steadfast_archive::ArchiveSabotage;
use steadfast_disk::SuperdiskSabotage;
use steadfast_log::{Durability, Sabotage};
use steadfast_store::StoreSabotage;

use crate::plan::{FastFate, Finish, IndexFate, IndexFaults, Life, Plan};
use crate::platter::FaultRates;
use crate::variants::Variant;

impl Variant {
    /// Adds the defect to the plan.
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
                cut_amid_writes(plan);
            }
            Self::EarlyTombstones => {
                plan.store.log.sabotage = Sabotage::EarlyTombstones;
                // Hidden records live longer if the rest of their extent is live.
                plan.cold_keys = 10;
            }
            Self::EarlyRecycle => {
                plan.store.log.sabotage = Sabotage::EarlyRecycle;
                compact_often(plan);
            }
            Self::PinsIgnored => plan.store.log.sabotage = Sabotage::PinsIgnored,
            Self::AckOnFast => {
                calm(plan, SuperdiskSabotage::AckOnFast);
                // Data that only the fast leg held is lost with it.
                plan.lives.iter_mut().skip(1).for_each(|life| life.disks[0].fast = FastFate::Missing);
            }
            Self::TrustStaleLeg => {
                calm(plan, SuperdiskSabotage::TrustStale);
                alternate_fast_leg(plan);
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
                cut_amid_moves(plan);
            }
            Self::ChangesLeftBehind => plan.store.sabotage = StoreSabotage::ChangesLeftBehind,
            Self::PublishBeforeFlush => plan.store.sabotage = StoreSabotage::PublishBeforeFlush,
            Self::FanOutOrder => plan.store.sabotage = StoreSabotage::FanOutOrder,
            Self::OffsetReused => plan.store.sabotage = StoreSabotage::OffsetReused,
            Self::EventsTrimmed => plan.store.sabotage = StoreSabotage::EventsTrimmed,
            Self::LateFlush => plan.store.log.sabotage = Sabotage::LateFlush,
            Self::EpochsKept => {
                plan.store.sabotage = StoreSabotage::EpochsKept;
                let more: Vec<_> = plan.lives.iter().take(2).cloned().collect();
                plan.lives.extend(more);
                indexes(plan, IndexFate::Kept, true);
            }
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
                plan.lives.iter_mut().for_each(|life| life.index_faults.refuse_at_work());
            }
            Self::UnansweredPieces => follow_badly(plan, ArchiveSabotage::UnansweredPieces),
            Self::TornCut => follow_badly(plan, ArchiveSabotage::TornCut),
            Self::RecycledLeftOut => {
                follow_badly(plan, ArchiveSabotage::RecycledLeftOut);
                compact_often(plan);
            }
            Self::AnyEpoch => {
                follow_badly(plan, ArchiveSabotage::AnyEpoch);
                compact_often(plan);
            }
            Self::OlderDisks => {
                follow_badly(plan, ArchiveSabotage::OlderDisks);
                for (number, life) in plan.lives.iter_mut().enumerate() {
                    life.restored = number % 3 == 2;
                    life.from_archive = number > 0 && number % 3 == 0;
                }
            }
            Self::AnyHeldUse => stand_by_badly(plan, ArchiveSabotage::AnyHeldUse),
            Self::HeadKeptFirst => stand_by_badly(plan, ArchiveSabotage::HeadKeptFirst),
            Self::ReleasedEarly => promise_badly(plan, ArchiveSabotage::ReleasedEarly),
            Self::ServedUnarchived => promise_badly(plan, ArchiveSabotage::ServedUnarchived),
            Self::OwnSwept => follow_badly(plan, ArchiveSabotage::OwnSwept),
            Self::LiveDropped => {
                follow_badly(plan, ArchiveSabotage::LiveDropped);
                drop_often(plan);
            }
            Self::RetentionIgnored => {
                follow_badly(plan, ArchiveSabotage::RetentionIgnored);
                drop_often(plan);
            }
            Self::NoClaim => follow_badly(plan, ArchiveSabotage::NoClaim),
            Self::OwnerAfterClaim => {
                follow_badly(plan, ArchiveSabotage::OwnerAfterClaim);
                let cut = |n: u64| Finish::Cut(40 + 20 * n);
                (0..).zip(&mut plan.lives).for_each(|(number, life)| life.finish = cut(number));
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

/// Cuts the power while many clients write: frames tear then.
fn cut_amid_writes(plan: &mut Plan) {
    plan.clients = 8;
    for life in plan.lives.iter_mut().filter(|life| life.finish == Finish::Clean) {
        life.finish = Finish::CutAtWork(700);
    }
    let first = plan.lives[0].clone();
    for more in plan.lives.len() as u64..12 {
        plan.lives.push(Life { finish: Finish::CutAtWork(300 + 150 * more), ..first.clone() });
    }
}

/// Empties extents with live records often, and makes few copies durable by chance.
fn compact_often(plan: &mut Plan) {
    plan.store.log.async_window = Duration::from_millis(200);
    plan.buckets = vec![Durability::Sync, Durability::Async];
    (plan.keys, plan.cold_keys) = (16, 10);
    let compaction = &mut plan.store.log.compaction;
    (compaction.bytes_s, compaction.dead_percent_min) = (0, 10);
    compaction.interval = Duration::from_millis(5);
    cut_amid_writes(plan);
}

/// Cuts the power while keys move. The window is short: copies stay in memory longer, and only a
/// few keys move at a time.
fn cut_amid_moves(plan: &mut Plan) {
    plan.store.log.async_window = Duration::from_millis(200);
    plan.store.move_batch_bytes = 16 << 10;
    plan.keys = 16;
    plan.requests_each = plan.requests_each.max(60);
    if let Some(moves) = &mut plan.moves {
        moves.pause_us_max = 20_000;
    }
    let first = plan.lives[0].clone();
    plan.lives = (0..6).map(|n| Life { finish: Finish::CutAtWork(700 + 600 * n), ..first.clone() }).collect();
}

/// Begins periods of the archive often, which soon expire, and recycles.
fn drop_often(plan: &mut Plan) {
    if let Some(archive) = &mut plan.archive {
        archive.options.segments_max = 2;
        archive.options.retention = Duration::from_millis(10);
    }
    compact_often(plan);
}

/// Breaks the archive, and restores from it often.
fn follow_badly(plan: &mut Plan, sabotage: ArchiveSabotage) {
    if let Some(archive) = &mut plan.archive {
        archive.options.sabotage = sabotage;
        archive.standby = false;
    }
    (1..).zip(plan.lives.iter_mut().skip(1)).for_each(|(number, life): (u64, _)| life.from_archive = number % 2 == 0);
}

/// Breaks an archive that must have each write before it is answered, and restores from it often.
fn promise_badly(plan: &mut Plan, sabotage: ArchiveSabotage) {
    follow_badly(plan, sabotage);
    if let Some(archive) = &mut plan.archive {
        archive.promise();
    }
}

/// Breaks the standby, and promotes it often.
fn stand_by_badly(plan: &mut Plan, sabotage: ArchiveSabotage) {
    follow_badly(plan, sabotage);
    compact_often(plan);
    if let Some(archive) = &mut plan.archive {
        archive.standby = true;
    }
}

/// Plans a fast leg that is present, absent, and present again.
fn alternate_fast_leg(plan: &mut Plan) {
    for (number, life) in plan.lives.iter_mut().enumerate() {
        life.disks[0].fast = if number % 2 == 1 { FastFate::Missing } else { FastFate::Kept };
        life.finish = Finish::Clean;
    }
}

/// Gives indexes this fate, and no other fault, before each life but the first.
fn indexes(plan: &mut Plan, fate: IndexFate, restored: bool) {
    for (number, life) in plan.lives.iter_mut().enumerate() {
        life.index = if number > 0 { fate } else { IndexFate::Kept };
        life.restored = restored && number > 1;
        life.index_faults = IndexFaults::default();
    }
}

/// Removes all other faults of the super-disk.
fn calm(plan: &mut Plan, sabotage: SuperdiskSabotage) {
    if let Some(fast) = &mut plan.disks[0].fast {
        fast.rates = FaultRates::default();
        fast.rot_every = None;
        fast.options.sabotage = sabotage;
    }
    plan.lives.iter_mut().for_each(|life| life.disks[0].covered_flips = 0);
}
