//! Freshness: how long an object is served without a question, and what a question changes.

use std::time::Duration;

use futures::TryStreamExt;
use futures::future::join_all;
use steadfast_edge::{Edge, EdgeBucket, EdgeError, Fetched, FillMode, Fresh, Handling, Wanted};
use steadfast_flow::Env;
use steadfast_log::Durability;
use steadfast_store::{Attributes, Condition, Store, StoreError};
use tokio::sync::oneshot;

use crate::origin::{FakeOrigin, Fault};
use crate::{BUCKET, SEGMENT, bucket, bytes, edge_of, get, new_disk, store, until};

/// Long enough for the requests of a test, short enough to wait for.
const LIFETIME: Duration = Duration::from_millis(150);

fn short_lived() -> EdgeBucket {
    EdgeBucket { fresh: Fresh::Fallback(LIFETIME), ..bucket(FillMode::Whole) }
}

async fn outlive() {
    Env::tokio().sleep(LIFETIME + Duration::from_millis(10)).await;
}

/// An edge with a stored object `k`.
async fn with_object(origin: &FakeOrigin, data: &[u8], options: EdgeBucket) -> (Edge, Store) {
    origin.put("k", data, Some("\"v1\""));
    let store = store(&new_disk().await).await;
    let edge = edge_of(&store, origin, options).await;
    assert!(get(&edge, "k", None).await.expect("served") == data);
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
    (edge, store)
}

async fn handled(edge: &Edge, expected: &[u8]) -> Handling {
    let answer = edge.get(BUCKET, "k", &Wanted::default()).await.expect("found");
    let pieces: Vec<_> = match answer.found {
        Fetched::Object(reader) => reader.stream(0..u64::MAX).try_collect().await.expect("read"),
        Fetched::Fill(reader) => reader.stream(0..u64::MAX).try_collect().await.expect("read"),
        Fetched::Passed(passed) => passed.stream().try_collect().await.expect("read"),
    };
    assert!(pieces.concat() == expected);
    answer.handling
}

#[tokio::test]
async fn a_stale_object_is_revalidated_once() {
    let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    let (edge, store) = with_object(&origin, &data, short_lived()).await;
    let version = store.at(BUCKET, "k").info().expect("stored").version;
    for _ in 0..3 {
        outlive().await;
        let before = (origin.requests().len(), origin.sent());
        let all = join_all((0..20).map(|_| handled(&edge, &data))).await;
        assert!(all.iter().all(|handling| matches!(handling, Handling::Revalidated | Handling::Hit)), "{all:?}");
        assert_eq!(handled(&edge, &data).await, Handling::Hit);
        assert_eq!((origin.requests().len(), origin.sent()), (before.0 + 1, before.1));
        assert_eq!(origin.requests().last().map(String::as_str), Some("GET bytes=0-9999 \"v1\""));
    }
    assert_eq!(store.at(BUCKET, "k").info().expect("stored").version, version);
    outlive().await;
    let head = edge.head(BUCKET, "k", "".into()).await.expect("described");
    assert_eq!((head.handling, head.found.info.size), (Handling::Revalidated, data.len() as u64));
    assert_eq!(handled(&edge, &data).await, Handling::Hit);
}

#[tokio::test]
async fn a_head_without_a_length_removes_nothing() {
    let (origin, data) = (FakeOrigin { lengths: false, ..FakeOrigin::default() }, bytes(10, 1));
    let (edge, store) = with_object(&origin, &data, short_lived()).await;
    let version = store.at(BUCKET, "k").info().expect("stored").version;
    let new = bytes(11, 2);
    origin.put("k", &new, Some("\"v2\""));
    outlive().await;
    let head = edge.head(BUCKET, "k", "".into()).await.expect("described");
    assert_eq!((head.handling, head.found.has_length), (Handling::Passed, false));
    assert_eq!(head.found.info.attributes.etag, "v2");
    assert_eq!(store.at(BUCKET, "k").info().expect("still stored").version, version);
    // The next GET stores what it fetches.
    assert_eq!(handled(&edge, &new).await, Handling::Replaced);
    until(|| store.at(BUCKET, "k").info().is_ok_and(|info| info.attributes.etag == "v2")).await;
    // A GET that waits with the HEAD has an answer of its own.
    outlive().await;
    origin.put("k", &data, Some("\"v3\""));
    let (head, got) = futures::join!(edge.head(BUCKET, "k", "".into()), handled(&edge, &data));
    assert_eq!((head.is_ok(), got), (true, Handling::Replaced));
}

#[tokio::test]
async fn a_changed_object_is_replaced() {
    let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    let (edge, store) = with_object(&origin, &data, short_lived()).await;
    let old = edge.get(BUCKET, "k", &Wanted::default()).await.expect("found").found;
    let new = bytes(4 * SEGMENT, 2);
    origin.put("k", &new, Some("\"v2\""));
    outlive().await;
    assert_eq!(handled(&edge, &new).await, Handling::Replaced);
    until(|| store.at(BUCKET, "k").info().is_ok_and(|info| info.attributes.etag == "v2")).await;
    // A reader of the old version ends with it.
    let Fetched::Object(reader) = old else { panic!("a stored object") };
    let pieces: Vec<_> = reader.stream(0..u64::MAX).try_collect().await.expect("read");
    assert!(pieces.concat() == data);
}

#[tokio::test]
async fn an_object_that_is_gone_is_removed_and_remembered() {
    let (origin, data) = (FakeOrigin::default(), bytes(10, 1));
    let (edge, store) = with_object(&origin, &data, EdgeBucket { negative: LIFETIME, ..short_lived() }).await;
    origin.remove("k");
    outlive().await;
    let missing = |found: Result<Vec<u8>, EdgeError>| matches!(found, Err(EdgeError::Store(StoreError::NoSuchKey)));
    assert!(missing(get(&edge, "k", None).await));
    assert!(store.at(BUCKET, "k").info().is_err());
    let before = origin.requests().len();
    for _ in 0..10 {
        assert!(missing(get(&edge, "k", None).await));
        assert!(edge.head(BUCKET, "k", "".into()).await.is_err());
    }
    assert_eq!(origin.requests().len(), before);
    origin.put("k", &data, Some("\"v1\""));
    outlive().await;
    assert!(get(&edge, "k", None).await.expect("back") == data);
}

#[tokio::test]
async fn a_stale_object_is_served_when_the_origin_fails_if_that_is_allowed() {
    for (allowed, fault) in [
        (true, Fault::Status(500)),
        (true, Fault::Unreachable),
        (false, Fault::Status(503)),
        (false, Fault::Unreachable),
    ] {
        let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
        let stale_if_error = if allowed { Duration::from_secs(1000) } else { Duration::ZERO };
        let (edge, _store) = with_object(&origin, &data, EdgeBucket { stale_if_error, ..short_lived() }).await;
        outlive().await;
        origin.fail([fault; 2]);
        if allowed {
            assert_eq!(handled(&edge, &data).await, Handling::Stale);
            let before = origin.requests().len();
            // The origin rests for a moment.
            assert_eq!(handled(&edge, &data).await, Handling::Stale);
            assert_eq!(origin.requests().len(), before);
        } else {
            assert!(get(&edge, "k", None).await.is_err());
        }
    }
}

#[tokio::test]
async fn a_stale_object_is_served_while_it_is_revalidated() {
    let (origin, old) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    origin.cache_control("max-age=0, stale-while-revalidate=1000");
    let (edge, store) = with_object(&origin, &old, EdgeBucket { fill: FillMode::Wanted, ..short_lived() }).await;
    let new = bytes(3 * SEGMENT, 2);
    origin.put("k", &new, Some("\"v2\""));
    assert_eq!(handled(&edge, &old).await, Handling::Stale);
    until(|| store.at(BUCKET, "k").info().is_ok_and(|info| info.attributes.etag == "v2")).await;
    assert_eq!(handled(&edge, &new).await, Handling::Stale);
}

#[tokio::test]
async fn a_request_does_not_join_a_fill_that_is_too_old() {
    let (origin, old) = (FakeOrigin::held(), bytes(3 * SEGMENT, 1));
    origin.put("k", &old, Some("\"v1\""));
    let store = store(&new_disk().await).await;
    let edge = edge_of(&store, &origin, short_lived()).await;
    origin.release(1);
    let Fetched::Fill(reader) = edge.get(BUCKET, "k", &Wanted::default()).await.expect("found").found else {
        panic!("a fill")
    };
    // Requests within a second share an answer.
    Env::tokio().sleep(Duration::from_millis(1100)).await;
    let new = bytes(2 * SEGMENT, 2);
    origin.put("k", &new, Some("\"v2\""));
    origin.release(1000);
    assert!(get(&edge, "k", None).await.expect("served") == new);
    drop(reader);
    until(|| store.at(BUCKET, "k").info().is_ok_and(|info| info.attributes.etag == "v2")).await;
}

#[tokio::test]
async fn a_request_does_not_use_the_answer_to_a_question_that_is_too_old() {
    for missing in [false, true] {
        let (origin, old) = (FakeOrigin::held(), bytes(10, 1));
        origin.put("k", &old, Some("\"v1\""));
        let store = store(&new_disk().await).await;
        let edge = edge_of(&store, &origin, short_lived()).await;
        let first = edge.clone();
        let (done, finished) = oneshot::channel();
        Env::tokio()
            .spawn("get", async move { done.send(get(&first, "k", None).await.is_ok()).expect("the test waits") });
        until(|| origin.requests().len() == 1).await;
        Env::tokio().sleep(Duration::from_millis(1100)).await;
        // The origin has decided its answer by now, for all that this request knows.
        let late = get(&edge, "k", None);
        if missing {
            origin.remove("k");
        }
        let late = async {
            let late = std::pin::pin!(late);
            origin.release(100);
            late.await
        };
        assert_eq!(late.await.is_ok(), !missing);
        assert_eq!(finished.await, Ok(!missing));
        assert_eq!(origin.requests().len(), 2);
    }
}

#[tokio::test]
async fn private_answers_are_not_stored() {
    let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    let (edge, store) = with_object(&origin, &data, short_lived()).await;
    origin.cache_control("private");
    origin.put("k", &data, Some("\"v2\""));
    outlive().await;
    assert_eq!(handled(&edge, &data).await, Handling::Passed);
    assert!(store.at(BUCKET, "k").info().is_err());
    let before = origin.requests().len();
    for _ in 0..3 {
        assert_eq!(handled(&edge, &data).await, Handling::Passed);
    }
    // One question for each, without a fill before it.
    assert_eq!(origin.requests().len(), before + 3);
}

#[tokio::test]
async fn after_a_restart_the_origin_is_queried_first() {
    for (fresh, questions) in [(Fresh::Fallback(Duration::from_secs(1000)), 1), (Fresh::Forever, 0)] {
        let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
        let options = EdgeBucket { fresh, ..short_lived() };
        let (_edge, store) = with_object(&origin, &data, options.clone()).await;
        let edge = edge_of(&store, &origin, options).await;
        let before = origin.requests().len();
        for _ in 0..3 {
            assert!(get(&edge, "k", None).await.expect("served") == data);
        }
        assert_eq!(origin.requests().len(), before + questions);
    }
}

/// Stores an object as a client does.
pub(crate) async fn put_own(store: &Store, key: &str) {
    let mut writer = store.at(BUCKET, key).writer(Some(3)).await.expect("a writer");
    writer.write(bytes::Bytes::from_static(b"own")).await.expect("written");
    let own = Attributes { etag: "own".into(), ..Attributes::default() };
    writer.commit(own, Condition::None, Some(Durability::Sync)).await.expect("stored");
}

#[tokio::test]
async fn what_a_client_wrote_is_neither_revalidated_nor_purged() {
    let (origin, data) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    let (edge, store) = with_object(&origin, &data, short_lived()).await;
    put_own(&store, "k").await;
    outlive().await;
    let before = origin.requests().len();
    assert_eq!(handled(&edge, b"own").await, Handling::Hit);
    assert!(!edge.purge(BUCKET, "k").await.expect("purged"));
    assert_eq!(edge.purge_prefix(BUCKET, "").await.expect("purged"), 0);
    assert_eq!(handled(&edge, b"own").await, Handling::Hit);
    assert_eq!(origin.requests().len(), before);
}

#[tokio::test]
async fn a_purge_removes_what_was_fetched_before() {
    let (origin, old) = (FakeOrigin::default(), bytes(3 * SEGMENT, 1));
    let options = EdgeBucket { negative: Duration::from_secs(1000), ..bucket(FillMode::Whole) };
    let (edge, store) = with_object(&origin, &old, options).await;
    assert!(get(&edge, "dir/missing", None).await.is_err());
    let new = bytes(3 * SEGMENT, 2);
    origin.put("k", &new, Some("\"v1\""));
    origin.put("dir/missing", &new, Some("\"v1\""));
    assert!(get(&edge, "k", None).await.expect("a hit") == old);
    assert!(edge.purge(BUCKET, "k").await.expect("purged"));
    assert!(!edge.purge(BUCKET, "dir/missing").await.expect("purged"));
    assert!(get(&edge, "k", None).await.expect("fetched") == new);
    assert!(get(&edge, "dir/missing", None).await.expect("fetched") == new);
    for n in 0..50 {
        origin.put(&format!("many/{n}"), &old, Some("\"v1\""));
        assert!(get(&edge, &format!("many/{n}"), None).await.expect("fetched") == old);
    }
    until(|| (0..50).all(|n| store.at(BUCKET, &format!("many/{n}")).info().is_ok())).await;
    assert_eq!(edge.purge_prefix(BUCKET, "many/").await.expect("purged"), 50);
    assert!((0..50).all(|n| store.at(BUCKET, &format!("many/{n}")).info().is_err()));
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
}

#[tokio::test]
async fn nothing_of_a_fill_is_stored_after_a_purge() {
    for prefix in [false, true] {
        let (origin, old) = (FakeOrigin::held(), bytes(3 * SEGMENT, 1));
        origin.put("k", &old, Some("\"v1\""));
        let store = store(&new_disk().await).await;
        let edge = edge_of(&store, &origin, bucket(FillMode::Whole)).await;
        let purge = async || match prefix {
            false => drop(edge.purge(BUCKET, "k").await.expect("purged")),
            true => drop(edge.purge_prefix(BUCKET, "").await.expect("purged")),
        };
        // A question without an answer: its reader asks again.
        let first = edge.clone();
        let (done, finished) = oneshot::channel();
        Env::tokio()
            .spawn("get", async move { done.send(get(&first, "k", None).await.is_ok()).expect("the test waits") });
        until(|| origin.requests().len() == 1).await;
        purge().await;
        until(|| origin.requests().len() == 2).await;
        // A fill with an answer: its reader stays with it, and later ones do not join.
        origin.release(2);
        let Fetched::Fill(reader) = edge.get(BUCKET, "k", &Wanted::default()).await.expect("found").found else {
            panic!("a fill")
        };
        purge().await;
        let new = bytes(3 * SEGMENT, 2);
        origin.put("k", &new, Some("\"v1\""));
        origin.release(1000);
        assert!(get(&edge, "k", None).await.expect("fetched") == new);
        drop(reader);
        finished.await.expect("it has ended");
        until(|| store.at(BUCKET, "k").info().is_ok()).await;
        assert!(get(&edge, "k", None).await.expect("a hit") == new);
        until(|| store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
    }
}
