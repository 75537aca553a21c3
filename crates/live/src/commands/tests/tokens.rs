//! The required claims of tokens, and their effects.

use serde_json::{Value, json};

use super::*;
use crate::partition::{SubscribeOutcome, WorkerEvent};
use crate::protocol::message::{RefreshRequest, SubRefreshRequest};

fn signed(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(b"s")).expect("signed")
}

/// Claims with additions.
fn with(claims: &Value, more: &Value) -> Value {
    let mut all = claims.clone();
    for (name, value) in more.as_object().expect("claims") {
        all[name] = value.clone();
    }
    all
}

fn ann() -> Arc<SessionIdentity> {
    Arc::new(SessionIdentity::ann(connection()))
}

async fn subscribes(node: &Node, identity: &Arc<SessionIdentity>, claims: &Value) -> Result<(), Refused> {
    let request = SubscribeRequest { channel: "c".into(), token: signed(claims), ..SubscribeRequest::default() };
    Subscriber(Caller { node, session: SESSION, identity }).command(1, request, None, 0).await
}

async fn refreshes(node: &Node, identity: &Arc<SessionIdentity>, claims: &Value) -> Result<(), Refused> {
    let caller = Caller { node, session: SESSION, identity };
    Login { node, session: SESSION }.refresh(caller, Reply::default(), RefreshRequest { token: signed(claims) }).await
}

async fn sub_refreshes(node: &Node, identity: &Arc<SessionIdentity>, claims: &Value) -> Result<(), Refused> {
    let request = SubRefreshRequest { channel: "c".into(), token: signed(claims) };
    Subscriber(Caller { node, session: SESSION, identity }).refresh(Reply::default(), request, Some(false)).await
}

/// The messages to the session since the last call.
pub(super) fn messages(node: &Node) -> Vec<SessionMessage> {
    let mut events = Vec::new();
    node.partitions.inboxes()[0].take(&mut events);
    let to = |event| match event {
        WorkerEvent::To(_, message) => Some(message),
        _ => None,
    };
    events.into_iter().filter_map(to).collect()
}

/// The outcomes of a token in all four uses: two of sessions, two of subscriptions.
async fn everywhere(node: &Node, more: &Value) -> [i64; 4] {
    let (session, subscription) = (json!({"sub": "ann"}), json!({"sub": "ann", "channel": "c"}));
    let (session, subscription) = (with(&session, more), with(&subscription, more));
    [
        code(connect(node, &signed(&session)).await),
        code(refreshes(node, &ann(), &session).await),
        code(subscribes(node, &ann(), &subscription).await),
        code(sub_refreshes(node, &ann(), &subscription).await),
    ]
}

#[tokio::test]
async fn tokens_need_the_configured_audience_and_issuer() {
    let good = json!({"aud": "live", "iss": "us"});
    let token = r#"{"token": {"hmac_secret_key": "s", "audience": "live", "issuer": "us"}}"#;
    let own = r#"{"token": {"hmac_secret_key": "s", "audience": "live", "issuer": "us"},
        "subscription_token": {"enabled": true, "hmac_secret_key": "s", "audience": "live", "issuer": "us"}}"#;
    for client in [token, own] {
        let node = node_of(client).await;
        let refused = [-3500, -3500, 103, -3500];
        assert_eq!(everywhere(&node, &good).await, [0; 4]);
        assert_eq!(everywhere(&node, &with(&good, &json!({"aud": ["other", "live"]}))).await, [0; 4]);
        for aud in [
            json!(null),
            json!(7),
            json!(true),
            json!(""),
            json!("other"),
            json!("live "),
            json!([]),
            json!(["other"]),
            json!([["live"]]),
            json!(["live", 7]),
            json!({"live": "live"}),
        ] {
            assert_eq!(everywhere(&node, &with(&good, &json!({"aud": aud}))).await, refused, "aud: {aud}");
        }
        for iss in [json!(null), json!(7), json!(""), json!("other"), json!(["us"]), json!([]), json!({"us": "us"})] {
            assert_eq!(everywhere(&node, &with(&good, &json!({"iss": iss}))).await, refused, "iss: {iss}");
        }
        for absent in [json!({"iss": "us"}), json!({"aud": "live"}), json!({})] {
            assert_eq!(everywhere(&node, &absent).await, refused, "{absent}");
        }
    }
    // Without a configured audience or issuer, any claim is accepted.
    let node = node_of(r#"{"token": {"hmac_secret_key": "s"}}"#).await;
    for any in [json!({}), json!({"aud": 7, "iss": [1]}), good] {
        assert_eq!(everywhere(&node, &any).await, [0; 4], "{any}");
    }
}

#[tokio::test]
async fn times_are_numbers_or_strings_and_decide_about_reconnects() {
    let node = node_of(r#"{"token": {"hmac_secret_key": "s"}}"#).await;
    let now = node.env.wall_ms() as f64 / 1000.0;
    for fine in [
        json!({"exp": now + 60.5}),
        json!({"exp": format!("{}", now + 60.0)}),
        json!({"exp": null, "nbf": null}),
        json!({"nbf": now - 1.5}),
        json!({"nbf": (now as u64 - 5).to_string(), "expire_at": 0}),
    ] {
        assert_eq!(everywhere(&node, &fine).await, [0; 4], "{fine}");
    }
    // After 109 at connect an SDK gets another token; in a connected session it would give up.
    for over in [json!({"exp": now - 1.0}), json!({"exp": 0}), json!({"exp": "1.5"}), json!({"nbf": now + 60.0})] {
        assert_eq!(everywhere(&node, &over).await, [109, -3005, 109, 0], "{over}");
    }
    for wrong in [json!({"exp": true}), json!({"exp": "soon"}), json!({"nbf": []}), json!({"exp": "NaN"})] {
        assert_eq!(everywhere(&node, &wrong).await, [-3500, -3500, 103, -3500], "{wrong}");
    }
    // A subscription whose new token has expired is ended, so that its client subscribes again with
    // another one.
    messages(&node);
    let claims = json!({"sub": "ann", "channel": "c", "exp": 1});
    assert_eq!(code(sub_refreshes(&node, &ann(), &claims).await), 0);
    let messages = messages(&node);
    let [SessionMessage::Reply(reply), SessionMessage::Unsubscribed(channel, Some(push))] = &messages[..] else {
        panic!("two")
    };
    assert!(reply.sub_refresh.as_ref().is_some_and(|expiry| !expiry.expires) && &**channel == "c");
    let push = push.push.as_ref().and_then(|push| push.unsubscribe.as_ref()).expect("a push");
    assert_eq!(push.code, 2501);
}

#[tokio::test]
async fn the_connect_result_names_the_session() {
    let node = node().await;
    for name in [None, Some("a name")] {
        let connection = ConnectionInfo { session: name.map(Arc::from), ..connection() };
        assert_eq!(
            code(Login { node: &node, session: SESSION }.connect(connection, 1, ConnectRequest::default()).await),
            0
        );
        let connected = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Connected { reply, .. } => reply.connect,
            _ => None,
        });
        assert_eq!(connected.expect("connected").session, name.unwrap_or_default());
    }
}

#[tokio::test]
async fn the_connect_result_has_the_form_of_the_transport() {
    let node = node_of(r#"{"allow_anonymous_connect_without_token": true, "token": {"hmac_secret_key": "s"}}"#).await;
    for transport in Transport::ALL {
        let connection = || ConnectionInfo { transport, session: Some("s".into()), ..connection() };
        assert_eq!(
            code(Login { node: &node, session: SESSION }.connect(connection(), 7, ConnectRequest::default()).await),
            0
        );
        let reply = messages(&node).into_iter().find_map(|message| match message {
            SessionMessage::Connected { reply, .. } => Some(*reply),
            _ => None,
        });
        let reply = reply.expect("connected");
        let (id, result) = match reply.push {
            Some(push) => (reply.id, push.connect),
            None => (reply.id, reply.connect),
        };
        let (result, uni) = (result.expect("the result"), transport.is_unidirectional());
        assert_eq!((id, result.pong, &*result.session), (if uni { 0 } else { 7 }, !uni, "s"), "{transport:?}");
        let emulated = matches!(transport, Transport::Sse | Transport::HttpStream);
        assert_eq!(result.node, if emulated { &*node.start } else { "" }, "{transport:?}");
        // A refused command gets an error; a unidirectional session gets only the close code.
        let over = ConnectRequest { token: signed(&json!({"exp": 1})), ..ConnectRequest::default() };
        let command = Command { id: 7, connect: Some(over), ..Command::default() };
        let queued = QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false };
        CommandRun { node: &node, session: SESSION }.carry_out_first(connection(), vec![queued]).await;
        match &messages(&node)[..] {
            [SessionMessage::Reply(reply)] if !uni => assert_eq!(reply.error.as_ref().expect("refused").code, 109),
            [SessionMessage::Disconnect(why)] if uni => assert_eq!(*why, codes::SESSION_EXPIRED),
            _ => panic!("something else: {transport:?}"),
        }
    }
}

#[tokio::test]
async fn a_subscription_follows_its_token() {
    let config = r#"{"client": {"token": {"hmac_secret_key": "s"}},
        "channel": {"without_namespace": {"presence": true, "join_leave": true, "history_size": 5, "history_ttl": "60s"}}}"#;
    let node = node_with(config).await;
    let claims = json!({"sub": "ann", "channel": "c"});
    let made = async |more: Value| {
        assert_eq!(code(subscribes(&node, &ann(), &with(&claims, &more)).await), 0, "{more}");
        let (mut made, mut data) = (None, Vec::new());
        for message in messages(&node) {
            match message {
                SessionMessage::Subscribing { kind, .. } => made = Some(kind),
                SessionMessage::Subscribed(_, SubscribeOutcome::Reply { answer, .. }) => {
                    data = answer.result.data.clone()
                }
                _ => {}
            }
        }
        (made.expect("it is subscribed"), data)
    };
    // Many back ends write unset claims as null.
    made(json!({"client": null, "info": null, "b64info": null, "data": null, "b64data": null, "override": null})).await;
    let (kind, data) = made(json!({})).await;
    assert!(kind.presence && kind.announced && !kind.positioned && kind.info.is_empty() && data.is_empty());
    let overrides =
        json!({"presence": {"value": false}, "join_leave": {"value": false}, "force_positioning": {"value": true}});
    let (kind, data) = made(json!({"override": overrides, "info": {"n": 1}, "data": {"d": 1}})).await;
    assert!(!kind.presence && !kind.announced && kind.positioned);
    assert_eq!((&kind.info[..], &data[..]), (&b"{\"n\":1}"[..], &b"{\"d\":1}"[..]));
    // The Base64 claims take precedence.
    let (kind, data) = made(json!({"info": 1, "b64info": "e30=", "data": 1, "b64data": "eyJiIjoxfQ=="})).await;
    assert_eq!((&kind.info[..], &data[..]), (&b"{}"[..], &b"{\"b\":1}"[..]));
    for wrong in [json!({"b64info": "?"}), json!({"b64info": "/wA="}), json!({"override": {"presence": 1}})] {
        assert_eq!(code(subscribes(&node, &ann(), &with(&claims, &wrong)).await), 103, "{wrong}");
    }
    // A token for another session is invalid here.
    let named = |client: &str| with(&claims, &json!({"client": client}));
    let (own, other) = (Uuid::nil().to_string(), Uuid::from_u128(1).to_string());
    assert_eq!(code(subscribes(&node, &ann(), &named(&own)).await), 0);
    assert_eq!(code(subscribes(&node, &ann(), &named(&other)).await), -3500);
    assert_eq!(code(sub_refreshes(&node, &ann(), &named(&other)).await), -3500);
    for wrong in [json!({"sub": "bob"}), json!({"channel": "d"}), json!({"sub": null}), json!({"channel": null})] {
        let wrong = with(&claims, &wrong);
        assert_eq!(code(subscribes(&node, &ann(), &wrong).await), -3500, "{wrong}");
        assert_eq!(code(sub_refreshes(&node, &ann(), &wrong).await), -3500, "{wrong}");
    }
    messages(&node);
    let more = json!({"info": {"n": 2}, "client": own});
    assert_eq!(code(sub_refreshes(&node, &ann(), &with(&claims, &more)).await), 0);
    let messages = messages(&node);
    assert!(matches!(&messages[..], [SessionMessage::SubRefreshed { info, .. }] if info == b"{\"n\":2}"));
}

#[tokio::test]
async fn a_session_follows_its_token_and_the_next_one() {
    let node = node_of(r#"{"token": {"hmac_secret_key": "s"}}"#).await;
    let claims =
        json!({"sub": "ann", "channels": ["a"], "subs": {"b": {}}, "b64info": "eyJuIjoxfQ==", "meta": {"m": 1}});
    assert_eq!(code(connect(&node, &signed(&claims)).await), 0);
    let connected = messages(&node).into_iter().find_map(|message| match message {
        SessionMessage::Connected { identity, .. } => Some(identity),
        _ => None,
    });
    let identity = connected.expect("connected");
    let facts = |identity: &SessionIdentity| {
        let facts = identity.facts.read();
        (String::from_utf8_lossy(&facts.info).into_owned(), facts.meta.as_ref().map(|meta| meta.get().to_owned()))
    };
    assert_eq!(facts(&identity), (r#"{"n":1}"#.into(), Some(r#"{"m":1}"#.into())));
    // The same channels in another notation; absent claims leave the session unchanged.
    let bare = json!({"sub": "ann", "channels": ["b", "a", "a"]});
    let renamed = |messages: Vec<SessionMessage>| match &messages[..] {
        [SessionMessage::Refreshed { renamed, .. }] => *renamed,
        _ => panic!("refreshed"),
    };
    assert_eq!(code(refreshes(&node, &identity, &bare).await), 0);
    assert!(!renamed(messages(&node)));
    assert_eq!(facts(&identity), (r#"{"n":1}"#.into(), Some(r#"{"m":1}"#.into())));
    assert_eq!(code(refreshes(&node, &identity, &with(&bare, &json!({"info": {"n": 2}, "meta": 3}))).await), 0);
    assert!(renamed(messages(&node)));
    assert_eq!(facts(&identity), (r#"{"n":2}"#.into(), Some("3".into())));
    // With other channels the client reconnects and gets those.
    for channels in [json!(["a"]), json!(["a", "b", "c"]), json!(["a", "c"]), json!([])] {
        let changed = json!({"sub": "ann", "channels": channels});
        assert_eq!(code(refreshes(&node, &identity, &changed).await), -3010, "{changed}");
    }
    assert_eq!(code(refreshes(&node, &identity, &with(&bare, &json!({"sub": "bob"}))).await), -3500);
    assert_eq!(code(refreshes(&node, &identity, &with(&bare, &json!({"channel": "a"}))).await), -3500);
    for wrong in [json!({"b64info": "?"}), json!({"b64info": "/wA="})] {
        assert_eq!(code(connect(&node, &signed(&with(&bare, &wrong))).await), -3500, "{wrong}");
    }
}
