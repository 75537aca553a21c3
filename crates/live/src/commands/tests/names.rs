//! Names of channels, formats and delivery of data, and what clients can write into the log.

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::protocol::message::RefreshRequest;

const CONFIG: &str = r#"{"channel": {"publication_data_format": "json_object", "without_namespace": {
        "allow_publish_for_client": true, "publication_data_format": "binary", "history_size": 9, "history_ttl": "60s",
        "force_recovery": true, "allowed_delta_types": ["fossil"], "allow_history_for_client": true, "allow_subscribe_for_client": true},
    "namespaces": [
        {"name": "json", "publication_data_format": "json", "allow_publish_for_client": true},
        {"name": "object", "allow_publish_for_client": true},
        {"name": "digits", "channel_regex": "^[0-9\u00e9]+$", "allow_publish_for_client": true}]},
    "client": {"token": {"hmac_secret_key": "s"}}}"#;

async fn publishes(node: &Node, channel: &str, data: &[u8]) -> i64 {
    let caller = Caller { node, session: SESSION, identity: &Arc::new(SessionIdentity::ann(connection())) };
    let request = PublishRequest { channel: channel.into(), data: data.to_vec().into() };
    match caller.publish(false, request).await {
        Ok(answer) => code(answer.await.map(drop).map_err(Refused::from)),
        Err(refused) => code(Err(refused)),
    }
}

#[tokio::test]
async fn names_are_ascii_or_match_the_namespace() {
    let node = node_with(CONFIG).await;
    for (channel, fits) in [
        ("c", true),
        ("c\n", true),
        ("\u{e9}", false),
        ("digits:12", true),
        ("digits:\u{e9}1", true),
        ("digits:a1", false),
        ("digits:\u{ea}", false),
    ] {
        let expected = if fits { 0 } else { 107 };
        assert_eq!(publishes(&node, channel, b"{}").await, expected, "{channel:?}");
        let identity = Arc::new(SessionIdentity::ann(connection()));
        let request = ChannelRequest { channel: channel.into() };
        let asks = [
            Command { presence: Some(request.clone()), ..Command::default() },
            Command { presence_stats: Some(request), ..Command::default() },
            Command {
                history: Some(HistoryRequest { channel: channel.into(), ..HistoryRequest::default() }),
                ..Command::default()
            },
            Command {
                subscribe: Some(SubscribeRequest { channel: channel.into(), ..SubscribeRequest::default() }),
                ..Command::default()
            },
        ];
        for command in asks {
            let queued = QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false };
            let code = code(Caller { node: &node, session: SESSION, identity: &identity }.dispatch(queued).await);
            assert_eq!(code == 107, !fits, "{channel:?}: {code}");
        }
    }
}

#[tokio::test]
async fn published_data_has_the_format_of_the_namespace() {
    let node = node_with(CONFIG).await;
    let all: [(&str, &[u8]); 6] = [
        ("object", b" {\"a\": 1}"),
        ("list", b"[1]"),
        ("null", b"null"),
        ("half", b"{"),
        ("bytes", b"\xff"),
        ("", b""),
    ];
    for (channel, taken) in [
        ("c", ["object", "list", "null", "half", "bytes", ""].as_slice()),
        ("json:c", &["object", "list", "null"]),
        ("object:c", &["object"]),
        ("digits:1", &["object"]),
    ] {
        for (name, data) in all {
            let expected = if taken.contains(&name) { 0 } else { 107 };
            assert_eq!(publishes(&node, channel, data).await, expected, "{channel}: {name}");
        }
    }
    let node = node_with(r#"{"channel": {"without_namespace": {"allow_publish_for_client": true}}}"#).await;
    assert_eq!([publishes(&node, "c", b"\xff").await, publishes(&node, "c", b"").await], [0, 107]);
}

#[tokio::test]
async fn json_sessions_skip_binary_data_and_keep_the_position() {
    let node = node_with(CONFIG).await;
    for data in [&b"1"[..], b"\xff", b"2", b"\xff"] {
        assert_eq!(publishes(&node, "c", data).await, 0);
    }
    let epoch = epoch_text(node.channels.channel("c").expect("there").position().await.expect("there").epoch);
    for (encoding, expected) in [(Encoding::Json, vec![1, 3]), (Encoding::Protobuf, vec![1, 2, 3, 4])] {
        let identity = Arc::new(SessionIdentity::ann(ConnectionInfo { encoding, ..connection() }));
        let caller = Caller { node: &node, session: SESSION, identity: &identity };
        let history = HistoryRequest { channel: "c".into(), limit: -1, ..HistoryRequest::default() };
        let command = Command { id: 1, history: Some(history), ..Command::default() };
        let queued = QueuedCommand { command, subscribed: None, subscriptions: 0, over_rate: false };
        let mut events = Vec::new();
        node.partitions.inboxes()[0].take(&mut events);
        assert_eq!(code(caller.dispatch(queued).await), 0);
        for delta in ["", "fossil"] {
            let (recover, epoch) = (true, epoch.clone());
            let delta = delta.into();
            let request = SubscribeRequest { channel: "c".into(), recover, epoch, delta, ..Default::default() };
            assert_eq!(code(Subscriber(caller).command(1, request, None, 0).await), 0);
        }
        events.clear();
        node.partitions.inboxes()[0].take(&mut events);
        let mut found = 0;
        for event in events {
            let crate::partition::WorkerEvent::To(_, message) = event else { continue };
            let (publications, offset) = match message {
                SessionMessage::Answer(reply, _) => {
                    let history = reply.history.expect("a history");
                    (history.publications, history.offset)
                }
                SessionMessage::Subscribed(start, crate::partition::SubscribeOutcome::Reply { answer, .. }) => {
                    assert!(answer.result.recovered && start.position.offset == 4);
                    // With all publications, the client reaches the offset itself.
                    let offset = if encoding == Encoding::Protobuf { 4 } else { answer.result.offset };
                    (answer.result.publications.clone(), offset)
                }
                _ => continue,
            };
            found += 1;
            let offsets: Vec<_> = publications.iter().map(|publication| publication.offset).collect();
            assert_eq!((offsets, offset), (expected.clone(), 4), "{encoding:?}");
        }
        assert_eq!(found, 3);
    }
}

/// Lines of the log: levels and formatted fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("steadfast_live")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().push((*event.metadata().level(), fields.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn clients_neither_forge_lines_of_the_log_nor_fill_it() {
    let node = node_with(CONFIG).await;
    let lines = Lines::default();
    let _here = tracing::subscriber::set_default(lines.clone());
    // The library quotes the header in its error.
    let forged =
        |text: &str| format!("{}.e30.AAAA", base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, text));
    let header = forged("{\"alg\":\"x\\nforged line\"}");
    for _ in 0..50 {
        assert_eq!(code(connect(&node, &header).await), -3500);
        let identity = Arc::new(SessionIdentity::ann(connection()));
        let caller = Caller { node: &node, session: SESSION, identity: &identity };
        let (channel, token) = ("c\nforged line".to_owned(), header.clone());
        let request = SubscribeRequest { channel, token: token.clone(), ..SubscribeRequest::default() };
        assert_eq!(code(Subscriber(caller).command(1, request, None, 0).await), 103);
        assert_eq!(
            code(
                Login { node: &node, session: SESSION }
                    .refresh(caller, Reply::default(), RefreshRequest { token })
                    .await
            ),
            -3500
        );
    }
    let lines = lines.0.lock();
    assert_eq!(lines.len(), 150, "debug lines are not throttled");
    assert!(lines.iter().all(|(_, line)| !line.contains('\n')), "{:?}", lines[0]);
    let seen = lines.iter().filter(|(level, _)| *level <= Level::INFO).count();
    assert_eq!(seen, 2, "one of each kind");
}

#[tokio::test]
async fn clients_leave_the_publish_reserve_of_a_disk_free() {
    let config = r#"{"channel": {"without_namespace":
        {"allow_publish_for_client": true, "history_size": 9, "history_ttl": "60s"}}}"#;
    let node = node_with(config).await;
    // The back end may fill more than half of the disk.
    let data = format!("\"{}\"", "x".repeat(60_000)).into_bytes();
    for n in 0..600 {
        let publication = Publication { data: data.clone().into(), ..Publication::default() };
        let published = node.publisher.publish(&format!("c{n}"), publication, Submission::default()).await;
        assert!(published.is_ok(), "{n}: {published:?}");
    }
    // The node notices that soon, and refuses clients.
    let mut small = 0;
    while publishes(&node, "small", b"1").await == 0 {
        small += 1;
    }
    assert_eq!(publishes(&node, "small", b"1").await, 100, "after {small}");
    // The back end may still publish.
    let publication = Publication { data: data.into(), ..Publication::default() };
    assert!(node.publisher.publish("c", publication, Submission::default()).await.is_ok());
}
