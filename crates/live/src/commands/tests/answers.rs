//! Long answers take their memory from one budget. Above it, clients get an error at once.

use bytes::Bytes;
use futures::FutureExt;

use super::tokens::messages;
use super::*;
use crate::answer::held;
use crate::api::{Api, Command as ApiCommand, Done, Publish, Terms};
use crate::options::Wanted;
use crate::partition::SubscribeOutcome;
use crate::protocol::message::SubscribeResult;

/// The channel `c` with 9 KB of publications; the budget covers two answers with all of them.
async fn filled() -> Arc<Node> {
    let node = node().await;
    for _ in 0..3 {
        let data = format!("\"{}\"", "x".repeat(3000)).into_bytes();
        let publication = Publication { data: data.into(), ..Publication::default() };
        node.publisher.publish("c", publication, Submission::default()).await.expect("published");
    }
    node
}

fn all() -> HistoryRequest {
    HistoryRequest { channel: "c".into(), limit: 100, since: None, reverse: false }
}

fn recovering() -> SubscribeRequest {
    SubscribeRequest { recover: true, ..SubscribeRequest::default() }
}

/// Exhausts the budget with two answers.
async fn exhaust(node: &Node) -> Vec<AnswerPermit> {
    let mut permits = Vec::new();
    for _ in 0..2 {
        let page = node.histories.page(&all(), 300, None).await.expect("within the budget");
        assert_eq!(page.result.publications.len(), 3);
        permits.push(page.permit);
    }
    permits
}

/// The outcome of a history command, which must complete at once.
fn ask_history(node: &Node) -> i64 {
    let caller = Caller { node, session: SESSION, identity: &Arc::new(SessionIdentity::ann(connection())) };
    let command = Command { id: 1, history: Some(all()), ..Command::default() };
    let queued = QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false };
    code(caller.dispatch(queued).now_or_never().expect("at once"))
}

/// The result of the last subscription of the session.
fn subscribed(node: &Node) -> SubscribeResult {
    let result = messages(node).into_iter().find_map(|message| match message {
        SessionMessage::Subscribed(_, SubscribeOutcome::Reply { answer, .. }) => Some(answer.result.clone()),
        SessionMessage::Connected { reply, .. } => Some(reply.connect?.subs.pop()?.result),
        _ => None,
    });
    result.expect("subscribed")
}

fn assert_not_recovered(result: &SubscribeResult) {
    assert!(result.was_recovering && !result.recovered && result.publications.is_empty(), "{result:?}");
    assert_eq!(result.offset, 3, "the start of the subscription");
}

#[tokio::test]
async fn a_history_beyond_the_budget_gets_error_111_at_once() {
    let node = filled().await;
    let mut permits = exhaust(&node).await;
    assert!((18_000..20_000).contains(&node.admission.answers.status().used), "{:?}", node.admission.answers.status());
    assert_eq!(ask_history(&node), 111);
    // The frame of an answer holds the permit until its last part has been written.
    let frame = held(Bytes::from_static(b"0123456789"), permits.pop().flatten().as_slice());
    let rest = frame.slice(7..);
    drop(frame);
    assert_eq!(ask_history(&node), 111);
    assert_eq!(&rest[..], b"789");
    drop(rest);
    assert!(node.histories.page(&all(), 300, None).await.is_ok());
    drop(permits);
    assert_eq!(node.admission.answers.status().used, 0);
}

#[tokio::test]
async fn one_address_cannot_take_the_memory_of_the_others() {
    let node = filled().await;
    let (one, two): (Arc<str>, Arc<str>) = ("10.0.0.1".into(), "10.0.0.2".into());
    let page = node.histories.page(&all(), 300, Some(&one)).await.expect("its share");
    let refused = node.histories.page(&all(), 300, Some(&one)).await.expect_err("more than its share");
    assert_eq!(refused, codes::TOO_MANY_REQUESTS);
    node.histories.page(&all(), 300, Some(&two)).await.expect("another address");
    drop(page);
    node.histories.page(&all(), 300, Some(&one)).await.expect("it has read its answer");
}

#[tokio::test]
async fn a_recovery_beyond_the_budget_is_refused_at_once() {
    let node = filled().await;
    let permits = exhaust(&node).await;
    assert_eq!(code(subscribe(&node, recovering()).now_or_never().expect("at once")), 0);
    assert_not_recovered(&subscribed(&node));
    let refused = SubscribeRequest { flag: 2, ..recovering() };
    assert_eq!(code(subscribe(&node, refused).now_or_never().expect("at once")), 112);
    assert!(empty(&node.admission.subscribes.status()), "{:?}", node.admission.subscribes.status());
    drop(permits);
    messages(&node);
    assert_eq!(code(subscribe(&node, recovering()).await), 0);
    assert!(subscribed(&node).recovered);
}

#[tokio::test]
async fn a_connect_that_recovers_beyond_the_budget_is_answered_at_once() {
    let node = filled().await;
    let _permits = exhaust(&node).await;
    let claims = serde_json::json!({"sub": "ann", "channels": ["c"]});
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"s")).expect("signed");
    let request = ConnectRequest { token, subs: [("c".to_owned(), recovering())].into(), ..ConnectRequest::default() };
    assert_eq!(
        code(
            Login { node: &node, session: SESSION }.connect(connection(), 1, request).now_or_never().expect("at once")
        ),
        0
    );
    assert_not_recovered(&subscribed(&node));
    assert!(empty(&node.admission.connects.status()) && empty(&node.admission.subscribes.status()));
}

#[tokio::test]
async fn a_client_that_missed_nothing_recovers_beyond_the_budget() {
    let node = filled().await;
    let _permits = exhaust(&node).await;
    let position = node.channels.channel("c").expect("a channel").position().await.expect("a position");
    let request = SubscribeRequest { epoch: epoch_text(position.epoch), offset: position.offset, ..recovering() };
    assert_eq!(code(subscribe(&node, request).await), 0);
    assert!(subscribed(&node).recovered);
}

/// The outcome of a subscription from the server, with the missed publications.
async fn from_server(node: &Node) -> SubscribeOutcome {
    let identity = Arc::new(SessionIdentity::ann(connection()));
    let wanted = Wanted { channel: "c".into(), since: Some(Default::default()), options: Default::default() };
    let mut asks = pin!(Subscriber::new(node, SESSION, &identity).push_subscription(&wanted));
    loop {
        assert!(poll!(&mut asks).is_pending());
        let subscribed = messages(node).into_iter().find_map(|message| match message {
            SessionMessage::Subscribed(_, outcome) => Some(outcome),
            _ => None,
        });
        match subscribed {
            Some(outcome) => return outcome,
            None => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn each_copy_of_an_answer_takes_its_own_permit() {
    let node = filled().await;
    let mut all = Vec::new();
    for wanted in [3, 3, 0] {
        let outcome = from_server(&node).await;
        let SubscribeOutcome::Push { missed, .. } = &outcome else { panic!("no push") };
        assert_eq!(missed.len(), wanted);
        all.push(outcome);
    }
    assert!((18_000..20_000).contains(&node.admission.answers.status().used), "{:?}", node.admission.answers.status());
}

#[tokio::test]
async fn the_answers_of_a_batch_share_the_budget() {
    let api = Api::new(filled().await);
    let publish = Publish {
        data: b"1".to_vec().into(),
        tags: Default::default(),
        skip_history: true,
        idempotency_key: String::new(),
    };
    let terms = Terms::default();
    let mut commands: Vec<_> = (0..5).map(|_| Ok(ApiCommand::History(all()))).collect();
    commands.push(Ok(ApiCommand::Publish("c".into(), publish)));
    let answers = api.batch(commands, false, &terms).await.expect("carried out");
    let refused = answers.iter().filter(|answer| matches!(answer, Err(error) if *error == codes::TOO_MANY_REQUESTS));
    assert_eq!(refused.count(), 3);
    assert!(matches!(&answers[0], Ok(Done::History { history, .. }) if history.publications.len() == 3));
    assert!(matches!(&answers[5], Ok(Done::Published(_))), "a publish needs no answer memory");
    let body = terms.held(Bytes::from_static(b"its answer"));
    let ask = || async { api.batch(vec![Ok(ApiCommand::History(all()))], false, &Terms::default()).await };
    assert!(ask().await.is_ok_and(|answers| answers[0].is_err()));
    drop(body);
    assert!(ask().await.is_ok_and(|answers| answers[0].is_ok()));
}

#[tokio::test]
async fn an_abandoned_keyed_publication_still_counts() {
    let node = node().await;
    let api = Api::new(node.clone());
    let publish = Publish {
        data: vec![b'1'; 10_000].into(),
        tags: Default::default(),
        skip_history: false,
        idempotency_key: "k".into(),
    };
    let terms = Terms::default();
    {
        let mut asks = pin!(api.carry_out(ApiCommand::Publish("c".into(), publish), &terms));
        assert!(poll!(&mut asks).is_pending());
    }
    assert!(node.admission.api.keyed_bytes.used_bytes() > 10_000);
    while node.admission.api.keyed_bytes.used_bytes() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        node.histories.page(&all(), 300, None).await.expect("read").result.publications.len(),
        1,
        "it was published"
    );
}
