//! Reads ahead of the object that is being written.

use std::collections::VecDeque;

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use steadfast_flow::BoxFuture;

/// Reads in progress and their results, in order. They are polled while an object is written: a
/// read that is not polled keeps its place among the requests of its disk, and the object that is
/// written may need that place.
pub(super) struct ReadAhead<'a, T> {
    reads: FuturesOrdered<BoxFuture<'a, T>>,
    done: VecDeque<T>,
}

impl<T> Default for ReadAhead<'_, T> {
    fn default() -> Self {
        Self { reads: FuturesOrdered::new(), done: VecDeque::new() }
    }
}

impl<'a, T> ReadAhead<'a, T> {
    /// Number of reads whose results were not taken.
    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.done.len()
    }

    /// Adds a read behind the others.
    pub(super) fn begin(&mut self, read: impl Future<Output = T> + Send + 'a) {
        self.reads.push_back(Box::pin(read));
    }

    /// The result of the first read; `None` when there is none.
    pub(super) async fn next(&mut self) -> Option<T> {
        match self.done.pop_front() {
            Some(result) => Some(result),
            None => self.reads.next().await,
        }
    }

    /// Awaits `work`, and reads meanwhile.
    pub(super) async fn during<W>(&mut self, work: impl Future<Output = W>) -> W {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(result) = self.reads.next() => self.done.push_back(result),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_flow::Env;
    use tokio::sync::Semaphore;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn reads_go_on_while_an_object_is_written() {
        // Reads and the write need the same place, one after another.
        let place = Semaphore::new(1);
        let turn = async || {
            let _place = place.acquire().await.expect("open");
            yield_now().await;
        };
        let mut ahead = ReadAhead::default();
        for n in 0..3 {
            let turn = &turn;
            ahead.begin(async move {
                turn().await;
                n
            });
        }
        assert_eq!(ahead.next().await, Some(0));
        Env::tokio().timeout(Duration::from_secs(60), ahead.during(turn())).await.expect("in time");
        assert_eq!(ahead.len(), 2);
        assert_eq!((ahead.next().await, ahead.next().await, ahead.next().await), (Some(1), Some(2), None));
    }
}
