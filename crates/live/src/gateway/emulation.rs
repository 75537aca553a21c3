//! Commands of sessions that only receive: each arrives in a request to `/emulation` that names its
//! session.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use prost::Message;
use serde::Deserialize;
use serde_json::value::RawValue;
use steadfast_flow::Env;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;

use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::websocket;

/// How long a request waits until the worker reads its commands.
const SEND_WAIT: Duration = Duration::from_secs(5);

/// The body of a request. Names and field numbers are those of `client.proto` in
/// github.com/centrifugal/protocol.
#[derive(Clone, PartialEq, Message)]
struct EmulationRequest {
    #[prost(string, tag = "1")]
    node: String,
    #[prost(string, tag = "2")]
    session: String,
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

#[derive(Deserialize)]
struct EmulationBody {
    #[serde(default)]
    node: String,
    #[serde(default)]
    session: String,
    data: Box<RawValue>,
}

/// Sends the commands of a session to its worker.
pub(crate) struct Commands {
    encoding: Encoding,
    to: tokio::sync::Mutex<WorkerWriter>,
}

struct WorkerWriter {
    worker: OwnedWriteHalf,
    /// A frame was written in part, so no more frames can follow.
    cut: bool,
}

impl Commands {
    /// Sends the commands of a frame; `false` if the session does not accept them.
    pub(super) async fn send(&self, payload: &[u8]) -> bool {
        let mut to = self.to.lock().await;
        if std::mem::replace(&mut to.cut, true) {
            return false;
        }
        let sent = to.worker.write_all(&websocket::from_client(self.encoding, payload)).await.is_ok();
        to.cut = !sent;
        sent
    }

    /// Answers a ping of the server for a client that cannot. The worker always reads so few bytes.
    pub(super) fn pong(&self) {
        if let Ok(to) = self.to.try_lock()
            && !to.cut
        {
            let pong = websocket::from_client(self.encoding, crate::protocol::codec::ping(self.encoding));
            // If the pong is lost or partial, the worker ends the session for want of a pong.
            let _ = to.worker.try_write(&pong);
        }
    }
}

/// The emulated sessions of a server.
pub(crate) struct Emulation {
    /// The ID of this server start, which clients receive. Requests with the ID of another start
    /// are refused.
    node: String,
    sessions: Mutex<HashMap<Arc<str>, Arc<Commands>>>,
    env: Env,
}

/// A registered session; dropping it removes the session.
pub(crate) struct EmulatedSession {
    all: Arc<Emulation>,
    /// The secret session ID, which permits commands to the session.
    session: Arc<str>,
    pub(super) commands: Arc<Commands>,
}

impl Drop for EmulatedSession {
    fn drop(&mut self) {
        self.all.sessions.lock().remove(&self.session);
    }
}

/// A random 128-bit ID.
pub(crate) fn random_name(env: &Env) -> String {
    format!("{:016x}{:016x}", env.random_u64(), env.random_u64())
}

impl Emulation {
    /// The sessions of the server start `node`.
    pub(crate) fn new(node: String, env: Env) -> Self {
        Self { node, sessions: Mutex::default(), env }
    }

    /// A new session ID.
    pub(crate) fn name(&self) -> Arc<str> {
        random_name(&self.env).into()
    }

    /// Registers a session. A unidirectional session accepts no commands from outside, because the
    /// back end knows its ID too, for the server API.
    pub(crate) fn enter(
        self: &Arc<Self>,
        session: Arc<str>,
        transport: Transport,
        encoding: Encoding,
        worker: OwnedWriteHalf,
    ) -> EmulatedSession {
        let commands =
            Arc::new(Commands { encoding, to: tokio::sync::Mutex::new(WorkerWriter { worker, cut: false }) });
        if !transport.is_unidirectional() {
            self.sessions.lock().insert(session.clone(), commands.clone());
        }
        EmulatedSession { all: self.clone(), session, commands }
    }

    /// Carries out a request and returns the status of its answer.
    pub(crate) async fn answer(&self, protobuf: bool, body: &[u8]) -> StatusCode {
        let Some(request) = read(protobuf, body) else { return StatusCode::BAD_REQUEST };
        if request.node != self.node {
            // The session belongs to an earlier start: the SDK reconnects.
            return StatusCode::NOT_FOUND;
        }
        let commands = self.sessions.lock().get(&*request.session).cloned();
        // The session has ended; its stream reports that.
        let Some(commands) = commands else { return StatusCode::NO_CONTENT };
        match self.env.timeout(SEND_WAIT, commands.send(&request.data)).await {
            Some(true) => StatusCode::NO_CONTENT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

fn read(protobuf: bool, body: &[u8]) -> Option<EmulationRequest> {
    if protobuf {
        return EmulationRequest::decode(body).ok();
    }
    let EmulationBody { node, session, data } = serde_json::from_slice(body).ok()?;
    // JSON string: commands as lines of text. Otherwise: one command.
    let data = match data.get().starts_with('"') {
        true => serde_json::from_str::<String>(data.get()).ok()?.into_bytes(),
        false => data.get().as_bytes().to_vec(),
    };
    Some(EmulationRequest { node, session, data })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::gateway::pair;
    use crate::websocket::{Incoming, Reader};

    #[tokio::test]
    async fn commands_reach_the_session_that_they_name() {
        let emulation = Arc::new(Emulation::new("n".into(), Env::tokio()));
        let (mut worker, gateway) = pair().expect("descriptors");
        let (_read, write) = gateway.into_split();
        let entered = emulation.enter(emulation.name(), Transport::Sse, Encoding::Json, write);
        let (session, node) = (entered.session.clone(), emulation.node.clone());
        let json = |node: &str, session: &str, data: &str| {
            serde_json::json!({"node": node, "session": session, "data": data}).to_string().into_bytes()
        };
        let command = "{\"id\":2,\"ping\":{}}";
        assert_eq!(emulation.answer(false, &json(&node, &session, command)).await, StatusCode::NO_CONTENT);
        let protobuf = EmulationRequest { node: node.clone(), session: session.to_string(), data: b"more".to_vec() };
        assert_eq!(emulation.answer(true, &protobuf.encode_to_vec()).await, StatusCode::NO_CONTENT);
        let (mut bytes, mut got) = ([0; 256], Vec::new());
        let read = worker.read(&mut bytes).expect("sent");
        Reader::default()
            .feed(&mut bytes[..read], 1000, |incoming| {
                got.push(incoming);
                true
            })
            .expect("frames of a client");
        assert_eq!(got, [Incoming::Message(command.into()), Incoming::Message(b"more".to_vec())]);

        assert_eq!(emulation.answer(false, &json("another", &session, command)).await, StatusCode::NOT_FOUND);
        assert_eq!(emulation.answer(false, &json(&node, "unknown", command)).await, StatusCode::NO_CONTENT);
        assert_eq!(emulation.answer(false, b"nonsense").await, StatusCode::BAD_REQUEST);
        drop(entered);
        assert_eq!(emulation.answer(false, &json(&node, &session, command)).await, StatusCode::NO_CONTENT);
        assert_eq!(worker.read(&mut bytes).expect("the end"), 0, "the worker sees the end, and no command after it");
    }

    #[tokio::test]
    async fn a_unidirectional_session_gets_no_commands() {
        let emulation = Arc::new(Emulation::new("n".into(), Env::tokio()));
        for transport in Transport::ALL {
            let (mut worker, gateway) = pair().expect("descriptors");
            let (_read, write) = gateway.into_split();
            let entered = emulation.enter(emulation.name(), transport, Encoding::Json, write);
            let command = serde_json::json!({"node": "n", "session": &*entered.session, "data": "{}"});
            let answer = emulation.answer(false, command.to_string().as_bytes()).await;
            assert_eq!(answer, StatusCode::NO_CONTENT);
            let received = worker.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
            assert_eq!(received, !transport.is_unidirectional(), "{transport:?}");
        }
    }
}
