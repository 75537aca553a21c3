//! An origin in memory, which counts what it sends and fails as a test wants.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use steadfast_edge::{Origin, OriginAnswer, OriginRequest};
use tokio::sync::Semaphore;

/// Bytes of a piece of an answer.
const PIECE: usize = 1000;

/// How an answer goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Status(u16),
    Unreachable,
    /// The connection breaks after so many bytes.
    Breaks(usize),
    /// The answer has another entity tag.
    OtherTag,
    /// The answer is another range than the one asked for.
    OtherRange,
    /// The whole object instead of a range.
    IgnoresRange,
    /// A range instead of the whole object.
    OnlyRange,
    /// `Content-Length` promises more.
    LongLength,
}

#[derive(Default)]
pub(crate) struct OriginState {
    objects: BTreeMap<String, (Vec<u8>, Option<String>)>,
    faults: VecDeque<Fault>,
    requests: Vec<String>,
    sent: usize,
    cache_control: Option<String>,
}

/// An origin in memory. Clones share it.
#[derive(Clone)]
pub(crate) struct FakeOrigin {
    pub(crate) state: Arc<Mutex<OriginState>>,
    /// Answers that may be sent.
    pub(crate) gate: Arc<Semaphore>,
    /// Whether it knows ranges, and whether it says how long an object is.
    pub(crate) ranges: bool,
    pub(crate) lengths: bool,
}

impl Default for FakeOrigin {
    fn default() -> Self {
        Self { state: Arc::default(), gate: Arc::new(Semaphore::new(1_000_000)), ranges: true, lengths: true }
    }
}

impl FakeOrigin {
    /// An origin that answers when the test lets it.
    pub(crate) fn held() -> Self {
        Self { gate: Arc::new(Semaphore::new(0)), ..Self::default() }
    }

    /// Lets so many answers go.
    pub(crate) fn release(&self, answers: usize) {
        self.gate.add_permits(answers);
    }

    pub(crate) fn put(&self, key: &str, data: &[u8], etag: Option<&str>) {
        self.state.lock().objects.insert(key.to_owned(), (data.to_vec(), etag.map(str::to_owned)));
    }

    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().faults.extend(faults);
    }

    /// Sets `Cache-Control` of all answers.
    pub(crate) fn cache_control(&self, value: &str) {
        self.state.lock().cache_control = Some(value.to_owned());
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state.lock().objects.remove(key);
    }

    /// The questions so far: `GET bytes=0-9 "tag"`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    /// The bytes sent so far.
    pub(crate) fn sent(&self) -> usize {
        self.state.lock().sent
    }

    fn answer(&self, request: &OriginRequest) -> Result<OriginAnswer, String> {
        let mut state = self.state.lock();
        let fault = state.faults.pop_front();
        let header = |name| request.headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
        let empty = |status| OriginAnswer { status, headers: HeaderMap::new(), body: stream::empty().boxed() };
        match fault {
            Some(Fault::Status(status)) => return Ok(empty(status)),
            Some(Fault::Unreachable) => return Err("connection refused".into()),
            _ => {}
        }
        let Some((data, etag)) = state.objects.get(&request.key).cloned() else { return Ok(empty(404)) };
        if header("if-match").is_some() && header("if-match") != etag.as_deref() {
            return Ok(empty(412));
        }
        let mut headers = Vec::new();
        headers.push(("content-type", "video/mp4".to_owned()));
        headers.extend(state.cache_control.clone().map(|value| ("cache-control", value)));
        if header("if-none-match").is_some() && header("if-none-match") == etag.as_deref() {
            return Ok(OriginAnswer { headers: map(headers), ..empty(304) });
        }
        let etag = if fault == Some(Fault::OtherTag) { Some("\"other\"".to_owned()) } else { etag };
        headers.extend(etag.map(|etag| ("etag", etag)));
        let size = data.len();
        let range = header("range").filter(|_| self.ranges && fault != Some(Fault::IgnoresRange));
        let range = range.or((fault == Some(Fault::OnlyRange)).then_some("bytes=0-4"));
        let (status, span) = match range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) {
            Some((first, last)) => {
                let first: usize = first.parse().expect("a number");
                let end = last.parse().map_or(size, |last: usize| size.min(last + 1));
                if first >= end {
                    let headers = vec![("content-range", format!("bytes */{size}"))];
                    return Ok(OriginAnswer { headers: map(headers), ..empty(416) });
                }
                let shown = if fault == Some(Fault::OtherRange) { first + 1 } else { first };
                headers.push(("content-range", format!("bytes {shown}-{}/{size}", end - 1)));
                (206, first..end)
            }
            None => (200, 0..size),
        };
        let more = if fault == Some(Fault::LongLength) { 1 } else { 0 };
        match self.lengths {
            true if fault == Some(Fault::OtherRange) => {}
            true => headers.push(("content-length", (span.len() + more).to_string())),
            false => headers.push(("transfer-encoding", "chunked".to_owned())),
        }
        let mut body = data[span].to_vec();
        let mut pieces: Vec<Result<Bytes, String>> = Vec::new();
        let breaks = match fault {
            Some(Fault::Breaks(bytes)) => {
                body.truncate(bytes);
                true
            }
            fault => fault == Some(Fault::LongLength),
        };
        if !request.head {
            state.sent += body.len();
            pieces.extend(body.chunks(PIECE).map(|piece| Ok(Bytes::copy_from_slice(piece))));
            pieces.extend(breaks.then(|| Err("the connection broke".to_owned())));
        }
        Ok(OriginAnswer { status, headers: map(headers), body: stream::iter(pieces).boxed() })
    }
}

fn map(headers: Vec<(&'static str, String)>) -> HeaderMap {
    let pair =
        |(name, value): (_, String)| (HeaderName::from_static(name), HeaderValue::from_str(&value).expect("valid"));
    headers.into_iter().map(pair).collect()
}

impl Origin for FakeOrigin {
    fn send(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginAnswer, String>> {
        let origin = self.clone();
        async move {
            let values: Vec<_> = request.headers.iter().map(|(_, value)| value.as_str()).collect();
            let question = format!("{} {}", if request.head { "HEAD" } else { "GET" }, values.join(" "));
            origin.state.lock().requests.push(question.trim().to_owned());
            origin.gate.acquire().await.expect("open").forget();
            origin.answer(&request)
        }
        .boxed()
    }
}
