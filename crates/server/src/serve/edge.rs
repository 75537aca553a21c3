//! Commands for buckets with an origin.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use steadfast_edge::{Edge, EdgeError, Prefetched};
use steadfast_store::StoreError;

use crate::control::ProgressReporter;

/// Objects that a command fetches at a time, so that most connections are left for readers.
const AT_ONCE: usize = 8;

fn message(bucket: &str, what: &str, error: &EdgeError) -> String {
    match error {
        EdgeError::Store(StoreError::NoSuchBucket) => format!("the bucket {bucket} has no origin"),
        error => format!("{what}: {error}"),
    }
}

/// Purges an object, or all whose keys begin with `key`.
///
/// # Errors
/// Why the purge is not complete.
pub(super) async fn purge(edge: &Edge, bucket: &str, key: &str, prefix: bool) -> Result<Value, String> {
    let purged = match prefix {
        true => edge.purge_prefix(bucket, key).await,
        false => edge.purge(bucket, key).await.map(u64::from),
    };
    let purged = purged.map_err(|e| message(bucket, "the purge is not complete", &e))?;
    Ok(json!({ "purged": purged }))
}

/// What a command has fetched so far.
#[derive(Default)]
struct Work {
    /// Objects and bytes in all; bytes only where the origin lists them.
    objects: u64,
    bytes: u64,
    done: AtomicU64,
    done_bytes: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    not_storable: AtomicU64,
    missing: AtomicU64,
    failed: AtomicU64,
}

impl Work {
    /// Fetches objects, given with their sizes.
    async fn run(&self, edge: &Edge, bucket: &str, keys: Vec<(String, u64)>, reporter: &ProgressReporter) {
        let one = async |(key, size): (String, u64)| {
            match edge.prefetch(bucket, &key).await {
                Ok(Prefetched::Fetched(bytes)) => {
                    self.fetched.fetch_add(1, Relaxed);
                    self.fetched_bytes.fetch_add(bytes, Relaxed);
                }
                Ok(Prefetched::Stored(_)) => {}
                Ok(Prefetched::NotStorable) => {
                    self.not_storable.fetch_add(1, Relaxed);
                }
                Err(EdgeError::Store(StoreError::NoSuchKey)) => {
                    self.missing.fetch_add(1, Relaxed);
                }
                Err(error) => {
                    self.failed.fetch_add(1, Relaxed);
                    tracing::warn!(bucket, ?key, %error, "an object was not fetched");
                }
            }
            self.done.fetch_add(1, Relaxed);
            self.done_bytes.fetch_add(size, Relaxed);
            reporter.progress(self.report());
        };
        stream::iter(keys).for_each_concurrent(AT_ONCE, one).await;
    }

    fn report(&self) -> Value {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let share = |done: u64, all: u64| if all == 0 { 0.0 } else { done as f64 / all as f64 };
        let part = match self.bytes {
            0 => share(read(&self.done), self.objects),
            bytes => share(read(&self.done_bytes), bytes),
        };
        json!({
            "objects": self.objects,
            "done": read(&self.done),
            "part": part,
            "fetched": read(&self.fetched),
            "fetched_bytes": read(&self.fetched_bytes),
            "not_storable": read(&self.not_storable),
            "missing": read(&self.missing),
            "failed": read(&self.failed),
        })
    }
}

/// Fetches the objects with these keys, or all that the origin lists under `prefix`.
///
/// # Errors
/// The bucket has no origin, or the origin cannot list. Objects that could not be fetched are
/// counted in the result.
pub(super) async fn fill(
    edge: &Edge,
    bucket: &str,
    keys: &[String],
    prefix: Option<&str>,
    reporter: &ProgressReporter,
) -> Result<Value, String> {
    if !edge.has_origin(bucket) {
        return Err(format!("the bucket {bucket} has no origin"));
    }
    let mut work = Work { objects: keys.len() as u64, ..Work::default() };
    let Some(prefix) = prefix else {
        work.run(edge, bucket, keys.iter().map(|key| (key.clone(), 0)).collect(), reporter).await;
        return Ok(work.report());
    };
    // Twice, so that the progress is known and the list need not be kept.
    let mut pages = Box::pin(pages(edge, bucket, prefix));
    while let Some(page) = pages.try_next().await? {
        work.objects += page.len() as u64;
        work.bytes += page.iter().map(|(_, size)| size).sum::<u64>();
    }
    let mut pages = Box::pin(self::pages(edge, bucket, prefix));
    while let Some(page) = pages.try_next().await? {
        work.run(edge, bucket, page, reporter).await;
    }
    Ok(work.report())
}

/// The objects that the origin lists, with their sizes, in pages.
fn pages<'a>(
    edge: &'a Edge,
    bucket: &'a str,
    prefix: &'a str,
) -> impl futures::Stream<Item = Result<Vec<(String, u64)>, String>> + 'a {
    stream::try_unfold(Some(String::new()), async move |after| {
        let Some(after) = after else { return Ok(None) };
        let page = edge.list_origin(bucket, prefix, &after).await;
        let page = page.map_err(|e| message(bucket, "the origin's listing failed", &e))?;
        let page = page.ok_or("an origin over HTTP cannot be listed: give the keys")?;
        let objects = page.objects.into_iter().map(|object| (object.key, object.size)).collect();
        Ok(Some((objects, page.next)))
    })
}
