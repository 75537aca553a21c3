//! Hands committed records to the layer above, in LSN order, off the committer's path, and then answers those who wait.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::log::Shared;
use crate::{Applied, Committed, LogError, Lsn};

pub(crate) type Answer = oneshot::Sender<Result<Committed, LogError>>;

/// A committed frame.
pub(crate) struct ToApply {
    pub(crate) applied: Vec<Applied>,
    pub(crate) waiters: Vec<(Lsn, Answer)>,
    pub(crate) durable: bool,
    /// When it began to be written, and when it was.
    pub(crate) begun: Duration,
    pub(crate) written: Duration,
}

/// Runs until the committer is gone.
pub(crate) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<ToApply>) {
    while let Some(frame) = queue.recv().await {
        // Told before, so that whoever sees an effect of this frame and then asks for a flush gets one that covers it.
        if let Some(last) = frame.applied.last() {
            shared.applying.store(last.lsn, SeqCst);
        }
        let mut taken = shared.applier.apply_some(&frame.applied);
        while taken < frame.applied.len() {
            if !shared.applier.ready().await {
                // Whoever waits learns that the outcome is not known.
                return;
            }
            taken += shared.applier.apply_some(&frame.applied[taken..]);
        }
        if let Some(last) = frame.applied.last() {
            shared.applied.send_replace(last.lsn);
        }
        let ToApply { durable, begun, written, .. } = frame;
        for (first_lsn, answer) in frame.waiters {
            // Whoever waited may have gone away.
            let _ = answer.send(Ok(Committed { first_lsn, durable, begun, written }));
        }
    }
}
