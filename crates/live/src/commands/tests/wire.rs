//! Answers that SDKs depend on, against recorded ones of Centrifugo 6.9.1.

use serde_json::{Value, json};

use super::tokens::messages;
use super::*;
use crate::partition::SubscribeOutcome;
use crate::protocol::message::{
    FilterNode, RefreshRequest, RpcRequest, SendRequest, StreamPosition, SubRefreshRequest, SubscribeResult,
};

const CONFIG: &str = r#"{"client": {"token": {"hmac_secret_key": "s"}}, "rpc": {"namespaces": [{"name": "np"}]}, "channel": {
    "without_namespace": {"allow_subscribe_for_client": true, "history_size": 5, "history_ttl": "60s", "presence": true,
        "join_leave": true, "allow_history_for_subscriber": true, "allow_presence_for_client": true},
    "namespaces": [
        {"name": "mute", "allow_subscribe_for_client": true, "history_size": 5, "history_ttl": "60s", "join_leave": true,
            "allow_subscribe_for_anonymous": true},
        {"name": "cache", "allow_subscribe_for_client": true, "history_size": 1, "history_ttl": "60s",
            "force_recovery": true, "force_recovery_mode": "cache"},
        {"name": "stream", "allow_subscribe_for_client": true, "history_size": 5, "history_ttl": "60s", "force_recovery": true}]}}"#;

fn signed(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"s")).expect("signed")
}

/// The outcome of a command of ann, or of an anonymous session.
async fn outcome(node: &Node, user: &str, command: Command, subscribed: Option<bool>) -> i64 {
    let identity = Arc::new(SessionIdentity { user: user.into(), ..SessionIdentity::ann(connection()) });
    let queued = QueuedCommand { command, subscribed, subscriptions: 0, over_rate: false };
    code(Caller { node, session: SESSION, identity: &identity }.dispatch(queued).await)
}

/// Subscribes; the result as JSON.
async fn result(node: &Node, user: &str, request: SubscribeRequest) -> Value {
    messages(node);
    let command = Command { id: 1, subscribe: Some(request), ..Command::default() };
    assert_eq!(outcome(node, user, command, None).await, 0);
    let found = messages(node).into_iter().find_map(|message| match message {
        SessionMessage::Subscribed(_, SubscribeOutcome::Reply { answer, .. }) => Some(answer.result.clone()),
        _ => None,
    });
    let result = SubscribeResult { epoch: String::new(), ..found.expect("subscribed") };
    serde_json::to_value(&result).expect("JSON")
}

fn to(channel: &str) -> SubscribeRequest {
    SubscribeRequest { channel: channel.into(), ..SubscribeRequest::default() }
}

#[tokio::test]
async fn errors_and_disconnects_have_centrifugos_codes() {
    let node = node_with(CONFIG).await;
    let subscribe = |request| Command { subscribe: Some(request), ..Command::default() };
    let rpc = |method: &str| Command {
        rpc: Some(RpcRequest { method: method.into(), ..RpcRequest::default() }),
        ..Command::default()
    };
    let history = |offset, reverse| {
        let since = Some(StreamPosition { offset, ..StreamPosition::default() });
        let request = HistoryRequest { channel: "c".into(), limit: 5, since, reverse };
        Command { history: Some(request), ..Command::default() }
    };
    let filter = || Some(serde_json::from_value(json!({"key": "a", "cmp": "ex"})).expect("a filter"));
    let sub_refresh = |token: &str| Command {
        sub_refresh: Some(SubRefreshRequest { channel: "c".into(), token: token.into() }),
        ..Command::default()
    };
    for (command, expected) in [
        (subscribe(SubscribeRequest { delta: "xdelta".into(), ..to("c") }), -3501),
        (subscribe(SubscribeRequest { kind: 1, ..to("c") }), 103),
        (subscribe(SubscribeRequest { tf: filter(), ..to("c") }), 107),
        (subscribe(SubscribeRequest { token: signed(&json!({"sub": "ann", "channel": "d"})), ..to("c") }), -3500),
        (rpc("np:x"), 108),
        (rpc("x"), 108),
        (rpc("no:x"), 108),
        (Command { send: Some(SendRequest::default()), ..Command::default() }, -3508),
        (Command { refresh: Some(RefreshRequest::default()), ..Command::default() }, -3501),
        (sub_refresh(""), 103),
    ] {
        let what = format!("{command:?}");
        assert_eq!(outcome(&node, "ann", command, None).await, expected, "{what}");
    }
    for (command, expected) in [
        (sub_refresh(""), 107),
        (sub_refresh("no token"), -3500),
        (history(0, true), 107),
        (history(1, true), 0),
        (history(0, false), 0),
    ] {
        let what = format!("{command:?}");
        assert_eq!(outcome(&node, "ann", command, Some(false)).await, expected, "{what}");
    }
}

#[tokio::test]
async fn an_unknown_method_differs_from_one_without_a_back_end() {
    let config = r#"{"rpc": {"proxy": {"endpoint": "http://127.0.0.1:1/"}, "namespaces": [{"name": "np"}],
        "without_namespace": {"proxy_enabled": true}}}"#;
    let node = node_with(config).await;
    for (method, expected) in [("np:x", 108), ("no:x", 104), ("x", 100)] {
        let rpc = Some(RpcRequest { method: method.into(), ..RpcRequest::default() });
        assert_eq!(outcome(&node, "ann", Command { rpc, ..Command::default() }, None).await, expected, "{method}");
    }
}

#[tokio::test]
async fn a_command_with_an_empty_channel_ends_the_session() {
    let node = node_with(CONFIG).await;
    let empty = || Some(ChannelRequest::default());
    for command in [
        Command { unsubscribe: empty(), ..Command::default() },
        Command { presence: empty(), ..Command::default() },
        Command { presence_stats: empty(), ..Command::default() },
        Command { history: Some(HistoryRequest::default()), ..Command::default() },
        Command {
            publish: Some(PublishRequest { data: b"{}".to_vec().into(), ..Default::default() }),
            ..Command::default()
        },
        Command { subscribe: Some(SubscribeRequest::default()), ..Command::default() },
        Command { sub_refresh: Some(SubRefreshRequest::default()), ..Command::default() },
    ] {
        let source = CommandSource::Known(Arc::new(SessionIdentity::ann(connection())));
        let queued = QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false };
        CommandRun { node: &node, session: SESSION }.carry_out(source, vec![queued]).await;
        let found = messages(&node);
        assert!(matches!(&found[..], [SessionMessage::Disconnect(why)] if *why == codes::BAD_PROTOCOL));
    }
}

#[tokio::test]
async fn a_client_may_ask_for_what_it_may_read() {
    let node = node_with(CONFIG).await;
    let wants =
        |channel: &str| SubscribeRequest { recoverable: true, positioned: true, join_leave: true, ..to(channel) };
    let positioned = |channel: &str| SubscribeRequest { positioned: true, ..to(channel) };
    assert_eq!(result(&node, "ann", wants("c")).await, json!({"positioned": true, "recoverable": true}));
    assert_eq!(result(&node, "ann", positioned("c")).await, json!({"positioned": true}));
    assert_eq!(result(&node, "ann", wants("mute:c")).await, json!({}), "it may not read the history");
    for (user, channel, expected) in [("ann", "c", true), ("ann", "mute:c", false), ("", "mute:c", false)] {
        let command = Command { subscribe: Some(wants(channel)), ..Command::default() };
        assert_eq!(outcome(&node, user, command, None).await, 0);
        let kind = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Subscribing { kind, .. } => Some(kind),
            _ => None,
        });
        assert_eq!(kind.expect("it is subscribed").join_leave, expected, "joins and leaves of {channel} for {user:?}");
    }
}

#[tokio::test]
async fn a_recovery_is_answered_as_centrifugo_does() {
    let node = node_with(CONFIG).await;
    let recovering = |channel: &str, offset| SubscribeRequest { recover: true, offset, ..to(channel) };
    let both = json!({"positioned": true, "recoverable": true, "was_recovering": true});
    // The client learns that it must load all where it may not recover, or where there is nothing.
    assert_eq!(result(&node, "ann", recovering("mute:c", 0)).await, json!({"was_recovering": true}));
    assert_eq!(result(&node, "ann", recovering("cache:c", 0)).await, both);
    assert_eq!(result(&node, "ann", to("mute:c")).await, json!({}), "the answers are not shared");
    for channel in ["cache:c", "stream:c"] {
        for n in [1, 2] {
            let publication = Publication { data: n.to_string().into_bytes().into(), ..Publication::default() };
            node.publisher.publish(channel, publication, Submission::default()).await.expect("published");
        }
    }
    let cached = result(&node, "ann", recovering("cache:c", 0)).await;
    let last = json!([{"data": 2, "offset": 2}]);
    assert_eq!((&cached["recovered"], &cached["offset"]), (&json!(true), &Value::Null));
    assert_eq!(cached["publications"][0]["offset"], last[0]["offset"]);
    // The offset is that of the client, which the publications lead on from.
    let epoch =
        epoch_text(node.channels.channel("stream:c").expect("a channel").position().await.expect("there").epoch);
    for (offset, expected, count) in [(0, Value::Null, 2), (1, json!(1), 1), (2, json!(2), 0)] {
        let request = SubscribeRequest { epoch: epoch.clone(), ..recovering("stream:c", offset) };
        let found = result(&node, "ann", request).await;
        let publications = found["publications"].as_array().map_or(0, Vec::len);
        assert_eq!((&found["recovered"], &found["offset"], publications), (&json!(true), &expected, count));
    }
    let lost = SubscribeRequest { epoch: "1".into(), ..recovering("stream:c", 1) };
    let found = result(&node, "ann", lost).await;
    assert_eq!((&found["recovered"], &found["offset"]), (&Value::Null, &json!(2)));
}

#[tokio::test]
async fn a_lifetime_is_at_most_a_year_and_not_past() {
    let node = node_with(CONFIG).await;
    let connected = async |claims: Value| {
        let outcome = code(connect(&node, &signed(&claims)).await);
        let result = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Connected { reply, .. } => reply.connect,
            _ => None,
        });
        result.map_or((outcome, 0), |result| (outcome, result.ttl))
    };
    let year = 365 * 24 * 3600;
    for far in [json!({"exp": 99_999_999_999_u64}), json!({"exp": 1e300}), json!({"expire_at": i64::MAX})] {
        assert_eq!(connected(far.clone()).await, (0, year), "{far}");
    }
    assert_eq!(connected(json!({"expire_at": 1})).await, (110, 0));
    assert_eq!(connected(json!({"expire_at": 0})).await, (0, 0));
    assert_eq!(connected(json!({"expire_at": -1})).await, (0, 0));
    let token = |more: Value| {
        let mut claims = json!({"sub": "ann", "channel": "c"});
        claims["expire_at"] = more;
        SubscribeRequest { token: signed(&claims), ..to("c") }
    };
    assert_eq!(result(&node, "ann", token(json!(99_999_999_999_u64))).await, json!({"expires": true, "ttl": year}));
    let past = Command { subscribe: Some(token(json!(1))), ..Command::default() };
    assert_eq!(outcome(&node, "ann", past, None).await, 110);
}

#[tokio::test]
async fn a_session_with_ping_frames_gets_no_pings_of_the_protocol() {
    let node = node_of(r#"{"allow_anonymous_connect_without_token": true}"#).await;
    for frame_pings in [false, true] {
        let connection = ConnectionInfo { frame_pings, ..connection() };
        assert_eq!(
            code(Login { node: &node, session: SESSION }.connect(connection, 1, ConnectRequest::default()).await),
            0
        );
        let connected = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Connected { reply, .. } => reply.connect,
            _ => None,
        });
        let connected = connected.expect("connected");
        assert_eq!((connected.ping > 0, connected.pong), (!frame_pings, !frame_pings));
    }
}

#[tokio::test]
async fn a_refreshed_session_gets_only_its_expiry() {
    let node = node_with(CONFIG).await;
    let token = signed(&json!({"sub": "ann", "expire_at": node.env.wall_ms() / 1000 + 100}));
    let command = Command { id: 3, refresh: Some(RefreshRequest { token }), ..Command::default() };
    assert_eq!(outcome(&node, "ann", command, None).await, 0);
    let found = messages(&node);
    let [SessionMessage::Refreshed { reply: Some(reply), .. }] = &found[..] else { panic!("a refresh") };
    let refresh = reply.refresh.as_ref().expect("the result");
    assert!(refresh.client.is_empty() && refresh.version.is_empty() && refresh.expires && refresh.ttl > 0);
}

#[tokio::test]
async fn a_connect_request_names_channels_to_begin_with() {
    let config = r##"{"client": {"allow_anonymous_connect_without_token": true, "token": {"hmac_secret_key": "s"}, "channel_limit": 3},
        "channel": {"without_namespace": {"allow_subscribe_for_client": true, "allow_user_limited_channels": true},
        "namespaces": [{"name": "open", "allow_subscribe_for_client": true, "allow_subscribe_for_anonymous": true}, {"name": "closed"}]}}"##;
    let node = node_with(config).await;
    let connect = async |token: &str, channels: &str| {
        let subs = channels.split(' ').map(|channel| (channel.to_owned(), SubscribeRequest::default())).collect();
        let request = ConnectRequest { token: token.to_owned(), subs, ..ConnectRequest::default() };
        let outcome = code(Login { node: &node, session: SESSION }.connect(connection(), 1, request).await);
        let connected = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Connected { reply, .. } => reply.connect,
            _ => None,
        });
        let subs = connected.map(|result| result.subs.into_iter().map(|one| one.channel).collect::<Vec<_>>());
        (outcome, subs.unwrap_or_default().join(" "))
    };
    let ann = signed(&json!({"sub": "ann", "channels": null, "subs": {"closed:own": null}}));
    for (token, channels, expected) in [
        ("", "a open:a closed:a a#ann", "open:a"),
        (ann.as_str(), "a closed:a $a a#bob \u{e9}", "a closed:own"),
        (ann.as_str(), "a#ann closed:own", "a#ann closed:own"),
    ] {
        assert_eq!(connect(token, channels).await, (0, expected.into()), "{channels}");
    }
    // A filter of such a subscription has no effect, whatever it is.
    let tf = Some(FilterNode { op: "no such".to_owned(), ..FilterNode::default() });
    let subs = [("open:a".to_owned(), SubscribeRequest { tf, ..SubscribeRequest::default() })].into();
    let request = ConnectRequest { subs, ..ConnectRequest::default() };
    assert_eq!(code(Login { node: &node, session: SESSION }.connect(connection(), 1, request).await), 0);
    let subscribing = messages(&node).into_iter().find_map(|message| match message {
        SessionMessage::Subscribing { kind, .. } => Some(kind.filter.is_none()),
        _ => None,
    });
    assert_eq!(subscribing, Some(true));
    assert_eq!(connect("", "no:such").await.0, -3501);
    assert_eq!(connect(&ann, "a b c").await.0, -3505);
    assert_eq!(connect(&ann, "a b").await.1, "a b closed:own");
}

#[tokio::test]
async fn a_session_without_credentials_is_a_bad_request() {
    let node = node_with(CONFIG).await;
    assert_eq!(code(connect(&node, "").await), -3501);
    assert_eq!(code(connect(&node, "no token").await), -3500);
}
