//! A progress line for long commands on a terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use steadfast_archive::TransferProgress;
use steadfast_flow::Env;

use crate::report::duration;

/// A progress line; prints nothing if standard error is not a terminal.
pub struct Progress {
    env: Env,
    terminal: bool,
    begun: Duration,
    shown: Option<Duration>,
}

const EVERY: Duration = Duration::from_millis(100);

impl Progress {
    /// A progress line for a command that begins now.
    pub fn new(env: Env) -> Self {
        let begun = env.now();
        Self { env, terminal: std::io::stderr().is_terminal(), begun, shown: None }
    }

    /// Shows `what` and the finished share `part` (0 to 1).
    pub fn show(&mut self, what: &str, part: f64) {
        let now = self.env.now();
        if !self.terminal || self.shown.is_some_and(|shown| now.saturating_sub(shown) < EVERY) {
            return;
        }
        self.shown = Some(now);
        let part = part.clamp(0.0, 1.0);
        let left = now.saturating_sub(self.begun).mul_f64((1.0 - part) / part.max(0.001));
        let left = if part > 0.01 { format!(", {} left", duration(left.as_secs())) } else { String::new() };
        let mut stderr = std::io::stderr();
        // The terminal may have closed; the command continues.
        let _ = write!(stderr, "\r\x1b[K{what}: {:.0} %{left}", part * 100.0);
        let _ = stderr.flush();
    }

    /// Shows a transfer until the work has ended, and removes the line.
    pub async fn follow<T>(mut self, what: &str, transfer: &TransferProgress, work: impl Future<Output = T>) -> T {
        let (mut work, env) = (std::pin::pin!(work), self.env.clone());
        loop {
            tokio::select! {
                ended = &mut work => {
                    self.clear();
                    return ended;
                }
                () = env.sleep(EVERY) => self.show(what, transfer.share()),
            }
        }
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
