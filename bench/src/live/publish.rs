//! Publishers in a closed loop: each sends its next publication when the last one is acknowledged.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use steadfast_live::protocol::message::{Command, ConnectRequest, PublishRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::wire::{self, Marks, bad};
use super::{LiveArgs, PublishTransport, Used, http, now, quantile};

/// Runs the measurement; see the module.
///
/// # Errors
/// When a publication is refused.
pub fn run(args: &LiveArgs) -> io::Result<serde_json::Value> {
    let args = Rc::new(args.clone());
    let publisher = {
        let args = args.clone();
        move |end| {
            let args = args.clone();
            async move {
                match args.way {
                    PublishTransport::Http => over_http(&args, end).await,
                    PublishTransport::Websocket => over_websocket(&args, end).await,
                }
            }
        }
    };
    let mut report = closed_loop(args.publishers, args.seconds, args.pid, publisher)?;
    report["way"] = format!("{:?}", args.way).to_lowercase().into();
    report["size"] = args.size.into();
    Ok(report)
}

/// Runs publishers on this thread. Each returns its latencies, microseconds.
///
/// # Errors
/// The first error of a publisher.
pub fn closed_loop<F: Future<Output = io::Result<Vec<u64>>> + 'static>(
    publishers: usize,
    seconds: f64,
    pid: Option<u32>,
    publisher: impl Fn(Instant) -> F,
) -> io::Result<serde_json::Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async move {
        let (begin, used) = (now(), Used::begin(pid));
        let end = begin + Duration::from_secs_f64(seconds);
        let running: Vec<_> = (0..publishers).map(|_| tokio::task::spawn_local(publisher(end))).collect();
        let mut latencies = Vec::new();
        for one in running {
            latencies.extend(one.await.map_err(io::Error::other)??);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (server_cpu_us, client_cpu_us) = used.each(latencies.len() as u64);
        latencies.sort_unstable();
        Ok(json!({
            "publishers": publishers, "publications": latencies.len(), "rate": latencies.len() as f64 / seconds,
            "p50_us": quantile(&latencies, 0.5), "p99_us": quantile(&latencies, 0.99),
            "server_cpu_us": server_cpu_us, "client_cpu_us": client_cpu_us,
        }))
    })
}

/// Calls `once` with growing numbers until the end.
///
/// # Errors
/// Those of `once`.
pub async fn repeat(end: Instant, mut once: impl AsyncFnMut(u64) -> io::Result<()>) -> io::Result<Vec<u64>> {
    let mut latencies = Vec::new();
    loop {
        let begin = now();
        if begin >= end {
            return Ok(latencies);
        }
        once(latencies.len() as u64).await?;
        latencies.push(begin.elapsed().as_micros() as u64);
    }
}

async fn over_http(args: &LiveArgs, end: Instant) -> io::Result<Vec<u64>> {
    let mut stream = TcpStream::connect(args.first()).await?;
    stream.set_nodelay(true)?;
    let head = http::head(args.first(), &args.api_key);
    let mut buffer = vec![0; 4 << 10];
    repeat(end, async |n| {
        let request = http::request(&head, &args.channel, &wire::data(Marks { n, t: 0 }, args.size));
        stream.write_all(request.as_bytes()).await?;
        let mut have = 0;
        loop {
            let len = stream.read(&mut buffer[have..]).await?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += len;
            if let Some((begin, end)) = http::answer(&buffer[..have])? {
                http::place(&buffer[begin..end])?;
                return Ok(());
            }
        }
    })
    .await
}

async fn over_websocket(args: &LiveArgs, end: Instant) -> io::Result<Vec<u64>> {
    let encoding = args.encoding();
    let mut stream = TcpStream::connect(args.first()).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&wire::upgrade(&args.first().to_string(), &args.path, encoding)).await?;
    let (mut have, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    let handshake = loop {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        have.extend_from_slice(&buffer[..len]);
        if let Some(end) = wire::upgraded(&have)? {
            break end;
        }
    };
    have.drain(..handshake);
    let mut call = async |command: Command| {
        let mut out = Vec::new();
        wire::put_command(encoding, &command, &mut out)?;
        stream.write_all(&out).await?;
        loop {
            while let Some(frame) = wire::frame(&have)? {
                let replies = wire::replies(encoding, &have[frame.begin..frame.end])?;
                have.drain(..frame.end);
                for reply in replies {
                    if let Some(error) = reply.error {
                        return Err(bad(format!("refused: {} {}", error.code, error.message)));
                    }
                    if reply.id == command.id {
                        return Ok(());
                    }
                }
            }
            let len = stream.read(&mut buffer).await?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have.extend_from_slice(&buffer[..len]);
        }
    };
    let connect = ConnectRequest { token: args.token.clone(), ..ConnectRequest::default() };
    call(Command { id: 1, connect: Some(connect), ..Command::default() }).await?;
    repeat(end, async |n| {
        let data = wire::data(Marks { n, t: 0 }, args.size).into_bytes();
        let publish = Some(PublishRequest { channel: args.channel.clone(), data: data.into() });
        call(Command { id: n as u32 + 2, publish, ..Command::default() }).await
    })
    .await
}
