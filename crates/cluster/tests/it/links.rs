//! Handshakes, and what ends a link.

use std::time::Duration;

use steadfast_flow::Env;
use tokio::time::Instant;

use crate::hub::{Hub, Node, roster, store, until};

const BOTH: [&str; 2] = ["a", "b"];

async fn pair(hub: &Hub) -> (Node, Node) {
    let (a, b) = (hub.start(roster("a", &BOTH, &["a"])).await, hub.start(roster("b", &BOTH, &["a"])).await);
    until(|| a.is_up("b") && b.is_up("a")).await;
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn a_link_comes_up_at_both_ends_and_is_measured() {
    let (a, b) = pair(&Hub::default()).await;
    until(|| a.link("b").round_trip_us.is_some() && b.link("a").round_trip_us.is_some()).await;
    assert_eq!((a.link("b").established, b.link("a").established), (1, 1));
    assert_eq!(a.link("b").error, None);
    assert!(a.links.status().nodes[0].home && !a.links.status().nodes[1].home);
    Env::tokio().sleep(Duration::from_secs(60)).await;
    assert!(a.is_up("b") && a.link("b").frames_received >= 100);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_do_not_belong_together_are_refused_and_named() {
    let three = ["a", "b", "c"];
    for (b, secret, expected) in [
        (roster("b", &three, &["b"]), "secret", "the node \"a\" has another list of homes"),
        (roster("b", &three, &["a"]), "other", "has another secret"),
        (roster("c", &three, &["a"]), "secret", "the node \"c\" is not in the list of nodes"),
    ] {
        let hub = Hub::default();
        let a = hub.start(roster("a", &BOTH, &["a"])).await;
        let name = b.name(b.own()).to_owned();
        let b = hub.start_with(b, secret, store().await).await;
        until(|| b.link("a").error.is_some_and(|why| why.contains(expected))).await;
        assert!(!b.is_up("a") && b.link("a").established == 0 && a.link("b").established == 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_direction_is_found_within_four_seconds_and_heals() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let hub = Hub::default();
        let (a, b) = pair(&hub).await;
        hub.block(from, to);
        let found = until(|| !a.is_up("b") && !b.is_up("a")).await;
        assert!(found < Duration::from_secs(4), "{found:?}");
        hub.heal();
        until(|| a.is_up("b") && b.is_up("a")).await;
        assert_eq!((a.link("b").established, b.link("a").established), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_replaces_its_old_link() {
    let hub = Hub::default();
    let (a, old) = pair(&hub).await;
    // The old process hangs: it neither sends nor closes anything.
    hub.block("b", "a");
    hub.block("a", "b");
    old.stop();
    hub.heal();
    let new = hub.start(roster("b", &BOTH, &["a"])).await;
    until(|| new.is_up("a") && a.link("b").established == 2).await;
    assert!(a.is_up("b") && !old.is_up("a"));
}

#[tokio::test(start_paused = true)]
async fn a_second_process_with_the_name_of_a_node_is_refused() {
    let hub = Hub::default();
    let (a, first) = pair(&hub).await;
    let second = hub.start(roster("b", &BOTH, &["a"])).await;
    until(|| second.link("a").error.is_some()).await;
    let why = second.link("a").error.expect("a reason");
    assert!(why.contains("another process with the name \"b\" is connected, at b:7000"), "{why}");
    Env::tokio().sleep(Duration::from_secs(6)).await;
    assert!(a.is_up("b") && first.is_up("a") && !second.is_up("a"));
    let shown = a.link("b");
    assert_eq!((shown.established, shown.error), (1, None));
    assert_eq!(shown.refused.map(|refused| (refused.address, refused.ago_s)), Some(("b:7000".to_owned(), 0)));
    first.stop();
    until(|| second.is_up("a")).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_refused_as_a_duplicate_learns_it_in_some_seconds() {
    let hub = Hub::default();
    let (_a, first) = pair(&hub).await;
    let second = hub.start(roster("b", &BOTH, &["a"])).await;
    let begun = Instant::now();
    let why = second.own_name.taken().await;
    assert!(why.contains("another process with the name \"b\" is connected, at b:7000"), "{why}");
    assert!((7..14).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    first.stop();
    until(|| second.is_up("a")).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_learns_that_another_answers_at_its_address() {
    let hub = Hub::default();
    // No other node opens a link to it.
    let first = hub.start(roster("a", &["a"], &["a"])).await;
    assert_eq!(first.own_name.check().await, Ok(()), "it answers itself");
    let second = hub.start(roster("a", &["a"], &["a"])).await;
    assert_eq!(second.own_name.check().await, Ok(()), "it answers itself");
    let why = first.own_name.check().await.expect_err("the second answers");
    assert!(why.contains("another process with the name \"a\" answers at a:7000"), "{why}");
    assert!(why.contains("this one listens at 127.0.0.1:7000"), "{why}");
    let begun = Instant::now();
    assert_eq!(first.own_name.taken().await, why);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    // A stranger ends nothing, and neither does a network without a way back.
    let _stranger = hub.start_with(roster("a", &["a"], &["a"]), "another secret", store().await).await;
    assert_eq!(first.own_name.check().await, Ok(()));
    hub.block("a", "a");
    assert_eq!(first.own_name.check().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_store_a_namespace_in_other_ways_are_refused() {
    let (chat, news) = (("chat:", "100", "x"), ("news:", "1", "x"));
    for (other, differing) in [(("chat:", "100", "x"), None), (("chat:", "100", "y"), Some("chat:")), (news, None)] {
        let hub = Hub::default();
        let a = hub.start_with_namespaces(roster("a", &BOTH, &["a"]), &[chat]).await;
        let b = hub.start_with_namespaces(roster("b", &BOTH, &["a"]), &[other]).await;
        until(|| a.is_up("b") && b.is_up("a")).await;
        for link in [a.link("b"), b.link("a")] {
            assert_eq!(link.differing_namespaces.first().map(String::as_str), differing);
        }
    }
    let hub = Hub::default();
    let a = hub.start_with_namespaces(roster("a", &BOTH, &["a"]), &[chat]).await;
    let b = hub.start_with_namespaces(roster("b", &BOTH, &["a"]), &[("chat:", "0", "x")]).await;
    let refused = |why: Option<String>| why.is_some_and(|why| why.contains("other options of history for \"chat:\""));
    until(|| refused(b.link("a").error) && refused(a.link("b").error)).await;
    assert_eq!((a.link("b").established, b.link("a").established), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_front_knows_that_it_has_no_home() {
    let hub = Hub::default();
    let (a, b) = pair(&hub).await;
    assert_eq!((a.channels.without_homes(), b.channels.without_homes()), (None, None));
    a.stop();
    until(|| !b.is_up("a")).await;
    assert!(b.channels.without_homes().is_some());
    assert_eq!(a.channels.without_homes(), None, "a home serves its own channels");
    let _a = hub.start(roster("a", &BOTH, &["a"])).await;
    until(|| b.is_up("a")).await;
    assert_eq!(b.channels.without_homes(), None);
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_all_links() {
    let hub = Hub::default();
    let (a, b) = pair(&hub).await;
    b.stop();
    until(|| !a.is_up("b") && !b.is_up("a")).await;
    assert_eq!(a.link("b").error.as_deref(), Some("the other node closed the link"));
}
