//! Bounded space: eviction, age, and what is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use steadfast_edge::{Edge, EdgeBucket, EdgeBucketStatus, Fetched, FillMode, Handling, Retention, Wanted};
use steadfast_store::{Attributes, Condition, ListQuery, Store};

use crate::origin::FakeOrigin;
use crate::{BUCKET, SEGMENT, bucket, bytes, edge_of, get, new_disk, store, until};

fn within(space_bytes: u64, fill: FillMode) -> EdgeBucket {
    EdgeBucket { retention: Retention { space_bytes, age: None }, ..bucket(fill) }
}

fn status(edge: &Edge) -> EdgeBucketStatus {
    edge.status().buckets.remove(0)
}

/// Bytes of all objects and segments that are stored.
fn stored(store: &Store) -> u64 {
    let query = ListQuery { limit: 100_000, ..ListQuery::default() };
    let objects: u64 =
        store.contents(BUCKET).objects(&query).expect("listed").objects.iter().map(|object| object.size).sum();
    let fills = store.contents(BUCKET).fills(("", ""), 100_000).expect("listed").uploads;
    let segments = fills.iter().flat_map(|fill| {
        store.at(BUCKET, &fill.key).fill(&fill.upload_id).parts(0, 10_000).map(|found| found.0).unwrap_or_default()
    });
    objects + segments.map(|segment| segment.size).sum::<u64>()
}

/// Exact LRU over the same requests.
#[derive(Default)]
struct Lru {
    used: BTreeMap<usize, (u64, u64)>,
    clock: u64,
    bytes: u64,
}

impl Lru {
    /// Whether the request is a hit.
    fn request(&mut self, key: usize, size: u64, space: u64) -> bool {
        self.clock += 1;
        let hit = self.used.insert(key, (self.clock, size)).is_some();
        self.bytes += if hit { 0 } else { size };
        while self.bytes > space {
            let oldest = self.used.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| *key).expect("some");
            self.bytes -= self.used.remove(&oldest).expect("there").1;
        }
        hit
    }
}

fn size_of(key: usize) -> usize {
    [300, 3_000, 9_000, 14_000, 27_000][key % 5]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_space_is_never_exceeded_and_what_is_used_often_stays() {
    const KEYS: usize = 800;
    let origin = FakeOrigin::default();
    (0..KEYS).for_each(|key| origin.put(&key.to_string(), &bytes(size_of(key), key as u8), Some("\"v1\"")));
    let space = (0..KEYS).map(size_of).sum::<usize>() as u64 / 10;
    let store = store(&new_disk().await).await;
    let edge = edge_of(&store, &origin, within(space, FillMode::Whole)).await;
    let (mut lru, mut hits, mut lru_hits) = (Lru::default(), 0, 0);
    let mut random = 1u64;
    let requests = 5_000;
    for n in 0..requests {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Zipf with exponent 1: the key is exponential in a uniform number. It is spread, so that
        // popular keys are not neighbours.
        let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
        let key = ((KEYS as f64).powf(uniform) as usize * 7) % KEYS;
        let (status_before, wanted) = (status(&edge), Wanted::default());
        assert!(status_before.used_bytes <= space, "{status_before:?}");
        let answer = edge.get(BUCKET, &key.to_string(), &wanted).await.expect("served");
        hits += usize::from(answer.handling == Handling::Hit);
        lru_hits += usize::from(lru.request(key, size_of(key) as u64, space));
        assert_ne!(answer.handling, Handling::Passed);
        if let Fetched::Fill(reader) = answer.found {
            let got: Vec<_> = reader.stream(0..u64::MAX).map(|piece| piece.expect("served")).collect().await;
            assert!(got.concat() == bytes(size_of(key), key as u8));
            until(|| status(&edge).fills == 0).await;
        }
        if n % 500 == 0 {
            assert!(stored(&store) <= space);
        }
    }
    // Eviction for later fills may still run.
    until(|| status(&edge).used_bytes == stored(&store)).await;
    let status = status(&edge);
    assert!(status.evictions > 500 && status.used_bytes >= space * 9 / 10, "{status:?}");
    let lost = (lru_hits as f64 - hits as f64) / f64::from(requests);
    assert!(lost <= 0.02, "{hits} hits, exact LRU {lru_hits}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fills_count_and_many_at_a_time_stay_within_the_space() {
    let origin = FakeOrigin::default();
    let data = bytes(20 * SEGMENT, 3);
    (0..30).for_each(|key| origin.put(&key.to_string(), &data, Some("\"v1\"")));
    let space = 50 * SEGMENT as u64;
    let store = store(&new_disk().await).await;
    for mode in [FillMode::Whole, FillMode::Wanted] {
        let edge = edge_of(&store, &origin, within(space, mode)).await;
        let all = async {
            let keys: Vec<String> = (0..30).map(|key| key.to_string()).collect();
            join_all(keys.iter().map(|key| get(&edge, key, None))).await
        };
        tokio::pin!(all);
        let answers = loop {
            tokio::select! {
                answers = &mut all => break answers,
                () = tokio::task::yield_now() => assert!(status(&edge).used_bytes <= space),
            }
        };
        for answer in answers {
            assert!(answer.expect("served") == data);
        }
        until(|| status(&edge).fills == 0).await;
        until(|| status(&edge).used_bytes == stored(&store)).await;
        let status = status(&edge);
        assert!(status.used_bytes <= space, "{status:?}");
        assert!(status.passed > 0 && status.misses > 0, "{status:?}");
    }
}

#[tokio::test]
async fn segments_that_were_left_count_and_make_way() {
    let origin = FakeOrigin::default();
    let data = bytes(40 * SEGMENT, 3);
    (0..10).for_each(|key| origin.put(&key.to_string(), &data, Some("\"v1\"")));
    let store = store(&new_disk().await).await;
    let space = 45 * SEGMENT as u64;
    {
        let edge = edge_of(&store, &origin, within(space, FillMode::Wanted)).await;
        for key in 0..3 {
            assert!(get(&edge, &key.to_string(), Some((0, 5))).await.expect("served") == data[..5]);
        }
        until(|| status(&edge).fills == 0).await;
        assert_eq!(status(&edge).used_bytes, stored(&store));
        assert!(stored(&store) >= 3 * SEGMENT as u64);
    }
    // As after a restart.
    let edge = edge_of(&store, &origin, within(space, FillMode::Whole)).await;
    until(|| status(&edge).used_bytes == stored(&store)).await;
    let before = origin.sent();
    assert!(get(&edge, "2", None).await.expect("served") == data);
    assert!(origin.sent() - before < data.len(), "what was left is used");
    for key in 3..6 {
        assert!(get(&edge, &key.to_string(), None).await.expect("served") == data);
        assert!(status(&edge).used_bytes <= space);
    }
    until(|| status(&edge).fills == 0).await;
    until(|| status(&edge).used_bytes == stored(&store)).await;
    assert!(store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty());
}

#[tokio::test]
async fn what_is_too_large_for_the_space_is_passed_through() {
    let origin = FakeOrigin::default();
    let data = bytes(3 * SEGMENT, 3);
    origin.put("k", &data, Some("\"v1\""));
    let store = store(&new_disk().await).await;
    let edge = edge_of(&store, &origin, within(data.len() as u64 - 1, FillMode::Whole)).await;
    for _ in 0..3 {
        assert!(get(&edge, "k", None).await.expect("served") == data);
    }
    assert_eq!((status(&edge).used_bytes, status(&edge).passed, stored(&store)), (0, 3, 0));
    // The question is not repeated before each answer.
    assert_eq!(origin.requests().len(), 4);
}

#[tokio::test]
async fn objects_of_clients_stay_and_do_not_count() {
    let origin = FakeOrigin::default();
    let store = store(&new_disk().await).await;
    store.buckets().create(BUCKET, steadfast_store::BucketSettings::default()).await.expect("created");
    for key in ["0own", "zown"] {
        let mut writer = store.at(BUCKET, key).writer(None).await.expect("begun");
        writer.write(bytes(5 * SEGMENT, 1).into()).await.expect("written");
        writer.commit(Attributes::default(), Condition::None, None).await.expect("stored");
    }
    (0..20).for_each(|key| origin.put(&key.to_string(), &bytes(SEGMENT, 2), Some("\"v1\"")));
    let options = EdgeBucket {
        retention: Retention { space_bytes: 3 * SEGMENT as u64, age: Some(Duration::from_millis(40)) },
        ..bucket(FillMode::Whole)
    };
    let edge = edge_of(&store, &origin, options).await;
    for key in 0..20 {
        get(&edge, &key.to_string(), None).await.expect("served");
        assert!(status(&edge).used_bytes <= 3 * SEGMENT as u64);
    }
    // All of them reach their age.
    until(|| status(&edge).used_bytes == 0).await;
    assert_eq!(status(&edge).evictions, 20);
    assert_eq!(stored(&store), 10 * SEGMENT as u64);
}

#[tokio::test]
async fn purged_and_replaced_objects_free_their_space() {
    let origin = FakeOrigin::default();
    let store = store(&new_disk().await).await;
    let options =
        EdgeBucket { fresh: steadfast_edge::Fresh::Fallback(Duration::ZERO), ..within(1 << 20, FillMode::Whole) };
    let edge = edge_of(&store, &origin, options).await;
    for (size, tag) in [(SEGMENT, "\"v1\""), (3 * SEGMENT, "\"v2\""), (500, "\"v3\"")] {
        origin.put("k", &bytes(size, 1), Some(tag));
        assert!(get(&edge, "k", None).await.expect("served") == bytes(size, 1));
        until(|| status(&edge).used_bytes == size as u64).await;
    }
    assert!(edge.purge(BUCKET, "k").await.expect("purged"));
    assert_eq!(status(&edge).used_bytes, 0);
}
