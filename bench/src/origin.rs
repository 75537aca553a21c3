//! An HTTP origin for caches: it makes its objects up, limits its rate, and counts what it sends.
//!
//! `/vod/<size>/<name>` is an object of that many bytes. `GET /stats` has the counters.
//! `GET /set?bytes_s=&latency_ms=&max_age=` changes settings and sets the counters to zero.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::content::{Content, PIECE, shift};

/// Options of the origin.
#[derive(Debug, Clone, clap::Args)]
pub struct OriginArgs {
    /// Address to listen on. Port 0: a free port, which is printed.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Bytes a second of all answers together; 0: no limit.
    #[arg(long, default_value_t = 0)]
    bytes_s: u64,
    /// Time before each answer, milliseconds.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Lifetime of the objects, seconds.
    #[arg(long, default_value_t = 86_400)]
    max_age: u64,
    /// Version of the objects.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

struct Origin {
    content: Content,
    etag: String,
    bytes_s: AtomicU64,
    latency_ms: AtomicU64,
    max_age: AtomicU64,
    /// When the bytes handed out so far have been sent at the limited rate.
    due: Mutex<Instant>,
    gets: AtomicU64,
    heads: AtomicU64,
    conditional: AtomicU64,
    bytes: AtomicU64,
}

/// The parts of a request that matter here.
#[derive(Default)]
struct Request {
    method: String,
    path: String,
    range: Option<String>,
    if_match: Option<String>,
    if_none_match: Option<String>,
    if_range: Option<String>,
    close: bool,
}

/// Serves the objects until the process is ended.
///
/// # Errors
/// When the address cannot be used.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run(args: &OriginArgs) -> io::Result<()> {
    let listener = TcpListener::bind(&args.listen)?;
    println!("{}", json!({ "listen": listener.local_addr()?.to_string() }));
    let origin = Arc::new(Origin {
        content: Content::new(args.seed),
        etag: format!("\"v{}\"", args.seed),
        bytes_s: AtomicU64::new(args.bytes_s),
        latency_ms: AtomicU64::new(args.latency_ms),
        max_age: AtomicU64::new(args.max_age),
        due: Mutex::new(Instant::now()),
        gets: AtomicU64::new(0),
        heads: AtomicU64::new(0),
        conditional: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    });
    loop {
        let (stream, _) = listener.accept()?;
        let origin = origin.clone();
        // A cache may close its connection at any time.
        std::thread::spawn(move || drop(origin.serve(&stream)));
    }
}

impl Origin {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            self.answer(&request, stream)?;
            if request.close {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Request, stream: &TcpStream) -> io::Result<()> {
        match request.path.split_once('?').unwrap_or((&request.path, "")) {
            ("/stats", _) => return whole(stream, &self.stats().to_string()),
            ("/set", query) => {
                self.set(query);
                return whole(stream, "{}");
            }
            _ => {}
        }
        pause(Duration::from_millis(self.latency_ms.load(Relaxed)));
        let counter = if request.method == "HEAD" { &self.heads } else { &self.gets };
        counter.fetch_add(1, Relaxed);
        let size = request.path.rsplit('/').nth(1).and_then(|size| size.parse::<u64>().ok());
        let Some(size) = size.filter(|_| request.path.starts_with("/vod/")) else {
            return head(stream, "404 Not Found", "Content-Length: 0\r\n");
        };
        let same = format!(
            "ETag: {}\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\nCache-Control: max-age={}\r\n\
             Accept-Ranges: bytes\r\nContent-Type: video/mp4\r\n",
            self.etag,
            self.max_age.load(Relaxed)
        );
        let is_same = |tag: &Option<String>| tag.as_ref().map(|tag| *tag == self.etag);
        if request.if_none_match.is_some() {
            self.conditional.fetch_add(1, Relaxed);
            if is_same(&request.if_none_match) == Some(true) {
                return head(stream, "304 Not Modified", &same);
            }
        }
        if is_same(&request.if_match) == Some(false) {
            return head(stream, "412 Precondition Failed", "Content-Length: 0\r\n");
        }
        let range = request.range.as_deref().filter(|_| is_same(&request.if_range) != Some(false));
        let (begin, end) = match range.map(|range| span(range, size)) {
            Some(None) => {
                let lines = format!("Content-Range: bytes */{size}\r\nContent-Length: 0\r\n");
                return head(stream, "416 Range Not Satisfiable", &lines);
            }
            Some(Some((begin, end))) => {
                let lines = format!("{same}Content-Range: bytes {begin}-{}/{size}\r\n", end - 1);
                head(stream, "206 Partial Content", &format!("{lines}Content-Length: {}\r\n", end - begin))?;
                (begin, end)
            }
            None => {
                head(stream, "200 OK", &format!("{same}Content-Length: {size}\r\n"))?;
                (0, size)
            }
        };
        if request.method == "HEAD" { Ok(()) } else { self.send(stream, shift(&request.path), begin, end) }
    }

    fn send(&self, mut stream: &TcpStream, shift: usize, mut at: u64, end: u64) -> io::Result<()> {
        while at < end {
            let piece = self.content.piece(shift, at, (end - at).min(PIECE as u64) as usize);
            self.pace(piece.len());
            stream.write_all(piece)?;
            at += piece.len() as u64;
            self.bytes.fetch_add(piece.len() as u64, Relaxed);
        }
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn pace(&self, count: usize) {
        let bytes_s = self.bytes_s.load(Relaxed);
        if bytes_s > 0 {
            let now = Instant::now();
            let mut due = self.due.lock();
            *due = (*due).max(now) + Duration::from_secs_f64(count as f64 / bytes_s as f64);
            let wait = due.saturating_duration_since(now);
            drop(due);
            pause(wait);
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn set(&self, query: &str) {
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let setting = match name {
                "bytes_s" => &self.bytes_s,
                "latency_ms" => &self.latency_ms,
                "max_age" => &self.max_age,
                _ => continue,
            };
            setting.store(value.parse().unwrap_or_default(), Relaxed);
        }
        *self.due.lock() = Instant::now();
        for counter in [&self.gets, &self.heads, &self.conditional, &self.bytes] {
            counter.store(0, Relaxed);
        }
    }

    fn stats(&self) -> Value {
        json!({
            "gets": self.gets.load(Relaxed),
            "heads": self.heads.load(Relaxed),
            "conditional": self.conditional.load(Relaxed),
            "bytes": self.bytes.load(Relaxed),
        })
    }
}

#[allow(clippy::disallowed_methods, reason = "each connection has a thread of its own")]
fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// Reads a request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let old = words.next().is_some_and(|version| version == "HTTP/1.0");
    let mut request = Request { method, path, close: old, ..Request::default() };
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(Some(request)) };
        let value = value.trim().to_owned();
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value),
            "if-match" => request.if_match = Some(value),
            "if-none-match" => request.if_none_match = Some(value),
            "if-range" => request.if_range = Some(value),
            "connection" => request.close |= value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
}

/// The first byte of a range and the one after its last; `None` where the object has none of it.
fn span(range: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (begin, end) = if first.is_empty() {
        (size.saturating_sub(last.parse().ok()?), size)
    } else {
        let end = if last.is_empty() { size } else { last.parse::<u64>().ok()?.saturating_add(1).min(size) };
        (first.parse().ok()?, end)
    };
    (begin < end).then_some((begin, end))
}

fn head(mut stream: &TcpStream, status: &str, lines: &str) -> io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status}\r\n{lines}\r\n").as_bytes())
}

fn whole(stream: &TcpStream, text: &str) -> io::Result<()> {
    head(stream, "200 OK", &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", text.len()))?;
    let mut stream = stream;
    stream.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_end() {
        assert_eq!(span("bytes=5-9", 100), Some((5, 10)));
        assert_eq!(span("bytes=90-200", 100), Some((90, 100)));
        assert_eq!(span("bytes=90-", 100), Some((90, 100)));
        assert_eq!(span("bytes=-7", 100), Some((93, 100)));
        assert_eq!(span("bytes=100-", 100), None);
    }
}
