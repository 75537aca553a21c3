//! GETs of an origin's objects through a cache. Every byte is checked.
//!
//! Standard input has one request a line, `PATH SIZE` for a whole object or `PATH SIZE FIRST LAST`
//! for a range. Clients take the next line when they have finished the last one.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::content::{Content, shift};

/// Options of the client.
#[derive(Debug, Clone, clap::Args)]
pub struct FetchArgs {
    /// `host:port` of the cache.
    #[arg(long)]
    endpoint: String,
    /// First part of the paths, such as `/media`.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Number of clients, each with its own connection.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Repeat the requests for this time, seconds; 0: send each once.
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
    /// Bytes a second that each client reads; 0: no limit.
    #[arg(long, default_value_t = 0)]
    bytes_s: u64,
    /// Time to wait for the next bytes of an answer, seconds.
    #[arg(long, default_value_t = 60.0)]
    timeout: f64,
    /// Version of the objects.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not compare the bytes.
    #[arg(long)]
    unchecked: bool,
}

struct Job {
    path: String,
    size: u64,
    range: Option<(u64, u64)>,
}

struct Shared {
    args: FetchArgs,
    jobs: Vec<Job>,
    content: Content,
    next: AtomicUsize,
    stop: AtomicBool,
    wrong: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
    /// Time to the first byte and to the last one of each answer, microseconds.
    times: Mutex<Vec<(u64, u64)>>,
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Sends the requests and reports.
///
/// # Errors
/// When standard input is not as described. Failed requests are counted instead.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run(args: &FetchArgs) -> io::Result<Value> {
    let jobs = io::stdin().lock().lines().map(|line| parse(&line?)).collect::<io::Result<Vec<Job>>>()?;
    let shared = Shared {
        args: args.clone(),
        jobs,
        content: Content::new(args.seed),
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        wrong: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        first_error: Mutex::new(None),
        times: Mutex::new(Vec::new()),
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.clients {
            scope.spawn(|| shared.client());
        }
        if args.seconds > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(args.seconds));
            shared.stop.store(true, Relaxed);
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let (mut first, mut last): (Vec<u64>, Vec<u64>) = shared.times.into_inner().into_iter().unzip();
    let bytes = shared.bytes.into_inner();
    Ok(json!({
        "requests": first.len(),
        "errors": shared.errors.into_inner(),
        "first_error": shared.first_error.into_inner(),
        "wrong_bytes": shared.wrong.into_inner(),
        "bytes": bytes,
        "seconds": seconds,
        "mib_per_s": bytes as f64 / f64::from(1 << 20) / seconds,
        "first_p50_ms": at(&mut first, 0.5),
        "first_p99_ms": at(&mut first, 0.99),
        "last_p50_ms": at(&mut last, 0.5),
        "last_p99_ms": at(&mut last, 0.99),
    }))
}

fn at(times: &mut [u64], share: f64) -> Option<f64> {
    times.sort_unstable();
    let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(index).map(|us| *us as f64 / 1000.0)
}

fn parse(line: &str) -> io::Result<Job> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().map_err(|_| bad(format!("not a request: {line}")));
    match words.len() {
        2 => Ok(Job { path: words[0].to_owned(), size: number(1)?, range: None }),
        4 => Ok(Job { path: words[0].to_owned(), size: number(1)?, range: Some((number(2)?, number(3)?)) }),
        _ => Err(bad(format!("not a request: {line}"))),
    }
}

impl Shared {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn client(&self) {
        let (mut connection, mut buffer) = (None, vec![0; 256 << 10]);
        while !self.stop.load(Relaxed) {
            let mut n = self.next.fetch_add(1, Relaxed);
            if self.args.seconds > 0.0 {
                n %= self.jobs.len();
            }
            let Some(job) = self.jobs.get(n) else { break };
            let begin = Instant::now();
            match self.get(&mut connection, job, &mut buffer) {
                Ok(first) => {
                    let us = |time: Instant| time.duration_since(begin).as_micros() as u64;
                    self.times.lock().push((us(first), us(Instant::now())));
                }
                Err(e) => {
                    connection = None;
                    self.errors.fetch_add(1, Relaxed);
                    self.first_error.lock().get_or_insert_with(|| format!("{}: {e}", job.path));
                }
            }
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.args.endpoint)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs_f64(self.args.timeout)))?;
        if self.args.bytes_s > 0 {
            // A slow client must not hide its slowness in a large buffer of the kernel.
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10)?;
        }
        Ok(stream)
    }

    /// Reads one answer whole; returns the time of its first byte.
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn get(&self, connection: &mut Option<TcpStream>, job: &Job, buffer: &mut [u8]) -> io::Result<Instant> {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let range = job.range.map(|(first, last)| format!("Range: bytes={first}-{last}\r\n")).unwrap_or_default();
        let (prefix, host) = (&self.args.prefix, &self.args.endpoint);
        let request = format!("GET {prefix}{} HTTP/1.1\r\nHost: {host}\r\n{range}\r\n", job.path);
        stream.write_all(request.as_bytes())?;
        let (body, have, keep) = head(&mut stream, buffer, job)?;
        let (begin, end) = job.range.map_or((0, job.size), |(first, last)| (first, last + 1));
        let (shift, mut at) = (shift(&job.path), begin);
        let mut first = None;
        let (mut from, mut to) = (body, have);
        loop {
            if from < to {
                first.get_or_insert_with(Instant::now);
                self.check(shift, at, end, &buffer[from..to])?;
                at += (to - from) as u64;
            }
            if at == end {
                break;
            }
            if let Some(first) = first.filter(|_| self.args.bytes_s > 0) {
                let due = first + Duration::from_secs_f64((at - begin) as f64 / self.args.bytes_s as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            (from, to) = (0, receive(&mut stream, buffer)?);
        }
        if keep {
            *connection = Some(stream);
        }
        first.ok_or_else(|| bad("an answer without bytes"))
    }

    fn check(&self, shift: usize, at: u64, end: u64, part: &[u8]) -> io::Result<()> {
        if at + part.len() as u64 > end {
            return Err(bad("the answer has too many bytes"));
        }
        if !self.args.unchecked {
            self.wrong.fetch_add(self.content.wrong(shift, at, part), Relaxed);
        }
        self.bytes.fetch_add(part.len() as u64, Relaxed);
        Ok(())
    }
}

fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => Ok(n),
    }
}

/// Reads the headers: the place of the body in the buffer, the end of what was read, and whether
/// the connection stays open.
fn head(stream: &mut TcpStream, buffer: &mut [u8], job: &Job) -> io::Result<(usize, usize, bool)> {
    let mut have = 0;
    let body = loop {
        have += receive(stream, &mut buffer[have..])?;
        if let Some(at) = buffer[..have].windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&buffer[..body]).to_ascii_lowercase();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let (wanted, begin, end) = job.range.map_or(("200", 0, job.size), |(first, last)| ("206", first, last + 1));
    if text.get(9..12) != Some(wanted) {
        return Err(bad(format!("status {}, not {wanted}", text.lines().next().unwrap_or_default())));
    }
    if value("content-length").and_then(|v| v.parse().ok()).is_some_and(|length: u64| length != end - begin) {
        return Err(bad("another length"));
    }
    let right = format!("bytes {begin}-{}/{}", end - 1, job.size);
    if job.range.is_some() && value("content-range") != Some(right.as_str()) {
        return Err(bad("another range"));
    }
    let keep = value("connection") != Some("close") && value("content-length").is_some();
    Ok((body, have, keep))
}
