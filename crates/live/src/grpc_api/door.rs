//! The port of the gRPC API: connections, the check of the key, and calls.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prost::Message;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{BoxFuture, Ended, Env, Patience, Permit};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};

use super::message;
use crate::admission::GATE_WAIT;
use crate::answer::held;
use crate::api::ERROR_MODE;
use crate::api::{Api, BATCH_MAX, ParsedCommand, Terms, durability};
use crate::door::{DoorOptions, LiveDoor, same};
use crate::gateway::Stalling;
use crate::grpc::{Raw, put_field};
use crate::node::Node;
use crate::protocol::codes::{self, ClientError};

const SERVICE: &str = "/centrifugal.centrifugo.api.CentrifugoApi/";

/// Maximum number of concurrent calls of a connection.
const STREAMS_MAX: u32 = 128;

/// Flow control windows in bytes: of a call, and of all calls of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Interval of pings on an idle connection, and timeout of their acknowledgement.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The length of the gRPC prefix of a message.
const FRAME_HEAD_BYTES: usize = 5;

/// Methods of Centrifugo PRO, and `RPC`, which Centrifugo leaves to extensions. Centrifugo answers
/// them with an API error.
const NOT_AVAILABLE: [&str; 20] = [
    "RPC",
    "Connections",
    "UpdateUserStatus",
    "GetUserStatus",
    "DeleteUserStatus",
    "BlockUser",
    "UnblockUser",
    "RevokeToken",
    "InvalidateUserTokens",
    "DeviceRegister",
    "DeviceUpdate",
    "DeviceRemove",
    "DeviceList",
    "DeviceTopicList",
    "DeviceTopicUpdate",
    "UserTopicList",
    "UserTopicUpdate",
    "SendPushNotification",
    "UpdatePushStatus",
    "CancelPush",
];

/// The gRPC API of a node. Clones share it.
#[derive(Clone)]
pub struct GrpcDoor {
    node: Arc<Node>,
    api: Arc<Api>,
    options: DoorOptions,
}

/// Spawns the tasks of HTTP/2.
#[derive(Clone)]
struct Tasks(Env);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.spawn("gRPC call", task);
    }
}

impl GrpcDoor {
    /// The gRPC API of the same node as a live door.
    pub fn new(door: &LiveDoor) -> Self {
        Self { node: door.node.clone(), api: door.api.clone(), options: door.options.clone() }
    }

    /// Serves one connection until it ends. After `stop` completes, it ends when the calls in
    /// flight are finished.
    pub async fn serve<T>(&self, io: T, peer: SocketAddr, stop: impl Future<Output = ()> + Send + 'static)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let env = self.node.env.clone();
        let known = Arc::new(AtomicBool::new(false));
        let (door, knows) = (self.clone(), known.clone());
        let service = service_fn(move |request| {
            let (door, known) = (door.clone(), knows.clone());
            async move { Ok::<_, Infallible>(door.answer(request, &known).await) }
        });
        let patience = Patience::new(self.options.stall_timeout, self.options.client_bytes_s_min);
        let connection = http2::Builder::new(Tasks(env.clone()))
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(Stalling::new(io, env.clone(), patience)), service);
        let mut connection = pin!(connection);
        let mut stop = pin!(stop);
        // A connection without an authorized call is closed in time, so that strangers cannot
        // occupy all connections.
        let mut late = env.sleep(self.options.header_timeout);
        let (mut stopping, mut looked) = (false, false);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                    return;
                }
                () = stop.as_mut(), if !stopping => {
                    if !known.load(Relaxed) {
                        return;
                    }
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = &mut late, if !looked => {
                    if !known.load(Relaxed) {
                        return tracing::debug!(%peer, "connection closed: no call with the key arrived in time");
                    }
                    looked = true;
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, known: &AtomicBool) -> Response<Body> {
        if !self.is_authorized(request.headers()) {
            return Status::unauthenticated(
                "send the metadata authorization: apikey KEY, with the key of grpc_api.key",
            )
            .into_http();
        }
        known.store(true, Relaxed);
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if *request.method() != Method::POST || !(kind == "application/grpc" || kind.starts_with("application/grpc+")) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let Some(method) = request.uri().path().strip_prefix(SERVICE).map(str::to_owned) else {
            return Status::unimplemented("the only service is centrifugal.centrifugo.api.CentrifugoApi").into_http();
        };
        let slow = &self.node.admission.slow_calls;
        let stages = slow.begin(Stage::Other);
        let response = stages::measured(stages.clone(), self.carry_out(method.clone(), request)).await;
        if let Some(stages) = &stages {
            slow.end(stages, &Ended { operation: &method, ..Ended::default() });
        }
        response
    }

    /// Reads a call and carries it out.
    async fn carry_out(&self, method: String, request: Request<Incoming>) -> Response<Body> {
        let Ok(_pass) = self.node.admission.api.grpc_calls.enter(GATE_WAIT).await else {
            stages::note(|stages| stages.set_outcome(codes::TOO_MANY_REQUESTS.code));
            return Status::resource_exhausted("too many calls are in flight").into_http();
        };
        let (head, body) = request.into_parts();
        let max = self.node.rules.config.grpc_api.message_bytes_max();
        let collected = Limited::new(body, max.saturating_add(FRAME_HEAD_BYTES)).collect();
        let lap = stages::enter(Stage::Receive);
        let collected = self.node.env.timeout(self.options.header_timeout, collected).await;
        drop(lap);
        let body = match collected {
            Some(Ok(body)) => body.to_bytes(),
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                return Status::resource_exhausted(format!("the message is larger than {max} bytes")).into_http();
            }
            Some(Err(_)) => return Status::cancelled("the request is incomplete").into_http(),
            None => return Status::deadline_exceeded("the request did not arrive before the timeout").into_http(),
        };
        stages::note(|stages| stages.add_received(body.len() as u64));
        let transport = self.node.rules.config.grpc_api.error_mode == "transport"
            || head.headers.get(ERROR_MODE).is_some_and(|mode| mode == "transport");
        let call = Call { api: self.api.clone(), method, transport };
        let request = Request::from_parts(head, Full::new(body));
        let mut response = Grpc::new(Raw).max_decoding_message_size(max).unary(call, request).await;
        // Attach the permits to the frames, which live until the connection has sent them.
        match response.extensions_mut().remove::<Permits>() {
            Some(Permits(permits)) if !permits.is_empty() => {
                response.map(|body| Body::new(body.map_frame(move |frame| frame.map_data(|data| held(data, &permits)))))
            }
            _ => response,
        }
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let config = &self.node.rules.config.grpc_api;
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"apikey "));
        config.is_open() || given.is_some_and(|given| same(given, config.key.as_bytes()))
    }
}

/// The memory permits of an answer.
#[derive(Clone)]
struct Permits(Arc<[Arc<Permit>]>);

/// An answer with its permits.
fn with_permits(answer: Vec<u8>, terms: Terms) -> tonic::Response<Bytes> {
    let mut response = tonic::Response::new(answer.into());
    response.extensions_mut().insert(Permits(terms.into_permits().into()));
    response
}

/// A call whose message has been received.
struct Call {
    api: Arc<Api>,
    method: String,
    /// Whether errors are gRPC statuses.
    transport: bool,
}

impl UnaryService<Bytes> for Call {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<tonic::Response<Bytes>, Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (api, method, transport) = (self.api.clone(), std::mem::take(&mut self.method), self.transport);
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            let requested_durability = durability(metadata.as_ref());
            if method == "Batch" {
                return batch(&api, message, Terms::new(requested_durability.map_err(|error| status(&error))?)).await;
            }
            let (command, terms) =
                (command(&method, message)?, Terms::new(requested_durability.clone().ok().flatten()));
            let answer = match (command, requested_durability) {
                (Ok(command), Ok(_)) => api.carry_out(command, &terms).await,
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            match answer {
                Err(error) if transport => Err(status(&error)),
                answer => Ok(with_permits(message::response(answer).encode_to_vec(), terms)),
            }
        })
    }
}

fn read<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::invalid_argument(format!("the message cannot be decoded: {error}")))
}

/// Decodes a command. The error is a gRPC status: the message is invalid or the method unknown.
pub(super) fn command(method: &str, body: Bytes) -> Result<ParsedCommand, Status> {
    Ok(match method {
        "Publish" => message::publish(read(body)?),
        "Broadcast" => message::broadcast(read(body)?),
        "Subscribe" => message::subscribe(read(body)?),
        "Unsubscribe" => message::unsubscribe(read(body)?),
        "Disconnect" => message::disconnect(read(body)?),
        "Presence" => message::presence(read(body)?),
        "PresenceStats" => message::presence_stats(read(body)?),
        "History" => message::history(read(body)?),
        "HistoryRemove" => message::history_remove(read(body)?),
        "Info" => message::info(read(body)?),
        "Refresh" => message::refresh(read(body)?),
        "Channels" => message::channels(read(body)?),
        other if NOT_AVAILABLE.contains(&other) => Err(codes::NOT_AVAILABLE),
        other => return Err(Status::unimplemented(format!("no method {other:?}"))),
    })
}

/// The commands of a batch, the field numbers of their results, and whether they may run in
/// parallel.
pub(super) fn batch_of(body: Bytes) -> Result<(Vec<u32>, Vec<ParsedCommand>, bool), Status> {
    let request: message::BatchRequest = read(body)?;
    if request.commands.len() > BATCH_MAX {
        return Err(status(&codes::LIMIT_EXCEEDED));
    }
    let (mut tags, mut commands) = (Vec::new(), Vec::new());
    for one in request.commands {
        let (tag, command) = message::batched(read(one)?);
        tags.push(tag);
        commands.push(command);
    }
    Ok((tags, commands, request.parallel))
}

async fn batch(api: &Api, body: Bytes, terms: Terms) -> Result<tonic::Response<Bytes>, Status> {
    const REPLIES: u32 = 1;
    let (tags, commands, parallel) = batch_of(body)?;
    // `BatchResponse` has no field for an error of the batch.
    let answers = api.batch(commands, parallel, &terms).await.map_err(|error| status(&error))?;
    let mut out = Vec::new();
    for (tag, answer) in tags.into_iter().zip(answers) {
        put_field(REPLIES, &message::reply(tag, answer), &mut out);
    }
    Ok(with_permits(out, terms))
}

/// The gRPC status of an API error, by Centrifugo's table.
fn status(error: &ClientError) -> Status {
    let code = match error.code {
        102 | 104 => Code::NotFound,
        107 | 108 => Code::InvalidArgument,
        106 | 111 => Code::ResourceExhausted,
        112 => Code::OutOfRange,
        _ => Code::Internal,
    };
    let (message, details) = (error.message.clone().into_owned(), message::details(code as u64, error));
    Status::with_details(code, message, details.into())
}

#[cfg(test)]
mod tests;
