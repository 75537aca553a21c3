//! A worker with a session over a real socket; the rest of the server is made up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_flow::{Budget, Panicked, TokioRuntime};
use tokio::sync::oneshot;

use super::*;
use crate::answer::SubscribeAnswer;
use crate::outgoing::Outgoing;
use crate::partition::{Arrived, Asked, Asker, Place, SubscriptionKind, Told, Transport, Who};
use crate::protocol::Encoding;
use crate::protocol::message::{HistoryResult, Publication, Push, Reply, Subscribe, SubscribeResult};

mod slow_readers;

/// Bytes that may wait for a session.
const QUEUE: usize = 1 << 20;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// Says which session asks, and which channels were left.
struct Recorder {
    asks: SyncSender<SessionId>,
    /// It panics at a join.
    poisoned: bool,
    ticks: AtomicU64,
    /// Commands that were carried out: those of the sessions.
    carried_out: AtomicUsize,
    left: Mutex<Vec<String>>,
    /// Both clocks, milliseconds.
    now_ms: AtomicU64,
}

impl Hub for Recorder {
    fn carry_out(&self, session: SessionId, _: Asker, commands: Vec<Asked>) {
        self.carried_out.fetch_add(commands.len(), Relaxed);
        let _ = self.asks.try_send(session);
    }

    fn refresh(&self, _: SessionId, _: Arc<Who>) {}

    fn sub_refresh(&self, _: SessionId, _: Arc<Who>, _: Arc<str>) {}

    #[allow(clippy::panic, reason = "what is tested")]
    fn joined(&self, _: &Arc<Who>, _: &Arc<str>, _: &SubscriptionKind) {
        if self.poisoned {
            panic!("a hub that panics");
        }
    }

    fn set_presence(&self, _: &Arc<Who>, _: &Arc<str>, _: &SubscriptionKind) {}

    fn left(&self, _: SessionId, _: Option<&Arc<Who>>, channel: &Arc<str>, _: &SubscriptionKind) {
        self.left.lock().push(channel.as_ref().to_owned());
    }

    fn gone(&self, _: SessionId, _: Option<&Arc<Who>>) {}

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

/// JSON of so many bytes.
fn text(bytes: usize) -> Vec<u8> {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))).into_bytes()
}

fn arrived() -> Arrived {
    Arrived::of(Encoding::Json, Transport::WebSocket)
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
        let (asks, asked): (_, Receiver<SessionId>) = sync_channel(4);
        let hub = Arc::new(Recorder {
            asks,
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
        // What is not read waits in the server.
        rustix::net::sockopt::set_socket_recv_buffer_size(&client, 16 << 10).expect("a socket");
        client.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let (socket, _) = listener.accept().expect("accepted");
        socket.set_nonblocking(true).expect("a socket");
        let opened = Opened {
            socket,
            leftover: websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#),
            arrived: arrived(),
            place: None,
            unconnected: None,
        };
        inbox.send(Event::Open(Box::new(opened)));
        let session = asked.recv_timeout(DEADLINE).expect("its connect command");
        Self { inbox, hub, client, session, thread: Some(thread), attempts: 0, env }
    }

    fn tell(&self, what: ToSession) {
        self.inbox.send(Event::To(self.session, what));
    }

    fn connect(&mut self) {
        self.connect_until(None);
    }

    fn connect_until(&mut self, expires_ms: Option<u64>) {
        let who = Arc::new(Who::ann(arrived()));
        let reply = Box::new(Reply { id: 1, ..Reply::default() });
        self.tell(ToSession::Connected { who, expires_ms, reply, subscribed: Vec::new(), permits: Vec::new() });
        assert_eq!(self.hears(), r#"{"id":1}"#);
    }

    /// The next message.
    fn hears(&mut self) -> String {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 1);
        String::from_utf8(payload).expect("text")
    }

    /// The next frame: what kind, and what is in it.
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

    /// The session is subscribed to `room`, answered as command `id` with so many bytes, and with what follows.
    fn subscribes(&mut self, id: u32, bytes: usize, attempt: u64) {
        let kind = Box::new(SubscriptionKind { positioned: true, ..SubscriptionKind::default() });
        self.tell(ToSession::Subscribing { channel: "room".into(), attempt, kind, unasked: false });
        let publications = vec![Publication { data: text(bytes), offset: 1, ..Publication::default() }];
        let answer = SubscribeAnswer::new(SubscribeResult { publications, ..SubscribeResult::default() });
        let place = Place { channel: "room".into(), attempt, offset: 1 };
        self.tell(ToSession::Subscribed(place, Told::Reply { id, answer: Arc::new(answer) }));
    }

    fn published(&self, offset: u64, bytes: usize) {
        let publication = Publication { data: text(bytes), offset, ..Publication::default() };
        self.inbox.send(Event::Publication(Arc::new(Outgoing::new("room".into(), 1, publication, None))));
    }

    /// Lets so much time pass, and waits until the worker has seen it.
    fn passes(&self, ms: u64) {
        self.hub.now_ms.fetch_add(ms, Relaxed);
        let ticks = self.hub.ticks.load(Relaxed);
        while self.hub.ticks.load(Relaxed) == ticks {
            std::thread::yield_now();
        }
    }

    /// Waits until the worker has dealt with all that it was told.
    fn dealt(&self) {
        while self.inbox.backlog() > 0 {
            std::thread::yield_now();
        }
    }

    fn ended(&self) -> bool {
        self.inbox.sessions.load(Relaxed) == 0
    }

    fn begin(&mut self, channel: &str, unasked: bool) -> Place {
        self.attempts += 1;
        let (channel, attempt): (Arc<str>, u64) = (channel.into(), self.attempts);
        self.tell(ToSession::Subscribing { channel: channel.clone(), attempt, kind: Box::default(), unasked });
        Place { channel, attempt, offset: 0 }
    }

    fn push(&self, place: Place) -> Option<Result<(), crate::protocol::ClientError>> {
        let subscribe = Some(Subscribe::default());
        let push = Box::new(Push { channel: place.channel.as_ref().into(), subscribe, ..Push::default() });
        let (done, told) = oneshot::channel();
        self.tell(ToSession::Subscribed(place, Told::Push { push, missed: Vec::new(), permits: Vec::new(), done }));
        told.blocking_recv().ok()
    }

    fn reply(&self, place: Place, id: u32) {
        let answer = Arc::new(SubscribeAnswer::new(SubscribeResult::default()));
        self.tell(ToSession::Subscribed(place, Told::Reply { id, answer }));
    }

    fn left(&self) -> Vec<String> {
        std::mem::take(&mut self.hub.left.lock())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.inbox.send(Event::Stop);
        let _ = self.client.flush();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_session_has_a_channel_once_whoever_subscribes_it_first() {
    let mut scene = Scene::new();
    scene.connect();
    let (by_client, by_server) = (scene.begin("room", false), scene.begin("room", true));
    assert_eq!(scene.push(by_server), Some(Ok(())), "it is as it was wanted");
    assert_eq!(scene.left(), ["room"], "what the second attempt took is given back");
    scene.reply(by_client, 7);
    assert_eq!(scene.hears(), r#"{"id":7,"subscribe":{}}"#, "the first attempt went on, and no push came");
    let (by_server, by_client) = (scene.begin("other", true), scene.begin("other", false));
    assert_eq!(scene.push(by_server), Some(Ok(())));
    assert_eq!(scene.hears(), r#"{"push":{"channel":"other","subscribe":{}}}"#);
    scene.reply(by_client, 8);
    assert!(scene.hears().contains(r#""code":105"#), "already subscribed");
    assert_eq!(scene.left(), ["other"]);
}

#[test]
fn an_attempt_that_was_not_let_in_does_not_end_the_one_that_was() {
    let mut scene = Scene::new();
    scene.connect();
    let (first, second) = (scene.begin("room", false), scene.begin("room", true));
    scene.tell(ToSession::NotSubscribed(second.channel, second.attempt));
    scene.reply(first, 7);
    assert_eq!(scene.hears(), r#"{"id":7,"subscribe":{}}"#);
    // One that the back end ended before it was made is not told of as made.
    let third = scene.begin("ended", false);
    scene.tell(ToSession::Unsubscribed("ended".into(), None));
    scene.reply(third, 8);
    assert!(scene.hears().contains(r#""code":103"#));
    assert_eq!(scene.left(), ["room", "ended"]);
}

#[test]
fn what_the_back_end_wants_keeps_to_the_bound_and_comes_after_the_connect() {
    let mut scene = Scene::new();
    let early = scene.begin("early", true);
    assert_eq!(scene.push(early), Some(Ok(())));
    assert_eq!(scene.left(), ["early"]);
    scene.connect();
    for channel in ["a", "b"] {
        let place = scene.begin(channel, true);
        assert_eq!(scene.push(place), Some(Ok(())));
        assert!(scene.hears().contains(&format!(r#""channel":"{channel}""#)), "and nothing of the early one");
    }
    let place = scene.begin("c", true);
    assert_eq!(scene.push(place), Some(Err(codes::LIMIT_EXCEEDED)));
    assert_eq!(scene.left(), ["c"]);
}

#[test]
fn what_json_cannot_say_is_left_out_and_the_session_goes_on() {
    let mut scene = Scene::new();
    scene.connect();
    scene.attempts += 1;
    let (channel, attempt): (Arc<str>, u64) = ("room".into(), scene.attempts);
    for delta in [false, true] {
        let kind = Box::new(SubscriptionKind { positioned: true, delta, ..SubscriptionKind::default() });
        scene.tell(ToSession::Subscribing { channel: channel.clone(), attempt, kind, unasked: false });
        scene.reply(Place { channel: channel.clone(), attempt, offset: 0 }, 7);
        assert_eq!(scene.hears(), r#"{"id":7,"subscribe":{}}"#);
        let mut previous = None;
        for (offset, data) in (1..).zip([&b"1"[..], b"\xff", b"half {", b"4"]) {
            let publication = Publication { offset, data: data.to_vec(), ..Publication::default() };
            let outgoing = Arc::new(Outgoing::new(channel.clone(), 1, publication, previous.take()));
            previous = Some(Arc::new(outgoing.without_previous()));
            scene.inbox.send(Event::Publication(outgoing));
        }
        let quote = if delta { "\"" } else { "" };
        for (offset, data) in [(1, "1"), (4, "4")] {
            let push = format!(r#"{{"data":{quote}{data}{quote},"offset":{offset}}}"#);
            assert_eq!(scene.hears(), format!(r#"{{"push":{{"channel":"room","pub":{push}}}}}"#));
        }
        scene.tell(ToSession::Unsubscribed(channel.clone(), None));
    }
    assert_eq!(crate::metrics::Sums::of(std::iter::once(&scene.inbox.counters)).left_out, 4);
}

#[test]
fn what_is_over_ends_when_its_time_is_up_and_not_at_the_next_ping() {
    let mut scene = Scene::new();
    scene.connect_until(Some(10_000));
    scene.attempts += 1;
    let (channel, attempt): (Arc<str>, u64) = ("room".into(), scene.attempts);
    let kind = Box::new(SubscriptionKind { expires_ms: Some(3_000), ..SubscriptionKind::default() });
    scene.tell(ToSession::Subscribing { channel: channel.clone(), attempt, kind, unasked: false });
    scene.reply(Place { channel, attempt, offset: 0 }, 7);
    assert_eq!(scene.hears(), r#"{"id":7,"subscribe":{}}"#);
    // A push in between: nothing has ended before it.
    let between = |scene: &mut Scene, now_ms: u64| {
        scene.hub.now_ms.store(now_ms, Relaxed);
        scene.tell(ToSession::Refreshed { expires_ms: Some(10_000), renamed: false, reply: None });
        scene.tell(ToSession::Reply(Box::new(Reply { id: 9, ..Reply::default() })));
        assert_eq!(scene.hears(), r#"{"id":9}"#, "{now_ms}");
    };
    between(&mut scene, 4_999);
    scene.hub.now_ms.store(5_300, Relaxed);
    assert!(scene.hears().contains(r#""unsubscribe":{"code":2501"#));
    between(&mut scene, 14_900);
    scene.hub.now_ms.store(15_200, Relaxed);
    let mut frame = [0; 4];
    scene.client.read_exact(&mut frame).expect("the end");
    assert_eq!((frame[0], u16::from_be_bytes([frame[2], frame[3]])), (0x88, 3005));
}

#[test]
fn the_panic_of_a_worker_is_told() {
    static TOLD: Mutex<Vec<Panicked>> = Mutex::new(Vec::new());
    let mut scene = Scene::with(true, || TokioRuntime::current().on_panic(|panic| TOLD.lock().push(panic.clone())));
    scene.connect();
    let kind = Box::new(SubscriptionKind { presence: true, ..SubscriptionKind::default() });
    scene.tell(ToSession::Subscribing { channel: "room".into(), attempt: 1, kind, unasked: false });
    scene.reply(Place { channel: "room".into(), attempt: 1, offset: 0 }, 7);
    assert!(scene.thread.take().expect("it runs").join().is_err());
    let told = TOLD.lock().clone();
    assert_eq!(told, [Panicked { task: "live worker", message: "a hub that panics".into() }]);
}
