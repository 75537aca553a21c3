//! Whether an archive is to end.

/// Whether an archive is to end, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// It follows.
    No,
    /// It ends once it has what is durable.
    Now,
    /// The same, and then it is handed over: its last head says that it has all that was answered.
    HandOver,
}

impl Stopping {
    /// Whether it is to end.
    pub(crate) fn is_set(&self) -> bool {
        *self != Self::No
    }
}
