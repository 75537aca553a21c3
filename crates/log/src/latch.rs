//! The state of the log, and the latch that a failed write or flush closes permanently.

use std::io;

use serde::Serialize;
use tokio::sync::watch;

use crate::LogError;

/// Whether the log takes writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LogState {
    /// The log takes writes.
    Ok,
    /// A write or flush failed. The state lasts until the operator has checked the disk and
    /// restarts.
    Failed {
        /// The operation that failed.
        what: &'static str,
        /// Message of the operating system.
        cause: String,
    },
    /// Recovery found damage in acknowledged data. Reads are served; writes are refused.
    ReadOnly {
        /// The damage.
        why: String,
    },
    /// The log was opened for reading: writes are refused.
    OpenedForReading,
    /// The log has been closed.
    Closed,
}

/// Closed by the first failed write or flush. After EIO a kernel may mark pages clean, so that a
/// second flush succeeds without writing anything. So the log never retries.
pub(crate) struct Latch(watch::Sender<LogState>);

impl Latch {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(LogState::Ok))
    }

    /// Returns the reason if nothing may be written.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        match &*self.0.borrow() {
            LogState::Ok => Ok(()),
            LogState::Failed { what, cause } => Err(LogError::Failed { what, cause: cause.clone() }),
            LogState::ReadOnly { why } => Err(LogError::Failed { what: "check of the pool", cause: why.clone() }),
            LogState::OpenedForReading => Err(LogError::OpenedForReading),
            LogState::Closed => Err(LogError::Closed),
        }
    }

    /// Closes the latch; the first cause is kept. Returns the error for requests in flight.
    pub(crate) fn fail(&self, what: &'static str, error: &io::Error) -> LogError {
        let cause = error.to_string();
        self.0.send_if_modified(|state| {
            let first = *state == LogState::Ok;
            if first {
                tracing::error!(what, %cause, "the log has stopped taking writes; check the disk, then restart");
                *state = LogState::Failed { what, cause: cause.clone() };
            }
            first
        });
        LogError::Unknown { what, cause }
    }

    pub(crate) fn set_read_only(&self, why: String) {
        self.0.send_replace(LogState::ReadOnly { why });
    }

    pub(crate) fn set_for_reading(&self) {
        self.0.send_replace(LogState::OpenedForReading);
    }

    pub(crate) fn close(&self) {
        self.0.send_if_modified(|state| {
            let open = *state == LogState::Ok;
            if open {
                *state = LogState::Closed;
            }
            open
        });
    }

    pub(crate) fn state(&self) -> LogState {
        self.0.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<LogState> {
        self.0.subscribe()
    }
}
