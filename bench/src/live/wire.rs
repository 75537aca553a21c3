//! The client side of the protocol: WebSocket frames (RFC 6455) with commands and replies of
//! Centrifugo's client protocol.

use std::io;

use prost::Message;
use serde::Deserialize;
use steadfast_live::protocol::Encoding;
use steadfast_live::protocol::message::{Command, Publication, Reply};

/// The content of a publication of this load, without its padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Marks {
    /// Its number: the publisher counts from 0.
    pub n: u64,
    /// Send time, nanoseconds since the start of the publisher.
    pub t: u64,
}

/// A publication as a session received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Got {
    /// Offset in the channel; 0 without a history.
    pub offset: u64,
    /// Its content.
    pub marks: Marks,
}

/// The data of a publication: JSON of about `size` bytes.
pub fn data(marks: Marks, size: usize) -> String {
    let head = format!("{{\"n\":{},\"t\":{},\"pad\":\"", marks.n, marks.t);
    let pad = "x".repeat(size.saturating_sub(head.len() + 2));
    format!("{head}{pad}\"}}")
}

pub fn bad(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// The upgrade request of a WebSocket.
pub fn upgrade(host: &str, path: &str, encoding: Encoding) -> Vec<u8> {
    let protocol = match encoding {
        Encoding::Json => "",
        Encoding::Protobuf => "Sec-WebSocket-Protocol: centrifuge-protobuf\r\n",
    };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocol}\r\n"
    )
    .into_bytes()
}

/// The length of the answer to the handshake; `None` while it is incomplete.
///
/// # Errors
/// When the server refuses.
pub fn upgraded(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    if !bytes.starts_with(b"HTTP/1.1 101") {
        return Err(bad(format!("no WebSocket: {}", String::from_utf8_lossy(&bytes[..end]))));
    }
    Ok(Some(end + 4))
}

/// Appends a frame with one command.
///
/// # Errors
/// When the command cannot be encoded.
pub fn put_command(encoding: Encoding, command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    match encoding {
        Encoding::Json => put_frame(1, &serde_json::to_vec(command)?, out),
        Encoding::Protobuf => put_frame(2, &command.encode_length_delimited_to_vec(), out),
    }
    Ok(())
}

/// Appends the answer to the server's ping.
pub fn put_pong(encoding: Encoding, out: &mut Vec<u8>) {
    match encoding {
        Encoding::Json => put_frame(1, b"{}", out),
        Encoding::Protobuf => put_frame(2, &[0], out),
    }
}

/// A frame of a client. The mask is zero, which the standard allows, so that masking costs nothing.
fn put_frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match payload.len() {
        len @ 0..=125 => out.push(0x80 | len as u8),
        len @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}

/// A frame as a server sends it, for the floor program.
pub fn server_frame(encoding: Encoding, channel: &str, offset: u64, data: &str) -> io::Result<Vec<u8>> {
    let publication = Publication { data: data.as_bytes().to_vec().into(), offset, ..Publication::default() };
    let payload = steadfast_live::protocol::codec::encode_publication(encoding, channel, &publication).map_err(bad)?;
    let payload = payload.bytes();
    let mut out = vec![0x80 | if encoding == Encoding::Json { 1 } else { 2 }];
    match payload.len() {
        len @ 0..=125 => out.push(len as u8),
        len @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    Ok(out)
}

/// A frame of a server in a buffer.
pub struct Frame {
    /// Opcode.
    pub opcode: u8,
    /// Offset of the payload.
    pub begin: usize,
    /// End of the payload, where the next frame begins.
    pub end: usize,
}

/// The first frame; `None` while it is incomplete.
///
/// # Errors
/// For fragments, which this client does not reassemble.
pub fn frame(bytes: &[u8]) -> io::Result<Option<Frame>> {
    let [first, second, ..] = bytes else { return Ok(None) };
    if first & 0x80 == 0 {
        return Err(bad("a fragment"));
    }
    let (begin, len) = match second & 0x7f {
        126 => match bytes.get(2..4) {
            Some(len) => (4, usize::from(u16::from_be_bytes([len[0], len[1]]))),
            None => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|len| <[u8; 8]>::try_from(len).ok()) {
            Some(len) => (10, usize::try_from(u64::from_be_bytes(len)).map_err(bad)?),
            None => return Ok(None),
        },
        len => (2, usize::from(len)),
    };
    Ok((bytes.len() >= begin + len).then_some(Frame { opcode: first & 0x0f, begin, end: begin + len }))
}

/// All replies of a message.
///
/// # Errors
/// When the message violates the protocol.
pub fn replies(encoding: Encoding, payload: &[u8]) -> io::Result<Vec<Reply>> {
    let mut replies = Vec::new();
    match encoding {
        Encoding::Json => {
            for line in payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                replies.push(serde_json::from_slice(line)?);
            }
        }
        Encoding::Protobuf => {
            let mut rest = payload;
            while !rest.is_empty() {
                let len = prost::decode_length_delimiter(&mut rest).map_err(bad)?;
                let (message, more) = rest.split_at_checked(len).ok_or_else(|| bad("a reply is cut short"))?;
                replies.push(Reply::decode(message).map_err(bad)?);
                rest = more;
            }
        }
    }
    Ok(replies)
}

/// The content of a publication; `None` for one that is not of this load.
pub fn got(publication: &Publication) -> Option<Got> {
    let marks = serde_json::from_slice(&publication.data).ok()?;
    Some(Got { offset: publication.offset, marks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_sends_is_read_whole_or_not_at_all() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let marks = Marks { n: 7, t: 9 };
            let bytes = server_frame(encoding, "c", 3, &data(marks, 300)).expect("encoded");
            for cut in 0..bytes.len() {
                assert!(frame(&bytes[..cut]).expect("no fragment").is_none());
            }
            let found = frame(&bytes).expect("no fragment").expect("whole");
            assert_eq!(found.end, bytes.len());
            let replies = replies(encoding, &bytes[found.begin..found.end]).expect("replies");
            let push = replies[0].push.as_ref().expect("a push");
            let publication = push.publication.as_ref().expect("a publication");
            assert_eq!(got(publication), Some(Got { offset: 3, marks }));
            assert_eq!(publication.data.len(), 300);
        }
    }

    #[test]
    fn a_refused_handshake_is_an_error() {
        assert!(upgraded(b"HTTP/1.1 101 Switching Protocols\r\n").expect("not whole").is_none());
        assert_eq!(upgraded(b"HTTP/1.1 101 S\r\nA: b\r\n\r\nrest").expect("taken"), Some(24));
        assert!(upgraded(b"HTTP/1.1 403 F\r\n\r\n").is_err());
    }
}
