//! Group flushes: callers that wait for the disk share the next flush, as the commits of the log
//! do.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tokio::sync::Mutex;

/// The flushes of an export. One at a time is submitted to the disk.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: AtomicU64,
    /// The number of the last flush that succeeded.
    done: Mutex<u64>,
}

impl Flushes {
    /// Returns when a flush has succeeded that began after the call, either this caller's or
    /// another's.
    ///
    /// # Errors
    /// Those of `flush`. Callers that waited for a failed flush start their own.
    pub(crate) async fn join<E>(&self, flush: impl Future<Output = Result<(), E>>) -> Result<(), E> {
        let before = self.begun.load(SeqCst);
        let mut done = self.done.lock().await;
        if *done > before {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, SeqCst) + 1;
        flush.await?;
        *done = number;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::future::join_all;
    use futures::{FutureExt, poll};
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn callers_that_wait_share_a_flush_that_began_after_all_of_them() {
        let (flushes, gate, count, fails) =
            (Flushes::default(), Semaphore::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let call = || {
            flushes.join(async {
                count.fetch_add(1, SeqCst);
                gate.acquire().await.expect("open").forget();
                if fails.load(SeqCst) { Err("failed") } else { Ok(()) }
            })
        };
        let mut first = Box::pin(call());
        assert!(poll!(&mut first).is_pending());
        // The first flush began before these calls, so it does not cover them.
        let mut rest = Box::pin(join_all((0..20).map(|_| call())));
        assert!(poll!(&mut rest).is_pending());
        gate.add_permits(1);
        assert_eq!(first.now_or_never(), Some(Ok(())));
        assert!(poll!(&mut rest).is_pending());
        assert_eq!(count.load(SeqCst), 2);
        gate.add_permits(1);
        assert!(rest.await.iter().all(Result::is_ok));
        assert_eq!(count.load(SeqCst), 2);
        // A failed flush covers no caller.
        fails.store(true, SeqCst);
        let mut failing = Box::pin(join_all((0..3).map(|_| call())));
        assert!(poll!(&mut failing).is_pending());
        gate.add_permits(3);
        assert!(failing.await.iter().all(Result::is_err));
        assert_eq!(count.load(SeqCst), 5);
    }
}
