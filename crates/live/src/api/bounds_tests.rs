//! Bounds on the memory and size of requests.

use super::*;
use crate::commands::tests::node_with;

const CONFIG: &str = r#"{"channel": {"without_namespace": {"history_size": 50, "history_ttl": "60s"}}}"#;

fn publish(data: Vec<u8>) -> Publish {
    Publish { data: data.into(), tags: BTreeMap::new(), skip_history: false, idempotency_key: String::new() }
}

#[test]
fn the_channels_of_a_broadcast_share_a_bound_on_what_they_take() {
    for bytes in [0, 1 << 10, 50_000, 400_000, 4 << 20, usize::MAX >> 1] {
        for commands in [0, 1, 7, COMMANDS_TOGETHER] {
            let together = channels_together(bytes, commands);
            assert!((1..=1024).contains(&together));
            assert!(together == 1 || (together - 1) * commands.max(1) * bytes <= BYTES_TOGETHER);
        }
    }
}

#[tokio::test]
async fn a_broadcast_answers_in_the_order_of_its_channels() {
    let api = Api::new(node_with(CONFIG).await);
    let mut channels: Vec<String> = (0..3000).map(|i| format!("c{}", i % 1500)).collect();
    channels[7].clear();
    let done = api.carry_out(Command::Broadcast(channels, publish(b"1".to_vec())), &Terms::default()).await;
    let Ok(Done::Broadcast(positions)) = done else { panic!("{done:?}") };
    for (i, position) in positions.into_iter().enumerate() {
        // The first broadcast to the seventh channel had an empty name.
        let second = i >= 1500 && i != 1507;
        let expected = if i == 7 { Err(codes::BAD_REQUEST) } else { Ok(1 + u64::from(second)) };
        assert_eq!(position.map(|at| at.offset), expected, "{i}");
    }
}

#[tokio::test]
async fn a_large_publication_is_refused_as_too_large() {
    let api = Api::new(node_with(CONFIG).await);
    let published = api.carry_out(Command::Publish("c".into(), publish(vec![b'1'; 5 << 20])), &Terms::default()).await;
    assert_eq!(published.expect_err("too large"), codes::TOO_LARGE);
    assert!(api.carry_out(Command::Publish("c".into(), publish(vec![b'1'; 900_000])), &Terms::default()).await.is_ok());
}

#[tokio::test]
async fn a_history_page_ends_at_its_bound_in_bytes() {
    let api = Api::new(node_with(CONFIG).await);
    for _ in 0..20 {
        let published = api.carry_out(Command::Publish("c".into(), publish(vec![b'1'; 3000])), &Terms::default()).await;
        published.expect("published");
    }
    let (mut since, mut found) = (None, Vec::new());
    while found.len() < 20 {
        let request = HistoryRequest { channel: "c".into(), limit: i32::MAX, since, reverse: false };
        let done = api.carry_out(Command::History(request), &Terms::default()).await.expect("a history");
        let Done::History { history: page, truncated } = done else { panic!("{done:?}") };
        let offsets: Vec<u64> = page.publications.iter().map(|p| p.offset).collect();
        assert!((1..=4).contains(&offsets.len()), "10,000 bytes: {offsets:?}");
        assert_eq!(truncated, offsets.last() != Some(&20));
        let offset = offsets.last().copied().unwrap_or_default();
        since = Some(crate::protocol::message::StreamPosition { offset, epoch: page.epoch });
        found.extend(offsets);
    }
    assert_eq!(found, (1..=20).collect::<Vec<_>>());
}

/// A broadcast that repeats a channel, and a parallel batch.
#[tokio::test]
async fn a_key_counts_within_one_request_too() {
    let api = Api::new(node_with(CONFIG).await);
    let publish = || Publish {
        data: b"1".to_vec().into(),
        tags: Default::default(),
        skip_history: false,
        idempotency_key: "k".into(),
    };
    let channels = vec!["a".to_owned(), "b".to_owned(), "a".to_owned(), "a".to_owned()];
    let done = api.carry_out(Command::Broadcast(channels, publish()), &Terms::default()).await.expect("published");
    let Done::Broadcast(positions) = done else { panic!("{done:?}") };
    let offsets: Vec<_> = positions.into_iter().map(|position| position.map(|at| at.offset)).collect();
    assert_eq!(offsets, vec![Ok(1); 4]);
    let commands = (0..4).map(|_| Ok(Command::Publish("c".into(), publish()))).collect();
    for answer in api.batch(commands, true, &Terms::default()).await.expect("carried out") {
        assert!(matches!(answer, Ok(Done::Published(Position { offset: 1, .. }))), "{answer:?}");
    }
}

#[tokio::test]
async fn the_bound_on_publications_is_one_on_clients() {
    let config = r#"{"channel": {"without_namespace": {"history_size": 500, "history_ttl": "60s"}}}"#;
    let api = Api::new(node_with(config).await);
    for _ in 0..350 {
        let published = api.carry_out(Command::Publish("c".into(), publish(b"1".to_vec())), &Terms::default()).await;
        published.expect("published");
    }
    let pages = [(0, 0, false), (10, 10, false), (350, 156, true), (-1, 156, true), (156, 156, false)];
    // In the test's 10,000 bytes, a publication takes 64 beyond its body.
    for ((limit, len, cut), reverse) in pages.into_iter().flat_map(|page| [(page, false), (page, true)]) {
        let request = HistoryRequest { channel: "c".into(), limit, since: None, reverse };
        let done = api.carry_out(Command::History(request), &Terms::default()).await.expect("a history");
        let Done::History { history, truncated } = done else { panic!("{done:?}") };
        assert_eq!((history.publications.len(), truncated), (len, cut), "{limit} {reverse}");
        assert_eq!(history.offset, 350);
    }
}
