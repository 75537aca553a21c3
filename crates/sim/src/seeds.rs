//! Runs of many seeds on several threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// The seeds of a simulation.
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) runs: u64,
    /// 0: one thread for each core.
    pub(crate) threads: usize,
}

impl Seeds {
    /// Runs the seeds, and stops soon after one that fails. `run` returns the result of a seed and
    /// whether it failed. `add` receives the results, `progress` the number of finished runs and
    /// the total.
    pub(crate) fn run<R>(
        &self,
        progress: &(dyn Fn(u64, u64) + Sync),
        run: impl Fn(u64) -> (R, bool) + Sync,
        add: impl FnMut(u64, R) + Send,
    ) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { cores } else { self.threads };
        let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let add = Mutex::new(add);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(self.runs.max(1) as usize) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= self.runs {
                            break;
                        }
                        let seed = self.first.wrapping_add(at);
                        let (result, failed) = run(seed);
                        if failed {
                            stop.store(true, Ordering::Relaxed);
                        }
                        (*add.lock())(seed, result);
                        progress(done.fetch_add(1, Ordering::Relaxed) + 1, self.runs);
                    }
                });
            }
        });
    }
}
