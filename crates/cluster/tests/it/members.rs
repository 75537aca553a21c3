//! Members of channels at several nodes: presence, joins and leaves, and calls to all nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use steadfast_cluster::frame::FRAME_BYTES_MAX;
use steadfast_cluster::{Attachment, ChannelError, ClusterSabotage, Member, Publish};
use steadfast_flow::Env;

use crate::hub::{Hub, NODE_TTL, Node, OUTBOX_BYTES, roster, store, until};

const NODES: [&str; 3] = ["home", "one", "two"];

async fn node(hub: &Hub, name: &str) -> Node {
    hub.start(roster(name, &NODES, &["home"])).await
}

async fn cluster(hub: &Hub) -> [Node; 3] {
    let nodes = [node(hub, "home").await, node(hub, "one").await, node(hub, "two").await];
    until(|| nodes[0].is_up("one") && nodes[0].is_up("two") && nodes[1].is_up("two")).await;
    nodes
}

fn member(user: &str) -> Member {
    let (connection_info, subscription_info) = (Bytes::from_static(b"{}"), Bytes::new());
    Member { user: user.into(), connection_info, subscription_info, presence: true, announced: true }
}

fn client(user: &str) -> u128 {
    user.bytes().fold(0, |id, byte| id << 8 | u128::from(byte))
}

fn join(node: &Node, user: &str) {
    node.channels.member_joined("c", client(user), || member(user));
}

fn leave(node: &Node, user: &str) {
    node.channels.member_left("c", client(user), || member(user));
}

/// Attaches the channel, and waits until its home knows it.
async fn attach(node: &Node) -> Attachment {
    let attachment = node.channels.attach(&Arc::from("c"), None).expect("another home");
    node.channels.open("c").expect("a channel").position().await.expect("watched");
    attachment
}

/// A cluster whose fronts watch the channel; ann has joined at "one", and her home has
/// acknowledged it.
async fn with_ann(hub: &Hub) -> ([Node; 3], (Attachment, Attachment)) {
    let [home, one, two] = cluster(hub).await;
    let attached = (attach(&one).await, attach(&two).await);
    join(&one, "ann");
    until(|| two.sessions.announced("c") == ["ann"]).await;
    one.channels.presence("c", 0).await.expect("answered");
    ([home, one, two], attached)
}

fn sorted(mut users: Vec<String>) -> Vec<String> {
    users.sort_unstable();
    users
}

#[tokio::test]
async fn joins_and_leaves_reach_the_subscribers_of_all_nodes() {
    let [home, one, two] = cluster(&Hub::default()).await;
    let _attached = (attach(&one).await, attach(&two).await);
    join(&one, "ann");
    until(|| two.sessions.announced("c") == ["ann"]).await;
    assert!(!home.channels.member_joined("c", client("bob"), || member("bob")), "it is here");
    until(|| two.sessions.announced("c") == ["ann", "bob"]).await;
    leave(&one, "ann");
    for node in [&one, &two] {
        until(|| node.sessions.announced("c") == ["ann", "bob", "-ann"]).await;
    }
    assert_eq!(home.sessions.announced("c"), ["ann", "-ann"], "it announces its own itself");
    join(&two, "eve");
    until(|| home.sessions.present("c") == ["eve"]).await;
    let listed = one.channels.presence("c", 10).await.expect("answered").expect("another home");
    assert_eq!((listed.members, listed.clients), (vec![(client("eve"), member("eve"))], 1));
    assert_eq!(one.channels.presence("c", 0).await.expect("answered").expect("another home").members, []);
    assert_eq!(home.channels.presence("c", 10).await, Ok(None));
    let renamed = Member { connection_info: Bytes::from_static(b"2"), ..member("eve") };
    two.channels.member_updated("c", client("eve"), || renamed.clone());
    one.channels.member_updated("c", client("bob"), || member("bob"));
    let shown = async || one.channels.presence("c", 10).await.expect("answered").expect("another home").members;
    while shown().await != [(client("eve"), renamed.clone())] {
        Env::tokio().sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_client_that_returns_at_once_joins_again() {
    let ([home, one, two], _attached) = with_ann(&Hub::default()).await;
    leave(&one, "ann");
    join(&one, "ann");
    until(|| two.sessions.announced("c") == ["ann", "-ann", "ann"]).await;
    assert_eq!(home.sessions.present("c"), ["ann"]);
}

#[tokio::test]
async fn a_list_of_members_that_is_too_long_is_an_error() {
    let [home, one, two] = cluster(&Hub::default()).await;
    let _attached = (attach(&one).await, attach(&two).await);
    let connection_info = Bytes::from(vec![b'1'; OUTBOX_BYTES as usize / 20]);
    for client in 0..6 {
        let member = Member { connection_info: connection_info.clone(), ..member("ann") };
        one.channels.member_joined("c", client, || member);
        until(|| home.sessions.present("c").len() == client as usize + 1).await;
    }
    assert_eq!(two.channels.presence("c", 100).await.map(drop), Err(ChannelError::LimitExceeded));
    assert_eq!(two.channels.presence("c", 2).await.expect("short").expect("another home").members.len(), 2);
    assert_eq!(two.channels.presence("c", 0).await.expect("counts").expect("another home").clients, 6);
}

#[tokio::test]
async fn a_half_full_outbox_gets_no_joins_and_keeps_the_link() {
    let [home, one, two] = cluster(&Hub::default()).await;
    let _attached = (attach(&one).await, attach(&two).await);
    one.sessions.busy.send_replace(true);
    let publish = || Publish { body: "x".repeat(1 << 20).into(), key: String::new(), permit: None };
    for _ in 0..3 {
        home.channels.deliver("c", publish()).await.expect("sent").committed().await.expect("delivered");
    }
    until(|| home.link("one").outbox_bytes > OUTBOX_BYTES / 2).await;
    join(&two, "ann");
    until(|| home.sessions.present("c") == ["ann"]).await;
    one.sessions.busy.send_replace(false);
    until(|| one.sessions.payloads("c").len() == 3).await;
    join(&two, "bob");
    until(|| one.sessions.announced("c") == ["bob"]).await;
    assert_eq!(two.sessions.announced("c"), ["ann", "bob"]);
    assert_eq!(home.link("one").established, 1);
}

#[tokio::test]
async fn a_lost_link_loses_and_repeats_no_join_and_no_leave() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = (attach(&one).await, attach(&two).await);
    for user in ["ann", "bob", "eve"] {
        join(&one, user);
    }
    until(|| two.sessions.announced("c").len() == 3).await;
    hub.block("one", "home");
    join(&one, "dan");
    leave(&one, "ann");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    leave(&one, "bob");
    join(&one, "flo");
    hub.heal();
    until(|| home.sessions.present("c") == ["dan", "eve", "flo"]).await;
    let expected = ["-ann", "-bob", "ann", "bob", "dan", "eve", "flo"];
    until(|| sorted(two.sessions.announced("c")) == expected).await;
    assert_eq!(home.channels.status().expect("a cluster").members, 3);
}

#[tokio::test]
async fn the_last_member_leaves_while_the_link_is_down_for_long() {
    let hub = Hub::default();
    let ([home, one, two], _attached) = with_ann(&hub).await;
    hub.block("one", "home");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    leave(&one, "ann");
    // The home keeps the member still, but the front cannot be sure of it.
    Env::tokio().sleep(NODE_TTL * 6 / 10).await;
    assert_eq!(home.sessions.present("c"), ["ann"]);
    hub.heal();
    until(|| two.sessions.announced("c") == ["ann", "-ann"]).await;
    assert!(home.sessions.present("c").is_empty());
}

#[tokio::test]
async fn members_join_again_when_their_node_notices_a_lost_link_late() {
    let hub = Hub::default();
    let ([home, one, two], _attached) = with_ann(&hub).await;
    one.sessions.busy.send_replace(true);
    hub.block("one", "home");
    until(|| two.sessions.announced("c") == ["ann", "-ann"]).await;
    assert!(one.is_up("home"), "it does not read its links");
    hub.heal();
    one.sessions.busy.send_replace(false);
    until(|| two.sessions.announced("c") == ["ann", "-ann", "ann"]).await;
    assert_eq!(home.sessions.present("c"), ["ann"]);
}

#[tokio::test]
async fn the_members_of_a_lost_node_leave_later_and_those_of_a_restarted_one_at_once() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = (attach(&one).await, attach(&two).await);
    join(&one, "ann");
    until(|| two.sessions.announced("c") == ["ann"]).await;
    let env = Env::tokio();
    let begin = env.now();
    one.stop();
    until(|| !home.is_up("one")).await;
    assert_eq!(home.sessions.present("c"), ["ann"]);
    until(|| two.sessions.announced("c") == ["ann", "-ann"]).await;
    let took = env.now() - begin;
    assert!(took >= NODE_TTL && took < NODE_TTL + Duration::from_secs(2), "{took:?}");
    let one = node(&hub, "one").await;
    until(|| one.is_up("home")).await;
    let _again = attach(&one).await;
    join(&one, "bob");
    until(|| home.sessions.present("c") == ["bob"]).await;
    one.stop();
    let one = node(&hub, "one").await;
    let begin = env.now();
    until(|| one.is_up("home")).await;
    until(|| home.sessions.present("c").is_empty()).await;
    assert!(env.now() - begin < NODE_TTL / 2);
    until(|| two.sessions.announced("c") == ["ann", "-ann", "bob", "-bob"]).await;
}

#[tokio::test]
async fn a_restarted_home_knows_all_members_and_announces_none_again() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let _attached = (attach(&one).await, attach(&two).await);
    join(&one, "ann");
    join(&one, "bob");
    until(|| two.sessions.announced("c") == ["ann", "bob"]).await;
    // The acknowledgements have arrived when the answer to a later request has.
    one.channels.presence("c", 0).await.expect("answered");
    home.stop();
    until(|| !one.is_up("home") && !two.is_up("home")).await;
    leave(&one, "ann");
    join(&one, "eve");
    let home = node(&hub, "home").await;
    until(|| home.sessions.present("c") == ["bob", "eve"]).await;
    until(|| two.is_up("home")).await;
    leave(&one, "bob");
    until(|| two.sessions.announced("c").contains(&"-bob".to_owned())).await;
    let announced = sorted(two.sessions.announced("c"));
    let without = |user: &str| announced.iter().filter(|one| *one == user).count();
    assert_eq!((without("ann"), without("bob"), without("-bob")), (1, 1, 1), "{announced:?}");
    assert!(without("-ann") <= 1 && without("eve") <= 1, "{announced:?}");
}

#[tokio::test]
async fn a_home_that_knows_other_members_than_a_front_gets_its_list() {
    let hub = Hub::default();
    let broken = ClusterSabotage::EarlyMembersForgotten;
    let home = hub.start_broken(roster("home", &NODES, &["home"]), "secret", store().await, broken).await;
    let (one, two) = (node(&hub, "one").await, node(&hub, "two").await);
    until(|| home.is_up("one") && home.is_up("two")).await;
    let _attached = (attach(&one).await, attach(&two).await);
    join(&one, "ann");
    join(&two, "bob");
    one.channels.presence("c", 0).await.expect("answered");
    assert!(home.sessions.present("c").is_empty(), "it has forgotten the member");
    let repaired = until(|| sorted(home.sessions.present("c")) == ["ann", "bob"]).await;
    assert!(repaired < Duration::from_secs(6), "{repaired:?}");
    leave(&one, "ann");
    until(|| home.sessions.present("c") == ["bob"]).await;
    Env::tokio().sleep(Duration::from_millis(2200)).await;
    assert_eq!(home.sessions.present("c"), ["bob"], "further comparisons change nothing");
    assert!(two.sessions.announced("c").iter().filter(|one| *one == "-ann").count() == 1);
}

#[tokio::test]
async fn calls_reach_all_nodes_and_name_those_that_do_not_answer() {
    let hub = Hub::default();
    let [home, one, two] = cluster(&hub).await;
    let call = async || {
        let answers = one.channels.call_others(Bytes::from_static(b"x")).await;
        answers.into_iter().map(|(name, answer)| (name, answer.map(|body| body.len()))).collect::<Vec<_>>()
    };
    assert_eq!(call().await, [("home".to_owned(), Ok(11)), ("two".to_owned(), Ok(11))]);
    two.stop();
    until(|| !one.is_up("two")).await;
    let (env, lost) = (Env::tokio(), Env::tokio().now());
    let missing = [("home".to_owned(), Ok(11)), ("two".to_owned(), Err(ChannelError::HomeUnreachable))];
    assert_eq!(call().await, missing, "the link may come back within a second");
    assert_eq!(call().await, missing);
    assert!(env.now() - lost < Duration::from_secs(2), "a node that is known to be down is not waited for");
    while call().await.len() > 1 {
        env.sleep(Duration::from_millis(100)).await;
    }
    drop(home);
}

#[tokio::test]
async fn large_answers_to_many_calls_never_fill_the_outbox() {
    let [home, one, _two] = cluster(&Hub::default()).await;
    let call = async || {
        let answers = one.channels.call_others(Bytes::from_static(b"x")).await;
        answers.into_iter().find(|(name, _)| name == "home").expect("an answer").1.map(|answer| answer.len())
    };
    let more = OUTBOX_BYTES as usize / 8;
    home.sessions.answer_bytes.store(more, Relaxed);
    let answers = join_all((0..24).map(|_| call())).await;
    assert_eq!(answers, vec![Ok(11 + more); 24]);
    home.sessions.answer_bytes.store(FRAME_BYTES_MAX, Relaxed);
    assert_eq!(call().await, Err(ChannelError::TooLarge));
    assert_eq!(one.link("home").established, 1);
}
