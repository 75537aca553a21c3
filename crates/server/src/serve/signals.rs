//! The signals of the server: two stop it, and SIGHUP does nothing.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Replaces the default action of the signals, which ends the process at once.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn new() -> Result<Self, String> {
        let take = |kind| signal(kind).map_err(|e| format!("signals cannot be handled: {e}"));
        Ok(Self {
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one that stops the server; returns its name. SIGHUP, with which hooks of
    /// certificates ask other servers to reload, is logged.
    pub async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                biased;
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP is ignored: settings and certificates are read at a start only");
                }
            }
        }
    }
}
