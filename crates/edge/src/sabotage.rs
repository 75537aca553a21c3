//! Deliberate faults, to test the simulator.

/// Deliberate faults, to test the simulator.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No fault.
    #[default]
    None,
    /// A fill that a purge has detached is stored.
    CommitWithoutCondition,
    /// Whether a fill is detached is checked before its commit, and not in it.
    CommitChecksFirst,
    /// Requests join a fill that a purge has detached.
    DetachedJoined,
    /// The answer to a request from before a purge is remembered, if it is a 404.
    LateMissingRemembered,
    /// A reader of a fill that was given up continues with what is stored.
    ReaderTakesNext,
    /// The entity tags of the answers are not compared.
    TagsNotCompared,
    /// Segments are joined by a weak tag, or by time and size.
    WeakTagsJoin,
    /// Segments that an earlier fill has stored are used without a look at their tag.
    LeftOverBelieved,
    /// A body without a length is whole when the connection ends.
    CloseIsEnd,
    /// A purge does not wait until it is durable.
    PurgeNotDurable,
    /// A purge does not wait until removals from before it are durable.
    PurgeWithoutFlush,
    /// A purge does not detach the fills.
    PurgeIgnoresFills,
    /// Age counts from the end of a fill.
    AgeFromEnd,
    /// The origin answers a HEAD while a fill runs.
    HeadBesideFill,
    /// An origin that does not answer is waited for.
    NoTimeout,
    /// What fills leave behind stays.
    NoSweep,
}
