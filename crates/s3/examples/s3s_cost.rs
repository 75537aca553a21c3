//! The CPU cost of `s3s` for a small PUT and GET, compared with a bare hyper handler: `cargo run
//! --release --example s3s_cost`.
//!
//! The server runs on one thread of its own. The output is that thread's CPU time divided by the
//! number of requests. The client sends requests that were signed beforehand over keep-alive
//! connections.
#![allow(missing_docs, clippy::disallowed_methods, reason = "a measurement, not part of the server")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::auth::SimpleAuth;
use s3s::dto::{GetObjectInput, GetObjectOutput, PutObjectInput, PutObjectOutput, StreamingBlob};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

#[path = "../tests/it/common/signer.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod signer;
use signer::{Signer, sha256_hex};

const CONNECTIONS: usize = 16;

struct AtOnce;

#[async_trait::async_trait]
impl S3 for AtOnce {
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let mut body = req.input.body.expect("a body");
        while let Some(piece) = body.next().await {
            piece.expect("the right bytes");
        }
        Ok(S3Response::new(PutObjectOutput::default()))
    }

    async fn get_object(&self, _req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let body = s3s::Body::from(Bytes::from_static(&[7; 4096]));
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::from(body)),
            content_length: Some(4096),
            ..Default::default()
        }))
    }
}

async fn bare(req: hyper::Request<Incoming>, hash: bool) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let get = req.method() == hyper::Method::GET;
    let body = req.into_body().collect().await.expect("a body").to_bytes();
    if hash {
        std::hint::black_box(Sha256::digest(&body));
    }
    Ok(hyper::Response::new(Full::new(if get { Bytes::from_static(&[7; 4096]) } else { Bytes::new() })))
}

/// Starts a server thread; returns its address and its CPU clock.
fn serve(kind: &'static str) -> (SocketAddr, libc::clockid_t) {
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut clock: libc::clockid_t = 0;
        // SAFETY: the thread is our own and alive; the pointer is to a local.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        tx.send((listener.local_addr().expect("address"), clock)).expect("receiver");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
            let mut builder = S3ServiceBuilder::new(AtOnce);
            builder.set_auth(SimpleAuth::from_single("access", "secret"));
            let service = builder.build();
            loop {
                let (socket, _) = listener.accept().await.expect("accept");
                socket.set_nodelay(true).expect("nodelay");
                let service = service.clone();
                tokio::spawn(async move {
                    let mut http = hyper::server::conn::http1::Builder::new();
                    http.timer(TokioTimer::new());
                    let io = TokioIo::new(socket);
                    let _ = match kind {
                        "s3s" => http.serve_connection(io, service).await,
                        "bare+sha256" => http.serve_connection(io, service_fn(|r| bare(r, true))).await,
                        _ => http.serve_connection(io, service_fn(|r| bare(r, false))).await,
                    };
                });
            }
        });
    });
    rx.recv().expect("server")
}

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn amz_date() -> String {
    let at = OffsetDateTime::now_utc();
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{:04}{:02}{:02}T{hour:02}{minute:02}{second:02}Z", date.year(), u8::from(date.month()), date.day())
}

/// A request in its form on the wire, signed as the SDKs do.
fn request(addr: SocketAddr, method: &str, body: &[u8]) -> Vec<u8> {
    let signer = Signer {
        access_key: "access".into(),
        secret_key: "secret".into(),
        region: "us-east-1".into(),
        amz_date: amz_date(),
    };
    let mut headers = BTreeMap::from([("host".to_owned(), addr.to_string())]);
    if method == "PUT" {
        headers.insert("content-type".into(), "application/octet-stream".into());
    }
    let path = "/some-bucket/some/object-0123456789";
    signer.sign(method, path, &[], &mut headers, &sha256_hex(body));
    headers.insert(
        "user-agent".into(),
        "aws-sdk-go-v2/1.30.3 os/linux lang/go#1.22 md/GOOS#linux md/GOARCH#amd64 api/s3#1.58".into(),
    );
    headers.insert("accept-encoding".into(), "identity".into());
    headers.insert("amz-sdk-invocation-id".into(), "7a6a1d0c-6b0e-4f2f-8a7b-6a5ed0c1f2b3".into());
    headers.insert("amz-sdk-request".into(), "attempt=1; max=3".into());
    if method == "PUT" {
        headers.insert("content-length".into(), body.len().to_string());
    }
    let mut wire = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        wire.push_str(&format!("{name}: {value}\r\n"));
    }
    wire.push_str("\r\n");
    [wire.as_bytes(), body].concat()
}

/// Reads one response whose length is given by content-length (or that has no body).
fn response(socket: &mut TcpStream, buf: &mut Vec<u8>) {
    buf.clear();
    let mut piece = [0; 16_384];
    loop {
        let n = socket.read(&mut piece).expect("read");
        assert!(n > 0, "closed: {}", String::from_utf8_lossy(buf));
        buf.extend_from_slice(&piece[..n]);
        if let Some(end) = buf.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buf[..end]).to_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{}", String::from_utf8_lossy(buf));
            let len =
                head.split("content-length: ").nth(1).map_or(0, |s| s.split("\r\n").next().unwrap().parse().unwrap());
            if buf.len() >= end + 4 + len {
                return;
            }
        }
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let requests: usize = std::env::args().nth(2).map_or(60_000, |n| n.parse().expect("a number"));
    for kind in ["bare", "bare+sha256", "s3s"] {
        if only.as_ref().is_some_and(|o| o != kind && o != "all") {
            continue;
        }
        for method in ["PUT", "GET"] {
            let (addr, clock) = serve(kind);
            let wire = request(addr, method, if method == "PUT" { &[5; 4096] } else { b"" });
            let mut sockets: Vec<TcpStream> =
                (0..CONNECTIONS).map(|_| TcpStream::connect(addr).expect("connect")).collect();
            let mut buf = Vec::new();
            let (mut start, mut used) = (Instant::now(), Duration::ZERO);
            for round in 0..requests / CONNECTIONS {
                if round == 100 {
                    (start, used) = (Instant::now(), cpu(clock));
                }
                for s in &mut sockets {
                    s.write_all(&wire).expect("write");
                }
                for s in &mut sockets {
                    response(s, &mut buf);
                }
            }
            let n = (requests / CONNECTIONS - 100) * CONNECTIONS;
            println!(
                "{kind:12} {method}: {:6.1} us of server CPU a request, {:6.0} requests/s",
                (cpu(clock) - used).as_secs_f64() * 1e6 / n as f64,
                n as f64 / start.elapsed().as_secs_f64()
            );
        }
    }
}
