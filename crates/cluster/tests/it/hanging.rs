//! Publications of other nodes to a home whose disk hangs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use steadfast_cluster::{Accepted, ChannelError, Publish, StoreTerms};
use steadfast_disk::{AlignedBuf, Disk, DiskStats, Effect, Fault, Faults, Faulty, Geometry, IoFuture, MemDisk, OpKind};
use steadfast_flow::{BoxFuture, Env};
use steadfast_log::{Durability, Priority};
use steadfast_store::StoreOptions;
use tokio::sync::watch;

use crate::hub::{Hub, Node, OUTBOX_BYTES, roster, store_on, until};

/// How long a publisher of the home waits for its disk.
const WRITE_WAIT: Duration = Duration::from_secs(2);

/// A disk whose writes hang while a switch is on, and that reports their age.
struct Hanging {
    disk: Faulty,
    env: Env,
    since: watch::Receiver<Option<Duration>>,
}

/// The switch of a [`Hanging`].
struct Switch {
    faults: Faults,
    env: Env,
    since: watch::Sender<Option<Duration>>,
}

impl Switch {
    fn on(&self) {
        for kind in [OpKind::Write, OpKind::Flush] {
            self.faults.add(Fault::new(kind, Effect::Hold));
        }
        self.since.send_replace(Some(self.env.now()));
    }

    fn off(&self) {
        self.since.send_replace(None);
        self.faults.clear();
    }
}

impl Disk for Hanging {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Bytes> {
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.disk.write(offset, data)
    }

    fn flush(&self) -> IoFuture<()> {
        self.disk.flush()
    }

    fn write_flush(&self, offset: u64, data: Bytes) -> IoFuture<()> {
        self.disk.write_flush(offset, data)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn reserve(&self, end: u64) -> IoFuture<()> {
        self.disk.reserve(end)
    }

    fn buffer(&self, capacity: usize) -> BoxFuture<'static, AlignedBuf> {
        self.disk.buffer(capacity)
    }

    fn stats(&self) -> DiskStats {
        let age = self.since.borrow().map_or(Duration::ZERO, |since| self.env.now() - since);
        DiskStats { oldest_write_ms: age.as_millis() as u64, ..self.disk.stats() }
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

/// A home on a disk that may hang, and a front, linked.
async fn cluster(hub: &Hub) -> ([Node; 2], Switch) {
    let (since, faults, env) = (watch::Sender::new(None), Faults::new(), Env::tokio());
    let below: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
    let disk = Hanging { disk: Faulty::new(below, faults.clone()), env: env.clone(), since: since.subscribe() };
    let store = store_on(Arc::new(disk), StoreOptions { write_wait: WRITE_WAIT, ..StoreOptions::default() }).await;
    let roster = |own| roster(own, &["home", "one"], &["home"]);
    let home = hub.start_with(roster("home"), "secret", store).await;
    let one = hub.start(roster("one")).await;
    until(|| home.is_up("one") && one.is_up("home")).await;
    ([home, one], Switch { faults, env, since })
}

async fn submit(node: &Node, body: impl Into<Bytes>, key: &str) -> Accepted {
    let channel = node.channels.open("c").expect("a channel");
    let (durability, priority) = (Durability::Sync, Priority::Write);
    let terms = StoreTerms { history_size: 100, history_ttl_ms: 3_600_000, durability, priority, leaves_percent: 0 };
    let publish = Publish { body: body.into(), key: key.to_owned(), permit: None };
    node.channels.submit(&channel, terms, publish).await.expect("submitted")
}

#[tokio::test(start_paused = true)]
async fn publications_without_a_commit_are_bounded_in_bytes() {
    let hub = Hub::default();
    let ([home, one], disk) = cluster(&hub).await;
    submit(&one, "first", "").await.committed().await.expect("committed");
    disk.on();
    let body = vec![b'x'; OUTBOX_BYTES as usize / 8];
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(submit(&one, body.clone(), "").await);
        until(|| one.link("home").outbox_bytes == 0).await;
    }
    let refused = async || {
        let answer = submit(&one, body.clone(), "").await.committed();
        Env::tokio().timeout(Duration::from_millis(100), answer).await
    };
    assert_eq!(refused().await, Some(Err(ChannelError::Busy)), "as many bytes as in an outbox are held");
    // Publications of a lost link count as long as they may be committed.
    hub.block("one", "home");
    until(|| !one.is_up("home") && !home.is_up("one")).await;
    hub.heal();
    until(|| one.is_up("home") && home.is_up("one")).await;
    assert_eq!(refused().await, Some(Err(ChannelError::Busy)));
    disk.off();
    let _ = join_all(held.into_iter().map(Accepted::committed)).await;
    until(|| home.sessions.payloads("c").len() == 8).await;
    submit(&one, body.clone(), "").await.committed().await.expect("the memory is free again");
}

#[tokio::test]
async fn publications_of_any_node_are_answered_while_the_disk_hangs() {
    let ([home, one], disk) = cluster(&Hub::default()).await;
    submit(&one, "first", "").await.committed().await.expect("committed");
    disk.on();
    let begin = disk.env.now();
    let mut pending = vec![submit(&home, "local", "").await];
    for n in 0..100 {
        pending.push(submit(&one, n.to_string(), "").await);
    }
    let keyed = submit(&one, "keyed", "key").await;
    let answers = join_all(pending.into_iter().map(Accepted::committed));
    let answers = disk.env.timeout(WRITE_WAIT * 3, answers).await.expect("all are answered");
    assert!(disk.env.now() - begin >= WRITE_WAIT);
    assert_eq!(answers, vec![Err(ChannelError::DiskHangs); 101]);
    let retry = submit(&one, "keyed", "key").await;
    disk.off();
    // They are committed later, once and in their order.
    for one in [keyed, retry] {
        assert_eq!(one.committed().await.map(|position| position.offset), Ok(103));
    }
    until(|| home.sessions.payloads("c").len() == 103).await;
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(home.sessions.payloads("c")[2..102], expected);
}

#[tokio::test]
async fn a_home_that_stops_answers_the_requests_under_way() {
    let ([home, one], disk) = cluster(&Hub::default()).await;
    submit(&one, "first", "").await.committed().await.expect("committed");
    disk.on();
    let mut pending = Vec::new();
    for n in 0..50 {
        pending.push(submit(&one, n.to_string(), if n % 2 == 0 { "" } else { "key" }).await);
    }
    // The home has them, and counts no request that follows its stop.
    until(|| one.link("home").outbox_bytes == 0).await;
    one.channels.presence("c", 0).await.expect("answered");
    home.stop();
    let late = submit(&one, "late", "").await.committed().await;
    assert_eq!(late, Err(ChannelError::Stopping));
    assert!(one.is_up("home"), "the link waits for the answers");
    disk.off();
    let answers = join_all(pending.into_iter().map(Accepted::committed)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    until(|| !one.is_up("home")).await;
}
