//! The way of one machine to the store: slow, and cut off at times.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::{BoxFuture, Env};
use steadfast_net::{EntityTag, MemoryStore, RemoteEntry, RemoteError, RemoteObject, RemoteResult, RemoteStore};

/// State of the way of a machine to the store, which outlives its processes.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    /// Requests do not arrive.
    pub(super) requests_cut: AtomicBool,
    /// Answers do not arrive.
    pub(super) answers_cut: AtomicBool,
    /// The store refuses requests that write.
    pub(super) writes_refused: AtomicBool,
    /// The longest time of one direction, in milliseconds.
    pub(super) slow_ms: AtomicU64,
}

/// The store, as a process of the machine sees it.
pub(super) struct Link {
    pub(super) store: MemoryStore,
    pub(super) state: Arc<LinkState>,
    pub(super) env: Env,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.state)
    }
}

impl Link {
    async fn pass(&self, cut: &AtomicBool) -> RemoteResult<()> {
        let ms = self.env.random_u64() % self.state.slow_ms.load(Relaxed).max(1);
        self.env.sleep(Duration::from_millis(ms)).await;
        if !cut.load(Relaxed) {
            return Ok(());
        }
        Err(RemoteError::Unknown("the machine is cut off".to_owned()))
    }

    async fn write<T>(&self, request: impl Future<Output = RemoteResult<T>> + Send) -> RemoteResult<T> {
        if self.state.writes_refused.load(Relaxed) {
            return self.call(async { Err(RemoteError::Slow("the store is full".to_owned())) }).await;
        }
        self.call(request).await
    }

    async fn call<T>(&self, request: impl Future<Output = RemoteResult<T>> + Send) -> RemoteResult<T> {
        self.pass(&self.state.requests_cut).await?;
        let answer = request.await;
        self.pass(&self.state.answers_cut).await?;
        answer
    }
}

impl RemoteStore for Link {
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(self.write(self.store.create(name, body)))
    }

    fn replace<'a>(
        &'a self,
        name: &'a str,
        body: Bytes,
        over: &'a EntityTag,
    ) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(self.write(self.store.replace(name, body, over)))
    }

    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>> {
        Box::pin(self.call(self.store.read(name, range, bytes_max)))
    }

    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>> {
        Box::pin(self.call(self.store.list(under, after)))
    }

    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>> {
        Box::pin(self.write(self.store.delete(names)))
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}
