//! Commands of sessions that cannot send any themselves: each comes in a request to `/emulation` that names its session.

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

use crate::partition::Transport;
use crate::protocol::Encoding;
use crate::websocket;

/// How long a request waits until the worker takes its commands.
const SEND_WAIT: Duration = Duration::from_secs(5);

/// What a client asks. Names and numbers as in `client.proto` of github.com/centrifugal/protocol.
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
struct InJson {
    #[serde(default)]
    node: String,
    #[serde(default)]
    session: String,
    data: Box<RawValue>,
}

/// The way to a session's worker.
pub(crate) struct Commands {
    encoding: Encoding,
    to: tokio::sync::Mutex<To>,
}

struct To {
    worker: OwnedWriteHalf,
    /// A frame was cut short: nothing more can be said.
    cut: bool,
}

impl Commands {
    /// Sends the commands of a frame; `false` when the session does not take them.
    pub(super) async fn send(&self, payload: &[u8]) -> bool {
        let mut to = self.to.lock().await;
        if std::mem::replace(&mut to.cut, true) {
            return false;
        }
        let sent = to.worker.write_all(&websocket::from_client(self.encoding, payload)).await.is_ok();
        to.cut = !sent;
        sent
    }

    /// Answers a ping of the server for a client that cannot. The worker always reads such few bytes.
    pub(super) fn pong(&self) {
        if let Ok(to) = self.to.try_lock()
            && !to.cut
        {
            let pong = websocket::from_client(self.encoding, crate::protocol::codec::ping(self.encoding));
            // Cut short or not taken: then the worker ends the session, having got no answer.
            let _ = to.worker.try_write(&pong);
        }
    }
}

/// All sessions of a server that send commands so.
pub(crate) struct Emulation {
    /// Which start of the server this is, as clients are told: requests for sessions of another one are refused.
    node: String,
    sessions: Mutex<HashMap<Arc<str>, Arc<Commands>>>,
    env: Env,
}

/// A session among them, until it is dropped.
pub(crate) struct Emulated {
    all: Arc<Emulation>,
    /// Its secret name: who knows it may send commands.
    session: Arc<str>,
    pub(super) commands: Arc<Commands>,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.all.sessions.lock().remove(&self.session);
    }
}

/// A name that nobody guesses.
pub(crate) fn random_name(env: &Env) -> String {
    format!("{:016x}{:016x}", env.random_u64(), env.random_u64())
}

impl Emulation {
    /// Of the start of the server that has this name.
    pub(crate) fn new(node: String, env: Env) -> Self {
        Self { node, sessions: Mutex::default(), env }
    }

    /// A name for a session.
    pub(crate) fn name(&self) -> Arc<str> {
        random_name(&self.env).into()
    }

    /// Takes in a session of this name. A unidirectional one gets no commands from outside, even from a client that knows its
    /// name: the back end does, for the server API.
    pub(crate) fn enter(
        self: &Arc<Self>,
        session: Arc<str>,
        transport: Transport,
        encoding: Encoding,
        worker: OwnedWriteHalf,
    ) -> Emulated {
        let commands = Arc::new(Commands { encoding, to: tokio::sync::Mutex::new(To { worker, cut: false }) });
        if !transport.is_unidirectional() {
            self.sessions.lock().insert(session.clone(), commands.clone());
        }
        Emulated { all: self.clone(), session, commands }
    }

    /// Carries out a request; the status of the answer.
    pub(crate) async fn answer(&self, protobuf: bool, body: &[u8]) -> StatusCode {
        let Some(request) = read(protobuf, body) else { return StatusCode::BAD_REQUEST };
        if request.node != self.node {
            // A session of another start: SDKs connect again.
            return StatusCode::NOT_FOUND;
        }
        let commands = self.sessions.lock().get(&*request.session).cloned();
        // Of a session that has ended here its stream tells.
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
    let InJson { node, session, data } = serde_json::from_slice(body).ok()?;
    // Commands as a text with lines, or one command as it is.
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
        assert_eq!(worker.read(&mut bytes).expect("the end"), 0, "the worker sees it go, and no command after that");
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
            let came = worker.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
            assert_eq!(came, !transport.is_unidirectional(), "{transport:?}");
        }
    }
}
