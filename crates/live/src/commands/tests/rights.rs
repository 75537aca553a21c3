//! Permissions, against the expressions of Centrifugo's documentation and source: `X_for_client &&
//! (user || X_for_anonymous)`, or `X_for_subscriber && subscribed && (user || X_for_anonymous)`.

use super::*;

/// A namespace for each combination of the three options, which are the bits of its number.
async fn all() -> Arc<Node> {
    let mut namespaces = Vec::new();
    for bits in 0..8 {
        let mut namespace = serde_json::json!({
            "name": format!("n{bits}"), "presence": true, "history_size": 5, "history_ttl": "60s",
            "allow_subscribe_for_client": bits & 1 > 0, "allow_subscribe_for_anonymous": bits & 4 > 0,
        });
        for what in ["publish", "presence", "history"] {
            for (bit, role) in [(1, "client"), (2, "subscriber"), (4, "anonymous")] {
                namespace[format!("allow_{what}_for_{role}")] = (bits & bit > 0).into();
            }
        }
        namespaces.push(namespace);
    }
    node_with(&serde_json::json!({"channel": {"namespaces": namespaces}}).to_string()).await
}

#[tokio::test]
async fn permissions_are_those_of_centrifugo() {
    let node = all().await;
    for bits in 0..8 {
        let (for_client, for_subscriber, for_anonymous) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
        for (user, subscribed) in [("", false), ("", true), ("ann", false), ("ann", true)] {
            let identity = Arc::new(SessionIdentity { user: user.into(), ..SessionIdentity::ann(connection()) });
            let caller = Caller { node: &node, session: SESSION, identity: &identity };
            let channel = || format!("n{bits}:c");
            let subscription = subscribed.then_some(false);
            let case = format!("{bits:03b} {user:?} {subscribed}");
            let identified = !user.is_empty() || for_anonymous;

            let request = SubscribeRequest { channel: channel(), ..SubscribeRequest::default() };
            let expected = if for_client && identified { 0 } else { 103 };
            assert_eq!(code(Subscriber(caller).command(1, request, None, 0).await), expected, "subscribe {case}");

            let allowed = for_client && identified || for_subscriber && subscribed && identified;
            let expected = if allowed { 0 } else { 103 };
            let request = PublishRequest { channel: channel(), data: b"1".to_vec().into() };
            let published = caller.publish(subscribed, request).await.map(drop);
            assert_eq!(code(published), expected, "publish {case}");
            let asks = [
                Command { presence: Some(ChannelRequest { channel: channel() }), ..Command::default() },
                Command { presence_stats: Some(ChannelRequest { channel: channel() }), ..Command::default() },
                Command {
                    history: Some(HistoryRequest { channel: channel(), ..HistoryRequest::default() }),
                    ..Command::default()
                },
            ];
            for command in asks {
                let what = format!("{command:?} {case}");
                let queued = QueuedCommand { command, subscribed: subscription, subscriptions: 0, over_rate: false };
                assert_eq!(code(caller.dispatch(queued).await), expected, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn user_limited_channels_need_the_option() {
    let config = r#"{"channel": {"namespaces": [
        {"name": "plain", "allow_subscribe_for_client": true},
        {"name": "users", "allow_subscribe_for_client": true, "allow_user_limited_channels": true},
        {"name": "closed"}]}}"#;
    let node = node_with(config).await;
    for (channel, expected) in [
        ("plain:a#bob", 0),
        ("users:a#bob", 103),
        ("users:a#ann", 0),
        ("users:a#bob#ann", 0),
        ("users:a#ann#bob", 103),
        ("users:a#bob,ann", 0),
        ("users:a", 0),
        ("closed:a#ann", 103),
    ] {
        let caller = Caller { node: &node, session: SESSION, identity: &Arc::new(SessionIdentity::ann(connection())) };
        let request = SubscribeRequest { channel: channel.into(), ..SubscribeRequest::default() };
        assert_eq!(code(Subscriber(caller).command(1, request, None, 0).await), expected, "{channel}");
    }
}
