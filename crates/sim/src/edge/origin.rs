//! An origin that changes, fails and lies, as far as an edge can notice it.
//!
//! It never lies in its first answer about an object: no edge could know it. All bytes of an answer
//! are of one version, and are the ones that its head names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use steadfast_edge::{Origin, OriginAnswer, OriginBody, OriginRequest};
use steadfast_flow::BoxFuture;

use super::catalog::{Framing, OriginKey, Release, TagRule, date};
use super::ledger::EdgeLedger;
use super::plan::OriginRates;
use crate::executor::Executor;
use crate::rng::{Rng, stream_bytes};

/// The origin as one life of the edge sees it.
#[derive(Clone)]
pub(crate) struct SimOrigin {
    pub(crate) ledger: Arc<Mutex<EdgeLedger>>,
    pub(crate) executor: Executor,
    pub(crate) rng: Arc<Mutex<Rng>>,
    pub(crate) rates: OriginRates,
    pub(crate) outage_until: Duration,
    /// Whether it has stopped to change, to fail and to lie.
    pub(crate) healthy: Arc<AtomicBool>,
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Nothing,
    Status(u16),
    Unreachable,
    Hangs,
    /// The body ends after this part of it, per mille.
    Truncated(u64),
    OtherRange,
    OtherTotal,
    IgnoresRange,
}

/// How an answer is given.
#[derive(Clone, Copy)]
struct Manner {
    flaw: Flaw,
    delay: Duration,
    /// Whether the state is that before the delay.
    early: bool,
    piece: u64,
    pause: Duration,
}

/// The body of an answer.
struct Body {
    number: u64,
    at: u64,
    end: u64,
    /// Where it ends too early.
    stop: u64,
    manner: Manner,
    /// Whether an end that is too early shows.
    delimited: bool,
}

fn header<'a>(request: &'a OriginRequest, name: &str) -> Option<&'a str> {
    request.headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
}

fn map(headers: Vec<(&'static str, String)>) -> HeaderMap {
    let pair = |(name, value): (_, String)| Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?));
    headers.into_iter().filter_map(pair).collect()
}

fn empty(status: u16, headers: Vec<(&'static str, String)>) -> OriginAnswer {
    OriginAnswer { status, headers: map(headers), body: stream::empty().boxed() }
}

/// The range of a request, cut to the size.
fn span(request: &OriginRequest, size: u64) -> Option<(u64, u64)> {
    let (first, last) = header(request, "range")?.strip_prefix("bytes=")?.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    Some((first.parse().ok()?, last.saturating_add(1).min(size)))
}

impl SimOrigin {
    fn draw(&self) -> Manner {
        let mut rng = self.rng.lock();
        let usual = Manner {
            flaw: Flaw::Nothing,
            delay: Duration::from_micros(rng.range(100, 5_000)),
            early: rng.one_in(2),
            piece: 4000,
            pause: Duration::ZERO,
        };
        if self.healthy.load(Ordering::Relaxed) {
            return usual;
        }
        let rates = self.rates;
        let longest = *rng.pick(&[500, 4_000]);
        let delay = match rng.chance(rates.late) {
            true => Duration::from_millis(rng.range(50, longest)),
            false => usual.delay,
        };
        let pause = match rng.chance(rates.slow) {
            true => Duration::from_millis(*rng.pick(&[1, 50, 400])),
            false => Duration::ZERO,
        };
        let manner = Manner { delay, pause, piece: *rng.pick(&[300, 4000, 1 << 20]), ..usual };
        let choices = [
            (rates.status, Flaw::Status(*rng.pick(&[500, 503, 403]))),
            (rates.unreachable, Flaw::Unreachable),
            (rates.hangs, Flaw::Hangs),
            (rates.truncates, Flaw::Truncated(rng.below(1000))),
            (rates.other_range, Flaw::OtherRange),
            (rates.other_total, Flaw::OtherTotal),
            (rates.ignores_range, Flaw::IgnoresRange),
        ];
        if self.executor.env().now() < self.outage_until {
            return Manner { flaw: *rng.pick(&[Flaw::Unreachable, Flaw::Status(503)]), ..manner };
        }
        let flaw = choices.into_iter().find(|(rate, _)| rng.chance(*rate)).map_or(Flaw::Nothing, |(_, flaw)| flaw);
        Manner { flaw, ..manner }
    }

    /// The answer from the present state.
    fn answer(&self, request: &OriginRequest, sent: Duration, manner: Manner) -> OriginAnswer {
        let mut ledger = self.ledger.lock();
        let wall_s = self.executor.env().wall_ms() / 1000;
        let Some(at) = ledger.keys.iter().position(|key| key.name == request.key) else {
            return empty(404, Vec::new());
        };
        let key = ledger.keys[at].clone();
        let Some((current, release)) = key.current().map(|current| (current, key.releases[current])) else {
            ledger.confirm_absent(at, sent);
            return empty(404, Vec::new());
        };
        let etag = key.etag(&release);
        if let Some(wanted) = header(request, "if-match")
            && !key.ignores_if_match
            && (key.tags != TagRule::Strong || etag.as_deref() != Some(wanted))
        {
            return empty(412, Vec::new());
        }
        let (date_header, cache) = (("date", date(wall_s)), release.cache.header());
        if let Some(wanted) = header(request, "if-none-match")
            && etag.as_deref() == Some(wanted)
        {
            ledger.confirm_unchanged(at, sent, wall_s, |key, one| key.etag(one).as_deref() == Some(wanted));
            return empty(304, [date_header].into_iter().chain(cache).collect());
        }
        let since = header(request, "if-modified-since").and_then(|value| httpdate::parse_http_date(value).ok());
        if let Some(since) = since.and_then(|at| Some(at.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs()))
            && key.dated
            && release.modified_s <= since
        {
            ledger.confirm_unchanged(at, sent, wall_s, |_, one| one.modified_s == since);
            return empty(304, [date_header].into_iter().chain(cache).collect());
        }
        let ranges = !key.ignores_ranges && manner.flaw != Flaw::IgnoresRange;
        let range = span(request, release.size).filter(|_| ranges);
        if range.is_some_and(|(first, end)| first >= end) {
            return empty(416, vec![("content-range", format!("bytes */{}", release.size))]);
        }
        ledger.confirm(at, sent, current, wall_s);
        drop(ledger);
        let mut headers = vec![date_header];
        headers.extend(cache);
        headers.extend(etag.map(|etag| ("etag", etag)));
        headers.extend(key.dated.then(|| ("last-modified", date(release.modified_s))));
        self.content(request, &key, &release, range, manner, headers)
    }

    fn content(
        &self,
        request: &OriginRequest,
        key: &OriginKey,
        release: &Release,
        range: Option<(u64, u64)>,
        manner: Manner,
        mut headers: Vec<(&'static str, String)>,
    ) -> OriginAnswer {
        let (mut first, mut end) = range.unwrap_or((0, release.size));
        if range.is_some() {
            if manner.flaw == Flaw::OtherRange {
                (first, end) = if first > 0 { (first - 1, end) } else { (first, release.size) };
            }
            let more = u64::from(manner.flaw == Flaw::OtherTotal && header(request, "if-match").is_some());
            headers.push(("content-range", format!("bytes {first}-{}/{}", end - 1, release.size + more)));
        }
        match key.framing {
            Framing::Length => headers.push(("content-length", (end - first).to_string())),
            Framing::Chunked => headers.push(("transfer-encoding", "chunked".to_owned())),
            Framing::Close => {}
        }
        let stop = match manner.flaw {
            Flaw::Truncated(per_mille) => first + (end - first) * per_mille / 1000,
            _ => end,
        };
        let delimited = key.framing != Framing::Close || range.is_some();
        let body = Body { number: release.number, at: first, end, stop, manner, delimited };
        let body = if request.head { stream::empty().boxed() } else { self.stream(body) };
        OriginAnswer { status: if range.is_some() { 206 } else { 200 }, headers: map(headers), body }
    }

    fn stream(&self, body: Body) -> OriginBody {
        let env = self.executor.env();
        stream::unfold(Some((body, env)), async |state| {
            let (mut body, env) = state?;
            if !body.manner.pause.is_zero() {
                env.sleep(body.manner.pause).await;
            }
            if body.at == body.stop {
                let broken = body.stop < body.end && body.delimited;
                return broken.then(|| (Err("the connection broke".to_owned()), None));
            }
            let mut piece = vec![0; (body.stop - body.at).min(body.manner.piece) as usize];
            stream_bytes(body.number, body.at, &mut piece);
            body.at += piece.len() as u64;
            Some((Ok(Bytes::from(piece)), Some((body, env))))
        })
        .boxed()
    }
}

impl Origin for SimOrigin {
    fn send(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginAnswer, String>> {
        let origin = self.clone();
        async move {
            let env = origin.executor.env();
            let sent = env.now();
            let manner = origin.draw();
            origin.executor.trace().note_with_text(origin.executor.now_ns(), "question", [0; 3], || {
                format!("{request:?} {:?} after {:?}, early {}", manner.flaw, manner.delay, manner.early)
            });
            match manner.flaw {
                Flaw::Unreachable => return Err("connection refused".to_owned()),
                Flaw::Hangs => future::pending::<()>().await,
                Flaw::Status(status) => {
                    env.sleep(manner.delay).await;
                    return Ok(empty(status, Vec::new()));
                }
                _ => {}
            }
            let early = manner.early.then(|| origin.answer(&request, sent, manner));
            env.sleep(manner.delay).await;
            let answer = early.unwrap_or_else(|| origin.answer(&request, sent, manner));
            origin.executor.trace().note_with_text(
                origin.executor.now_ns(),
                "answer",
                [u64::from(answer.status), 0, 0],
                || format!("{} {} {:?}", request.key, answer.status, answer.headers),
            );
            Ok(answer)
        }
        .boxed()
    }
}
