//! The edge over a store in memory and an origin in memory.

mod bounds;
mod fills;
mod freshness;
mod origin;
mod space;

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use origin::FakeOrigin;
use steadfast_disk::{Disk, MemDisk};
use steadfast_edge::{
    Edge, EdgeBounds, EdgeBucket, EdgeError, Fetched, FillMode, Fresh, OriginAddress, Retention, Wanted,
};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_net::Addresses;
use steadfast_store::{IndexKind, PoolDisk, Store, StoreOptions};

pub(crate) const BUCKET: &str = "media";
pub(crate) const SEGMENT: usize = 10_000;

pub(crate) fn options() -> StoreOptions {
    StoreOptions { chunk_bytes: 4096, inline_max_bytes: 1000, ..StoreOptions::default() }
}

pub(crate) async fn store(disk: &Arc<dyn Disk>) -> Store {
    store_with(disk, options()).await
}

pub(crate) async fn store_with(disk: &Arc<dyn Disk>, options: StoreOptions) -> Store {
    let given = vec![PoolDisk { name: "d".into(), disk: Ok(disk.clone()), hint: false }];
    Store::open_pool(given, IndexKind::memory(), Env::tokio(), options).await.expect("open").0
}

pub(crate) async fn new_disk() -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(512 << 20));
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    disk
}

pub(crate) fn bucket(fill: FillMode) -> EdgeBucket {
    EdgeBucket {
        bucket: BUCKET.into(),
        origin: OriginAddress::Http { url: "http://127.0.0.1".into(), headers: Vec::new() },
        addresses: Addresses::Any,
        fill,
        segment_bytes: SEGMENT as u64,
        object_bytes_max: 1 << 20,
        retention: Retention::default(),
        fresh: Fresh::Forever,
        stale_if_error: Duration::ZERO,
        negative: Duration::ZERO,
        timeout: Duration::from_secs(5),
    }
}

pub(crate) async fn edge_of(store: &Store, origin: &FakeOrigin, options: EdgeBucket) -> Edge {
    let origin: Arc<dyn steadfast_edge::Origin> = Arc::new(origin.clone());
    let bounds = EdgeBounds { memory_bytes: 1 << 20, ..EdgeBounds::default() };
    Edge::with_origins(store.clone(), Env::tokio(), vec![(options, origin)], &bounds).await.expect("an edge")
}

pub(crate) async fn edge(origin: &FakeOrigin, fill: FillMode) -> (Edge, Store) {
    let store = store(&new_disk().await).await;
    (edge_of(&store, origin, bucket(fill)).await, store)
}

/// Bytes that tell their place.
pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 251) as u8 ^ (i % 251) as u8 ^ seed).collect()
}

pub(crate) async fn get(edge: &Edge, key: &str, range: Option<(u64, u64)>) -> Result<Vec<u8>, EdgeError> {
    let header = range.map(|(first, end)| format!("bytes={first}-{}", end - 1));
    let wanted = Wanted { first: range.map_or(0, |range| range.0), range: header, if_range: None, client: "".into() };
    let (from, to) = range.unwrap_or((0, u64::MAX));
    let pieces: Vec<_> = match edge.get(BUCKET, key, &wanted).await?.found {
        Fetched::Object(reader) => reader.stream(from..to).map_err(EdgeError::from).try_collect().await?,
        Fetched::Fill(reader) => reader.stream(from..to).try_collect().await?,
        Fetched::Passed(passed) => passed.stream().try_collect().await?,
    };
    Ok(pieces.concat())
}

/// Waits until `done`, for things that happen after an answer.
pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
    panic!("it did not happen");
}
