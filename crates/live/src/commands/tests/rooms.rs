//! Long answers take room until their clients have them.

use bytes::Bytes;

use super::tokens::told;
use super::*;
use crate::api::{Api, Command as ApiCommand, Done, Publish, Terms};
use crate::node::held;
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
