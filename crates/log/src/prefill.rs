//! Zero-fills a commit extent ahead of its write pointer.
//!
//! On a file system, the first flush after a write to allocated but unwritten space also commits
//! the file system's journal. Measured, that doubles the cost of a flush. Zeros written ahead pay
//! it once for many frames. The committer waits for them only where a frame would overtake zeros in
//! flight to the same place.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::BLOCK;
use tokio::sync::Notify;

use crate::io::WriteError;
use crate::shared::Shared;

const STEP: u64 = 1 << 20;

struct PrefillState {
    /// End of the frames written or being written.
    write_end: u64,
    /// End of the zeros written.
    cursor: u64,
    /// Zeros in flight, from and to.
    busy: Option<(u64, u64)>,
    stopped: bool,
}

/// State shared by the committer and the filling task.
pub(crate) struct Prefill {
    state: Mutex<PrefillState>,
    changed: Notify,
}

impl Prefill {
    /// Starts filling the extent that begins at `start` on the disk, from `at` on. Before `at` is
    /// written data: the header, and after a recovery also the frames copied there.
    pub(crate) fn start(shared: &Arc<Shared>, start: u64, at: u64) -> Arc<Self> {
        let state = PrefillState { write_end: at, cursor: at, busy: None, stopped: false };
        let prefill = Arc::new(Self { state: Mutex::new(state), changed: Notify::new() });
        let ahead = shared.options.prefill_ahead_bytes / STEP * STEP;
        // No extent begins at the superblock.
        if ahead > 0 && start > 0 && shared.disk.geometry().prefill_pays {
            shared.spawn("log-prefill", run(shared.clone(), prefill.clone(), start, ahead));
        }
        prefill
    }

    /// Claims the space of a frame that ends at `end`. Waits for zeros in flight to the same place.
    pub(crate) async fn claim_until(&self, end: u64) {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                state.write_end = state.write_end.max(end);
                if state.busy.is_none_or(|(from, _)| from >= end) {
                    break;
                }
            }
            changed.await;
        }
        self.changed.notify_waiters();
    }

    /// Stops the filling. No zeros are in flight when this returns.
    pub(crate) async fn stop(&self) {
        self.state.lock().stopped = true;
        self.claim_until(u64::MAX).await;
    }
}

async fn run(shared: Arc<Shared>, prefill: Arc<Prefill>, start: u64, ahead: u64) {
    let zeros = Bytes::from(vec![0u8; STEP as usize]);
    let last = shared.pool.extent_bytes - BLOCK as u64;
    let mut latch = shared.latch.watch();
    loop {
        let changed = prefill.changed.notified();
        let step = {
            let mut state = prefill.state.lock();
            if state.stopped || state.cursor >= last || shared.latch.check().is_err() {
                return;
            }
            // If the writer is faster, restart a step ahead of it.
            let from = if state.write_end > state.cursor { state.write_end + STEP } else { state.cursor };
            let to = (from + STEP).min(last);
            if from >= to {
                return;
            }
            let step = (to <= state.write_end + ahead).then_some((from, to));
            state.busy = step;
            step
        };
        let Some((from, to)) = step else {
            tokio::select! {
                biased;
                _ = latch.changed() => {}
                () = changed => {}
            }
            continue;
        };
        // A frame written to that place reports the fault.
        let result = shared.io.try_write(start + from, zeros.slice(..(to - from) as usize)).await;
        {
            let mut state = prefill.state.lock();
            state.busy = None;
            state.cursor = to;
        }
        prefill.changed.notify_waiters();
        if let Err(error) = result {
            if let WriteError::Disk(error) = error {
                tracing::warn!(%error, "cannot write zeros ahead");
                shared.metrics.writes_elsewhere.fetch_add(1, Relaxed);
            }
            return;
        }
    }
}
