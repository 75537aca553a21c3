//! Handshakes, and what ends a link.

use std::time::Duration;

use steadfast_cluster::NameTaken;
use steadfast_flow::Env;
use tokio::time::Instant;

use crate::hub::{Hub, Node, roster, standby_roster, store, until};

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

/// Waits until a process learns that it is superseded.
async fn is_superseded(node: &Node) {
    let begun = Instant::now();
    let taken = node.own_name.taken().await;
    assert!(matches!(taken, NameTaken::Superseded(_)), "{taken}");
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_link_moves_to_the_promoted_standby_of_a_home_that_hangs() {
    // The front opens the links to the home "a", and the home "c" opens its own.
    for (home, standby) in [("a", "a2"), ("c", "c2")] {
        let (hub, of) = (Hub::default(), |own| standby_roster(own, &["b", home], home));
        let front = hub.start_of_tenure(of("b"), "b", 0).await;
        let old = hub.start_of_tenure(of(home), home, 1).await;
        until(|| front.is_up(home) && old.is_up("b")).await;
        assert_eq!((front.link(home).tenure, front.link(home).peer), (1, Some(format!("{home}:7000"))));
        for (from, to) in [(home, "b"), ("b", home), (home, standby), (standby, home)] {
            hub.block(from, to);
        }
        let new = hub.start_of_tenure(of(home), standby, 2).await;
        let took = until(|| front.link(home).tenure == 2 && new.is_up("b")).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(front.link(home).peer, Some(format!("{standby}:7000")));
        assert_eq!(new.own_name.check().await, Ok(()), "the other one hangs");
        // The former owner wakes up.
        hub.heal();
        is_superseded(&old).await;
        assert_eq!(new.own_name.check().await, Ok(()), "the other one ends");
        assert!(front.is_up(home) && front.link(home).established == 2 && !old.is_up("b"), "{home}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_refuses_an_earlier_tenure_than_it_has_seen() {
    for (home, standby) in [("a", "a2"), ("c", "c2")] {
        let (hub, of) = (Hub::default(), |own| standby_roster(own, &["b", home], home));
        let front = hub.start_of_tenure(of("b"), "b", 0).await;
        let _new = hub.start_of_tenure(of(home), standby, 2).await;
        until(|| front.is_up(home)).await;
        // It has no other way to learn of the new owner.
        for (from, to) in [(home, standby), (standby, home)] {
            hub.block(from, to);
        }
        if home == "a" {
            hub.block(standby, "b");
            until(|| !front.is_up(home)).await;
        }
        let old = hub.start_of_tenure(of(home), home, 1).await;
        is_superseded(&old).await;
        if home == "a" {
            let shown = front.link(home);
            assert!(!front.is_up(home) && shown.established == 1 && shown.tenure == 2, "{shown:?}");
            until(|| front.link(home).error.is_some_and(|why| why.contains("; "))).await;
            let why = front.link(home).error.expect("a reason");
            let former = "; the process that answers has tenure 1, and another one has tenure 2";
            assert!(why.contains(former), "{why}");
        } else {
            assert!(front.is_up(home) && front.link(home).tenure == 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_front_leaves_a_former_owner_that_does_not_know_it() {
    let (hub, of) = (Hub::default(), |own| standby_roster(own, &["a", "b"], "a"));
    let front = hub.start_of_tenure(of("b"), "b", 0).await;
    let old = hub.start_of_tenure(of("a"), "a", 1).await;
    until(|| front.is_up("a")).await;
    hub.block("a", "a2");
    hub.block("a2", "a");
    let new = hub.start_of_tenure(of("a"), "a2", 2).await;
    let took = until(|| new.is_up("b")).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    until(|| front.is_up("a") && !old.is_up("b")).await;
    // It looks for later tenures only: the links to others stay.
    Env::tokio().sleep(Duration::from_secs(60)).await;
    let shown = front.link("a");
    assert_eq!((shown.established, shown.tenure, new.link("b").established), (2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_home_that_serves_is_not_ended_by_one_that_is_started_by_mistake() {
    let (hub, of) = (Hub::default(), |own| standby_roster(own, &["a", "b"], "a"));
    for (serving, started) in [(0, 0), (1, 0)] {
        let first = hub.start_of_tenure(of("a"), "a", serving).await;
        let second = hub.start_of_tenure(of("a"), "a2", started).await;
        let refused = second.own_name.check().await.expect_err("the first one answers");
        assert!(matches!(refused, NameTaken::Duplicate(_)), "{refused}");
        let ended = Env::tokio().timeout(Duration::from_secs(60), first.own_name.taken()).await;
        assert_eq!(ended, None, "{serving}");
        // One without an archive ends, should it serve already.
        let ended = Env::tokio().timeout(Duration::from_secs(60), second.own_name.taken()).await;
        assert_eq!(ended.is_some(), serving == 1, "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_tenure_replaces_a_link_that_is_up() {
    let (hub, of) = (Hub::default(), |own| standby_roster(own, &["a", "b"], "b"));
    let front = hub.start_of_tenure(of("a"), "a", 0).await;
    let old = hub.start_of_tenure(of("b"), "b", 1).await;
    until(|| front.is_up("b")).await;
    let new = hub.start_of_tenure(of("b"), "b2", 2).await;
    let took = until(|| new.is_up("a")).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(front.is_up("b") && front.link("b").refused.is_none() && !old.is_up("a"));
    is_superseded(&old).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_refused_as_a_duplicate_learns_it_in_some_seconds() {
    let hub = Hub::default();
    let (_a, first) = pair(&hub).await;
    let second = hub.start(roster("b", &BOTH, &["a"])).await;
    let begun = Instant::now();
    let why = second.own_name.taken().await.to_string();
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
    let taken = first.own_name.check().await.expect_err("the second answers");
    let why = taken.to_string();
    assert!(why.contains("another process with the name \"a\" answers at a:7000"), "{why}");
    assert!(why.contains("this one listens at 127.0.0.1:7000"), "{why}");
    let begun = Instant::now();
    assert_eq!(first.own_name.taken().await, taken);
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
