//! Streaming answers: the frames of a session as lines (HTTP streaming) or events (SSE).

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use futures::stream::unfold;
use hyper::body::Frame as BodyFrame;
use tokio::net::UnixStream;

use super::emulation::{EmulatedSession, Emulation};
use super::frames::{Frame, Frames};
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::protocol::codec::encode_push;
use crate::protocol::message::{ConnectRequest, Disconnect, Push};

/// Turns the connect request of a unidirectional client into a connect command.
pub(crate) fn connect_command(request: &[u8]) -> Option<Vec<u8>> {
    let request = if request.trim_ascii().is_empty() { &b"{}"[..] } else { request };
    let request: ConnectRequest = serde_json::from_slice(request).ok()?;
    let command = crate::protocol::message::Command { id: 1, connect: Some(request), ..Default::default() };
    serde_json::to_vec(&command).ok()
}

/// The JSON before a push in a reply.
const COVER: &[u8] = b"{\"push\":";

/// Encodes the frames of a worker for a transport.
pub(super) struct FrameEncoder {
    transport: Transport,
    encoding: Encoding,
    line: LineState,
}

/// The state of a line that is encoded in part.
#[derive(Default)]
struct LineState {
    /// The client has been sent a part of the line.
    begun: bool,
    /// The first bytes, until there are enough to recognise a push.
    head: Vec<u8>,
    /// The line is a push sent without its cover, so its last byte is held back.
    covered: bool,
    held: Option<u8>,
}

impl FrameEncoder {
    pub(super) fn new(transport: Transport, encoding: Encoding) -> Self {
        Self { transport, encoding, line: LineState::default() }
    }

    /// Appends the encoded frame to `out`.
    pub(super) fn encode(&mut self, frame: &Frame, out: &mut BytesMut) -> FrameKind {
        match frame {
            Frame::Message(message) => {
                self.put_all(message, true, out);
                let ping = *message == crate::protocol::codec::ping(self.encoding);
                if ping && self.transport.is_unidirectional() { FrameKind::Ping } else { FrameKind::Data }
            }
            Frame::Piece(piece, last) => {
                self.put_all(piece, *last, out);
                FrameKind::Data
            }
            Frame::Close(code, reason) => {
                let disconnect = Some(Disconnect { code: u32::from(*code), reason: reason.clone(), reconnect: false });
                let push = encode_push(self.encoding, Push { disconnect, ..Push::default() });
                self.put_all(push.unwrap_or_default().bytes(), true, out);
                if self.transport == Transport::UniWebSocket {
                    out.put_slice(&crate::websocket::close(*code, reason));
                }
                FrameKind::End
            }
        }
    }

    /// Encodes a message, or a piece of one; `last` marks its end.
    fn put_all(&mut self, payload: &[u8], last: bool, out: &mut BytesMut) {
        match self.encoding {
            Encoding::Json => {
                let mut lines = payload.split(|byte| *byte == b'\n').peekable();
                while let Some(line) = lines.next() {
                    let ends = last || lines.peek().is_some();
                    self.put(line, ends, out);
                }
            }
            Encoding::Protobuf => out.put_slice(payload),
        }
    }

    /// Encodes a line, or the next part of one; `ends` marks its end.
    fn put(&mut self, mut part: &[u8], ends: bool, out: &mut BytesMut) {
        let line = &mut self.line;
        let first = !line.begun;
        let mut head = Vec::new();
        if first && self.transport.is_unidirectional() {
            // A unidirectional session gets only pushes, so they are sent without their cover.
            let (more, rest) = part.split_at(part.len().min(COVER.len() - line.head.len()));
            line.head.extend_from_slice(more);
            part = rest;
            if line.head.len() < COVER.len() && !ends {
                return;
            }
            head = std::mem::take(&mut line.head);
            line.covered = head == COVER;
            if line.covered {
                head.clear();
            }
        }
        line.begun = true;
        if line.covered
            && let Some((last, before)) = part.split_last()
        {
            head.extend(line.held.replace(*last));
            part = before;
        }
        match self.transport {
            Transport::Sse | Transport::UniSse => {
                if first {
                    out.put_slice(b"data: ");
                }
                out.put_slice(&head);
                out.put_slice(part);
                if ends {
                    out.put_slice(b"\n\n");
                }
            }
            Transport::UniWebSocket => {
                head.extend_from_slice(part);
                out.put_slice(&crate::websocket::text_piece(first, ends, &head));
            }
            _ => {
                out.put_slice(&head);
                out.put_slice(part);
                if ends {
                    out.put_u8(b'\n');
                }
            }
        }
        if ends {
            self.line = LineState::default();
        }
    }
}

/// The kind of an encoded frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    /// A ping that the client does not answer.
    Ping,
    /// The end of the session.
    End,
}

/// A session whose frames are sent in one streaming answer.
pub(crate) struct Streaming {
    frames: Frames,
    emulated: EmulatedSession,
    encoder: FrameEncoder,
    ended: bool,
}

impl Streaming {
    /// A session on the gateway's end of its socket pair.
    pub(crate) fn new(
        gateway: UnixStream,
        transport: Transport,
        encoding: Encoding,
        name: Arc<str>,
        all: &Arc<Emulation>,
    ) -> Self {
        let (read, write) = gateway.into_split();
        let emulated = all.enter(name, transport, encoding, write);
        let encoder = FrameEncoder::new(transport, encoding);
        Self { frames: Frames::new(read), emulated, encoder, ended: false }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        let mut frame = if self.ended { None } else { self.frames.next().await.ok().flatten() };
        // Append the frames that are buffered already.
        while let Some(one) = frame {
            match self.encoder.encode(&one, &mut out) {
                FrameKind::Data => {}
                FrameKind::Ping => self.emulated.commands.pong(),
                FrameKind::End => {
                    self.ended = true;
                    break;
                }
            }
            frame = self.frames.ready();
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// The body of the answer. It ends with the session; dropping it ends the session.
    pub(crate) fn into_body(self) -> impl Stream<Item = Result<BodyFrame<Bytes>, io::Error>> + Send + 'static {
        unfold(self, |mut this| async move {
            let bytes = this.next().await?;
            Some((Ok(BodyFrame::data(bytes)), this))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Payload;
    use crate::protocol::codec::encode_reply;
    use crate::protocol::message::{Publication, Reply};

    fn frame(encoding: Encoding, reply: &Reply) -> Frame {
        let mut payload = Payload::default();
        encode_reply(encoding, reply, &mut payload).expect("encoded");
        Frame::Message(payload.bytes().to_vec().into())
    }

    fn pushed() -> Reply {
        let publication = Publication { data: b"{\"x\":1}".to_vec().into(), ..Default::default() };
        let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
        Reply { push: Some(push), ..Reply::default() }
    }

    fn encoded(transport: Transport, frames: &[Frame]) -> (String, FrameKind) {
        let mut encoder = FrameEncoder::new(transport, Encoding::Json);
        let mut out = BytesMut::new();
        let last = frames.iter().map(|frame| encoder.encode(frame, &mut out)).last().expect("frames");
        (String::from_utf8_lossy(&out).into_owned(), last)
    }

    #[test]
    fn each_transport_has_its_encoding() {
        let frames = [frame(Encoding::Json, &pushed()), Frame::Message(Bytes::from_static(b"{}"))];
        let push = r#"{"push":{"channel":"c","pub":{"data":{"x":1}}}}"#;
        assert_eq!(encoded(Transport::HttpStream, &frames), (format!("{push}\n{{}}\n"), FrameKind::Data));
        assert_eq!(encoded(Transport::Sse, &frames), (format!("data: {push}\n\ndata: {{}}\n\n"), FrameKind::Data));
        let push = r#"{"channel":"c","pub":{"data":{"x":1}}}"#;
        assert_eq!(encoded(Transport::UniSse, &frames), (format!("data: {push}\n\ndata: {{}}\n\n"), FrameKind::Ping));
    }

    /// The messages in server frames, which may be fragmented.
    fn messages(mut frames: &[u8]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        while let [first, second, ..] = *frames {
            let (head, len) = match second {
                126 => (4, usize::from(u16::from_be_bytes([frames[2], frames[3]]))),
                len => (2, usize::from(len)),
            };
            match first & 0x0f {
                1 => all.push(frames[head..head + len].to_vec()),
                _ => all.last_mut().expect("it has begun").extend_from_slice(&frames[head..head + len]),
            }
            let ends = frames.len() == head + len || frames[head + len] & 0x0f == 1;
            assert_eq!(first & 0x80 != 0, ends, "the last piece has the FIN bit");
            frames = &frames[head + len..];
        }
        all
    }

    #[test]
    fn a_message_in_pieces_is_encoded_as_a_whole_one() {
        let mut message = Payload::default();
        for data in ["{\"x\":1}", "[]", "\"a longer text, of more bytes than there are in front of a push\""] {
            let publication = Publication { data: data.into(), ..Default::default() };
            let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
            encode_reply(Encoding::Json, &Reply { push: Some(push), ..Reply::default() }, &mut message).expect("JSON");
        }
        let mut message = message.bytes().to_vec();
        message.extend_from_slice(b"\n{}");
        for transport in Transport::ALL {
            let whole = encoded(transport, &[Frame::Message(message.clone().into())]).0;
            for step in 1..message.len() {
                let count = message.len().div_ceil(step);
                let pieces: Vec<_> = (1..)
                    .zip(message.chunks(step))
                    .map(|(at, piece)| Frame::Piece(Bytes::copy_from_slice(piece), at == count))
                    .collect();
                let mut encoder = FrameEncoder::new(transport, Encoding::Json);
                let (mut out, mut expected) = (BytesMut::new(), BytesMut::new());
                for piece in &pieces {
                    encoder.encode(piece, &mut out);
                }
                FrameEncoder::new(transport, Encoding::Json)
                    .encode(&Frame::Message(message.clone().into()), &mut expected);
                match transport {
                    Transport::UniWebSocket => assert_eq!(messages(&out), messages(&expected), "{step}"),
                    _ => assert_eq!(String::from_utf8_lossy(&out), whole, "{transport:?} {step}"),
                }
            }
        }
    }

    #[test]
    fn the_end_is_a_push() {
        let end = Frame::Close(3001, "shutdown".into());
        let (text, last_kind) = encoded(Transport::HttpStream, std::slice::from_ref(&end));
        assert_eq!(text, "{\"push\":{\"disconnect\":{\"code\":3001,\"reason\":\"shutdown\"}}}\n");
        assert_eq!(last_kind, FrameKind::End);
        let (text, _) = encoded(Transport::UniHttpStream, &[end]);
        assert_eq!(text, "{\"disconnect\":{\"code\":3001,\"reason\":\"shutdown\"}}\n");
    }

    #[test]
    fn protobuf_replies_stay_length_delimited() {
        let mut encoder = FrameEncoder::new(Transport::HttpStream, Encoding::Protobuf);
        let mut out = BytesMut::new();
        let Frame::Message(message) = frame(Encoding::Protobuf, &pushed()) else { panic!("a message") };
        encoder.encode(&Frame::Message(message.clone()), &mut out);
        encoder.encode(&Frame::Piece(message.slice(..3), false), &mut out);
        encoder.encode(&Frame::Piece(message.slice(3..), true), &mut out);
        assert_eq!(out, [&message[..], &message].concat());
    }

    #[test]
    fn a_connect_request_becomes_a_command() {
        let text = |request: &[u8]| connect_command(request).map(|c| String::from_utf8(c).expect("JSON"));
        assert_eq!(text(b" ").as_deref(), Some(r#"{"id":1,"connect":{}}"#));
        let request = b"{\"token\":\"t\",\n\"data\":{\"a\": 1}}";
        assert_eq!(text(request).as_deref(), Some(r#"{"id":1,"connect":{"token":"t","data":{"a": 1}}}"#));
        assert_eq!(text(b"nonsense"), None);
    }
}
