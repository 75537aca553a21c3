//! Load on an NBD export: a closed loop of requests, or requests that arrive at a fixed mean rate.
//!
//! In the open loop, a latency begins when the request was due, not when the socket accepted it: a
//! server that cannot keep up is charged for the queue that it causes.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::live::quantile;

/// The operation of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Random reads. The data must be what `fill` has written.
    Read,
    /// Random writes.
    Write,
    /// Random writes, each followed by a flush. The latency is that of both.
    Commit,
    /// Writes the whole span once, and flushes.
    Fill,
}

/// Options of a load on an export.
#[derive(Debug, Clone, clap::Args)]
pub struct BlockArgs {
    /// The server's Unix socket.
    #[arg(long)]
    socket: PathBuf,
    /// The name of the export.
    #[arg(long, default_value = "disk")]
    export: String,
    /// Operation to send.
    #[arg(long, value_enum)]
    op: Operation,
    /// Bytes of a request: a multiple of 4096.
    #[arg(long, default_value_t = 4096)]
    size: u32,
    /// Length of the part at the front of the export that requests use, bytes.
    #[arg(long, default_value_t = 1 << 30)]
    span: u64,
    /// Requests in flight of the closed loop.
    #[arg(long, default_value_t = 1)]
    depth: u64,
    /// Reads a second of the open loop, at random times; without it, the loop is closed.
    #[arg(long)]
    rate: Option<f64>,
    /// Duration, seconds.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Seed of the offsets and the arrival times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const BLOCK: u64 = 4096;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
/// The cookie of the last request of the open loop.
const LAST: u64 = u64::MAX;

/// Runs the load. Returns a JSON object with the rate, the latencies and the mean number of
/// outstanding requests.
///
/// # Errors
/// The socket's; a reply that reports an error; read data that `fill` has not written there.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run(args: &BlockArgs) -> io::Result<Value> {
    if args.size == 0 || !u64::from(args.size).is_multiple_of(BLOCK) || args.span < u64::from(args.size) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "--size and --span are multiples of 4096"));
    }
    let stream = UnixStream::connect(&args.socket)?;
    let available = open_export(&stream, &args.export)?;
    if available < args.span {
        return Err(io::Error::other(format!("the export has {available} bytes")));
    }
    match (args.op, args.rate) {
        (Operation::Fill, _) => fill(&stream, args),
        (Operation::Read, Some(rate)) => open_loop(&stream, args, rate),
        (_, Some(_)) => Err(io::Error::new(io::ErrorKind::InvalidInput, "--rate is for reads")),
        (_, None) => closed_loop(&stream, args),
    }
}

/// Negotiates fixed newstyle without zeroes, then `EXPORT_NAME`. Returns the size of the export.
fn open_export(mut stream: &UnixStream, name: &str) -> io::Result<u64> {
    let mut hello = [0; 18];
    stream.read_exact(&mut hello)?;
    if !hello.starts_with(b"NBDMAGICIHAVEOPT") {
        return Err(io::Error::other("no NBD server, or one of the old style"));
    }
    let mut answer = 3u32.to_be_bytes().to_vec();
    answer.extend_from_slice(b"IHAVEOPT");
    answer.extend_from_slice(&1u32.to_be_bytes());
    answer.extend_from_slice(&(name.len() as u32).to_be_bytes());
    answer.extend_from_slice(name.as_bytes());
    stream.write_all(&answer)?;
    let mut export = [0; 10];
    stream.read_exact(&mut export)?;
    Ok(u64::from_be_bytes(export[..8].try_into().unwrap_or_default()))
}

fn push_request(buffer: &mut Vec<u8>, command: u16, cookie: u64, offset: u64, length: u32) {
    buffer.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    buffer.extend_from_slice(&0u16.to_be_bytes());
    buffer.extend_from_slice(&command.to_be_bytes());
    buffer.extend_from_slice(&cookie.to_be_bytes());
    buffer.extend_from_slice(&offset.to_be_bytes());
    buffer.extend_from_slice(&length.to_be_bytes());
}

/// The data of every block: its offset at the beginning, then bytes that do not compress.
fn push_data(buffer: &mut Vec<u8>, offset: u64, length: u32, rng: &mut SmallRng) {
    for block in (offset..offset + u64::from(length)).step_by(BLOCK as usize) {
        let begin = buffer.len();
        buffer.resize(begin + BLOCK as usize, 0);
        rng.fill(&mut buffer[begin..]);
        buffer[begin..begin + 8].copy_from_slice(&block.to_le_bytes());
    }
}

/// Receives one reply and returns its cookie.
fn receive_reply(input: &mut impl Read) -> io::Result<u64> {
    let mut header = [0; 16];
    input.read_exact(&mut header)?;
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap_or_default());
    if word(0) != SIMPLE_REPLY_MAGIC {
        return Err(io::Error::other("a reply with a wrong magic"));
    }
    if word(4) != 0 {
        return Err(io::Error::other(format!("a reply with the error {}", word(4))));
    }
    Ok(u64::from_be_bytes(header[8..].try_into().unwrap_or_default()))
}

/// Receives the data of a read of `offset`, and compares the head of each block.
fn receive_data(input: &mut impl Read, offset: u64, data: &mut [u8]) -> io::Result<()> {
    input.read_exact(data)?;
    for (block, bytes) in (offset..).step_by(BLOCK as usize).zip(data.chunks(BLOCK as usize)) {
        if !bytes.starts_with(&block.to_le_bytes()) {
            return Err(io::Error::other(format!("wrong data at {block}")));
        }
    }
    Ok(())
}

fn fill(mut stream: &UnixStream, args: &BlockArgs) -> io::Result<Value> {
    let (mut rng, mut buffer, mut offset) = (SmallRng::seed_from_u64(args.seed), Vec::new(), 0);
    while offset < args.span {
        let length = (args.span - offset).min(1 << 20) as u32;
        buffer.clear();
        push_request(&mut buffer, WRITE, 0, offset, length);
        push_data(&mut buffer, offset, length, &mut rng);
        stream.write_all(&buffer)?;
        receive_reply(&mut stream)?;
        offset += u64::from(length);
    }
    buffer.clear();
    push_request(&mut buffer, FLUSH, 0, 0, 0);
    stream.write_all(&buffer)?;
    receive_reply(&mut stream)?;
    Ok(json!({"bytes": offset}))
}

fn random_offset(rng: &mut SmallRng, args: &BlockArgs) -> u64 {
    rng.random_range(0..=(args.span - u64::from(args.size)) / BLOCK) * BLOCK
}

/// One request of the closed loop.
#[derive(Clone, Copy)]
struct InFlight {
    offset: u64,
    begun: Instant,
    flushing: bool,
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn closed_loop(stream: &UnixStream, args: &BlockArgs) -> io::Result<Value> {
    let (mut rng, mut buffer) = (SmallRng::seed_from_u64(args.seed), Vec::new());
    let (mut output, mut input) = (stream, BufReader::with_capacity(256 << 10, stream));
    let mut data = vec![0; args.size as usize];
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(args.seconds);
    let mut begin = |buffer: &mut Vec<u8>, cookie| {
        let offset = random_offset(&mut rng, args);
        let command = if args.op == Operation::Read { READ } else { WRITE };
        push_request(buffer, command, cookie, offset, args.size);
        if command == WRITE {
            push_data(buffer, offset, args.size, &mut rng);
        }
        InFlight { offset, begun: Instant::now(), flushing: false }
    };
    let mut slots: Vec<InFlight> = (0..args.depth.max(1)).map(|cookie| begin(&mut buffer, cookie)).collect();
    output.write_all(&buffer)?;
    let (mut latencies, mut left) = (Vec::new(), slots.len());
    while left > 0 {
        buffer.clear();
        let cookie = receive_reply(&mut input)?;
        let slot = slots.get_mut(cookie as usize).ok_or_else(|| io::Error::other("a reply with a wrong cookie"))?;
        if args.op == Operation::Read {
            receive_data(&mut input, slot.offset, &mut data)?;
        }
        if args.op == Operation::Commit && !slot.flushing {
            slot.flushing = true;
            push_request(&mut buffer, FLUSH, cookie, 0, 0);
        } else {
            let now = Instant::now();
            latencies.push(micros(now - slot.begun));
            if now < end {
                *slot = begin(&mut buffer, cookie);
            } else {
                left -= 1;
            }
        }
        if !buffer.is_empty() {
            output.write_all(&buffer)?;
        }
    }
    Ok(report(latencies, begun.elapsed(), 0))
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn open_loop(stream: &UnixStream, args: &BlockArgs, rate: f64) -> io::Result<Value> {
    let (mut rng, mut at) = (SmallRng::seed_from_u64(args.seed), 0.0);
    let mut arrivals = Vec::new();
    loop {
        // The times between arrivals of independent clients.
        at -= (1.0 - rng.random::<f64>()).ln() / rate;
        if at >= args.seconds {
            break;
        }
        arrivals.push((Duration::from_secs_f64(at), random_offset(&mut rng, args)));
    }
    let begun = Instant::now();
    let length = Duration::from_secs_f64(args.seconds);
    let sent = OnceLock::new();
    let latencies = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_arrivals(stream, args, &arrivals, begun, &sent));
        let latencies = receive_arrivals(stream, args, &arrivals, begun, &sent);
        // Ends a sender that waits for space in the socket of a failed server.
        if latencies.is_err() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let ended = sender.join().unwrap_or_else(|_| Err(io::Error::other("the sender has panicked")));
        latencies.and_then(|latencies| ended.map(|()| latencies))
    })?;
    let unsent = arrivals.len() - latencies.len();
    Ok(report(latencies, length, unsent))
}

/// Sends each request when it is due, or as soon as the socket accepts it, and a flush at the end.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn send_arrivals(
    mut stream: &UnixStream,
    args: &BlockArgs,
    arrivals: &[(Duration, u64)],
    begun: Instant,
    count: &OnceLock<usize>,
) -> io::Result<()> {
    let (mut sent, mut buffer) = (0, Vec::new());
    while let Some(&(at, _)) = arrivals.get(sent) {
        let now = begun.elapsed();
        if now.as_secs_f64() > args.seconds {
            break;
        }
        if now < at {
            std::thread::sleep(at - now);
            continue;
        }
        buffer.clear();
        let due = arrivals[sent..].iter().take_while(|(at, _)| *at <= now).take(64).count();
        for (number, (_, offset)) in arrivals.iter().enumerate().skip(sent).take(due) {
            push_request(&mut buffer, READ, number as u64, *offset, args.size);
        }
        stream.write_all(&buffer)?;
        sent += due;
    }
    let _ = count.set(sent);
    buffer.clear();
    push_request(&mut buffer, FLUSH, LAST, 0, 0);
    stream.write_all(&buffer)
}

/// The latency of each read, until all sent reads are answered.
fn receive_arrivals(
    stream: &UnixStream,
    args: &BlockArgs,
    arrivals: &[(Duration, u64)],
    begun: Instant,
    sent: &OnceLock<usize>,
) -> io::Result<Vec<u64>> {
    let mut input = BufReader::with_capacity(256 << 10, stream);
    let (mut latencies, mut data) = (Vec::new(), vec![0; args.size as usize]);
    let mut flushed = false;
    while !flushed || sent.get().is_some_and(|sent| *sent > latencies.len()) {
        let cookie = receive_reply(&mut input)?;
        if cookie == LAST {
            flushed = true;
            continue;
        }
        let (at, offset) =
            arrivals.get(cookie as usize).ok_or_else(|| io::Error::other("a reply with a wrong cookie"))?;
        receive_data(&mut input, *offset, &mut data)?;
        latencies.push(micros(begun.elapsed().saturating_sub(*at)));
    }
    Ok(latencies)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// By Little's law, the mean number of outstanding requests is the sum of their latencies over the
/// time.
fn report(mut latencies: Vec<u64>, elapsed: Duration, unsent: usize) -> Value {
    latencies.sort_unstable();
    let seconds = elapsed.as_secs_f64();
    json!({
        "requests": latencies.len(),
        "per_s": latencies.len() as f64 / seconds,
        "p50_us": quantile(&latencies, 0.5),
        "p99_us": quantile(&latencies, 0.99),
        "outstanding": latencies.iter().sum::<u64>() as f64 / 1e6 / seconds,
        "unsent": unsent,
    })
}
