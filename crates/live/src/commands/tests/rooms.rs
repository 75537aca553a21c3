//! Long answers take room until their clients have them.

use bytes::Bytes;

use super::tokens::told;
use super::*;
use crate::api::{Api, Command as ApiCommand, Done, Publish, Terms};
use crate::node::held;
use crate::options::Wanted;
use crate::partition::Told;

/// The channel `c`, with publications of 9 KB; one user has room for two answers with all of them.
async fn filled() -> Arc<Node> {
    let node = node().await;
    for _ in 0..3 {
        let data = format!("\"{}\"", "x".repeat(3000)).into_bytes();
        let publication = Publication { data, ..Publication::default() };
        node.publish("c", publication, Submission::default()).await.expect("published");
    }
    node
}

fn all() -> HistoryRequest {
    HistoryRequest { channel: "c".into(), limit: 100, since: None, reverse: false }
}

/// As many answers as there is room for.
async fn answers(node: &Node, whose: &str) -> Vec<Room> {
    let mut rooms = Vec::new();
    loop {
        match node.history_within(&all(), whose, Duration::ZERO).await {
            Ok((found, room)) => {
                assert_eq!(found.publications.len(), 3);
                rooms.push(room);
            }
            Err(refused) => {
                assert_eq!(refused, codes::TOO_MANY_REQUESTS);
                return rooms;
            }
        }
    }
}

#[tokio::test]
async fn one_user_holds_no_more_than_its_share() {
    let node = filled().await;
    let mut rooms = answers(&node, "ann").await;
    assert_eq!(rooms.len(), 2);
    assert!((18_000..20_000).contains(&node.answers.status().used), "{:?}", node.answers.status());
    assert!(node.history_within(&all(), "bob", Duration::ZERO).await.is_ok(), "others have theirs");
    // Its frame holds it, for as long as a part of that waits for the client.
    let frame = held(Bytes::from_static(b"0123456789"), rooms.pop().flatten().as_slice());
    let rest = frame.slice(7..);
    drop(frame);
    assert!(node.history_within(&all(), "ann", Duration::ZERO).await.is_err());
    assert_eq!(&rest[..], b"789");
    drop(rest);
    assert!(node.history_within(&all(), "ann", Duration::ZERO).await.is_ok());
    drop(rooms);
    assert_eq!(node.answers.status().used, 0);
}

#[tokio::test]
async fn anonymous_sessions_share_by_where_they_come_from() {
    let node = filled().await;
    let of = |address: &str| Who::new(Uuid::nil(), Arrived { address: address.into(), ..arrived() }, None);
    let ask = async |who: Who| {
        let caller = Caller { session: SESSION, who: &Arc::new(who) };
        let command = Command { id: 1, history: Some(all()), ..Command::default() };
        let asked = Asked { command, subscribed: None, subscriptions: 0, over_rate: false };
        code(node.other(caller, asked).await)
    };
    let rooms = answers(&node, &of("10.0.0.1").whose()).await;
    let mut waits = pin!(ask(of("10.0.0.1")));
    assert!(poll!(&mut waits).is_pending(), "it has taken its share");
    assert_eq!(ask(of("10.0.0.2")).await, 0, "another has its own");
    let named = Who { user: "10.0.0.1".into(), ..of("10.0.0.1") };
    assert_eq!(ask(named).await, 0, "and so has a user who is called so");
    drop(rooms);
    assert_eq!(waits.await, 0);
}

#[tokio::test]
async fn a_recovery_without_room_is_none() {
    let node = filled().await;
    let _rooms = answers(&node, "ann").await;
    let request = SubscribeRequest { recover: true, ..SubscribeRequest::default() };
    assert_eq!(code(subscribe(&node, request).await), 0);
    let answer = told(&node).into_iter().find_map(|what| match what {
        ToSession::Subscribed(_, Told::Reply { answer, .. }) => Some(answer),
        _ => None,
    });
    let result = &answer.expect("subscribed").result;
    assert!(result.was_recovering && !result.recovered && result.publications.is_empty(), "{result:?}");
    assert_eq!(result.offset, 3, "it goes on from here");
}

#[tokio::test]
async fn who_waits_for_room_has_no_place_that_others_need() {
    let node = filled().await;
    let rooms = answers(&node, "ann").await;
    let request = SubscribeRequest { recover: true, ..SubscribeRequest::default() };
    let mut waits = pin!(subscribe(&node, request));
    assert!(poll!(&mut waits).is_pending());
    while node.subscribes.status().used > 0 {
        assert!(poll!(&mut waits).is_pending());
        tokio::task::yield_now().await;
    }
    drop(rooms);
    assert_eq!(code(waits.await), 0);
    let rooms = answers(&node, "ann").await;
    let claims = serde_json::json!({"sub": "ann", "channels": ["c"]});
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"s")).expect("signed");
    let subs = [("c".to_owned(), SubscribeRequest { recover: true, ..SubscribeRequest::default() })].into();
    let request = ConnectRequest { token, subs, ..ConnectRequest::default() };
    let mut waits = pin!(node.connect(SESSION, arrived(), 1, request));
    assert!(poll!(&mut waits).is_pending());
    while node.connects.status().used > 0 {
        assert!(poll!(&mut waits).is_pending());
        tokio::task::yield_now().await;
    }
    drop(rooms);
    assert_eq!(code(waits.await), 0);
}

/// What a session is told of a subscription that the server makes, with what it missed.
async fn unasked(node: &Node) -> Told {
    let who = Arc::new(Who::ann(arrived()));
    let wanted = Wanted { channel: "c".into(), since: Some(Default::default()), options: Default::default() };
    let mut asks = pin!(node.subscribe_unasked(SESSION, &who, &wanted));
    loop {
        assert!(poll!(&mut asks).is_pending());
        let subscribed = told(node).into_iter().find_map(|what| match what {
            ToSession::Subscribed(_, told) => Some(told),
            _ => None,
        });
        match subscribed {
            Some(told) => return told,
            None => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn copies_of_an_answer_take_room_each() {
    let node = filled().await;
    let mut all = Vec::new();
    for wanted in [3, 3, 0] {
        let told = unasked(&node).await;
        let Told::Push { missed, .. } = &told else { panic!("no push") };
        assert_eq!(missed.len(), wanted);
        all.push(told);
    }
    assert!((18_000..20_000).contains(&node.answers.status().used), "{:?}", node.answers.status());
}

#[tokio::test]
async fn the_answers_of_a_batch_have_a_bound() {
    let api = Api::new(filled().await);
    let publish =
        Publish { data: b"1".to_vec(), tags: Default::default(), skip_history: true, idempotency_key: String::new() };
    let terms = Terms::default();
    let mut commands: Vec<_> = (0..5).map(|_| Ok(ApiCommand::History(all()))).collect();
    commands.push(Ok(ApiCommand::Publish("c".into(), publish)));
    let answers = api.batch(commands, false, &terms).await.expect("carried out");
    let refused = answers.iter().filter(|answer| matches!(answer, Err(error) if *error == codes::TOO_MANY_REQUESTS));
    assert_eq!(refused.count(), 3);
    assert!(matches!(&answers[0], Ok(Done::History(found)) if found.publications.len() == 3));
    assert!(matches!(&answers[5], Ok(Done::Published(_))), "what asks for nothing is carried out");
    let body = terms.held(Bytes::from_static(b"its answer"));
    assert!(
        api.batch(vec![Ok(ApiCommand::History(all()))], false, &Terms::default()).await.is_ok_and(|it| it[0].is_err())
    );
    drop(body);
    assert!(
        api.batch(vec![Ok(ApiCommand::History(all()))], false, &Terms::default()).await.is_ok_and(|it| it[0].is_ok())
    );
}

#[tokio::test]
async fn a_publication_that_nobody_waits_for_any_more_still_counts() {
    let node = node().await;
    let api = Api::new(node.clone());
    let publish = Publish {
        data: vec![b'1'; 10_000],
        tags: Default::default(),
        skip_history: false,
        idempotency_key: "k".into(),
    };
    let terms = Terms::default();
    {
        let mut asks = pin!(api.carry_out(ApiCommand::Publish("c".into(), publish), &terms));
        assert!(poll!(&mut asks).is_pending());
    }
    assert!(node.keyed_bytes.used_bytes() > 10_000);
    while node.keyed_bytes.used_bytes() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.history(&all(), "ann").await.expect("read").0.publications.len(), 1, "it was published");
}
