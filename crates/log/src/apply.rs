//! Passes committed records to the layer above, in LSN order, outside the committer's path, and
//! then answers the waiting callers.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tokio::sync::mpsc;

use crate::Committed;
use crate::commit::ToApply;
use crate::shared::Shared;

/// Runs until the committer has ended.
pub(crate) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<ToApply>) {
    let (applier, progress) = (&shared.applier, &shared.progress);
    while let Some(frame) = queue.recv().await {
        let last = frame.applied.last().map(|record| record.lsn);
        // Set first, so that a caller who sees an effect of this frame and then requests a flush
        // gets a flush that covers it.
        if let Some(last) = last {
            let before = progress.applying.swap(last, SeqCst);
            assert!(before < last, "the frame of {last} is applied after that of {before}");
            if !progress.hold.pass(last, || shared.env.now()).await {
                // The next start finds these records. Callers learn that the outcome is unknown.
                while queue.recv().await.is_some() {}
                return;
            }
        }
        let mut taken = applier.apply(&frame.applied, &mut progress.usage.lock());
        while taken < frame.applied.len() {
            if !applier.ready().await {
                // Dropping the senders reports an unknown outcome to the callers.
                return;
            }
            taken += applier.apply(&frame.applied[taken..], &mut progress.usage.lock());
            assert!(taken <= frame.applied.len(), "more records are applied than there are");
        }
        if let Some(last) = last {
            progress.applied.send_replace(last);
        }
        let ToApply { durable, begun, written, .. } = frame;
        for (first_lsn, answer) in frame.waiters {
            // The caller may have dropped its ticket.
            let _ = answer.send(Ok(Committed { first_lsn, durable, begun, written }));
        }
    }
}
