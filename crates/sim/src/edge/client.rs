//! Clients of the edge, the publisher at the origin, and the operator who purges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use steadfast_edge::{Edge, EdgeError, Fetched, Handling, Wanted};
use steadfast_flow::Env;
use steadfast_log::LogError;
use steadfast_store::{ObjectInfo, StoreError};

use super::ledger::{EdgeLedger, EdgeRequest, ShownHead};
use super::plan::{BUCKET, EdgeLife, EdgePlan};
use crate::executor::Executor;
use crate::rng::Rng;

/// Each request is answered within this time.
const ANSWER_MAX: Duration = Duration::from_secs(900);
/// What a purge may name.
const PREFIXES: [&str; 3] = ["", "a/", "b/"];

/// The end of a request.
#[derive(Debug)]
enum RequestEnd {
    /// With all bytes that were wanted, of one of these releases.
    Whole(Vec<usize>),
    Absent,
    Failed(EdgeError),
    /// The client left.
    Left,
}

/// What the tasks of one life share.
#[derive(Clone)]
pub(crate) struct EdgeClient {
    pub(crate) edge: Edge,
    pub(crate) env: Env,
    pub(crate) ledger: Arc<Mutex<EdgeLedger>>,
    pub(crate) executor: Executor,
    pub(crate) plan: Arc<EdgePlan>,
    pub(crate) life: EdgeLife,
    pub(crate) number: u64,
    pub(crate) healthy: Arc<AtomicBool>,
}

/// The description of an object, as the ledger judges it.
pub(crate) fn shown(info: &ObjectInfo, handling: Handling, age_s: Option<u64>) -> ShownHead {
    // The size is 0 when the origin does not tell it.
    let size = Some(info.size).filter(|size| handling != Handling::Passed || *size > 0);
    ShownHead { tag: info.attributes.etag.clone(), size, handling, age_s }
}

impl EdgeClient {
    fn note(&self, what: &'static str, numbers: [u64; 3], text: impl FnOnce() -> String) {
        self.executor.trace().note_with_text(self.executor.now_ns(), what, numbers, text);
    }

    async fn pause(&self, rng: &mut Rng, most: Duration) {
        self.env.sleep(most.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
    }

    fn begin(&self, key: usize) -> (EdgeRequest, String) {
        let request = EdgeRequest { key, begun: self.env.now(), life: self.number };
        (request, self.ledger.lock().keys[key].name.clone())
    }

    /// Sends the requests, one after the other.
    pub(crate) async fn run(self, mut rng: Rng) {
        for _ in 0..self.life.requests_each {
            let key = rng.below(self.plan.keys) as usize;
            let request = async {
                if rng.one_in(4) {
                    self.head(key).await;
                } else {
                    self.get(key, &mut rng, true).await;
                }
            };
            if self.env.timeout(ANSWER_MAX, request).await.is_none() {
                self.ledger.lock().fail("a request was not answered".to_owned());
            }
            let (used, space) = (self.edge.status().buckets[0].used_bytes, self.plan.bucket.retention.space_bytes);
            if space > 0 && used > space {
                self.ledger.lock().fail(format!("SPACE: {used} bytes of {space} are in use"));
            }
            if self.ledger.lock().violation.is_some() {
                // Later events say nothing.
                return self.executor.cut_now();
            }
            self.pause(&mut rng, self.life.pause_max).await;
        }
    }

    async fn head(&self, key: usize) {
        let (request, name) = self.begin(key);
        self.note("head?", [key as u64, 0, 0], || name.clone());
        let answer = self.edge.head(BUCKET, &name, "".into()).await;
        let mut ledger = self.ledger.lock();
        match answer {
            Ok(answer) => {
                let head = shown(&answer.found.info, answer.handling, answer.age_s);
                self.note("head!", [key as u64, 0, 0], || format!("{name} {head:?}"));
                ledger.head(request, &head, self.env.now());
            }
            Err(EdgeError::Store(StoreError::NoSuchKey)) => ledger.absent(request),
            Err(error) => self.note("head-", [key as u64, 0, 0], || format!("{name} {error}")),
        }
    }

    /// Reads a key, or a range of it. `leaves` lets the client go before the end, or read slowly.
    async fn get(&self, key: usize, rng: &mut Rng, leaves: bool) -> RequestEnd {
        let (request, name) = self.begin(key);
        let range = (leaves && rng.one_in(2)).then(|| {
            let first = *rng.pick(&[0, 1, 5_000, 9_999, 10_000, 15_000, 30_000]);
            (first, first + *rng.pick(&[1, 100, 10_000, 50_000]))
        });
        self.note("get?", [key as u64, 0, 0], || format!("{name} {range:?}"));
        let header = range.map(|(first, end)| format!("bytes={first}-{}", end - 1));
        let wanted =
            Wanted { first: range.map_or(0, |(first, _)| first), range: header, if_range: None, client: "".into() };
        let answer = match self.edge.get(BUCKET, &name, &wanted).await {
            Ok(answer) => answer,
            Err(EdgeError::Store(StoreError::NoSuchKey)) => {
                self.note("get-404", [key as u64, 0, 0], || name.clone());
                self.ledger.lock().absent(request);
                return RequestEnd::Absent;
            }
            Err(error) => {
                if let EdgeError::Range(size) = error {
                    self.ledger.lock().outside(request, size);
                }
                self.note("get-", [key as u64, 0, 0], || format!("{name} {error}"));
                return RequestEnd::Failed(error);
            }
        };
        let (from, to) = range.unwrap_or((0, u64::MAX));
        let (info, span, stream): (_, _, BoxStream<'static, Result<Bytes, EdgeError>>) = match answer.found {
            Fetched::Object(reader) => {
                (reader.info().clone(), Some((from, to)), reader.stream(from..to).map_err(EdgeError::from).boxed())
            }
            Fetched::Fill(reader) => (reader.info().clone(), Some((from, to)), reader.stream(from..to).boxed()),
            Fetched::Passed(passed) => {
                let span = passed.span().0;
                // Without a length, its end is that of the connection.
                let end = if passed.length().is_some() { span.end } else { 0 };
                (passed.info().clone(), Some((span.start, end)).filter(|(_, end)| *end > 0), passed.stream().boxed())
            }
        };
        let head = shown(&info, answer.handling, answer.age_s);
        self.note("get!", [key as u64, 0, 0], || format!("{name} {head:?}"));
        let left = self.ledger.lock().head(request, &head, self.env.now());
        let expected = span.map(|(from, to)| (from.min(info.size), to.min(info.size)));
        self.read(key, left, expected, stream, leaves.then_some(rng)).await
    }

    async fn read(
        &self,
        key: usize,
        mut left: Vec<usize>,
        span: Option<(u64, u64)>,
        mut stream: BoxStream<'static, Result<Bytes, EdgeError>>,
        mut leaves: Option<&mut Rng>,
    ) -> RequestEnd {
        let mut at = span.map_or(0, |(from, _)| from);
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => {
                    self.ledger.lock().bytes(key, &mut left, at, &piece);
                    at += piece.len() as u64;
                }
                Err(error) => {
                    self.note("broken", [key as u64, at, 0], || error.to_string());
                    return RequestEnd::Failed(error);
                }
            }
            let Some(rng) = &mut leaves else { continue };
            match rng.below(16) {
                0 => return RequestEnd::Left,
                1 | 2 => self.pause(rng, Duration::from_secs(1)).await,
                _ => {}
            }
        }
        self.note("read", [key as u64, at, 0], String::new);
        if let Some((_, to)) = span.filter(|(from, to)| at != (*from).max(*to)) {
            self.ledger.lock().fail(format!("HALF-OBJECT: key {key} ends at {at} without an error, not at {to}"));
        }
        RequestEnd::Whole(left)
    }

    /// Changes the objects at the origin, and purges some of them.
    pub(crate) async fn publish(self, mut rng: Rng) {
        for _ in 0..self.life.changes.0 {
            self.pause(&mut rng, self.life.changes.1).await;
            if self.healthy.load(Ordering::Relaxed) {
                return;
            }
            let key = self.change(&mut rng);
            if rng.chance(self.plan.purge_after_change) {
                let (_, name) = self.begin(key);
                self.purge(&name, true, &mut rng).await;
            }
        }
    }

    fn change(&self, rng: &mut Rng) -> usize {
        let key = rng.below(self.plan.keys) as usize;
        let mut ledger = self.ledger.lock();
        ledger.change(rng, key, self.env.now(), self.env.wall_ms() / 1000);
        let of = &ledger.keys[key];
        let now = of.current().map(|current| of.releases[current]);
        self.note("change", [key as u64, 0, 0], || format!("{} {now:?}", of.name));
        key
    }

    /// Purges keys and prefixes.
    pub(crate) async fn operate(self, mut rng: Rng) {
        for _ in 0..self.life.purges {
            self.pause(&mut rng, Duration::from_secs(3)).await;
            if self.healthy.load(Ordering::Relaxed) {
                return;
            }
            if rng.one_in(3) {
                let prefix = *rng.pick(&PREFIXES);
                self.purge(prefix, false, &mut rng).await;
            } else {
                let (_, name) = self.begin(rng.below(self.plan.keys) as usize);
                self.purge(&name, true, &mut rng).await;
            }
        }
    }

    async fn purge(&self, name: &str, exact: bool, rng: &mut Rng) {
        let begun = self.env.now();
        self.ledger.lock().purge(name, exact, begun);
        self.note("purge?", [0; 3], || name.to_owned());
        let result = match exact {
            true => self.edge.purge(BUCKET, name).await.map(drop),
            false => self.edge.purge_prefix(BUCKET, name).await.map(drop),
        };
        self.note("purge!", [0; 3], || format!("{name} {result:?}"));
        match result {
            Ok(()) => {
                self.ledger.lock().purged(name, exact, begun, self.env.now());
                if self.life.cut_after_purge && rng.one_in(4) {
                    self.executor.cut_now();
                }
            }
            // The store is being closed.
            Err(EdgeError::Store(StoreError::Log(LogError::Closed))) => {}
            Err(error) => self.ledger.lock().fail(format!("a purge failed: {error}")),
        }
    }

    /// Reads each key from an origin that has become well. After a purge, the answer must be what
    /// the origin has.
    pub(crate) async fn read_all(&self, purged: bool, rng: &mut Rng) {
        if purged {
            self.purge("", false, rng).await;
        }
        for key in 0..self.plan.keys as usize {
            let current = self.ledger.lock().keys[key].current();
            let Some(end) = self.env.timeout(ANSWER_MAX, self.get(key, rng, false)).await else {
                return self.ledger.lock().fail("a request was not answered".to_owned());
            };
            let right = match (&end, current) {
                (RequestEnd::Failed(_) | RequestEnd::Left, _) => false,
                (RequestEnd::Whole(left), Some(current)) => !purged || left.contains(&current),
                (RequestEnd::Whole(_), None) | (RequestEnd::Absent, Some(_)) => !purged,
                (RequestEnd::Absent, None) => true,
            };
            if let RequestEnd::Failed(error) = &end {
                self.ledger.lock().fail(format!("key {key} fails at the end: {error}"));
            }
            if !right {
                self.ledger
                    .lock()
                    .fail(format!("key {key} is not served rightly at the end: {end:?}, not {current:?}"));
            }
        }
    }
}
