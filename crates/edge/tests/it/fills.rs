//! Fills: every byte right, the origin asked once, the object whole or absent.

use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use steadfast_edge::{Edge, EdgeError, Fetched, FillMode, Wanted};
use steadfast_log::Durability;
use steadfast_store::{Attributes, Condition, StoreError, WEAK_ETAG};

use crate::origin::{FakeOrigin, Fault};
use crate::{BUCKET, SEGMENT, bucket, bytes, edge, edge_of, get, new_disk, store, until};

async fn fetched(edge: &Edge, wanted: &Wanted) -> Fetched {
    edge.get(BUCKET, "k", wanted).await.expect("found").found
}

#[tokio::test]
async fn an_object_is_fetched_once_and_kept() {
    for (len, requests) in [(0, 3), (1, 1), (999, 1), (SEGMENT, 1), (SEGMENT + 1, 2), (5 * SEGMENT + 7, 6)] {
        let origin = FakeOrigin::default();
        let data = bytes(len, 1);
        origin.put("dir/k", &data, Some("\"v1\""));
        let (edge, store) = edge(&origin, FillMode::Whole).await;
        let all = join_all((0..20).map(|_| get(&edge, "dir/k", None))).await;
        for got in all {
            assert!(got.expect("served") == data, "{len}");
        }
        until(|| store.at(BUCKET, "dir/k").info().is_ok()).await;
        assert!(get(&edge, "dir/k", None).await.expect("a hit") == data);
        assert_eq!((origin.sent(), origin.requests().len()), (len, if len == 0 { 2 } else { requests }), "{len}");
        let info = store.at(BUCKET, "dir/k").info().expect("stored");
        assert_eq!((info.size, &info.attributes.etag[..], info.part_count), (len as u64, "v1", 0));
        assert_eq!(info.attributes.system.get("content-type").map(String::as_str), Some("video/mp4"));
        assert!(store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty());
    }
}

#[tokio::test]
async fn a_range_is_served_from_its_segment_first() {
    let origin = FakeOrigin::default();
    let data = bytes(50 * SEGMENT, 2);
    origin.put("k", &data, Some("\"v1\""));
    let (edge, store) = edge(&origin, FillMode::Wanted).await;
    let (from, to) = (40 * SEGMENT + 5, 41 * SEGMENT + 20);
    assert!(get(&edge, "k", Some((from as u64, to as u64))).await.expect("served") == data[from..to]);
    assert_eq!(origin.requests()[0], format!("GET bytes={}-{}", 40 * SEGMENT, 41 * SEGMENT - 1));
    // Two segments, and two more ahead of the reader.
    assert!(origin.sent() <= 4 * SEGMENT, "{} bytes", origin.sent());
    assert!(store.at(BUCKET, "k").info().is_err());
    let suffix = Wanted { first: 0, range: Some("bytes=-5".into()), if_range: None, client: "".into() };
    let Fetched::Fill(reader) = fetched(&edge, &suffix).await else { panic!("a fill") };
    let size = reader.info().size;
    let tail: Vec<_> = reader.stream(size - 5..size).try_collect().await.expect("served");
    assert!(tail.concat() == data[data.len() - 5..]);
    // More than half of it makes it whole.
    let most = (0..30 * SEGMENT as u64, data[..30 * SEGMENT].to_vec());
    assert!(get(&edge, "k", Some((most.0.start, most.0.end))).await.expect("served") == most.1);
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
    assert!(get(&edge, "k", None).await.expect("a hit") == data);
    assert!(origin.sent() <= data.len() + 2 * SEGMENT, "{} bytes", origin.sent());
}

#[tokio::test]
async fn a_range_behind_the_end_is_refused_with_the_size() {
    let origin = FakeOrigin::default();
    origin.put("k", &bytes(3 * SEGMENT, 2), Some("\"v1\""));
    let (edge, _store) = edge(&origin, FillMode::Wanted).await;
    let wanted =
        Wanted { first: 9 * SEGMENT as u64, range: Some("bytes=90000-".into()), if_range: None, client: "".into() };
    let Fetched::Fill(reader) = fetched(&edge, &wanted).await else { panic!("a fill") };
    assert_eq!(reader.info().size, 3 * SEGMENT as u64);
}

#[tokio::test]
async fn broken_answers_are_continued() {
    let origin = FakeOrigin::default();
    let data = bytes(3 * SEGMENT, 3);
    origin.put("k", &data, Some("\"v1\""));
    origin.fail([Fault::Breaks(2500), Fault::Unreachable, Fault::Status(503), Fault::Breaks(0), Fault::Breaks(100)]);
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    assert!(get(&edge, "k", None).await.expect("served") == data);
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
    assert!(get(&edge, "k", None).await.expect("a hit") == data);
    assert_eq!(origin.sent(), data.len());
}

#[tokio::test]
async fn nothing_of_a_wrong_answer_is_stored() {
    for (fault, later) in [
        (Fault::OtherRange, false),
        (Fault::OtherTag, true),
        (Fault::OtherRange, true),
        (Fault::Status(403), false),
        (Fault::Status(301), false),
        (Fault::Status(500), false),
    ] {
        let origin = FakeOrigin::default();
        origin.put("k", &bytes(3 * SEGMENT, 3), Some("\"v1\""));
        // A second segment is not asked for after a first with the wrong tag.
        origin.fail(later.then_some(Fault::Breaks(SEGMENT)).into_iter().chain([fault; 12]));
        let (edge, store) = edge(&origin, FillMode::Whole).await;
        let got = get(&edge, "k", None).await;
        assert!(got.is_err(), "{fault:?}");
        assert!(store.at(BUCKET, "k").info().is_err(), "{fault:?}");
    }
}

#[tokio::test]
async fn an_origin_that_stops_to_know_ranges_is_read_in_one_answer() {
    let origin = FakeOrigin::default();
    let data = bytes(3 * SEGMENT, 3);
    origin.put("k", &data, Some("\"v1\""));
    origin.fail([Fault::Breaks(SEGMENT), Fault::IgnoresRange, Fault::IgnoresRange]);
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    match get(&edge, "k", None).await {
        Ok(got) => assert!(got == data),
        Err(error) => assert!(matches!(error, EdgeError::Changed), "{error}"),
    }
    assert!(get(&edge, "k", None).await.expect("served") == data);
    until(|| store.at(BUCKET, "k").info().is_ok()).await;
}

#[tokio::test]
async fn versions_are_never_mixed() {
    let origin = FakeOrigin::held();
    let (old, new) = (bytes(4 * SEGMENT, 4), bytes(4 * SEGMENT, 5));
    origin.put("k", &old, Some("\"old\""));
    let (edge, store) = edge(&origin, FillMode::Wanted).await;
    origin.release(1);
    let Fetched::Fill(reader) = fetched(&edge, &Wanted::default()).await else { panic!("a fill") };
    let mut pieces = Box::pin(reader.stream(0..u64::MAX));
    let mut got = Vec::new();
    while got.len() < SEGMENT {
        got.extend_from_slice(&pieces.next().await.expect("more").expect("served"));
    }
    assert!(got == old[..SEGMENT]);
    origin.put("k", &new, Some("\"new\""));
    origin.release(1000);
    // The reader of the old version is cut off, the next one gets the new version.
    assert!(matches!(pieces.next().await, Some(Err(EdgeError::Changed))));
    assert!(get(&edge, "k", None).await.expect("served") == new);
    until(|| store.at(BUCKET, "k").info().is_ok_and(|info| info.attributes.etag == "new")).await;
    until(|| store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
}

#[tokio::test]
async fn without_a_strong_tag_the_object_comes_from_one_answer() {
    for etag in [None, Some("W/\"weak\"")] {
        for (ranges, lengths, len) in [(true, true, 3 * SEGMENT), (false, true, 3 * SEGMENT), (false, false, 999)] {
            let origin = FakeOrigin { ranges, lengths, ..FakeOrigin::default() };
            let data = bytes(len, 6);
            origin.put("k", &data, etag);
            let (edge, store) = edge(&origin, FillMode::Whole).await;
            assert!(get(&edge, "k", None).await.expect("served") == data);
            until(|| store.at(BUCKET, "k").info().is_ok()).await;
            assert!(get(&edge, "k", None).await.expect("a hit") == data);
            let info = store.at(BUCKET, "k").info().expect("stored");
            assert!(info.attributes.system.contains_key(WEAK_ETAG));
            assert!(origin.requests().len() <= 2, "{:?}", origin.requests());
        }
    }
}

#[tokio::test]
async fn a_broken_stream_is_not_stored() {
    for fault in [Fault::Breaks(15_000), Fault::LongLength, Fault::Breaks(0)] {
        let origin = FakeOrigin { ranges: false, ..FakeOrigin::default() };
        origin.put("k", &bytes(3 * SEGMENT, 6), None);
        origin.fail([fault]);
        let (edge, store) = edge(&origin, FillMode::Whole).await;
        assert!(get(&edge, "k", None).await.is_err());
        assert!(store.at(BUCKET, "k").info().is_err());
        until(|| store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
        assert!(get(&edge, "k", None).await.is_ok());
    }
}

#[tokio::test]
async fn what_cannot_be_stored_is_passed_through() {
    // Larger than `object_bytes_max`, and longer than a segment without saying so.
    for (lengths, len) in [(true, (1 << 20) + 1), (false, 2 * SEGMENT)] {
        let origin = FakeOrigin { lengths, ranges: lengths, ..FakeOrigin::default() };
        let data = bytes(len, 7);
        origin.put("k", &data, Some("\"v1\""));
        let (edge, store) = edge(&origin, FillMode::Whole).await;
        assert!(get(&edge, "k", None).await.expect("served") == data);
        if lengths {
            assert!(get(&edge, "k", Some((5, 10))).await.expect("served") == data[5..10]);
        }
        assert!(store.at(BUCKET, "k").info().is_err());
    }
}

#[tokio::test]
async fn a_range_is_no_answer_for_the_whole_object() {
    // In a fill without a strong tag, and in an answer that is passed through.
    for (len, cache_control) in [(3 * SEGMENT, "max-age=1"), (50, "private")] {
        let origin = FakeOrigin::default();
        let data = bytes(len, 7);
        origin.put("k", &data, None);
        origin.cache_control(cache_control);
        let (edge, store) = edge(&origin, FillMode::Whole).await;
        origin.fail([Fault::OnlyRange; 2]);
        assert!(matches!(get(&edge, "k", None).await, Err(EdgeError::Origin(_))));
        assert!(store.at(BUCKET, "k").info().is_err());
        // The failure is remembered for a second, unless a purge forgets it.
        edge.purge(BUCKET, "k").await.expect("purged");
        assert!(get(&edge, "k", None).await.expect("served") == data);
    }
}

#[tokio::test]
async fn missing_objects_and_keys_outside_the_prefix_are_not_found() {
    let origin = FakeOrigin::default();
    let (edge, _store) = edge(&origin, FillMode::Whole).await;
    for key in ["k", "a/../k", "..", "./k"] {
        assert!(matches!(get(&edge, key, None).await, Err(EdgeError::Store(StoreError::NoSuchKey))), "{key}");
        assert!(
            matches!(edge.head(BUCKET, key, "".into()).await, Err(EdgeError::Store(StoreError::NoSuchKey))),
            "{key}"
        );
    }
    assert_eq!(origin.requests(), ["GET bytes=0-9999", "HEAD"]);
}

#[tokio::test]
async fn a_head_is_answered_by_the_fill() {
    let origin = FakeOrigin::default();
    let data = bytes(3 * SEGMENT, 8);
    origin.put("k", &data, Some("\"v1\""));
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    let info = edge.head(BUCKET, "k", "".into()).await.expect("described").found.info;
    assert_eq!((info.size, &info.attributes.etag[..]), (data.len() as u64, "v1"));
    assert_eq!((origin.requests(), origin.sent()), (vec!["HEAD".to_owned()], 0));
    assert!(store.at(BUCKET, "k").info().is_err());
    // While a fill runs, a HEAD sees its version.
    let Fetched::Fill(reader) = fetched(&edge, &Wanted::default()).await else { panic!("a fill") };
    origin.put("k", &bytes(10, 9), Some("\"v2\""));
    assert_eq!(edge.head(BUCKET, "k", "".into()).await.expect("described").found.info.attributes.etag, "v1");
    drop(reader);
}

#[tokio::test]
async fn a_fill_never_replaces_what_was_stored_meanwhile() {
    let origin = FakeOrigin::held();
    let data = bytes(3 * SEGMENT, 8);
    origin.put("k", &data, Some("\"v1\""));
    let (edge, store) = edge(&origin, FillMode::Whole).await;
    origin.release(1);
    let Fetched::Fill(reader) = fetched(&edge, &Wanted::default()).await else { panic!("a fill") };
    let mut writer = store.at(BUCKET, "k").writer(Some(3)).await.expect("a writer");
    writer.write(bytes::Bytes::from_static(b"own")).await.expect("written");
    let own = Attributes { etag: "own".into(), ..Attributes::default() };
    writer.commit(own, Condition::None, Some(Durability::Sync)).await.expect("stored");
    origin.release(1000);
    // The reader that has begun stays with its version.
    let pieces: Vec<_> = reader.stream(0..u64::MAX).try_collect().await.expect("served");
    assert!(pieces.concat() == data);
    assert_eq!(store.at(BUCKET, "k").info().expect("there").attributes.etag, "own");
    until(|| store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
    assert_eq!(get(&edge, "k", None).await.expect("a hit"), b"own");
}

#[tokio::test]
async fn a_fill_goes_on_after_a_restart() {
    for changed in [false, true] {
        let origin = FakeOrigin::held();
        let data = bytes(10 * SEGMENT, 10);
        origin.put("k", &data, Some("\"v1\""));
        let disk = new_disk().await;
        {
            let store = store(&disk).await;
            let edge = edge_of(&store, &origin, bucket(FillMode::Whole)).await;
            origin.release(4);
            let Fetched::Fill(reader) = fetched(&edge, &Wanted::default()).await else { panic!("a fill") };
            let stored = || {
                let fill = store.at(BUCKET, "k").first_fill().expect("found").expect("a fill");
                store.at(BUCKET, "k").fill(&fill.upload_id).parts(0, 100).expect("listed").0.len()
            };
            until(|| stored() == 4).await;
            store.close().await.expect("closed");
            drop(reader);
        }
        let before = origin.sent();
        let now = if changed { bytes(10 * SEGMENT, 11) } else { data };
        origin.put("k", &now, Some(if changed { "\"v2\"" } else { "\"v1\"" }));
        origin.release(1000);
        let store = store(&disk).await;
        let edge = edge_of(&store, &origin, bucket(FillMode::Whole)).await;
        assert!(get(&edge, "k", None).await.expect("served") == now);
        until(|| store.at(BUCKET, "k").info().is_ok()).await;
        assert!(get(&edge, "k", None).await.expect("a hit") == now);
        let fetched = origin.sent() - before;
        let expected = if changed { 10 } else { 6 } * SEGMENT;
        assert!(fetched <= expected + SEGMENT, "{fetched} bytes instead of {expected}");
        until(|| store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
    }
}

#[tokio::test]
async fn fills_of_a_bucket_without_an_origin_are_removed() {
    let origin = FakeOrigin::held();
    origin.put("k", &bytes(3 * SEGMENT, 1), Some("\"v1\""));
    let (_edge, store) = edge(&origin, FillMode::Whole).await;
    store.buckets().create("other", steadfast_store::BucketSettings::default()).await.expect("created");
    for bucket in [BUCKET, "other"] {
        store.at(bucket, "k").create_fill(Attributes::default()).await.expect("a fill");
    }
    // The next start of the server.
    let _next = edge_of(&store, &origin, bucket(FillMode::Whole)).await;
    until(|| store.contents("other").fills(("", ""), 10).expect("listed").uploads.is_empty()).await;
    assert_eq!(store.contents(BUCKET).fills(("", ""), 10).expect("listed").uploads.len(), 1);
}

#[tokio::test]
async fn a_slow_origin_is_an_error_in_time() {
    let origin = FakeOrigin::held();
    origin.put("k", &bytes(10, 1), Some("\"v1\""));
    let store = store(&new_disk().await).await;
    let mut options = bucket(FillMode::Whole);
    options.timeout = Duration::from_millis(50);
    let edge = edge_of(&store, &origin, options).await;
    assert!(matches!(get(&edge, "k", None).await, Err(EdgeError::Timeout)));
}
