//! The bounds on concurrent connects and subscribes, over an in-memory store.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use jsonwebtoken::{EncodingKey, Header, encode};
use steadfast_cluster::Channels;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{Env, FlowStatus, Gate, Pass};
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{IndexKind, Store, StoreOptions};

use super::*;

mod answers;
mod names;
mod options;
mod rights;

mod tokens;
mod wire;

use crate::admission::{GATE_WAIT, Limits};
use crate::answer::AnswerPermit;
use crate::partition::{self};
use crate::protocol::message::{ConnectRequest, HistoryRequest, SubscribeRequest};
use crate::protocol::{Encoding, Transport, epoch_text};

/// Two may run at a time, and one may wait.
async fn node() -> Arc<Node> {
    node_of(r#"{"insecure": true, "token": {"hmac_secret_key": "s"}}"#).await
}

/// A node with these client options.
async fn node_of(client: &str) -> Arc<Node> {
    let config = format!(
        r#"{{"client": {client},
        "channel": {{"without_namespace": {{"history_size": 5, "history_ttl": "60s", "force_recovery": true}}}}}}"#
    );
    node_with(&config).await
}

/// Two may run at a time, and one may wait.
fn limits() -> Limits {
    Limits {
        connects: 2,
        subscribes: 2,
        history_reads: 2,
        waiting: 1,
        address_connections: 0,
        publish_rate: 0,
        publish_reserve: 50,
        proxy_requests: 1,
        grpc_calls: 1,
        api_requests: 1,
        api_bytes: 1 << 20,
        answers_bytes: 20_000,
        answers_share_percent: 60,
        history_bytes_max: 10_000,
        compression_bytes_max: 0,
        slow_request: Duration::from_secs(1),
    }
}

/// A node with this configuration.
pub(crate) async fn node_with(config: &str) -> Arc<Node> {
    let env = Env::tokio();
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &env, &format).await.expect("formats");
    let opened = Store::open(disk, IndexKind::memory(), env.clone(), StoreOptions::default()).await;
    let config = serde_json::from_str(config).expect("valid");
    let homes = Channels::alone(opened.expect("opens").0, env.clone());
    Node::new(config, &limits(), homes, env, 1).expect("starts")
}

fn connection() -> ConnectionInfo {
    ConnectionInfo::of(Encoding::Json, Transport::WebSocket)
}

const SESSION: SessionId = SessionId { partition: 0, slot: 0, generation: 0 };

async fn connect(node: &Node, token: &str) -> Result<(), Refused> {
    Login { node, session: SESSION }
        .connect(connection(), 1, ConnectRequest { token: token.to_owned(), ..ConnectRequest::default() })
        .await
}

async fn subscribe(node: &Node, request: SubscribeRequest) -> Result<(), Refused> {
    let caller = Caller { node, session: SESSION, identity: &Arc::new(SessionIdentity::ann(connection())) };
    Subscriber(caller).command(1, SubscribeRequest { channel: "c".into(), ..request }, None, 0).await
}

/// The outcome of a command: 0 on success, otherwise the error code, or the negative close code of
/// its session.
fn code(outcome: Result<(), Refused>) -> i64 {
    match outcome {
        Ok(()) => 0,
        Err(Refused::Error(error)) => {
            assert_eq!(error.temporary, [100, 111].contains(&error.code), "{error:?}");
            i64::from(error.code)
        }
        Err(Refused::End(why)) => -i64::from(why.code),
    }
}

async fn both_places(gate: &Gate) -> [Pass; 2] {
    let enter = || async { gate.enter(GATE_WAIT).await.expect("a permit") };
    [enter().await, enter().await]
}

fn empty(status: &FlowStatus) -> bool {
    (status.used, status.waiting) == (0, 0)
}

/// A command at a full gate: one waits, the next gets error 111 at once, and a released permit goes
/// to the waiter.
async fn at_the_bound<F: Future<Output = Result<(), Refused>>>(gate: &Gate, command: impl Fn() -> F) {
    let [first, second] = both_places(gate).await;
    let mut waits = pin!(command());
    assert!(poll!(&mut waits).is_pending(), "it waits at the gate");
    assert_eq!(gate.status().waiting, 1);
    let mut crowded = pin!(command());
    let outcome = poll!(&mut crowded);
    assert_eq!(outcome.map(code), Poll::Ready(111), "refused at once with a temporary error");
    assert_eq!(gate.status().refused, 1);
    drop(first);
    assert_eq!(code(waits.await), 0);
    assert_eq!(gate.status().used, 1, "a completed command releases its permit");
    drop(second);
    // A waiter that is cancelled leaves nothing behind.
    let held = both_places(gate).await;
    {
        let mut gone = pin!(command());
        assert!(poll!(&mut gone).is_pending());
    }
    drop(held);
    assert!(empty(&gate.status()), "{:?}", gate.status());
    for _ in 0..5 {
        assert_eq!(code(command().await), 0);
    }
    assert!(empty(&gate.status()));
}

#[tokio::test]
async fn connects_above_their_bound_get_error_111() {
    let node = node().await;
    at_the_bound(&node.admission.connects, || connect(&node, "")).await;
    // A command that is refused behind the gate releases its permit: try more of them than there
    // are permits.
    let forged = "eyJhbGciOiJIUzI1NiJ9.e30.AAAA";
    for _ in 0..5 {
        assert_eq!(code(connect(&node, forged).await), -3500);
    }
    assert!(empty(&node.admission.connects.status()));
    // The permit is held to the end, here until the subscription from the token is made.
    let key = EncodingKey::from_secret(b"s");
    let token =
        encode(&Header::default(), &serde_json::json!({"sub": "ann", "channels": ["c"]}), &key).expect("signed");
    let held = both_places(&node.admission.subscribes).await;
    let mut waits = pin!(connect(&node, &token));
    assert!(poll!(&mut waits).is_pending());
    assert_eq!(node.admission.connects.status().used, 1);
    drop(held);
    assert_eq!(code(waits.await), 0);
    assert!(empty(&node.admission.connects.status()) && empty(&node.admission.subscribes.status()));
}

#[tokio::test]
async fn subscribes_above_their_bound_get_error_111() {
    let node = node().await;
    at_the_bound(&node.admission.subscribes, || subscribe(&node, SubscribeRequest::default())).await;
    // The epoch never existed, and the client rejects a gap.
    let lost =
        || SubscribeRequest { recover: true, epoch: "1".into(), offset: 7, flag: 2, ..SubscribeRequest::default() };
    for _ in 0..5 {
        assert_eq!(code(subscribe(&node, lost()).await), 112);
    }
    assert!(empty(&node.admission.subscribes.status()) && empty(&node.admission.reads.status()));
    // A recovery also waits at the gate of reads, and holds a subscribe permit meanwhile.
    let again = || SubscribeRequest { recover: true, epoch: "2".into(), offset: 7, ..SubscribeRequest::default() };
    at_the_bound(&node.admission.reads, || subscribe(&node, again())).await;
    let held = both_places(&node.admission.reads).await;
    let mut waits = pin!(subscribe(&node, again()));
    assert!(poll!(&mut waits).is_pending());
    assert_eq!(node.admission.subscribes.status().used, 1);
    drop(held);
    assert_eq!(code(waits.await), 0);
    assert!(empty(&node.admission.subscribes.status()));
}

#[tokio::test]
async fn subscription_tokens_have_their_own_keys_if_configured() {
    let of_claims = |key: &[u8], claims: serde_json::Value| {
        encode(&Header::default(), &claims, &EncodingKey::from_secret(key)).expect("signed")
    };
    let signed =
        |key: &[u8], audience: &str| of_claims(key, serde_json::json!({"sub": "ann", "channel": "c", "aud": audience}));
    let own = r#""hmac_secret_key": "own", "audience": "subscriptions""#;
    for enabled in [true, false] {
        let client = format!(
            r#"{{"token": {{"hmac_secret_key": "s"}}, "subscription_token": {{"enabled": {enabled}, {own}}}}}"#
        );
        let node = node_of(&client).await;
        let comes = async |token: String| {
            code(subscribe(&node, SubscribeRequest { token, ..SubscribeRequest::default() }).await)
        };
        let (granted, denied) = if enabled { (0, 103) } else { (103, 0) };
        assert_eq!(comes(signed(b"own", "subscriptions")).await, granted);
        assert_eq!(comes(signed(b"own", "other")).await, 103);
        assert_eq!(comes(signed(b"s", "")).await, denied);
        // Connecting uses the other kind of token, whatever the options of subscription tokens are.
        let connects = |key: &[u8]| of_claims(key, serde_json::json!({"sub": "ann", "aud": "subscriptions"}));
        assert_eq!(code(connect(&node, &connects(b"s")).await), 0);
        assert_eq!(code(connect(&node, &connects(b"own")).await), -3500);
        assert_eq!(code(connect(&node, &signed(b"s", "")).await), -3500, "it is a subscription token");
    }
    // Enabled without keys: as in Centrifugo, the keys of connection tokens do not apply.
    let node = node_of(r#"{"token": {"hmac_secret_key": "s"}, "subscription_token": {"enabled": true}}"#).await;
    let request = SubscribeRequest { token: signed(b"s", ""), ..SubscribeRequest::default() };
    assert_eq!(code(subscribe(&node, request).await), 103);
}

/// The answer to a subscribe command.
async fn subscribed(node: &Node, request: SubscribeRequest) -> Arc<crate::answer::SubscribeAnswer> {
    assert_eq!(code(subscribe(node, request).await), 0);
    let mut events = Vec::new();
    node.partitions.inboxes()[0].take(&mut events);
    let found = events.into_iter().find_map(|event| match event {
        partition::WorkerEvent::To(
            _,
            SessionMessage::Subscribed(_, partition::SubscribeOutcome::Reply { answer, .. }),
        ) => Some(answer),
        _ => None,
    });
    found.expect("answered")
}

#[tokio::test]
async fn a_recovery_without_an_epoch_is_one_of_any_epoch() {
    let config = r#"{"channel": {"without_namespace": {"allow_subscribe_for_client": true, "allow_tags_filter": true,
        "history_size": 9, "history_ttl": "60s", "force_recovery": true}}}"#;
    let node = node_with(config).await;
    for n in 0..3 {
        let tags = [("a".to_owned(), n.to_string())].into_iter().collect();
        let publication = Publication { data: b"1".to_vec().into(), tags, ..Publication::default() };
        node.publisher.publish("c", publication, Submission::default()).await.expect("published");
    }
    let recover = |epoch: &str, offset, tf| SubscribeRequest {
        recover: true,
        epoch: epoch.into(),
        offset,
        tf,
        ..SubscribeRequest::default()
    };
    for (epoch, offset, expected) in [("", 2, (true, 1)), ("", 0, (true, 3)), ("", 4, (false, 0)), ("1", 2, (false, 0))]
    {
        let answer = subscribed(&node, recover(epoch, offset, None)).await;
        let found = (answer.result.recovered, answer.result.publications.len());
        assert_eq!(found, expected, "{epoch:?} {offset}");
    }
    // The offset is that of the request, also if the filter leaves out what was missed.
    for (tag, count) in [("2", 1), ("1", 1), ("9", 0)] {
        let filter =
            serde_json::from_value(serde_json::json!({"key": "a", "cmp": "eq", "val": tag})).expect("a filter");
        let result = subscribed(&node, recover("", 1, Some(filter))).await.result.clone();
        assert_eq!((result.recovered, result.publications.len(), result.offset), (true, count, 1), "{tag}");
    }
}

#[tokio::test]
async fn a_recovery_larger_than_an_answer_fails() {
    let node = node().await;
    let publication =
        || Publication { data: format!("\"{}\"", "x".repeat(3000)).into_bytes().into(), ..Publication::default() };
    for _ in 0..5 {
        node.publisher.publish("c", publication(), Submission::default()).await.expect("published");
    }
    let epoch = epoch_text(node.channels.channel("c").expect("a channel").position().await.expect("there").epoch);
    for (offset, recovered) in [(0, false), (1, true), (4, true), (5, true)] {
        let request = SubscribeRequest { recover: true, epoch: epoch.clone(), offset, ..SubscribeRequest::default() };
        let answer = subscribed(&node, request).await;
        let count = if recovered { 5 - offset as usize } else { 0 };
        assert_eq!((answer.result.recovered, answer.result.publications.len()), (recovered, count), "{offset}");
    }
}
