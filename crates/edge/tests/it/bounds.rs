//! Bounds: what a slow client or an origin that hangs holds, and what it must not hold.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt, StreamExt, TryStreamExt, pin_mut, stream};
use http::{HeaderName, HeaderValue};
use steadfast_edge::{
    Edge, EdgeBounds, EdgeBucket, EdgeError, Fetched, FillMode, Origin, OriginAnswer, OriginRequest, Wanted,
};
use steadfast_flow::Env;
use steadfast_log::LogOptions;
use steadfast_store::{BucketSettings, StoreError, StoreOptions};

use crate::freshness::put_own;
use crate::origin::{FakeOrigin, Fault};
use crate::{BUCKET, SEGMENT, bucket, bytes, edge, get, new_disk, options, store, store_with, until};

/// An edge with these bounds and two buckets, each with its own origin.
async fn two(bounds: EdgeBounds, origins: [&FakeOrigin; 2]) -> Edge {
    let store = store(&new_disk().await).await;
    let names = [BUCKET, "other"];
    let bucket = |name: &str| EdgeBucket { bucket: name.into(), ..bucket(FillMode::Wanted) };
    let origin = |origin: &FakeOrigin| -> Arc<dyn Origin> { Arc::new(origin.clone()) };
    let buckets = names.into_iter().zip(origins).map(|(name, of)| (bucket(name), origin(of))).collect();
    store.buckets().create("own", BucketSettings::default()).await.expect("created");
    Edge::with_origins(store, Env::tokio(), buckets, &bounds).await.expect("an edge")
}

fn is_busy<T>(answer: &Result<T, EdgeError>) -> bool {
    matches!(answer, Err(EdgeError::Store(StoreError::Busy(_))))
}

#[tokio::test]
async fn a_slow_reader_of_a_stored_object_holds_no_memory() {
    let origin = FakeOrigin::default();
    origin.put("k", &bytes(SEGMENT, 1), Some("\"v1\""));
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    let Fetched::Fill(reader) = edge.get(BUCKET, "k", &Wanted::default()).await.expect("found").found else {
        panic!("a fill")
    };
    let body = reader.stream(0..u64::MAX);
    pin_mut!(body);
    let first = body.next().await.expect("a piece").expect("served");
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
    until(|| edge.status().memory.used == 0).await;
    let rest: Vec<_> = body.try_collect().await.expect("from the store");
    assert!([&first[..], &rest.concat()[..]].concat() == bytes(SEGMENT, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_an_object_that_is_not_stored_holds_its_memory_for_a_minute() {
    let origin = FakeOrigin::held();
    origin.put("k", &bytes(SEGMENT, 1), Some("\"v1\""));
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    let all = Wanted::default();
    let (begun, ()) = futures::join!(edge.get(BUCKET, "k", &all), async {
        until(|| edge.status().fills.is_some_and(|fills| fills.used == 1)).await;
        put_own(&store, "k").await;
        origin.release(1);
    });
    let Fetched::Fill(reader) = begun.expect("found").found else { panic!("a fill") };
    let body = reader.stream(0..u64::MAX);
    Env::tokio().sleep(Duration::from_secs(50)).await;
    assert_eq!(edge.status().memory.used, SEGMENT as u64);
    Env::tokio().sleep(Duration::from_secs(15)).await;
    assert_eq!((edge.status().memory.used, edge.status().fills.map(|fills| fills.used)), (0, Some(0)));
    let rest: Result<Vec<_>, _> = body.try_collect().await;
    assert!(matches!(rest, Err(EdgeError::Changed)));
}

#[tokio::test]
async fn an_origin_that_hangs_stops_neither_other_buckets_nor_more_requests_than_may_wait() {
    let (hangs, answers) = (FakeOrigin::held(), FakeOrigin::default());
    answers.put("k", &bytes(100, 1), Some("\"v1\""));
    let edge = two(
        EdgeBounds { waiting: 3, fills: 3, client_share_percent: 100, ..EdgeBounds::default() },
        [&hangs, &answers],
    )
    .await;
    let waits = async |n: usize| get(&edge, &format!("k{n}"), None).await;
    let waiting = futures::future::join3(waits(1), waits(2), waits(3));
    let others = async {
        until(|| edge.status().waiting.is_some_and(|waiting| waiting.used == 3)).await;
        assert!(is_busy(&waits(4).await));
        let other = edge.get("other", "k", &Wanted::default()).await.expect("served");
        assert!(matches!(other.found, Fetched::Fill(_)));
        hangs.release(3);
    };
    let (waited, ()) = futures::join!(waiting, others);
    assert!([waited.0, waited.1, waited.2].iter().all(|got| !is_busy(got)));
    assert_eq!(edge.status().waiting.map(|waiting| waiting.used), Some(0));
}

#[tokio::test]
async fn a_request_waits_until_its_first_bytes() {
    let origin = FakeOrigin::held();
    origin.put("k", &bytes(9 * SEGMENT, 1), Some("\"v1\""));
    let edge = two(EdgeBounds { waiting: 1, ..EdgeBounds::default() }, [&origin, &FakeOrigin::default()]).await;
    origin.release(1);
    assert!(get(&edge, "k", Some((0, 10))).await.is_ok());
    // The headers are known, and the bytes are not.
    let far = Wanted { first: 7 * SEGMENT as u64, ..Wanted::default() };
    let Fetched::Fill(reader) = edge.get(BUCKET, "k", &far).await.expect("found").found else { panic!("a fill") };
    assert!(is_busy(&edge.get(BUCKET, "k", &far).await));
    let body = reader.stream(far.first..far.first + 10);
    pin_mut!(body);
    let (first, ()) = futures::join!(body.next(), async { origin.release(9) });
    first.expect("a piece").expect("served");
    assert!(edge.get(BUCKET, "k", &far).await.is_ok());
}

#[tokio::test]
async fn fills_whose_readers_left_before_their_turn_ask_nothing() {
    let origin = FakeOrigin::held();
    let edge = two(EdgeBounds { fills: 1, ..EdgeBounds::default() }, [&origin, &FakeOrigin::default()]).await;
    let (first, ()) = futures::join!(get(&edge, "first", None), async {
        until(|| edge.status().fills.is_some_and(|fills| fills.used == 1)).await;
        for n in 0..20 {
            let key = format!("gone{n}");
            let leaving = get(&edge, &key, None);
            let left = Env::tokio().timeout(Duration::from_millis(1), leaving).await;
            assert!(left.is_none());
        }
        origin.release(100);
    });
    assert!(first.is_err());
    until(|| edge.status().buckets[0].fills == 0).await;
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn segments_whose_readers_left_before_their_turn_are_not_fetched() {
    let origin = FakeOrigin::held();
    origin.put("k", &bytes(50 * SEGMENT, 1), Some("\"v1\""));
    let bounds = EdgeBounds { origin_connections: 1, ..EdgeBounds::default() };
    let edge = two(bounds, [&origin, &FakeOrigin::default()]).await;
    origin.release(1);
    assert!(get(&edge, "k", Some((0, 10))).await.is_ok());
    let at = |segment: usize| (segment * SEGMENT) as u64;
    // It has the connection, and its answer is held.
    let first = get(&edge, "k", Some((at(10), at(10) + 10)));
    let others = async {
        until(|| origin.requests().iter().any(|request| request.contains("bytes=100000-"))).await;
        for segment in [20, 30, 40] {
            let seek = get(&edge, "k", Some((at(segment), at(segment) + 10)));
            assert!(Env::tokio().timeout(Duration::from_millis(5), seek).await.is_none());
        }
        origin.release(100);
    };
    let (first, ()) = futures::join!(first, others);
    assert!(first.is_ok());
    until(|| edge.status().buckets[0].fills == 0).await;
    let left = ["bytes=200000-", "bytes=300000-", "bytes=400000-"];
    assert!(!origin.requests().iter().any(|request| left.iter().any(|left| request.contains(left))));
}

/// An origin whose body stops after its first bytes.
struct StoppingOrigin {
    length: &'static str,
    cache_control: &'static str,
    first: Bytes,
}

impl Origin for StoppingOrigin {
    fn send(&self, _: OriginRequest) -> BoxFuture<'static, Result<OriginAnswer, String>> {
        let headers = [("content-length", self.length), ("cache-control", self.cache_control)];
        let header = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let body = stream::iter([Ok(self.first.clone())]).chain(stream::pending()).boxed();
        ready(Ok(OriginAnswer { status: 200, headers: headers.map(header).into_iter().collect(), body })).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_passed_body_that_stops_ends_after_the_timeout() {
    let store = store(&new_disk().await).await;
    let first = Bytes::from_static(b"first");
    let origin: Arc<dyn Origin> = Arc::new(StoppingOrigin { length: "100", cache_control: "private", first });
    let buckets = vec![(bucket(FillMode::Whole), origin)];
    let edge = Edge::with_origins(store, Env::tokio(), buckets, &EdgeBounds::default()).await.expect("an edge");
    assert!(matches!(get(&edge, "k", None).await, Err(EdgeError::Timeout)));
    assert_eq!(edge.status().passed.map(|passed| passed.used), Some(0));
}

#[tokio::test]
async fn fills_whose_origin_stops_give_up_the_budget_of_writes() {
    let log = LogOptions { pending_bytes_max: 64 << 10, ..LogOptions::default() };
    let store = store_with(&new_disk().await, StoreOptions { log, ..options() }).await;
    let first = Bytes::from(bytes(SEGMENT / 2, 1));
    let origin: Arc<dyn Origin> = Arc::new(StoppingOrigin { length: "10000", cache_control: "max-age=100", first });
    let buckets = vec![(EdgeBucket { timeout: Duration::from_secs(60), ..bucket(FillMode::Whole) }, origin)];
    let bounds = EdgeBounds { client_share_percent: 100, ..EdgeBounds::default() };
    let edge = Edge::with_origins(store.clone(), Env::tokio(), buckets, &bounds).await.expect("an edge");
    // Together, their chunks exceed the budget.
    let mut readers = Vec::new();
    for n in 0..20 {
        let found = edge.get(BUCKET, &format!("k{n}"), &Wanted::default()).await.expect("begins").found;
        readers.push(found);
    }
    for n in 0..20 {
        put_own(&store, &format!("own{n}")).await;
    }
    assert!(readers.iter().all(|found| matches!(found, Fetched::Fill(_))));
}

#[tokio::test]
async fn a_client_has_a_share_of_what_is_passed_through() {
    let origin = FakeOrigin::default();
    origin.put("k", &bytes(5 * SEGMENT, 1), Some("\"v1\""));
    origin.cache_control("no-store");
    let edge = two(EdgeBounds { passed: 4, ..EdgeBounds::default() }, [&origin, &FakeOrigin::default()]).await;
    let of = |client: &str| Wanted { client: client.into(), ..Wanted::default() };
    // Slow readers: none reads its body.
    let _held = edge.get(BUCKET, "k", &of("slow")).await.expect("passed");
    let second = Env::tokio().timeout(Duration::from_millis(200), edge.get(BUCKET, "k", &of("slow"))).await;
    assert!(second.is_none(), "it waits for its share");
    let other = edge.get(BUCKET, "k", &of("other")).await.expect("passed");
    let Fetched::Passed(passed) = other.found else { panic!("passed") };
    let all: Vec<_> = passed.stream().try_collect().await.expect("served");
    assert!(all.concat() == bytes(5 * SEGMENT, 1));
}

#[tokio::test]
async fn a_client_has_a_share_of_the_connections_that_fetch() {
    let slow = FakeOrigin::held();
    let edge =
        two(EdgeBounds { origin_connections: 5, ..EdgeBounds::default() }, [&slow, &FakeOrigin::default()]).await;
    let get = async |key: &'static str, client: &str| {
        edge.get(BUCKET, key, &Wanted { client: client.into(), ..Wanted::default() }).await
    };
    // Of the four connections for readers, one client has one.
    let of_one = futures::future::join4(get("a1", "one"), get("a2", "one"), get("a3", "one"), get("a4", "one"));
    let of_another = async {
        until(|| edge.status().buckets[0].fills == 4).await;
        until(|| slow.requests().len() == 1).await;
        let (answer, ()) = futures::join!(get("b", "two"), async {
            until(|| slow.requests().len() == 2).await;
            slow.release(100);
        });
        answer.map(|_| ())
    };
    let (_, another) = futures::join!(of_one, of_another);
    assert!(matches!(another, Err(EdgeError::Store(StoreError::NoSuchKey))));
}

#[tokio::test]
async fn an_origin_that_refuses_gets_one_question_a_second_about_a_key() {
    let origin = FakeOrigin::default();
    origin.fail([Fault::Status(403); 2]);
    let edge = two(EdgeBounds::default(), [&origin, &FakeOrigin::default()]).await;
    for _ in 0..10 {
        assert!(matches!(get(&edge, "k", None).await, Err(EdgeError::Origin(_))));
    }
    assert_eq!(origin.requests().len(), 1);
    assert!(matches!(get(&edge, "other key", None).await, Err(EdgeError::Origin(_))));
    origin.put("k", &bytes(100, 1), Some("\"v1\""));
    // It is asked again later.
    let served = async {
        loop {
            match get(&edge, "k", None).await {
                Err(EdgeError::Origin(_)) => Env::tokio().sleep(Duration::from_millis(20)).await,
                other => break other,
            }
        }
    };
    let served = Env::tokio().timeout(Duration::from_secs(30), served).await.expect("asked again");
    assert_eq!(served.expect("served"), bytes(100, 1));
}
