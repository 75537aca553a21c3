//! Publishing over the HTTP API, one request after another on one connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;

use super::wire::bad;

/// Time limit of an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A connection to the HTTP API.
pub struct Publisher {
    stream: TcpStream,
    head: String,
    channel: String,
    buffer: Vec<u8>,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<Place>,
    error: Option<serde_json::Value>,
}

/// Position of a publication.
#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Place {
    /// Offset in the channel; 0 without a history.
    pub offset: u64,
    /// Epoch of the channel.
    pub epoch: String,
}

/// The head of a request without the length.
pub fn head(address: SocketAddr, key: &str) -> String {
    format!("POST /api/publish HTTP/1.1\r\nHost: {address}\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n")
}

/// A request to publish.
pub fn request(head: &str, channel: &str, data: &str) -> String {
    let body = format!("{{\"channel\":\"{channel}\",\"data\":{data}}}");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// The length of an answer and the offset of its body; `None` while it is incomplete.
///
/// # Errors
/// When the answer is not a success.
pub fn answer(bytes: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end]).map_err(bad)?;
    if text.get(9..12) != Some("200") {
        return Err(bad(format!("the API answers: {text}")));
    }
    let length = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = end + 4 + length.ok_or_else(|| bad("an answer without a length"))?;
    Ok((bytes.len() >= whole).then_some((end + 4, whole)))
}

/// Parses the body of an answer.
///
/// # Errors
/// When the answer is an error.
pub fn place(body: &[u8]) -> io::Result<Place> {
    let answer: Answer = serde_json::from_slice(body)?;
    match answer.error {
        Some(error) => Err(bad(format!("not published: {error}"))),
        None => Ok(answer.result.unwrap_or_default()),
    }
}

impl Publisher {
    /// Connects.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn connect(address: SocketAddr, key: &str, channel: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        Ok(Self { stream, head: head(address, key), channel: channel.to_owned(), buffer: vec![0; 16 << 10] })
    }

    /// Sends a publication; its answer comes with [`Publisher::answer`].
    ///
    /// # Errors
    /// The operating system's error.
    pub fn send(&mut self, data: &str) -> io::Result<()> {
        self.stream.write_all(request(&self.head, &self.channel, data).as_bytes())
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// When no answer arrives, or it is an error.
    pub fn answer(&mut self) -> io::Result<Place> {
        let mut have = 0;
        loop {
            let len = self.stream.read(&mut self.buffer[have..])?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += len;
            if let Some((begin, end)) = answer(&self.buffer[..have])? {
                return place(&self.buffer[begin..end]);
            }
            if have == self.buffer.len() {
                return Err(bad("an answer that is too long"));
            }
        }
    }
}
