//! Deliberate faults, to test the simulator.

/// Deliberate faults, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClusterSabotage {
    /// No fault.
    #[default]
    None,
    /// A home adds a watcher after it has read the position.
    ReadBeforeWatch,
    /// A front takes frames of any watch for those of the current one.
    WatchNumberIgnored,
    /// A front watches again without its last position.
    NoLastPosition,
    /// A front keeps its tail over an epoch change.
    TailOverEpoch,
    /// Sessions are not reset on an epoch change.
    NoResetOnEpoch,
    /// A front drops publications that arrive before the answer to their watch.
    EarlyDropped,
    /// A front does not tell the home that it ends a watch.
    UnwatchLost,
    /// Positions are compared by offset only.
    OffsetOnly,
    /// Publications from before the answer are delivered, whatever its position.
    KeptNotFiltered,
    /// A front takes answers to questions of an earlier watch.
    OldAnswers,
    /// A front that lags tells a client that is ahead that it cannot recover.
    AheadRefused,
    /// A front continues although publications are missing.
    MissingIgnored,
    /// A front does not notice that a link is lost.
    BreakUnnoticed,
    /// A full outbox drops a frame and continues.
    FrameDropped,
    /// The node of a publisher decides idempotency keys.
    KeyAtFront,
    /// A home takes any pool.
    PoolUnchecked,
    /// A home does not read the keys that it stored before its start.
    KeysForgotten,
    /// A front does not send its members with a new watch.
    NoSnapshot,
    /// A front forgets the leaves that the home has not acknowledged.
    ForgottenLeaves,
    /// An acknowledged join counts as announced, also after the home has announced the leave.
    AnnouncedForever,
    /// A home forgets what fronts tell of members in its first seconds.
    EarlyMembersForgotten,
}
