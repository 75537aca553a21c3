//! Settings of an archive.

use std::time::Duration;

use crate::head::Promise;

/// Settings of an archive.
#[derive(Debug, Clone)]
pub struct ArchiveOptions {
    /// When a write is answered.
    pub promise: Promise,
    /// Time between two looks at the logs: the archive is at most this and one upload behind.
    pub interval: Duration,
    /// Most uploads at a time. Each has up to [`ArchiveOptions::piece_bytes`] in memory.
    pub uploads_max: usize,
    /// Time that a start waits for the store before it serves without a claim.
    pub claim_wait: Duration,
    /// Length of the lease under which this process answers its clients, of at least 2 s; `None`:
    /// it answers without one, and no standby takes the archive over by itself.
    pub lease: Option<Duration>,
    /// The machine, for operators.
    pub machine: String,
    /// The identity of the pool, for operators.
    pub pool: String,
    /// Most bytes of log within a head.
    pub inline_bytes_max: usize,
    /// Most bytes of a piece, about: it ends with a whole structure of the log.
    pub piece_bytes: u64,
    /// Most bytes of the log that go into a segment; more go into pieces. A start reads all
    /// segments since the base.
    pub segment_bytes_max: u64,
    /// Age at which what is within a head goes into a segment.
    pub segment_age: Duration,
    /// Segments after which there is a new base.
    pub segments_max: u64,
    /// Age at which there is a new base.
    pub base_age: Duration,
    /// Time for which earlier states can be restored.
    pub retention: Duration,
    /// A deliberate bug, to test the simulator.
    #[doc(hidden)]
    pub sabotage: ArchiveSabotage,
}

/// Deliberate bugs, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ArchiveSabotage {
    /// No bug.
    #[default]
    None,
    /// The head names pieces that are not yet answered.
    UnansweredPieces,
    /// The disks are looked at one after the other.
    TornCut,
    /// An extent that was recycled is left out of the cut.
    RecycledLeftOut,
    /// Pieces of a cut that was given up are used whatever the epoch.
    AnyEpoch,
    /// A start does not check that its disks have what the archive has.
    OlderDisks,
    /// A start does not replace the head first.
    NoClaim,
    /// The owner number is kept after the claim, not before.
    OwnerAfterClaim,
    /// What this process has under way is taken for the rest of an earlier one.
    OwnSwept,
    /// An object counts as dropped when some of its bytes are.
    LiveDropped,
    /// What the newest state does not name is deleted at once.
    RetentionIgnored,
    /// Records are released before the head that has them is known.
    ReleasedEarly,
    /// A start serves before the archive has what its recovery found.
    ServedUnarchived,
    /// A standby takes what it has of an extent for that of another use.
    AnyHeldUse,
    /// A standby keeps the head before its disks hold the state.
    HeadKeptFirst,
    /// A lease begins when a heartbeat is answered, not when it is sent.
    LeaseFromAnswer,
    /// A standby does not mark the lease before it takes the archive over.
    UnmarkedTakeOver,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self {
            promise: Promise::Local,
            interval: Duration::from_secs(1),
            uploads_max: 4,
            claim_wait: Duration::from_secs(10),
            lease: None,
            machine: String::new(),
            pool: String::new(),
            inline_bytes_max: 64 << 10,
            piece_bytes: 7 << 20,
            segment_bytes_max: 1 << 20,
            segment_age: Duration::from_secs(60),
            segments_max: 1024,
            base_age: Duration::from_secs(3600),
            retention: Duration::from_secs(7 * 24 * 3600),
            sabotage: ArchiveSabotage::None,
        }
    }
}
