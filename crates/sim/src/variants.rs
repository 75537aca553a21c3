//! Deliberately broken builds that test the simulator: it must catch each.

use serde::Serialize;

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Flushes do nothing.
    SkipFlush,
    /// Commits are acknowledged before their flush.
    EarlyAck,
    /// Reads skip the checksums of bodies, on a disk that sometimes flips a bit.
    UnverifiedReads,
    /// A commit record may reach the disk before the chunks that it names.
    CommitBeforeChunks,
    /// Recovery trusts frames that were torn.
    TornFrames,
    /// Compaction drops deletes too early.
    EarlyTombstones,
    /// Extents are recycled before the copies are durable and the index checkpoint covers them.
    EarlyRecycle,
    /// Extents are recycled while a reader pins them.
    PinsIgnored,
    /// A super-disk acknowledges data that only its fast leg holds.
    AckOnFast,
    /// A super-disk trusts a fast leg that was absent for a while.
    TrustStaleLeg,
    /// Reads skip the checksums of bodies, on a super-disk whose fast leg rots.
    SkipVerify,
    /// Chunks reach a zone out of order.
    ZoneOrder,
    /// A zone is rewritten without a reset.
    ZoneReset,
    /// Sealed zones stay open.
    ZoneFinish,
    /// One disk of several ignores flushes.
    OneSkipsFlush,
    /// Listings succeed without a missing disk, and lack its objects.
    ListWithoutMissing,
    /// A slot's home changes before the copied data is durable on the new disk.
    EarlySwitch,
    /// Changes to a slot during its copy to another disk are not copied.
    ChangesLeftBehind,
    /// Publications are acknowledged and delivered before their flush.
    PublishBeforeFlush,
    /// Publications are delivered out of order.
    FanOutOrder,
    /// After a restart, a channel reuses its last offset.
    OffsetReused,
    /// Channels keep their epochs when the pool is restored to an earlier state.
    EpochsKept,
    /// The store continues with an index that is older than the retained changes of the pool.
    OlderIndex,
    /// The store continues with an index of another history of the pool.
    ForeignIndex,
    /// Changes that the index cannot apply, because a read of it failed, are dropped.
    IndexErrors,
    /// Under saturating clients, the flush of asynchronous commits never happens.
    LateFlush,
    /// A new event of a slot removes the earlier ones, even if they were not forwarded.
    EventsTrimmed,
    /// The head of the archive names pieces that are not yet stored.
    UnansweredPieces,
    /// A cut looks at the disks one after the other.
    TornCut,
    /// An extent that was recycled is left out of the cut.
    RecycledLeftOut,
    /// Pieces of a cut that was given up are used for another use of the extent.
    AnyEpoch,
    /// A start does not check that its disks have what the archive has.
    OlderDisks,
    /// A start does not claim the archive.
    NoClaim,
    /// A start keeps its owner number after the claim, not before.
    OwnerAfterClaim,
    /// The work under way of a process is deleted as the rest of an earlier one.
    OwnSwept,
    /// An object of the archive is dropped when some of its bytes are.
    LiveDropped,
    /// Earlier states of the archive are deleted too early.
    RetentionIgnored,
    /// A standby takes what it has of an extent for that of another use.
    AnyHeldUse,
    /// A standby keeps the head before its disks hold the state.
    HeadKeptFirst,
    /// Writes that wait for the archive are answered before its head is known.
    ReleasedEarly,
    /// A start serves before the archive has what its recovery found.
    ServedUnarchived,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 41] = [
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
        Self::ZoneOrder,
        Self::ZoneReset,
        Self::ZoneFinish,
        Self::OneSkipsFlush,
        Self::ListWithoutMissing,
        Self::EarlySwitch,
        Self::ChangesLeftBehind,
        Self::PublishBeforeFlush,
        Self::FanOutOrder,
        Self::OffsetReused,
        Self::EventsTrimmed,
        Self::EpochsKept,
        Self::OlderIndex,
        Self::ForeignIndex,
        Self::IndexErrors,
        Self::LateFlush,
        Self::UnansweredPieces,
        Self::TornCut,
        Self::RecycledLeftOut,
        Self::AnyEpoch,
        Self::OlderDisks,
        Self::NoClaim,
        Self::OwnerAfterClaim,
        Self::OwnSwept,
        Self::LiveDropped,
        Self::RetentionIgnored,
        Self::AnyHeldUse,
        Self::HeadKeptFirst,
        Self::ReleasedEarly,
        Self::ServedUnarchived,
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
            Self::ZoneOrder => "zone-order",
            Self::ZoneReset => "zone-reset",
            Self::ZoneFinish => "zone-finish",
            Self::OneSkipsFlush => "one-skips-flush",
            Self::ListWithoutMissing => "list-without-missing",
            Self::EarlySwitch => "early-switch",
            Self::ChangesLeftBehind => "changes-left-behind",
            Self::PublishBeforeFlush => "publish-before-flush",
            Self::FanOutOrder => "fan-out-order",
            Self::OffsetReused => "offset-reused",
            Self::EventsTrimmed => "events-trimmed",
            Self::EpochsKept => "epochs-kept",
            Self::OlderIndex => "older-index",
            Self::ForeignIndex => "foreign-index",
            Self::IndexErrors => "index-errors",
            Self::LateFlush => "late-flush",
            Self::UnansweredPieces => "unanswered-pieces",
            Self::TornCut => "torn-cut",
            Self::RecycledLeftOut => "recycled-left-out",
            Self::AnyEpoch => "any-epoch",
            Self::OlderDisks => "older-disks",
            Self::NoClaim => "no-claim",
            Self::OwnerAfterClaim => "owner-after-claim",
            Self::OwnSwept => "own-swept",
            Self::LiveDropped => "live-dropped",
            Self::RetentionIgnored => "retention-ignored",
            Self::AnyHeldUse => "any-held-use",
            Self::HeadKeptFirst => "head-kept-first",
            Self::ReleasedEarly => "released-early",
            Self::ServedUnarchived => "served-unarchived",
        }
    }

    /// The variant with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// Whether only a super-disk can have this defect.
    pub(crate) fn is_of_pairs(self) -> bool {
        matches!(self, Self::AckOnFast | Self::TrustStaleLeg | Self::SkipVerify)
    }

    /// Whether only a zoned disk shows the defect.
    pub(crate) fn is_of_zones(self) -> bool {
        matches!(self, Self::ZoneOrder | Self::ZoneReset | Self::ZoneFinish)
    }

    /// Whether only a pool of several disks can have this defect.
    pub(crate) fn is_of_pools(self) -> bool {
        matches!(self, Self::OneSkipsFlush | Self::ListWithoutMissing | Self::TornCut) || self.is_of_moves()
    }

    /// Whether only a pool whose keys move between disks shows the defect.
    pub(crate) fn is_of_moves(self) -> bool {
        matches!(self, Self::EarlySwitch | Self::ChangesLeftBehind)
    }

    /// Whether only channels show the defect.
    pub(crate) fn is_of_channels(self) -> bool {
        matches!(self, Self::PublishBeforeFlush | Self::FanOutOrder | Self::OffsetReused | Self::EpochsKept)
    }

    /// Whether only an archive can have this defect.
    pub(crate) fn is_of_archives(self) -> bool {
        matches!(
            self,
            Self::UnansweredPieces
                | Self::TornCut
                | Self::RecycledLeftOut
                | Self::AnyEpoch
                | Self::OlderDisks
                | Self::NoClaim
                | Self::OwnerAfterClaim
                | Self::OwnSwept
                | Self::LiveDropped
                | Self::RetentionIgnored
                | Self::AnyHeldUse
                | Self::HeadKeptFirst
                | Self::ReleasedEarly
                | Self::ServedUnarchived
        )
    }

    /// Whether only faults of indexes show the defect.
    pub(crate) fn is_of_indexes(self) -> bool {
        matches!(self, Self::OlderIndex | Self::ForeignIndex | Self::IndexErrors)
    }
}
