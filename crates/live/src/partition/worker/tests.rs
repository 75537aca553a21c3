//! A worker with a session over a real socket and a fake hub.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Budget, Lease, Panicked, TokioRuntime};
use steadfast_store::Position;
use tokio::sync::oneshot;

use super::*;
use crate::answer::SubscribeAnswer;
use crate::outgoing::Outgoing;
use crate::partition::{CommandSource, QueuedCommand, SubscribeOutcome, SubscriptionKind, SubscriptionStart};
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::protocol::message::{HistoryResult, Publication, Push, Reply, Subscribe, SubscribeResult};
use crate::session::{ConnectionInfo, SessionIdentity};

mod slow_readers;

/// Bytes that may be queued for a session.
const QUEUE: usize = 1 << 20;

/// Longer than any step of these tests takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// Records which session sends commands and which channels were unsubscribed.
struct Recorder {
    requests: SyncSender<SessionId>,
    /// It panics at a join.
    poisoned: bool,
    ticks: AtomicU64,
    /// Number of executed commands of the sessions.
    carried_out: AtomicUsize,
    left: Mutex<Vec<String>>,
    /// Both clocks, milliseconds.
    now_ms: AtomicU64,
}

impl Hub for Recorder {
    fn carry_out(&self, session: SessionId, _: CommandSource, commands: Vec<QueuedCommand>) {
        self.carried_out.fetch_add(commands.len(), Relaxed);
        let _ = self.requests.try_send(session);
    }

    fn refresh(&self, _: SessionId, _: Arc<SessionIdentity>) {}

    fn sub_refresh(&self, _: SessionId, _: Arc<SessionIdentity>, _: Arc<str>) {}

    #[allow(clippy::panic, reason = "what is tested")]
    fn on_subscribed(&self, _: &Arc<SessionIdentity>, _: &Arc<str>, _: &SubscriptionKind) {
        if self.poisoned {
            panic!("a hub that panics");
        }
    }

    fn set_presence(&self, _: &Arc<SessionIdentity>, _: &Arc<str>, _: &SubscriptionKind) {}

    fn on_unsubscribed(
        &self,
        _: SessionId,
        _: Option<&Arc<SessionIdentity>>,
        channel: &Arc<str>,
        _: &SubscriptionKind,
    ) {
        self.left.lock().push(channel.as_ref().to_owned());
    }

    fn on_disconnected(&self, _: SessionId, _: Option<&Arc<SessionIdentity>>) {}

    fn wall_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    fn delivered(&self) {}

    fn tick(&self) {
        self.ticks.fetch_add(1, Relaxed);
    }
}

/// JSON of `bytes` bytes.
fn text(bytes: usize) -> Vec<u8> {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))).into_bytes()
}

fn connection() -> ConnectionInfo {
    ConnectionInfo::of(Encoding::Json, Transport::WebSocket)
}

/// A worker, and a session in it.
struct Scene {
    inbox: Arc<Inbox>,
    hub: Arc<Recorder>,
    client: TcpStream,
    session: SessionId,
    thread: Option<JoinHandle<()>>,
    attempts: u64,
    env: Env,
}

impl Scene {
    /// A session that may have two subscriptions.
    fn new() -> Self {
        Self::with(false, TokioRuntime::current)
    }

    fn with(poisoned: bool, runtime: impl FnOnce() -> TokioRuntime) -> Self {
        let (requests, received): (_, Receiver<SessionId>) = sync_channel(4);
        let hub = Arc::new(Recorder {
            requests,
            poisoned,
            now_ms: 1.into(),
            ticks: 0.into(),
            carried_out: 0.into(),
            left: Mutex::default(),
        });
        let inbox = Arc::new(Inbox::new().expect("an inbox"));
        let bounds = Bounds {
            message_bytes_max: 1 << 16,
            queue_bytes_max: QUEUE,
            stall_ms: 5_000,
            client_bytes_s_min: 0,
            ping_ms: 60_000,
            pong_ms: 60_000,
            stale_ms: 60_000,
            expired_ms: 5_000,
            expired_sub_ms: 2_000,
            publish_rate: 0,
            channels_max: 2,
            refreshes: false,
        };
        let tokio = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let env = tokio.block_on(async { Env::new(runtime()) });
        let thread = start(0, inbox.clone(), hub.clone(), bounds, &env).expect("a worker");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        // Unread bytes queue up in the server.
        rustix::net::sockopt::set_socket_recv_buffer_size(&client, 16 << 10).expect("a socket");
        client.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let (socket, _) = listener.accept().expect("accepted");
        socket.set_nonblocking(true).expect("a socket");
        let opened = Opened {
            socket,
            leftover: websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#),
            connection: connection(),
            permit: None,
            unconnected: None,
            lease: Lease::unlimited(&env),
        };
        inbox.send(WorkerEvent::Open(Box::new(opened)));
        let session = received.recv_timeout(DEADLINE).expect("its connect command");
        Self { inbox, hub, client, session, thread: Some(thread), attempts: 0, env }
    }

    fn send(&self, message: SessionMessage) {
        self.inbox.send(WorkerEvent::To(self.session, message));
    }

    fn connect(&mut self) {
        self.connect_until(None);
    }

    fn connect_until(&mut self, expires_ms: Option<u64>) {
        let identity = Arc::new(SessionIdentity::ann(connection()));
        let reply = Box::new(Reply { id: 1, ..Reply::default() });
        self.send(SessionMessage::Connected {
            identity,
            expires_ms,
            reply,
            subscribed: Vec::new(),
            permits: Vec::new(),
        });
        assert_eq!(self.next_message(), r#"{"id":1}"#);
    }

    /// The next message.
    fn next_message(&mut self) -> String {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 1);
        String::from_utf8(payload).expect("text")
    }

    /// The opcode and payload of the next frame.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.client.read_exact(&mut head).expect("a frame");
        let mut len = [0; 8];
        let len = match head[1] {
            126 => {
                self.client.read_exact(&mut len[6..]).expect("a length");
                u64::from_be_bytes(len)
            }
            127 => {
                self.client.read_exact(&mut len).expect("a length");
                u64::from_be_bytes(len)
            }
            len => u64::from(len),
        };
        let mut payload = vec![0; len as usize];
        self.client.read_exact(&mut payload).expect("a frame");
        (head[0] & 15, payload)
    }

    /// Subscribes the session to `room`, with an answer of `bytes` bytes to command `id`.
    fn subscribes(&mut self, id: u32, bytes: usize, attempt: u64) {
        let kind = Box::new(SubscriptionKind { positioned: true, ..SubscriptionKind::default() });
        self.send(SessionMessage::Subscribing { channel: "room".into(), attempt, kind, from_server: false });
        let publications = vec![Publication { data: text(bytes).into(), offset: 1, ..Publication::default() }];
        let answer = SubscribeAnswer::new(SubscribeResult { publications, ..SubscribeResult::default() });
        let start = SubscriptionStart { channel: "room".into(), attempt, position: Position { epoch: 1, offset: 1 } };
        self.send(SessionMessage::Subscribed(start, SubscribeOutcome::Reply { id, answer: Arc::new(answer) }));
    }

    fn published(&self, offset: u64, bytes: usize) {
        let publication = Publication { data: text(bytes).into(), offset, ..Publication::default() };
        self.inbox.send(WorkerEvent::Publication(Arc::new(Outgoing::new("room".into(), 1, publication, None))));
    }

    /// Advances the clock, and waits until the worker has seen it.
    fn advance(&self, ms: u64) {
        self.hub.now_ms.fetch_add(ms, Relaxed);
        let ticks = self.hub.ticks.load(Relaxed);
        while self.hub.ticks.load(Relaxed) == ticks {
            std::thread::yield_now();
        }
    }

    /// Waits until the worker has delivered all publications and pushes.
    fn wait_until_delivered(&self) {
        while self.inbox.backlog() > 0 {
            std::thread::yield_now();
        }
    }

    fn ended(&self) -> bool {
        self.inbox.sessions.load(Relaxed) == 0
    }

    fn begin(&mut self, channel: &str, from_server: bool) -> SubscriptionStart {
        self.attempts += 1;
        let (channel, attempt): (Arc<str>, u64) = (channel.into(), self.attempts);
        self.send(SessionMessage::Subscribing { channel: channel.clone(), attempt, kind: Box::default(), from_server });
        SubscriptionStart { channel, attempt, position: Position::default() }
    }

    fn push(&self, start: SubscriptionStart) -> Option<Result<(), crate::protocol::ClientError>> {
        let subscribe = Some(Subscribe::default());
        let push = Box::new(Push { channel: start.channel.as_ref().into(), subscribe, ..Push::default() });
        let (done, outcome) = oneshot::channel();
        self.send(SessionMessage::Subscribed(
            start,
            SubscribeOutcome::Push { push, missed: Vec::new(), permits: Vec::new(), done },
        ));
        outcome.blocking_recv().ok()
    }

    fn reply(&self, start: SubscriptionStart, id: u32) {
        let answer = Arc::new(SubscribeAnswer::new(SubscribeResult::default()));
        self.send(SessionMessage::Subscribed(start, SubscribeOutcome::Reply { id, answer }));
    }

    fn left(&self) -> Vec<String> {
        std::mem::take(&mut self.hub.left.lock())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.inbox.send(WorkerEvent::Stop);
        let _ = self.client.flush();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_session_has_a_channel_once() {
    let mut scene = Scene::new();
    scene.connect();
    let (by_client, by_server) = (scene.begin("room", false), scene.begin("room", true));
    assert_eq!(scene.push(by_server), Some(Ok(())), "it is subscribed");
    assert_eq!(scene.left(), ["room"], "the second attempt is released");
    scene.reply(by_client, 7);
    assert_eq!(scene.next_message(), r#"{"id":7,"subscribe":{}}"#, "the first attempt succeeds without a push");
    let (by_server, by_client) = (scene.begin("other", true), scene.begin("other", false));
    assert_eq!(scene.push(by_server), Some(Ok(())));
    assert_eq!(scene.next_message(), r#"{"push":{"channel":"other","subscribe":{}}}"#);
    scene.reply(by_client, 8);
    assert!(scene.next_message().contains(r#""code":105"#), "already subscribed");
    assert_eq!(scene.left(), ["other"]);
}

#[test]
fn a_refused_attempt_does_not_end_the_subscription() {
    let mut scene = Scene::new();
    scene.connect();
    let (first, second) = (scene.begin("room", false), scene.begin("room", true));
    scene.send(SessionMessage::NotSubscribed(second.channel, second.attempt));
    scene.reply(first, 7);
    assert_eq!(scene.next_message(), r#"{"id":7,"subscribe":{}}"#);
    // A subscription that the back end ended before it completed is not reported as made.
    let third = scene.begin("ended", false);
    scene.send(SessionMessage::Unsubscribed("ended".into(), None));
    scene.reply(third, 8);
    assert!(scene.next_message().contains(r#""code":103"#));
    assert_eq!(scene.left(), ["room", "ended"]);
}

#[test]
fn subscriptions_by_the_server_are_bounded_and_follow_the_connect() {
    let mut scene = Scene::new();
    let early = scene.begin("early", true);
    assert_eq!(scene.push(early), Some(Ok(())));
    assert_eq!(scene.left(), ["early"]);
    scene.connect();
    for channel in ["a", "b"] {
        let start = scene.begin(channel, true);
        assert_eq!(scene.push(start), Some(Ok(())));
        assert!(scene.next_message().contains(&format!(r#""channel":"{channel}""#)), "without the early one");
    }
    let start = scene.begin("c", true);
    assert_eq!(scene.push(start), Some(Err(codes::LIMIT_EXCEEDED)));
    assert_eq!(scene.left(), ["c"]);
}

#[test]
fn json_sessions_skip_binary_publications() {
    let mut scene = Scene::new();
    scene.connect();
    scene.attempts += 1;
    let (channel, attempt): (Arc<str>, u64) = ("room".into(), scene.attempts);
    for delta in [false, true] {
        let kind = Box::new(SubscriptionKind { positioned: true, delta, ..SubscriptionKind::default() });
        scene.send(SessionMessage::Subscribing { channel: channel.clone(), attempt, kind, from_server: false });
        scene.reply(SubscriptionStart { channel: channel.clone(), attempt, position: Position::default() }, 7);
        assert_eq!(scene.next_message(), r#"{"id":7,"subscribe":{}}"#);
        let mut previous = None;
        for (offset, data) in (1..).zip([&b"1"[..], b"\xff", b"half {", b"4"]) {
            let publication = Publication { offset, data: data.to_vec().into(), ..Publication::default() };
            let outgoing = Arc::new(Outgoing::new(channel.clone(), 1, publication, previous.take()));
            previous = Some(Arc::new(outgoing.without_previous()));
            scene.inbox.send(WorkerEvent::Publication(outgoing));
        }
        let quote = if delta { "\"" } else { "" };
        for (offset, data) in [(1, "1"), (4, "4")] {
            let push = format!(r#"{{"data":{quote}{data}{quote},"offset":{offset}}}"#);
            assert_eq!(scene.next_message(), format!(r#"{{"push":{{"channel":"room","pub":{push}}}}}"#));
        }
        scene.send(SessionMessage::Unsubscribed(channel.clone(), None));
    }
    assert_eq!(crate::metrics::Sums::of(std::iter::once(&scene.inbox.counters)).skipped, 4);
}

/// A client that subscribed itself subscribes again; one that the server subscribed connects again,
/// as does one whose answer was made before the reset.
#[test]
fn a_reset_makes_clients_recover() {
    let end = |scene: &mut Scene| {
        let mut frame = [0; 4];
        scene.client.read_exact(&mut frame).expect("the end");
        (frame[0], u16::from_be_bytes([frame[2], frame[3]]))
    };
    let reset = || WorkerEvent::Reset("room".into(), Position { epoch: 2, offset: 9 });
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 1, 1);
    scene.next_message();
    scene.inbox.send(reset());
    assert!(scene.next_message().contains(r#""unsubscribe":{"code":2500"#));
    assert_eq!(scene.left(), ["room"]);
    let kind = || Box::new(SubscriptionKind { positioned: true, ..SubscriptionKind::default() });
    let subscribing =
        |attempt| SessionMessage::Subscribing { channel: "room".into(), attempt, kind: kind(), from_server: false };
    for (attempt, epoch) in [(2, 2), (3, 1)] {
        scene.send(subscribing(attempt));
        scene.inbox.send(reset());
        scene.reply(SubscriptionStart { channel: "room".into(), attempt, position: Position { epoch, offset: 9 } }, 8);
        assert_eq!(scene.next_message(), r#"{"id":8,"subscribe":{}}"#);
        if epoch == 2 {
            scene.send(SessionMessage::Unsubscribed("room".into(), None));
        }
    }
    assert_eq!(end(&mut scene), (0x88, 3010), "the answer was of another epoch");
}

#[test]
fn expiries_are_exact_and_independent_of_pings() {
    let mut scene = Scene::new();
    scene.connect_until(Some(10_000));
    scene.attempts += 1;
    let (channel, attempt): (Arc<str>, u64) = ("room".into(), scene.attempts);
    let kind = Box::new(SubscriptionKind { expires_ms: Some(3_000), ..SubscriptionKind::default() });
    scene.send(SessionMessage::Subscribing { channel: channel.clone(), attempt, kind, from_server: false });
    scene.reply(SubscriptionStart { channel, attempt, position: Position::default() }, 7);
    assert_eq!(scene.next_message(), r#"{"id":7,"subscribe":{}}"#);
    // A reply in between proves that nothing has ended before it.
    let between = |scene: &mut Scene, now_ms: u64| {
        scene.hub.now_ms.store(now_ms, Relaxed);
        scene.send(SessionMessage::Refreshed { expires_ms: Some(10_000), renamed: false, reply: None });
        scene.send(SessionMessage::Reply(Box::new(Reply { id: 9, ..Reply::default() })));
        assert_eq!(scene.next_message(), r#"{"id":9}"#, "{now_ms}");
    };
    between(&mut scene, 4_999);
    scene.hub.now_ms.store(5_300, Relaxed);
    assert!(scene.next_message().contains(r#""unsubscribe":{"code":2501"#));
    between(&mut scene, 14_900);
    scene.hub.now_ms.store(15_200, Relaxed);
    let mut frame = [0; 4];
    scene.client.read_exact(&mut frame).expect("the end");
    assert_eq!((frame[0], u16::from_be_bytes([frame[2], frame[3]])), (0x88, 3005));
}

#[test]
fn the_panic_of_a_worker_is_reported() {
    static PANICS: Mutex<Vec<Panicked>> = Mutex::new(Vec::new());
    let mut scene = Scene::with(true, || TokioRuntime::current().on_panic(|panic| PANICS.lock().push(panic.clone())));
    scene.connect();
    let kind = Box::new(SubscriptionKind { presence: true, ..SubscriptionKind::default() });
    scene.send(SessionMessage::Subscribing { channel: "room".into(), attempt: 1, kind, from_server: false });
    scene.reply(SubscriptionStart { channel: "room".into(), attempt: 1, position: Position::default() }, 7);
    assert!(scene.thread.take().expect("a running worker").join().is_err());
    let panics = PANICS.lock().clone();
    assert_eq!(panics, [Panicked { task: "live worker", message: "a hub that panics".into() }]);
}
