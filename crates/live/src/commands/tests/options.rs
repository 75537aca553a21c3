//! Options of sessions, with the effects of Centrifugo 6.9.1.

use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use steadfast_cluster::{ChannelsOptions, NodeAddress, Roster};

use super::tokens::messages;
use super::*;
use crate::protocol::message::{ConnectResult, RpcRequest};

fn signed(claims: &Value, secret: &str) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes())).expect("signed")
}

/// The outcome of a connect, its answer, and the user.
async fn connected(node: &Node, connection: ConnectionInfo, token: &str) -> (i64, Option<(ConnectResult, String)>) {
    let subs = [("asked".to_owned(), SubscribeRequest::default())].into();
    let request = ConnectRequest { token: token.to_owned(), subs, ..ConnectRequest::default() };
    let outcome = code(Login { node, session: SESSION }.connect(connection, 1, request).await);
    let answer = messages(node).into_iter().find_map(|message| match message {
        SessionMessage::Connected { identity, reply, .. } => Some((reply.connect?, identity.user.clone())),
        _ => None,
    });
    (outcome, answer)
}

async fn user(node: &Node, token: &str) -> Result<String, i64> {
    let (outcome, answer) = connected(node, connection(), token).await;
    answer.map(|(_, user)| user).ok_or(outcome)
}

#[tokio::test]
async fn the_previous_key_counts_until_its_end() {
    let ann = json!({"sub": "ann"});
    let now = Env::tokio().wall_ms() / 1000;
    for (until, expected) in [(0, true), (-5, true), (now as i64 + 100, true), (now as i64 - 100, false)] {
        let token = json!({"hmac_secret_key": "new", "hmac_previous_secret_key": "old", "hmac_previous_secret_key_valid_until": until});
        let node = node_of(&json!({"token": token}).to_string()).await;
        assert_eq!(user(&node, &signed(&ann, "new")).await, Ok("ann".to_owned()));
        let old = if expected { Ok("ann".to_owned()) } else { Err(-3500) };
        assert_eq!(user(&node, &signed(&ann, "old")).await, old, "{until}");
        assert_eq!(user(&node, &signed(&ann, "other")).await, Err(-3500));
    }
    let node = node_of(r#"{"token": {"hmac_previous_secret_key": "old"}}"#).await;
    assert_eq!(user(&node, &signed(&ann, "old")).await, Ok("ann".to_owned()));
}

#[tokio::test]
async fn a_claim_names_the_user() {
    let node = node_of(r#"{"token": {"hmac_secret_key": "s", "user_id_claim": "account.id"}}"#).await;
    for (claims, expected) in [
        (json!({"sub": "bob", "account": {"id": "ann"}}), "ann"),
        (json!({"account": {"id": 42}}), "42"),
        (json!({"sub": "bob", "account": {}}), ""),
    ] {
        assert_eq!(user(&node, &signed(&claims, "s")).await.as_deref(), Ok(expected), "{claims}");
    }
    let subscribes = async |claims: Value| {
        subscribe(&node, SubscribeRequest { token: signed(&claims, "s"), ..SubscribeRequest::default() }).await
    };
    assert_eq!(code(subscribes(json!({"sub": "bob", "channel": "c", "account": {"id": "ann"}})).await), 0);
    assert_eq!(code(subscribes(json!({"sub": "ann", "channel": "c"})).await), -3500);
}

#[tokio::test]
async fn expressions_select_issuers_and_audiences() {
    let token =
        r#"{"token": {"hmac_secret_key": "s", "issuer_regex": "^https://id/(one|two)$", "audience_regex": "live"}}"#;
    let node = node_of(token).await;
    for (iss, aud, fits) in [
        (json!("https://id/one"), json!("live"), true),
        (json!("https://id/two"), json!(["x", "my-live-app"]), true),
        (json!("https://id/three"), json!("live"), false),
        (json!("https://id/one"), json!(["x"]), false),
        (json!("https://id/one"), json!(["live", 7]), false),
        (json!(["https://id/one"]), json!("live"), false),
        (json!(null), json!("live"), false),
        (json!("https://id/one"), json!(null), false),
    ] {
        let claims = json!({"sub": "ann", "iss": iss, "aud": aud});
        assert_eq!(user(&node, &signed(&claims, "s")).await.is_ok(), fits, "{claims}");
    }
    let node = node_of(r#"{"token": {"hmac_secret_key": "s", "issuer_regex": "^$"}}"#).await;
    assert!(user(&node, &signed(&json!({}), "s")).await.is_ok(), "an absent issuer is empty");
}

#[tokio::test]
async fn tokens_without_a_user_may_be_refused() {
    let node = node_of(
        r#"{"token": {"hmac_secret_key": "s"}, "disallow_anonymous_connection_tokens": true,
        "allow_anonymous_connect_without_token": true}"#,
    )
    .await;
    assert_eq!(user(&node, &signed(&json!({}), "s")).await, Err(-3507));
    assert_eq!(user(&node, &signed(&json!({"sub": "ann"}), "s")).await, Ok("ann".to_owned()));
    assert_eq!(user(&node, "").await, Ok(String::new()));
}

#[tokio::test]
async fn signatures_may_be_skipped_but_not_claims() {
    let node = node_of(r#"{"insecure_skip_token_signature_verify": true, "token": {"issuer": "us"}}"#).await;
    let claims = json!({"sub": "ann", "iss": "us"});
    assert_eq!(user(&node, &signed(&claims, "any")).await, Ok("ann".to_owned()));
    // An algorithm that the library does not know: `{"alg":"XX"}`.
    let token = signed(&claims, "any");
    let (_, rest) = token.split_once('.').expect("three parts");
    assert_eq!(user(&node, &format!("eyJhbGciOiJYWCJ9.{rest}")).await, Ok("ann".to_owned()));
    assert_eq!(user(&node, &signed(&json!({"sub": "ann"}), "any")).await, Err(-3500));
    assert_eq!(user(&node, &signed(&json!({"iss": "us", "exp": 1}), "any")).await, Err(109));
    assert_eq!(user(&node, "nonsense").await, Err(-3500));
    assert_eq!(user(&node, "").await, Err(-3501));
}

/// As recorded from Centrifugo: such a session begins without channels.
#[tokio::test]
async fn a_header_of_the_request_names_the_user() {
    let client = |more: &str| {
        format!(
            r##"{{"client": {{"user_id_http_header": "X-User-Id", "token": {{"hmac_secret_key": "s"}},
            "subscribe_to_user_personal_channel": {{"enabled": true}} {more}}},
            "channel": {{"without_namespace": {{"allow_subscribe_for_client": true}}}}}}"##
        )
    };
    let node = node_with(&client("")).await;
    let with = |names: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in names {
            headers.append(*name, HeaderValue::from_static(value));
        }
        ConnectionInfo { headers: node.back_ends.proxies.kept(&headers), ..connection() }
    };
    let (outcome, answer) = connected(&node, with(&[("x-user-id", "ann"), ("x-user-id", "bob")]), "").await;
    let (result, user) = answer.expect("connected");
    assert_eq!((outcome, &*user, result.subs.len()), (0, "ann", 0));
    for refused in [with(&[]), with(&[("x-user-id", "")]), with(&[("x-other", "ann")])] {
        assert_eq!(connected(&node, refused, "").await.0, -3501);
    }
    // Headers in the connect command are the client's own.
    let headers = [("X-User-Id".to_owned(), "ann".to_owned())].into();
    let request = ConnectRequest { headers, ..ConnectRequest::default() };
    assert_eq!(code(Login { node: &node, session: SESSION }.connect(connection(), 1, request).await), -3501);
    // A token decides alone.
    let token = signed(&json!({"sub": "eve"}), "s");
    let (_, answer) = connected(&node, with(&[("x-user-id", "ann")]), &token).await;
    let (result, user) = answer.expect("connected");
    assert_eq!((&*user, result.subs.len()), ("eve", 2));
    // Where anonymous sessions are allowed, the header is not used, as in Centrifugo.
    let open = node_with(&client(r#", "allow_anonymous_connect_without_token": true"#)).await;
    let (_, answer) = connected(&open, with(&[("x-user-id", "ann")]), "").await;
    assert_eq!(answer.expect("connected").1, "");
}

#[tokio::test]
async fn the_time_is_in_answers_if_configured() {
    for (option, expected) in [("", false), (r#", "connect_include_server_time": true"#, true)] {
        let node = node_of(&format!(r#"{{"allow_anonymous_connect_without_token": true {option}}}"#)).await;
        let (_, answer) = connected(&node, connection(), "").await;
        assert_eq!(answer.expect("connected").0.time > 0, expected);
    }
}

#[tokio::test]
async fn a_new_session_may_end_the_other_ones_of_its_user() {
    let config = r##"{"client": {"token": {"hmac_secret_key": "s"}, "allow_anonymous_connect_without_token": true, "user_connection_limit": 1,
        "subscribe_to_user_personal_channel": {"enabled": true, "single_connection": true}},
        "channel": {"without_namespace": {"presence": true}}}"##;
    let node = node_with(config).await;
    let connect = async |slot: u32, user: &str| {
        let token = if user.is_empty() { String::new() } else { signed(&json!({"sub": user}), "s") };
        let request = ConnectRequest { token, ..ConnectRequest::default() };
        assert_eq!(
            code(Login { node: &node, session: SessionId { slot, ..SESSION } }.connect(connection(), 1, request).await),
            0
        );
        messages(&node).iter().filter(|m| matches!(m, SessionMessage::Disconnect(why) if why.code == 3504)).count()
    };
    for (slot, user, ended) in [(1, "ann", 0), (2, "bob", 0), (3, "ann", 1), (4, "", 0), (5, "", 0)] {
        assert_eq!(connect(slot, user).await, ended, "{slot}");
    }
}

#[tokio::test]
async fn a_cluster_cannot_end_the_other_sessions_of_a_user() {
    let config = r#"{"client": {"subscribe_to_user_personal_channel": {"enabled": true, "single_connection": true}},
        "channel": {"without_namespace": {"presence": true}}}"#;
    let node = |name: &str| NodeAddress { name: name.to_owned(), address: format!("{name}:7000"), standby: None };
    let nodes = ["a", "b"].map(node).to_vec();
    let roster = Arc::new(Roster::new("b", nodes, &["a".to_owned()]).expect("valid"));
    let homes = Channels::new(None, roster, &ChannelsOptions::default(), Env::tokio());
    let config = serde_json::from_str(config).expect("valid");
    let refused = Node::new(config, &limits(), homes, Env::tokio(), 1).map(drop).expect_err("refused");
    assert!(refused.0.contains("single_connection"), "{refused}");
}

#[tokio::test]
async fn the_server_answers_the_ping_method() {
    let node = node_with(r#"{"rpc": {"ping": {"enabled": true, "method": "pong"}}}"#).await;
    let other = node_with("{}").await;
    let identity = SessionIdentity::ann(connection());
    for (node, method, expected) in [(&node, "pong", 0), (&node, "ping", 104), (&other, "ping", 108)] {
        let request = RpcRequest { method: method.into(), ..RpcRequest::default() };
        let outcome = ProxyCalls(node).rpc(&identity, &request).await.map(|result| assert!(result.data.is_empty()));
        assert_eq!(code(outcome), expected, "{method}");
    }
}

#[tokio::test]
async fn the_newest_publication_may_come_with_each_subscription() {
    let options = r#""history_size": 5, "history_ttl": "60s", "force_recovery": true, "force_recovery_mode": "cache",
        "allow_subscribe_for_client": true"#;
    let config = format!(
        r#"{{"channel": {{"without_namespace": {{{options}, "auto_cache_recover": true}},
        "namespaces": [{{"name": "plain", {options}}}]}}}}"#
    );
    let node = node_with(&config).await;
    for (channel, expected) in [("c", true), ("plain:c", false)] {
        for n in [1, 2] {
            let publication = Publication { data: n.to_string().into_bytes().into(), ..Publication::default() };
            node.publisher.publish(channel, publication, Submission::default()).await.expect("published");
        }
        let identity = &Arc::new(SessionIdentity::ann(connection()));
        let request = SubscribeRequest { channel: channel.into(), ..SubscribeRequest::default() };
        let made = Subscriber(Caller { node: &node, session: SESSION, identity }).command(1, request, None, 0).await;
        assert_eq!(code(made), 0);
        let answer = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Subscribed(_, crate::partition::SubscribeOutcome::Reply { answer, .. }) => Some(answer),
            _ => None,
        });
        let result = answer.expect("subscribed").result.clone();
        let offsets: Vec<_> = result.publications.iter().map(|one| one.offset).collect();
        assert_eq!((result.recovered, result.was_recovering), (expected, expected), "{channel}");
        assert_eq!(offsets, if expected { vec![2] } else { vec![] }, "{channel}");
    }
}
