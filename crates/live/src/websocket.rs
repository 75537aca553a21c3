//! WebSocket frames (RFC 6455), the server's side.
//!
//! Implemented here instead of with a library for two reasons. An idle session must own no buffer,
//! and a publication must be one frame that is encoded once for all sessions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use sha1::{Digest, Sha1};

use crate::deflate::{Deflate, Violation, inflate};
use crate::protocol::{Encoding, Payload};

const FIN: u8 = 0x80;
/// The message is compressed.
const RSV1: u8 = 0x40;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The `Sec-WebSocket-Accept` header for a key.
pub fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

/// A message as a client sends it, with a zero mask. Gateways use it for clients without WebSocket.
pub fn from_client(encoding: Encoding, payload: &[u8]) -> Vec<u8> {
    let mut out = message(encoding, payload).to_vec();
    out[1] |= 0x80;
    let head = out.len() - payload.len();
    out.splice(head..head, [0; 4]);
    out
}

fn frame(opcode: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + 10);
    put_head(opcode, payload.len(), &mut out);
    out.put_slice(payload);
    out.freeze()
}

fn put_head(opcode: u8, len: usize, out: &mut impl BufMut) {
    out.put_u8(FIN | opcode);
    match len {
        len @ 0..=125 => out.put_u8(len as u8),
        len @ 126..=0xffff => {
            out.put_u8(126);
            out.put_u16(len as u16);
        }
        len => {
            out.put_u8(127);
            out.put_u64(len as u64);
        }
    }
}

fn opcode(encoding: Encoding) -> u8 {
    if encoding == Encoding::Json { TEXT } else { BINARY }
}

/// The header of a frame for a message of `len` bytes.
pub fn message_head(encoding: Encoding, compressed: bool, len: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    put_head(opcode(encoding) | if compressed { RSV1 } else { 0 }, len, &mut out);
    out
}

/// The frame of a message in an encoding.
pub fn message(encoding: Encoding, payload: &[u8]) -> Bytes {
    frame(opcode(encoding), payload)
}

/// The frame of a payload, without a copy.
pub fn framed(encoding: Encoding, payload: Payload) -> Bytes {
    let mut head = [0; 10];
    let mut rest = &mut head[..];
    put_head(opcode(encoding), payload.bytes().len(), &mut rest);
    let len = 10 - rest.len();
    payload.with_head(&head[..len])
}

/// The frame of a compressed message; `None` if compression does not help.
pub fn compressed(encoding: Encoding, deflate: Deflate, payload: &[u8]) -> Option<Bytes> {
    Some(frame(opcode(encoding) | RSV1, &deflate.message(payload)?))
}

/// A fragment of a text message.
pub fn text_piece(first: bool, last: bool, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::with_capacity(payload.len() + 10);
    put_head(if first { TEXT } else { CONTINUATION }, payload.len(), &mut out);
    if !last {
        out[0] &= !FIN;
    }
    out.put_slice(payload);
    out
}

/// A close frame. The reason is cut to 123 bytes.
pub fn close(code: u16, reason: &str) -> Bytes {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.floor_char_boundary(123)]);
    frame(CLOSE, &payload)
}

/// The answer to a close frame of the client.
pub fn closed() -> Bytes {
    close(1000, "")
}

/// A transport ping.
pub fn ping() -> Bytes {
    frame(PING, b"")
}

/// The answer to a transport ping.
pub fn pong(payload: &[u8]) -> Bytes {
    frame(PONG, payload)
}

/// Input from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A message.
    Message(Vec<u8>),
    /// A transport ping.
    Ping(Vec<u8>),
    /// A close frame.
    Close,
}

/// Assembles messages from received bytes. Between messages it is empty and owns no memory.
#[derive(Debug, Default)]
pub struct Reader {
    /// Bytes of an incomplete frame.
    partial: Vec<u8>,
    /// Payload of an incomplete message.
    fragments: Option<Vec<u8>>,
    /// The incomplete message is compressed.
    compressed: bool,
    /// Messages may be compressed.
    inflates: bool,
}

impl Reader {
    /// A reader for a session whose client may (`inflates`) or must not compress messages.
    pub fn new(inflates: bool) -> Self {
        Self { inflates, ..Self::default() }
    }

    /// Keeps bytes for the next call.
    pub fn keep(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
    }

    /// Appends bytes to the kept ones, and passes each complete message to `take` in order, until
    /// `take` returns `false`. The rest is kept.
    ///
    /// # Errors
    /// When the bytes violate the standard, or a message is larger than `message_max` bytes.
    pub fn feed(
        &mut self,
        bytes: &mut [u8],
        message_max: usize,
        mut take: impl FnMut(Incoming) -> bool,
    ) -> Result<(), Violation> {
        if self.partial.is_empty() {
            let used = self.take_all(bytes, message_max, &mut take)?;
            self.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let used = self.take_all(&mut all, message_max, &mut take)?;
            if used < all.len() {
                all.drain(..used);
                self.partial = all;
            }
        }
        Ok(())
    }

    fn take_all(
        &mut self,
        mut bytes: &mut [u8],
        message_max: usize,
        take: &mut impl FnMut(Incoming) -> bool,
    ) -> Result<usize, Violation> {
        let whole = bytes.len();
        while let Some((head, len)) = head(bytes, message_max, self.inflates)? {
            if bytes.len() < head + len {
                break;
            }
            let (now, rest) = bytes.split_at_mut(head + len);
            let (head, payload) = now.split_at_mut(head);
            let mask = [head[head.len() - 4], head[head.len() - 3], head[head.len() - 2], head[head.len() - 1]];
            unmask(payload, mask);
            let left = rest.len();
            bytes = rest;
            if let Some(incoming) = self.frame(head[0], payload, message_max)?
                && !take(incoming)
            {
                return Ok(whole - left);
            }
        }
        Ok(whole - bytes.len())
    }

    fn frame(&mut self, first: u8, payload: &[u8], message_max: usize) -> Result<Option<Incoming>, Violation> {
        let (fin, compressed, opcode) = (first & FIN != 0, first & RSV1 != 0, first & 0x0f);
        Ok(match (opcode, fin, &mut self.fragments) {
            (TEXT | BINARY, true, None) if compressed => Some(Incoming::Message(inflate(payload, message_max)?)),
            (TEXT | BINARY, true, None) => Some(Incoming::Message(payload.to_vec())),
            (TEXT | BINARY, false, None) => {
                self.fragments = Some(payload.to_vec());
                self.compressed = compressed;
                None
            }
            // Only the first frame of a message may carry the flag.
            _ if compressed => return Err(Violation::Protocol),
            (CONTINUATION, _, Some(fragments)) => {
                if fragments.len() + payload.len() > message_max {
                    return Err(Violation::TooBig);
                }
                fragments.extend_from_slice(payload);
                match self.fragments.take_if(|_| fin) {
                    Some(whole) if self.compressed => Some(Incoming::Message(inflate(&whole, message_max)?)),
                    whole => whole.map(Incoming::Message),
                }
            }
            (CLOSE, true, _) => Some(Incoming::Close),
            (PING, true, _) => Some(Incoming::Ping(payload.to_vec())),
            (PONG, true, _) => None,
            _ => return Err(Violation::Protocol),
        })
    }
}

/// The lengths of a frame's header and payload; `None` if the header is incomplete.
fn head(bytes: &[u8], message_max: usize, inflates: bool) -> Result<Option<(usize, usize)>, Violation> {
    let [first, second, ..] = bytes else { return Ok(None) };
    let reserved = if inflates { 0x70 & !RSV1 } else { 0x70 };
    if first & reserved != 0 || second & 0x80 == 0 {
        return Err(Violation::Protocol);
    }
    let control = first & 0x08 != 0;
    let (at, len) = match second & 0x7f {
        126 => match bytes.get(2..4) {
            Some(len) => (4, u64::from(u16::from_be_bytes([len[0], len[1]]))),
            None => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|len| <[u8; 8]>::try_from(len).ok()) {
            Some(len) => (10, u64::from_be_bytes(len)),
            None => return Ok(None),
        },
        len => (2, u64::from(len)),
    };
    if control && len > 125 {
        return Err(Violation::Protocol);
    }
    if len > message_max as u64 {
        return Err(Violation::TooBig);
    }
    Ok((bytes.len() >= at + 4).then_some((at + 4, len as usize)))
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (i, byte) in rest.iter_mut().enumerate() {
        *byte ^= mask[i % 4];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAST: Deflate = Deflate { level: 1, min_bytes: 0, bytes_max: u32::MAX };

    fn from_client(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = frame(0, payload).to_vec();
        out[0] = first;
        out[1] |= 0x80;
        let head = out.len() - payload.len();
        let mask = [1, 2, 3, 4];
        unmask(&mut out[head..], mask);
        out.splice(head..head, mask);
        out
    }

    fn read(bytes: &[u8], step: usize) -> Result<Vec<Incoming>, Violation> {
        read_by(Reader::default(), bytes, step)
    }

    fn read_by(mut reader: Reader, bytes: &[u8], step: usize) -> Result<Vec<Incoming>, Violation> {
        let mut all = Vec::new();
        for piece in bytes.chunks(step) {
            reader.feed(&mut piece.to_vec(), 70_000, |incoming| {
                all.push(incoming);
                true
            })?;
        }
        Ok(all)
    }

    #[test]
    fn the_accept_key_follows_the_standard() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn messages_are_assembled_from_any_pieces() {
        let mut bytes = Vec::new();
        let long = vec![7; 66_000];
        for (first, payload) in [
            (FIN | TEXT, &b"hello"[..]),
            (FIN | PING, b"p"),
            (BINARY, b"one "),
            (FIN | PONG, b""),
            (CONTINUATION, b"two "),
            (FIN | CONTINUATION, b"three"),
            (FIN | BINARY, &long),
            (FIN | TEXT, &[9; 200]),
            (FIN | CLOSE, b"\x03\xe8"),
        ] {
            bytes.extend(from_client(first, payload));
        }
        let expected = vec![
            Incoming::Message(b"hello".to_vec()),
            Incoming::Ping(b"p".to_vec()),
            Incoming::Message(b"one two three".to_vec()),
            Incoming::Message(long.clone()),
            Incoming::Message(vec![9; 200]),
            Incoming::Close,
        ];
        for step in [1, 2, 3, 7, 1000, usize::MAX] {
            assert_eq!(read(&bytes, step.min(bytes.len())), Ok(expected.clone()), "step {step}");
        }
    }

    #[test]
    fn violations_of_the_standard_are_refused() {
        let unmasked = frame(TEXT, b"x");
        let reserved = from_client(FIN | 0x40 | TEXT, b"x");
        let continuation = from_client(FIN | CONTINUATION, b"x");
        let long_ping = from_client(FIN | PING, &[0; 126]);
        let cut_ping = from_client(PING, b"x");
        let unknown = from_client(FIN | 3, b"x");
        for bytes in [&unmasked[..], &reserved, &continuation, &long_ping, &cut_ping, &unknown] {
            assert_eq!(read(bytes, bytes.len()), Err(Violation::Protocol));
        }
        let interleaved = [from_client(TEXT, b"x"), from_client(FIN | TEXT, b"y")].concat();
        assert_eq!(read(&interleaved, 100), Err(Violation::Protocol));
        let large = from_client(FIN | TEXT, &[0; 70_001]);
        assert_eq!(read(&large[..14], 14), Err(Violation::TooBig), "before it has come");
        let pieces = [from_client(TEXT, &[0; 60_000]), from_client(FIN | CONTINUATION, &[0; 60_000])].concat();
        assert_eq!(read(&pieces, pieces.len()), Err(Violation::TooBig));
    }

    #[test]
    fn compressed_messages_are_assembled_from_any_pieces() {
        let long = b"a long message, a long message, a long message".repeat(50);
        let short = FAST.message(&long).expect("compressed");
        let (first, rest) = short.split_at(7);
        let mut bytes = Vec::new();
        for (first, payload) in [
            (FIN | RSV1 | TEXT, &short[..]),
            (FIN | TEXT, b"as it is"),
            (RSV1 | BINARY, first),
            (FIN | PING, b"p"),
            (CONTINUATION, b""),
            (FIN | CONTINUATION, rest),
            (BINARY, b"not "),
            (FIN | CONTINUATION, b"compressed"),
        ] {
            bytes.extend(from_client(first, payload));
        }
        let expected = [&long[..], b"as it is", b"p", &long, b"not compressed"];
        for step in [1, 2, 7, usize::MAX] {
            let found = read_by(Reader::new(true), &bytes, step.min(bytes.len())).expect("valid");
            let payloads = found.iter().map(|one| match one {
                Incoming::Message(payload) | Incoming::Ping(payload) => &payload[..],
                Incoming::Close => b"the end",
            });
            assert_eq!(payloads.collect::<Vec<_>>(), expected, "step {step}");
        }
    }

    #[test]
    fn invalid_compressed_frames_are_refused() {
        let short = FAST.message(&[b'x'; 1000]).expect("compressed");
        let bomb = FAST.message(&vec![b'x'; 70_001]).expect("compressed");
        let inflating = |frames: &[Vec<u8>]| {
            let bytes = frames.concat();
            read_by(Reader::new(true), &bytes, bytes.len()).map(|all| all.len())
        };
        let begin = || from_client(RSV1 | TEXT, &short);
        for (frames, violation) in [
            (vec![from_client(FIN | RSV1 | TEXT, b"\x06garbage")], Violation::Protocol),
            (vec![from_client(FIN | RSV1 | TEXT, &bomb)], Violation::TooBig),
            (vec![from_client(RSV1 | TEXT, &bomb), from_client(FIN | CONTINUATION, b"")], Violation::TooBig),
            // Only the first frame of a message carries the flag, and control frames never do.
            (vec![begin(), from_client(FIN | RSV1 | CONTINUATION, b"")], Violation::Protocol),
            (vec![from_client(FIN | RSV1 | PING, b"")], Violation::Protocol),
            (vec![from_client(FIN | RSV1 | CLOSE, b"")], Violation::Protocol),
            (vec![begin(), begin()], Violation::Protocol),
            (vec![from_client(FIN | 0x20 | TEXT, b"x")], Violation::Protocol),
            (vec![from_client(FIN | 0x10 | TEXT, b"x")], Violation::Protocol),
        ] {
            assert_eq!(inflating(&frames), Err(violation), "{:x?}", &frames[0][..8]);
        }
        // Without a negotiated extension the bit is reserved.
        assert_eq!(read(&from_client(FIN | RSV1 | TEXT, &short), 100), Err(Violation::Protocol));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, step in 1usize..20, inflates: bool) {
            let _ = read_by(Reader::new(inflates), &bytes, step);
        }
    }
}
