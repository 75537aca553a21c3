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
use crate::protocol::codec::{encode_push, encode_reply};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{ConnectRequest, Disconnect, Push, Reply};

/// What a unidirectional client sends is a connect request: the command that it stands for.
pub(crate) fn connect_command(request: &[u8]) -> Option<Vec<u8>> {
    let request = if request.trim_ascii().is_empty() { &b"{}"[..] } else { request };
    let request: ConnectRequest = serde_json::from_slice(request).ok()?;
    let command = crate::protocol::message::Command { id: 1, connect: Some(request), ..Default::default() };
    serde_json::to_vec(&command).ok()
}

/// Says what a worker sends in the way of a transport.
pub(super) struct Speaker {
    transport: Transport,
    encoding: Encoding,
    connected: bool,
    /// Where the session may send commands in requests of their own: the server's name.
    node: Option<String>,
}

impl Speaker {
    pub(super) fn new(transport: Transport, encoding: Encoding, node: Option<String>) -> Self {
        Self { transport, encoding, connected: false, node }
    }

    /// Puts what is in a frame behind what is there. The answer to a unidirectional session's connect may be the end.
    pub(super) fn say(&mut self, frame: &Frame, out: &mut BytesMut) -> Said {
        let message = match frame {
            Frame::Message(message) => message,
            Frame::Close(code, reason) => {
                let disconnect = Some(Disconnect { code: u32::from(*code), reason: reason.clone(), reconnect: false });
                let push = encode_push(self.encoding, Push { disconnect, ..Push::default() });
                self.put_all(&push.unwrap_or_default(), out);
                if self.transport == Transport::UniWebSocket {
                    out.put_slice(&crate::websocket::close(*code, reason));
                }
                return Said::End;
            }
        };
        if !self.connected {
            // The first one, or the few before it.
            return self.begin(message, out);
        }
        let ping = *message == crate::protocol::codec::ping(self.encoding);
        self.put_all(message, out);
        if ping && self.transport.is_unidirectional() { Said::Ping } else { Said::Something }
    }

    /// The answer to the connect command.
    fn begin(&mut self, message: &[u8], out: &mut BytesMut) -> Said {
        let reply = match self.encoding {
            Encoding::Json => serde_json::from_slice::<Reply>(message).ok(),
            Encoding::Protobuf => prost::Message::decode_length_delimited(message).ok(),
        };
        let Some(mut reply) = reply else { return Said::Something };
        if let Some(error) = reply.error.as_ref().filter(|_| self.transport.is_unidirectional()) {
            let why = end_of(&ClientError { code: error.code, message: "".into(), temporary: error.temporary });
            return self.say(&Frame::Close(why.code, why.reason.into_owned()), out);
        }
        if let Some(connect) = &mut reply.connect {
            self.connected = true;
            if let Some(node) = &self.node {
                connect.node.clone_from(node);
            }
            if self.transport.is_unidirectional() {
                connect.pong = false;
                let push = Push { connect: reply.connect.take(), ..Push::default() };
                reply = Reply { push: Some(push), ..Reply::default() };
            }
        }
        let mut payload = Vec::new();
        if encode_reply(self.encoding, &reply, &mut payload).is_ok() {
            self.put_all(&payload, out);
        }
        Said::Something
    }

    fn put_all(&self, payload: &[u8], out: &mut BytesMut) {
        match self.encoding {
            Encoding::Json => payload.split(|byte| *byte == b'\n').for_each(|line| self.put(line, out)),
            Encoding::Protobuf => out.put_slice(payload),
        }
    }

    fn put(&self, line: &[u8], out: &mut BytesMut) {
        // A unidirectional session hears of nothing but pushes, so these come without their cover.
        let push = line.strip_prefix(b"{\"push\":").and_then(|rest| rest.strip_suffix(b"}"));
        let line = push.filter(|_| self.transport.is_unidirectional()).unwrap_or(line);
        match self.transport {
            Transport::Sse | Transport::UniSse => {
                out.put_slice(b"data: ");
                out.put_slice(line);
                out.put_slice(b"\n\n");
            }
            Transport::UniWebSocket => out.put_slice(&crate::websocket::message(Encoding::Json, line)),
            _ => {
                out.put_slice(line);
                out.put_u8(b'\n');
            }
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

/// How a unidirectional session ends whose connect is refused: only this tells its client whether to come again.
fn end_of(error: &ClientError) -> Disconnected {
    match error {
        error if error.code == codes::TOKEN_EXPIRED.code || error.code == codes::EXPIRED.code => codes::SESSION_EXPIRED,
        error if error.code == codes::TOO_MANY_REQUESTS.code => codes::TOO_MANY_COMMANDS,
        error if error.temporary => codes::SERVER_ERROR,
        error if error.code == codes::PERMISSION_DENIED.code => codes::DISCONNECT_PERMISSION_DENIED,
        _ => codes::BAD_PROTOCOL,
    }
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
        let emulated = all.enter(name, encoding, write);
        let node = (!transport.is_unidirectional()).then(|| emulated.node().to_owned());
        let speaker = Speaker::new(transport, encoding, node);
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
    use crate::protocol::message::{ConnectResult, ErrorMessage, Publication};

    fn frame(encoding: Encoding, reply: &Reply) -> Frame {
        let mut payload = Vec::new();
        encode_reply(encoding, reply, &mut payload).expect("encoded");
        Frame::Message(payload.into())
    }

    fn connected() -> Reply {
        let session = "s".into();
        let connect = ConnectResult { client: "c".into(), ping: 25, pong: true, session, ..Default::default() };
        Reply { id: 1, connect: Some(connect), ..Reply::default() }
    }

    fn pushed() -> Reply {
        let publication = Publication { data: b"{\"x\":1}".to_vec(), ..Default::default() };
        let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
        Reply { push: Some(push), ..Reply::default() }
    }

    fn said(transport: Transport, frames: &[Frame]) -> (String, Said) {
        let mut speaker = Speaker::new(transport, Encoding::Json, Some("n".into()));
        let mut out = BytesMut::new();
        let last = frames.iter().map(|frame| speaker.say(frame, &mut out)).last().expect("frames");
        (String::from_utf8_lossy(&out).into_owned(), last)
    }

    #[test]
    fn each_transport_says_it_in_its_way() {
        let frames = [
            frame(Encoding::Json, &connected()),
            frame(Encoding::Json, &pushed()),
            Frame::Message(Bytes::from_static(b"{}")),
        ];
        let connect = r#"{"id":1,"connect":{"client":"c","ping":25,"pong":true,"session":"s","node":"n"}}"#;
        let push = r#"{"push":{"channel":"c","pub":{"data":{"x":1}}}}"#;
        assert_eq!(said(Transport::HttpStream, &frames), (format!("{connect}\n{push}\n{{}}\n"), Said::Something));
        assert_eq!(
            said(Transport::Sse, &frames),
            (format!("data: {connect}\n\ndata: {push}\n\ndata: {{}}\n\n"), Said::Something)
        );
        let connect = r#"{"connect":{"client":"c","ping":25,"session":"s","node":"n"}}"#;
        let push = r#"{"channel":"c","pub":{"data":{"x":1}}}"#;
        assert_eq!(
            said(Transport::UniSse, &frames),
            (format!("data: {connect}\n\ndata: {push}\n\ndata: {{}}\n\n"), Said::Ping)
        );
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
    fn a_refused_connect_ends_a_unidirectional_session_and_is_an_answer_to_others() {
        let error = ErrorMessage { code: 109, message: "token expired".into(), temporary: false };
        let refused = [frame(Encoding::Json, &Reply { id: 1, error: Some(error), ..Reply::default() })];
        let (text, last) = said(Transport::UniSse, &refused);
        assert_eq!(text, "data: {\"disconnect\":{\"code\":3005,\"reason\":\"connection expired\"}}\n\n");
        assert_eq!(last, Said::End);
        let (text, last) = said(Transport::HttpStream, &refused);
        assert!(text.contains("\"code\":109") && last == Said::Something, "{text}");
    }

    #[test]
    fn replies_in_protobuf_stay_behind_their_lengths() {
        let mut speaker = Speaker::new(Transport::HttpStream, Encoding::Protobuf, Some("n".into()));
        let mut out = BytesMut::new();
        speaker.say(&frame(Encoding::Protobuf, &connected()), &mut out);
        speaker.say(&frame(Encoding::Protobuf, &pushed()), &mut out);
        let mut rest = &out[..];
        let first: Reply = prost::Message::decode_length_delimited(&mut rest).expect("a reply");
        assert_eq!(first.connect.expect("connected").node, "n");
        let second: Reply = prost::Message::decode_length_delimited(&mut rest).expect("a reply");
        assert!(second == pushed() && rest.is_empty());
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
