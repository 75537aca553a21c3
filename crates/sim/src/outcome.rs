//! The outcome of a check.

/// The result of a check. The error describes a violation.
pub(crate) type Outcome<T = ()> = Result<T, String>;
