//! The gateway side of a session: WebSocket frames from the worker, and commands to it.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// Bytes per read.
const READ_BYTES: usize = 16 << 10;

/// A socket for a worker in place of a client's socket, and the gateway's end of the pair.
///
/// # Errors
/// The process has reached its limit of descriptors.
pub(crate) fn pair() -> io::Result<(TcpStream, UnixStream)> {
    let (worker, gateway) = std::os::unix::net::UnixStream::pair()?;
    worker.set_nonblocking(true)?;
    gateway.set_nonblocking(true)?;
    // The worker only reads, writes and shuts down, which are the same system calls for both
    // families.
    Ok((TcpStream::from(OwnedFd::from(worker)), UnixStream::from_std(gateway)?))
}

/// A frame from a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message of replies and pushes.
    Message(Bytes),
    /// A piece of a message that is too long to buffer, and whether it is the last. The rest stays
    /// with the worker, whose bounds include it.
    Piece(Bytes, bool),
    /// The end of the session, with code and reason.
    Close(u16, String),
}

/// Reads the frames of a worker. An idle reader has no buffer.
pub(super) struct Frames {
    from: OwnedReadHalf,
    buffer: BytesMut,
    /// Remaining bytes of a message that is passed on in pieces.
    to_come: usize,
}

impl Frames {
    pub(super) fn new(from: OwnedReadHalf) -> Self {
        Self { from, buffer: BytesMut::new(), to_come: 0 }
    }

    /// The next frame or piece; `None` when the worker has ended the session. This method is
    /// cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.ready() {
                return Ok(Some(frame));
            }
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            self.from.readable().await?;
            self.buffer.reserve(READ_BYTES);
            match self.from.try_read_buf(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The next frame that is buffered already.
    pub(super) fn ready(&mut self) -> Option<Frame> {
        loop {
            if self.to_come == 0 {
                let (opcode, head, len) = head(&self.buffer)?;
                if matches!(opcode, 1 | 2) && len > READ_BYTES {
                    self.buffer.advance(head);
                    self.to_come = len;
                }
            }
            if self.to_come > 0 {
                let here = self.to_come.min(self.buffer.len());
                if here == 0 {
                    return None;
                }
                self.to_come -= here;
                return Some(Frame::Piece(self.buffer.split_to(here).freeze(), self.to_come == 0));
            }
            let (opcode, payload) = cut(&mut self.buffer)?;
            match opcode {
                1 | 2 => return Some(Frame::Message(payload)),
                8 => {
                    let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
                    let reason = payload.get(2..).unwrap_or_default();
                    return Some(Frame::Close(code, String::from_utf8_lossy(reason).into_owned()));
                }
                // The gateway sends no WebSocket pings, so a pong has no meaning.
                _ => {}
            }
        }
    }
}

/// The opcode, header length and payload length of a server frame.
fn head(buffer: &[u8]) -> Option<(u8, usize, usize)> {
    let [first, second, ..] = *buffer else { return None };
    let (head, len) = match second {
        126 => (4, usize::from(u16::from_be_bytes(buffer.get(2..4)?.try_into().ok()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(buffer.get(2..10)?.try_into().ok()?)).ok()?),
        len => (2, usize::from(len)),
    };
    Some((first & 0x0f, head, len))
}

/// Takes a complete server frame from the buffer.
fn cut(buffer: &mut BytesMut) -> Option<(u8, Bytes)> {
    let (opcode, head, len) = head(buffer)?;
    if buffer.len() < head + len {
        return None;
    }
    buffer.advance(head);
    Some((opcode, buffer.split_to(len).freeze()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::protocol::Encoding;
    use crate::websocket;

    #[tokio::test]
    async fn frames_come_whole_however_they_are_cut() {
        let (mut worker, gateway) = pair().expect("descriptors");
        let (read, _write) = gateway.into_split();
        let mut frames = Frames::new(read);
        let long = vec![b'x'; READ_BYTES];
        let sent = [
            websocket::message(Encoding::Json, b"{}").to_vec(),
            websocket::pong(b"p").to_vec(),
            websocket::message(Encoding::Protobuf, &long).to_vec(),
            websocket::close(3008, "slow").to_vec(),
        ]
        .concat();
        worker.set_nonblocking(false).expect("a socket");
        let writing = std::thread::spawn(move || {
            for piece in sent.chunks(777) {
                worker.write_all(piece).expect("read");
            }
        });
        assert_eq!(frames.next().await.expect("a frame"), Some(Frame::Message(Bytes::from_static(b"{}"))));
        assert_eq!(frames.next().await.expect("a frame"), Some(Frame::Message(long.into())));
        assert_eq!(frames.next().await.expect("a frame"), Some(Frame::Close(3008, "slow".into())));
        assert_eq!(frames.next().await.expect("the end"), None);
        writing.join().expect("written");
    }

    #[tokio::test]
    async fn a_long_frame_is_not_gathered() {
        let (mut worker, gateway) = pair().expect("descriptors");
        let (read, _write) = gateway.into_split();
        let mut frames = Frames::new(read);
        let long: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        let sent = [&websocket::message(Encoding::Protobuf, &long)[..], &websocket::close(3001, "")].concat();
        worker.set_nonblocking(false).expect("a socket");
        let writing = std::thread::spawn(move || {
            worker.write_all(&sent).expect("read");
        });
        let (mut got, mut ended) = (Vec::new(), false);
        while !ended {
            let Some(Frame::Piece(piece, last)) = frames.next().await.expect("a frame") else { panic!("no piece") };
            assert!(piece.len() + frames.buffer.capacity() <= 4 * READ_BYTES, "{}", piece.len());
            got.extend_from_slice(&piece);
            ended = last;
        }
        assert!(got == long);
        assert_eq!(frames.next().await.expect("a frame"), Some(Frame::Close(3001, String::new())));
        writing.join().expect("written");
    }
}
