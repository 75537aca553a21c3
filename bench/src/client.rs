//! A cheap keep-alive HTTP/1.1 connection, so that the server uses most of the CPU time of the
//! machine.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sign::Signer;

/// A connection to an S3 endpoint.
pub struct Client {
    address: String,
    stream: TcpStream,
    /// Whether the server announced to close the connection, as when it refuses a body unread.
    closing: bool,
    signer: Signer,
    buffer: Vec<u8>,
}

/// An answer.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Bytes of the body.
    pub body_bytes: usize,
    /// The body, if requested.
    pub body: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Client {
    /// Connects to `address` (`host:port`).
    pub async fn connect(address: &str, signer: Signer) -> io::Result<Self> {
        let stream = connect(address).await?;
        Ok(Self { address: address.to_owned(), stream, closing: false, signer, buffer: vec![0; 256 << 10] })
    }

    /// Sends a request and reads the answer to its end.
    ///
    /// # Errors
    /// When the connection fails or the answer is not HTTP/1.1.
    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        payload: &str,
        body: &[u8],
        keep: bool,
    ) -> io::Result<Answer> {
        if std::mem::take(&mut self.closing) {
            self.stream = connect(&self.address).await?;
        }
        let head = self.signer.head(method, path, query, payload, body.len());
        if body.len() <= 64 << 10 {
            let mut whole = head.into_bytes();
            whole.extend_from_slice(body);
            self.stream.write_all(&whole).await?;
        } else {
            self.stream.write_all(head.as_bytes()).await?;
            self.stream.write_all(body).await?;
        }
        self.answer(method, keep).await
    }

    async fn answer(&mut self, method: &str, keep: bool) -> io::Result<Answer> {
        let mut have = 0;
        let end = loop {
            let n = self.stream.read(&mut self.buffer[have..]).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let from = have.saturating_sub(3);
            have += n;
            if let Some(at) = self.buffer[from..have].windows(4).position(|w| w == b"\r\n\r\n") {
                break from + at + 4;
            }
            if have == self.buffer.len() {
                return Err(bad("headers too long"));
            }
        };
        let head = std::str::from_utf8(&self.buffer[..end]).map_err(|_| bad("headers are not text"))?;
        let status: u16 = head.get(9..12).and_then(|s| s.parse().ok()).ok_or_else(|| bad("no status in the answer"))?;
        let mut length = None;
        let mut chunked = false;
        for line in head.split("\r\n").skip(1) {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse::<usize>().ok();
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.trim().eq_ignore_ascii_case("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                self.closing = value.trim().eq_ignore_ascii_case("close");
            }
        }
        let mut answer = Answer { status, body_bytes: 0, body: Vec::new() };
        if method == "HEAD" || status == 204 || status == 304 {
            return Ok(answer);
        }
        if chunked {
            let mut raw = self.buffer[end..have].to_vec();
            while !raw.ends_with(b"\r\n0\r\n\r\n") && raw != b"0\r\n\r\n" {
                let n = self.stream.read(&mut self.buffer).await?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                raw.extend_from_slice(&self.buffer[..n]);
            }
            answer.body = dechunk(&raw).ok_or_else(|| bad("broken chunked body"))?;
            answer.body_bytes = answer.body.len();
            return Ok(answer);
        }
        let length = length.ok_or_else(|| bad("an answer without a length"))?;
        let mut got = have - end;
        if keep {
            answer.body.extend_from_slice(&self.buffer[end..have]);
        }
        while got < length {
            let want = self.buffer.len().min(length - got);
            let n = self.stream.read(&mut self.buffer[..want]).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if keep {
                answer.body.extend_from_slice(&self.buffer[..n]);
            }
            got += n;
        }
        answer.body_bytes = got;
        Ok(answer)
    }
}

fn dechunk(mut raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(raw.len());
    loop {
        let line = raw.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&raw[..line]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        raw = raw.get(line + 2..)?;
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(raw.get(..size)?);
        raw = raw.get(size + 2..)?;
    }
}
