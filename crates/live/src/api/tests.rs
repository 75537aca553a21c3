//! Session selection of commands, on a node whose partition has no worker.

use uuid::Uuid;

use super::*;
use crate::commands::tests::node_with;
use crate::options::SubscribeOptions;
use crate::partition::WorkerEvent;
use crate::partition::{SessionId, SessionMessage};
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::session::ConnectionInfo;
use crate::session::SessionIdentity;

/// Three sessions of ann and one of bob; the first is a plain WebSocket.
async fn api() -> Api {
    let node = node_with(r#"{"channel": {"without_namespace": {"presence": true}}}"#).await;
    for (slot, user) in (0u32..).zip(["ann", "ann", "ann", "bob"]) {
        let session = (slot > 0).then(|| format!("s{slot}").into());
        let (encoding, transport) = (Encoding::Json, Transport::UniSse);
        let identity = SessionIdentity::new(
            client(slot),
            ConnectionInfo { session, ..ConnectionInfo::of(encoding, transport) },
            None,
        );
        let id = SessionId { partition: 0, slot, generation: 0 };
        let identity = Arc::new(SessionIdentity { user: user.to_owned(), ..identity });
        assert!(node.users.enter(id, &identity, false, |_| {}));
    }
    Api::new(node)
}

fn client(slot: u32) -> Uuid {
    Uuid::from_u128(u128::from(slot) + 1)
}

fn ann(client: &str, session: &str) -> Sessions {
    Sessions { user: "ann".into(), client: client.into(), session: session.into() }
}

/// Carries out a command; returns the sessions that got a message, and the first message.
async fn messages_of(api: &Api, command: Command) -> (Vec<u32>, Option<SessionMessage>) {
    api.carry_out(command, &Terms::default()).await.expect("carried out");
    let (mut slots, mut first) = (Vec::new(), None);
    let mut events = Vec::new();
    api.node.partitions.inboxes()[0].take(&mut events);
    for event in events {
        if let WorkerEvent::To(id, message) = event {
            slots.push(id.slot);
            first.get_or_insert(message);
        }
    }
    slots.sort_unstable();
    (slots, first)
}

#[tokio::test]
async fn sessions_are_named_by_client_or_session_and_spared_by_a_whitelist() {
    let api = api().await;
    let second = client(1).to_string();
    let commands: [fn(Sessions) -> Command; 3] = [
        |sessions| Command::Unsubscribe(sessions, "c".into()),
        |sessions| Command::Disconnect(sessions, Ending::default()),
        |sessions| Command::Refresh(sessions, Renewal::default()),
    ];
    for command in commands {
        for (client, session, slots) in [
            ("", "", vec![0, 1, 2]),
            (second.as_str(), "", vec![1]),
            ("", "s2", vec![2]),
            (second.as_str(), "s1", vec![1]),
            (second.as_str(), "s2", vec![]),
            ("", "s3", vec![]),
            ("", "other", vec![]),
        ] {
            let (found, _) = messages_of(&api, command(ann(client, session))).await;
            assert_eq!(found, slots, "{:?}", command(ann(client, session)));
        }
    }
    let spared = |whitelist: &[String]| {
        let ending = Ending { whitelist: whitelist.to_vec(), with: None };
        Command::Disconnect(ann("", ""), ending)
    };
    assert_eq!(messages_of(&api, spared(&[second.clone(), client(2).to_string()])).await.0, [0]);
    assert_eq!(messages_of(&api, spared(&["no name".into(), client(3).to_string()])).await.0, [0, 1, 2]);
    let subscribe = api.carry_out(Command::Subscribe(ann("", "other"), Box::new(wanted())), &Terms::default()).await;
    assert!(matches!(subscribe, Ok(Done::Nothing)));
    // No session has an ID that is none.
    assert_eq!(messages_of(&api, Command::Disconnect(ann("no name", ""), Ending::default())).await.0, [0; 0]);
    let unknown = Command::Unsubscribe(ann("", ""), "no:such".into());
    assert_eq!(api.carry_out(unknown, &Terms::default()).await.expect_err("no namespace"), codes::UNKNOWN_CHANNEL);
}

fn wanted() -> Wanted {
    Wanted { channel: "c".into(), options: SubscribeOptions::default(), since: None }
}

#[tokio::test]
async fn disconnects_and_refreshes_have_the_requested_values() {
    let api = api().await;
    let with = |code: u32| Ending { whitelist: Vec::new(), with: Some((code, "paid up?".into())) };
    let (_, first) = messages_of(&api, Command::Disconnect(ann("", ""), with(4001))).await;
    let Some(SessionMessage::Disconnect(why)) = first else { panic!("an end") };
    assert_eq!((why.code, &*why.reason), (4001, "paid up?"));
    for code in [0, 2999, 5000, 70_000] {
        let refused =
            api.carry_out(Command::Disconnect(ann("", ""), with(code)), &Terms::default()).await.expect_err("no code");
        assert!(refused.code == 107 && refused.message.contains(&code.to_string()), "{refused:?}");
    }
    let renewal = || Renewal { info: b"{}".to_vec(), ..Renewal::default() };
    for expected in [true, false] {
        let (_, first) = messages_of(&api, Command::Refresh(ann("", "s1"), renewal())).await;
        let Some(SessionMessage::Refreshed { renamed, .. }) = first else { panic!("a refresh") };
        assert_eq!(renamed, expected, "once");
    }
    let identity = api.node.users.sessions_of("ann", Some(client(1)));
    assert_eq!(identity[0].1.client_info(&[]).conn_info, b"{}");
}

#[tokio::test]
async fn calls_of_other_nodes_are_carried_out_for_the_sessions_here() {
    let api = api().await;
    let outcome = async |call: NodeCall| {
        let call = serde_json::to_vec(&call).expect("JSON");
        let answer = answer_call(&api.node, call.into()).await;
        serde_json::from_slice::<nodes::Outcome>(&answer).expect("an outcome")
    };
    let call = NodeCall::Disconnect(ann("", "s1"), Ending { whitelist: Vec::new(), with: Some((4001, "x".into())) });
    assert!(matches!(outcome(call).await, Ok(NodeResult::Nothing)));
    let mut events = Vec::new();
    api.node.partitions.inboxes()[0].take(&mut events);
    assert!(
        matches!(&events[..], [WorkerEvent::To(id, SessionMessage::Disconnect(why))] if id.slot == 1 && why.code == 4001)
    );
    let Ok(NodeResult::Info(info)) = outcome(NodeCall::Info).await else { panic!("the state of the node") };
    assert_eq!((info.clients, info.users, &*info.name), (4, 2, "steadfast"));
    let call = NodeCall::Unsubscribe(ann("", ""), String::new());
    assert_eq!(outcome(call).await.expect_err("no channel"), codes::BAD_REQUEST);
    let unknown = answer_call(&api.node, Bytes::from_static(b"{}")).await;
    let unknown = serde_json::from_slice::<nodes::Outcome>(&unknown).expect("an outcome").expect_err("no call");
    assert!(unknown.message.contains("another version"), "{unknown:?}");
}

#[test]
fn patterns_match_as_in_a_shell() {
    for (pattern, name, matches) in [
        ("", "x", true),
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("*b", "ab", true),
        ("a*c*e", "abcde", true),
        ("a*c*e", "abde", false),
        ("ab*ba", "aba", false),
    ] {
        assert_eq!(matches_pattern(pattern, name), matches, "{pattern} {name}");
    }
}
