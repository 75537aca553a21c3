//! Durable publications of a NATS JetStream server in a closed loop, for comparison.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::publish::{closed_loop, repeat};
use super::wire::{self, Marks, bad};

/// Options of the measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct NatsArgs {
    /// Address of the server.
    #[arg(long)]
    endpoint: SocketAddr,
    /// Bytes of a publication.
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Number of publishers, each with its own connection.
    #[arg(long, default_value_t = 1)]
    publishers: usize,
    /// Duration, seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Process id of the server; adds its CPU time to the report.
    #[arg(long)]
    pid: Option<u32>,
}

/// A connection with NATS's text protocol (docs.nats.io, "Client Protocol").
struct Connection {
    stream: TcpStream,
    have: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(endpoint: SocketAddr, inbox: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, have: Vec::new(), buffer: vec![0; 16 << 10] };
        connection.line().await?;
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\nPING\r\n");
        connection.stream.write_all(hello.as_bytes()).await?;
        while connection.line().await? != "PONG" {}
        Ok(connection)
    }

    async fn more(&mut self) -> io::Result<()> {
        let len = self.stream.read(&mut self.buffer).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.have.extend_from_slice(&self.buffer[..len]);
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.have.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8_lossy(&self.have[..end]).into_owned();
                self.have.drain(..end + 2);
                return Ok(line);
            }
            self.more().await?;
        }
    }

    /// Sends a message and waits for its answer.
    async fn call(&mut self, subject: &str, inbox: &str, payload: &str) -> io::Result<String> {
        let message = format!("PUB {subject} {inbox} {}\r\n{payload}\r\n", payload.len());
        self.stream.write_all(message.as_bytes()).await?;
        loop {
            let line = self.line().await?;
            if line == "PING" {
                self.stream.write_all(b"PONG\r\n").await?;
            } else if let Some(rest) = line.strip_prefix("MSG ") {
                let words: Vec<&str> = rest.split(' ').collect();
                let len: usize = words.last().and_then(|len| len.parse().ok()).ok_or_else(|| bad("no length"))?;
                while self.have.len() < len + 2 {
                    self.more().await?;
                }
                let body = String::from_utf8_lossy(&self.have[..len]).into_owned();
                self.have.drain(..len + 2);
                if words[0] != inbox {
                    continue;
                }
                return if body.contains("\"error\"") { Err(bad(body)) } else { Ok(body) };
            } else if line.starts_with("-ERR") {
                return Err(bad(line));
            }
        }
    }
}

/// Runs the measurement. Returns a JSON report like that of [`super::run`] for publishers.
///
/// # Errors
/// When the server cannot be reached or refuses a publication.
pub fn run(args: &NatsArgs) -> io::Result<serde_json::Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(args.endpoint, "inbox.stream").await?;
        let stream = r#"{"name":"BENCH","subjects":["bench"],"storage":"file","retention":"limits","max_msgs":100000}"#;
        connection.call("$JS.API.STREAM.CREATE.BENCH", "inbox.stream", stream).await
    })?;
    let number = std::cell::Cell::new(0u32);
    let (endpoint, size) = (args.endpoint, args.size);
    closed_loop(args.publishers, args.seconds, args.pid, |end: Instant| {
        number.set(number.get() + 1);
        let inbox = format!("inbox.{}", number.get());
        async move {
            let mut connection = Connection::open(endpoint, &inbox).await?;
            repeat(end, async |n| {
                connection.call("bench", &inbox, &wire::data(Marks { n, t: 0 }, size)).await?;
                Ok(())
            })
            .await
        }
    })
}
