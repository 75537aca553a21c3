//! The signals that stop the server.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Replaces the default action of the signals, which ends the process at once.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn new() -> Result<Self, String> {
        let take = |kind| signal(kind).map_err(|e| format!("signals cannot be handled: {e}"));
        Ok(Self { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? })
    }

    /// Waits for the next one; returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
