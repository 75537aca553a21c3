//! The state of the log, and the latch that a failed write or flush closes for good.

use std::io;

use serde::Serialize;
use tokio::sync::watch;

use crate::LogError;

/// Whether the log takes writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LogState {
    /// It does.
    Ok,
    /// A write or flush failed. Only a restart, after the disk has been looked at, ends this.
    Failed {
        /// What failed.
        what: &'static str,
        /// The operating system's words.
        cause: String,
    },
    /// Recovery found damage in what had been acknowledged: the rest is served, nothing is written.
    ReadOnly {
        /// What is damaged.
        why: String,
    },
    /// It has been closed.
    Closed,
}

/// After EIO a kernel may mark pages clean, so that a second flush succeeds without having written anything: nothing is ever tried again.
pub(crate) struct Latch(watch::Sender<LogState>);

impl Latch {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(LogState::Ok))
    }

    /// Why nothing may be written, if so.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        match &*self.0.borrow() {
            LogState::Ok => Ok(()),
            LogState::Failed { what, cause } => Err(LogError::Failed { what, cause: cause.clone() }),
            LogState::ReadOnly { why } => Err(LogError::Failed { what: "check of the pool", cause: why.clone() }),
            LogState::Closed => Err(LogError::Closed),
        }
    }

    /// Closes the latch; the first cause stays. Returns what a request that was on its way to disk is told.
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
