//! Answers that go on: what a session is told, as lines (HTTP streaming) or events (SSE).

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use futures::stream::unfold;
use hyper::body::Frame as BodyFrame;
use tokio::net::UnixStream;

use super::emulation::{Emulated, Emulation};
use super::frames::{Frame, Frames};
use crate::partition::Transport;
use crate::protocol::Encoding;
use crate::protocol::codec::encode_push;
use crate::protocol::message::{ConnectRequest, Disconnect, Push};

/// What a unidirectional client sends is a connect request: the command that it stands for.
pub(crate) fn connect_command(request: &[u8]) -> Option<Vec<u8>> {
    let request = if request.trim_ascii().is_empty() { &b"{}"[..] } else { request };
    let request: ConnectRequest = serde_json::from_slice(request).ok()?;
    let command = crate::protocol::message::Command { id: 1, connect: Some(request), ..Default::default() };
    serde_json::to_vec(&command).ok()
}

/// What is around a push in a reply.
const COVER: &[u8] = b"{\"push\":";

/// Says what a worker sends in the way of a transport.
pub(super) struct Speaker {
    transport: Transport,
    encoding: Encoding,
    line: Line,
}

/// A line of which a part has been said.
#[derive(Default)]
struct Line {
    /// It has begun: the client has been told a part of it, or of what is in front of one.
    begun: bool,
    /// Its first bytes, until there are enough to see whether it is a push.
    head: Vec<u8>,
    /// It is one, and is said without its cover: its last byte is held back.
    covered: bool,
    held: Option<u8>,
}

impl Speaker {
    pub(super) fn new(transport: Transport, encoding: Encoding) -> Self {
        Self { transport, encoding, line: Line::default() }
    }

    /// Puts what is in a frame behind what is there.
    pub(super) fn say(&mut self, frame: &Frame, out: &mut BytesMut) -> Said {
        match frame {
            Frame::Message(message) => {
                self.put_all(message, true, out);
                let ping = *message == crate::protocol::codec::ping(self.encoding);
                if ping && self.transport.is_unidirectional() { Said::Ping } else { Said::Something }
            }
            Frame::Piece(piece, last) => {
                self.put_all(piece, *last, out);
                Said::Something
            }
            Frame::Close(code, reason) => {
                let disconnect = Some(Disconnect { code: u32::from(*code), reason: reason.clone(), reconnect: false });
                let push = encode_push(self.encoding, Push { disconnect, ..Push::default() });
                self.put_all(&push.unwrap_or_default(), true, out);
                if self.transport == Transport::UniWebSocket {
                    out.put_slice(&crate::websocket::close(*code, reason));
                }
                Said::End
            }
        }
    }

    /// Puts a message, or a piece of one, which may be the last.
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

    /// Puts a line, or the next part of one, which may be its end.
    fn put(&mut self, mut part: &[u8], ends: bool, out: &mut BytesMut) {
        let line = &mut self.line;
        let first = !line.begun;
        let mut head = Vec::new();
        if first && self.transport.is_unidirectional() {
            // A unidirectional session hears of nothing but pushes, so these come without their cover.
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
            self.line = Line::default();
        }
    }
}

/// What has been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Something,
    /// A ping that the client is not asked to answer.
    Ping,
    /// The end of the session.
    End,
}

/// A session that is told what there is in one answer that goes on.
pub(crate) struct Streaming {
    frames: Frames,
    emulated: Emulated,
    speaker: Speaker,
    ended: bool,
}

impl Streaming {
    /// Over the gateway's end of a session's socket pair.
    pub(crate) fn new(
        gateway: UnixStream,
        transport: Transport,
        encoding: Encoding,
        name: Arc<str>,
        all: &Arc<Emulation>,
    ) -> Self {
        let (read, write) = gateway.into_split();
        let emulated = all.enter(name, transport, encoding, write);
        let speaker = Speaker::new(transport, encoding);
        Self { frames: Frames::new(read), emulated, speaker, ended: false }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        let mut frame = if self.ended { None } else { self.frames.next().await.ok().flatten() };
        // What is there already goes with it.
        while let Some(one) = frame {
            match self.speaker.say(&one, &mut out) {
                Said::Something => {}
                Said::Ping => self.emulated.commands.pong(),
                Said::End => {
                    self.ended = true;
                    break;
                }
            }
            frame = self.frames.ready();
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// The body of the answer. It ends with the session, and the session ends when it is dropped.
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
    use crate::protocol::codec::encode_reply;
    use crate::protocol::message::{Publication, Reply};

    fn frame(encoding: Encoding, reply: &Reply) -> Frame {
        let mut payload = Vec::new();
        encode_reply(encoding, reply, &mut payload).expect("encoded");
        Frame::Message(payload.into())
    }

    fn pushed() -> Reply {
        let publication = Publication { data: b"{\"x\":1}".to_vec(), ..Default::default() };
        let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
        Reply { push: Some(push), ..Reply::default() }
    }

    fn said(transport: Transport, frames: &[Frame]) -> (String, Said) {
        let mut speaker = Speaker::new(transport, Encoding::Json);
        let mut out = BytesMut::new();
        let last = frames.iter().map(|frame| speaker.say(frame, &mut out)).last().expect("frames");
        (String::from_utf8_lossy(&out).into_owned(), last)
    }

    #[test]
    fn each_transport_says_it_in_its_way() {
        let frames = [frame(Encoding::Json, &pushed()), Frame::Message(Bytes::from_static(b"{}"))];
        let push = r#"{"push":{"channel":"c","pub":{"data":{"x":1}}}}"#;
        assert_eq!(said(Transport::HttpStream, &frames), (format!("{push}\n{{}}\n"), Said::Something));
        assert_eq!(said(Transport::Sse, &frames), (format!("data: {push}\n\ndata: {{}}\n\n"), Said::Something));
        let push = r#"{"channel":"c","pub":{"data":{"x":1}}}"#;
        assert_eq!(said(Transport::UniSse, &frames), (format!("data: {push}\n\ndata: {{}}\n\n"), Said::Ping));
    }

    /// The messages in frames of a server that may be in pieces.
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
            assert_eq!(first & 0x80 != 0, ends, "the last piece says so");
            frames = &frames[head + len..];
        }
        all
    }

    #[test]
    fn a_message_in_pieces_is_said_as_a_whole_one() {
        let mut message = Vec::new();
        for data in ["{\"x\":1}", "[]", "\"a longer text, of more bytes than there are in front of a push\""] {
            let publication = Publication { data: data.into(), ..Default::default() };
            let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
            encode_reply(Encoding::Json, &Reply { push: Some(push), ..Reply::default() }, &mut message).expect("JSON");
        }
        message.extend_from_slice(b"\n{}");
        for transport in Transport::ALL {
            let whole = said(transport, &[Frame::Message(message.clone().into())]).0;
            for step in 1..message.len() {
                let count = message.len().div_ceil(step);
                let pieces: Vec<_> = (1..)
                    .zip(message.chunks(step))
                    .map(|(at, piece)| Frame::Piece(Bytes::copy_from_slice(piece), at == count))
                    .collect();
                let mut speaker = Speaker::new(transport, Encoding::Json);
                let (mut out, mut expected) = (BytesMut::new(), BytesMut::new());
                for piece in &pieces {
                    speaker.say(piece, &mut out);
                }
                Speaker::new(transport, Encoding::Json).say(&Frame::Message(message.clone().into()), &mut expected);
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
        let (text, said_last) = said(Transport::HttpStream, std::slice::from_ref(&end));
        assert_eq!(text, "{\"push\":{\"disconnect\":{\"code\":3001,\"reason\":\"shutdown\"}}}\n");
        assert_eq!(said_last, Said::End);
        let (text, _) = said(Transport::UniHttpStream, &[end]);
        assert_eq!(text, "{\"disconnect\":{\"code\":3001,\"reason\":\"shutdown\"}}\n");
    }

    #[test]
    fn replies_in_protobuf_stay_behind_their_lengths() {
        let mut speaker = Speaker::new(Transport::HttpStream, Encoding::Protobuf);
        let mut out = BytesMut::new();
        let Frame::Message(message) = frame(Encoding::Protobuf, &pushed()) else { panic!("a message") };
        speaker.say(&Frame::Message(message.clone()), &mut out);
        speaker.say(&Frame::Piece(message.slice(..3), false), &mut out);
        speaker.say(&Frame::Piece(message.slice(3..), true), &mut out);
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
