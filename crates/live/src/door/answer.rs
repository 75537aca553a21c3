//! Requests to the live port and their answers: WebSocket handshakes, streaming answers and
//! emulation.

use std::io;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use parking_lot::Mutex;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{Connection, log_rarely, shortened};

use super::LiveDoor;
use crate::config::Endpoint;
use crate::gateway::{self, Streaming, connect_command};
use crate::handshake::{self, Refusal, origin_allowed};
use crate::protocol::{Encoding, Transport};
use crate::session::ConnectionInfo;
use crate::websocket;

/// The path below `/health` for load balancers: whether the server is ready, as at the admin port.
const READY: &str = "/ready";

/// An answer with a complete or streaming body.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

impl LiveDoor {
    /// Answers a request. A WebSocket handshake puts its connection into `upgraded`, and the first
    /// message of a unidirectional client if the query has it.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        upgraded: &Mutex<Option<(ConnectionInfo, Vec<u8>)>>,
        connection: &Connection,
    ) -> Answer {
        let path = request.uri().path();
        let transport = match self.endpoint_of(path) {
            Some((Endpoint::WebSocket, _)) => {
                return self.upgrade(&request, Transport::WebSocket, upgraded, connection);
            }
            Some((Endpoint::UniWebSocket, _)) => {
                return self.upgrade(&request, Transport::UniWebSocket, upgraded, connection);
            }
            Some((Endpoint::Api, method)) => {
                let method = method.to_owned();
                return self.api(&method, request).await;
            }
            Some((Endpoint::Health, READY)) => {
                return match (self.options.not_ready)() {
                    None => text(StatusCode::OK, "{}"),
                    Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
                };
            }
            Some((Endpoint::Health, _)) => return text(StatusCode::OK, "{}"),
            Some((Endpoint::HttpStream, _)) => Some(Transport::HttpStream),
            Some((Endpoint::Sse, _)) => Some(Transport::Sse),
            Some((Endpoint::UniHttpStream, _)) => Some(Transport::UniHttpStream),
            Some((Endpoint::UniSse, _)) => Some(Transport::UniSse),
            Some((Endpoint::Emulation, _)) => None,
            None => return self.no_endpoint(),
        };
        let origin = request.headers().get(header::ORIGIN).cloned();
        if !origin_allowed(&self.node, request.headers()) {
            return self.forbidden(origin.as_ref());
        }
        let mut response = match transport {
            _ if *request.method() == Method::OPTIONS => preflight(request.headers()),
            Some(transport) => self.stream(request, transport, connection).await,
            None => self.emulate(request).await,
        };
        if let Some(origin) = origin {
            // The origin was checked above, so the page may read the answer.
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        }
        response
    }

    /// The endpoint at a path, and the part of the path below it.
    fn endpoint_of<'a>(&self, path: &'a str) -> Option<(Endpoint, &'a str)> {
        self.endpoints.iter().find_map(|(endpoint, prefix)| {
            // An endpoint may have the path `/`.
            let prefix = prefix.trim_end_matches('/');
            let rest = path.strip_prefix(prefix)?;
            match (endpoint, rest) {
                (endpoint, "") => Some((*endpoint, "")),
                (endpoint, "/") if prefix.is_empty() => Some((*endpoint, "")),
                (Endpoint::Health, READY) => Some((Endpoint::Health, READY)),
                (Endpoint::Api, rest) => {
                    let method = rest.strip_prefix('/').filter(|method| !method.is_empty())?;
                    Some((Endpoint::Api, method))
                }
                _ => None,
            }
        })
    }

    /// The answer for an unknown path.
    fn no_endpoint(&self) -> Answer {
        let paths: Vec<String> = self
            .endpoints
            .iter()
            .map(|(endpoint, path)| if *endpoint == Endpoint::Api { format!("{path}/METHOD") } else { path.clone() })
            .collect();
        let why = "others are not enabled (http_stream.enabled, sse.enabled, ...)";
        text(StatusCode::NOT_FOUND, format!("supported paths: {}; {why}\n", paths.join(", ")))
    }

    /// Reads a request body, with a bound on its size and time.
    pub(super) async fn body(&self, body: Incoming, max: usize) -> Result<Bytes, Answer> {
        let lap = stages::enter(Stage::Receive);
        let collected = Limited::new(body, max).collect();
        let collected = self.node.env.timeout(self.options.header_timeout, collected).await;
        drop(lap);
        match collected {
            Some(Ok(body)) => Ok(body.to_bytes()),
            Some(Err(_)) => Err(text(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large or incomplete\n")),
            None => Err(text(StatusCode::REQUEST_TIMEOUT, "the request did not arrive before the timeout\n")),
        }
    }

    /// Opens a session with a streaming answer.
    async fn stream(&self, request: Request<Incoming>, transport: Transport, connection: &Connection) -> Answer {
        let events = matches!(transport, Transport::Sse | Transport::UniSse);
        let protobuf = transport == Transport::HttpStream
            && request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/octet-stream");
        let max = self.node.rules.config.websocket.message_size_limit;
        let headers = self.node.back_ends.proxies.kept(request.headers());
        let first = match *request.method() {
            Method::GET if events => match parameter(request.uri().query().unwrap_or_default(), "cf_connect=") {
                Some(connect) => connect,
                None => return text(StatusCode::BAD_REQUEST, "cf_connect is not percent-encoded text\n"),
            },
            Method::POST => match self.body(request.into_body(), max).await {
                Ok(body) => body.to_vec(),
                Err(refused) => return refused,
            },
            _ if events => return text(StatusCode::METHOD_NOT_ALLOWED, "use GET with cf_connect, or POST\n"),
            _ => return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n"),
        };
        let first = match transport.is_unidirectional() {
            true => connect_command(&first),
            false => Some(first),
        };
        let Some(first) = first.filter(|first| !first.is_empty() && first.len() <= max) else {
            return text(StatusCode::BAD_REQUEST, "send a connect request, not larger than the message size limit\n");
        };
        let (worker, gateway) = match gateway::pair() {
            Ok(pair) => pair,
            Err(error) => {
                log_rarely!(warn, %error, "a session has no descriptors: raise the limit of open files");
                return text(StatusCode::SERVICE_UNAVAILABLE, "the server cannot accept more sessions now\n");
            }
        };
        let encoding = if protobuf { Encoding::Protobuf } else { Encoding::Json };
        let leftover = websocket::from_client(encoding, &first);
        let name = self.emulation.name();
        let address = connection.share_key();
        let info = ConnectionInfo {
            encoding,
            transport,
            deflate: None,
            headers,
            session: Some(name.clone()),
            address,
            frame_pings: false,
        };
        self.open(worker, leftover, info, None, None);
        let streaming = Streaming::new(gateway, transport, encoding, name, &self.emulation);
        let mut response = Response::new(UnsyncBoxBody::new(StreamBody::new(streaming.into_body())));
        let kind = match (events, protobuf) {
            (true, _) => "text/event-stream; charset=utf-8",
            (false, true) => "application/octet-stream",
            (false, false) => "application/json",
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache, no-store, max-age=0"));
        // A proxy that buffers the whole answer would never forward any of it.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }

    /// Carries out an emulation request: commands of a session with a streaming answer.
    async fn emulate(&self, request: Request<Incoming>) -> Answer {
        if *request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let kind = request.headers().get(header::CONTENT_TYPE);
        let protobuf = kind.is_some_and(|kind| kind == "application/octet-stream");
        // The commands may be JSON text in a JSON string, where each quote takes two bytes, plus
        // the envelope.
        let max = 2 * self.node.rules.config.websocket.message_size_limit + 1024;
        match self.body(request.into_body(), max).await {
            Ok(body) => text(self.emulation.answer(protobuf, &body).await, ""),
            Err(refused) => refused,
        }
    }

    fn upgrade(
        &self,
        request: &Request<Incoming>,
        transport: Transport,
        upgraded: &Mutex<Option<(ConnectionInfo, Vec<u8>)>>,
        connection: &Connection,
    ) -> Answer {
        match handshake::agree(&self.node, request, transport, connection.share_key()) {
            Ok((info, headers)) => {
                let query = request.uri().query().filter(|_| transport == Transport::UniWebSocket);
                let Some(connect) = parameter(query.unwrap_or_default(), "cf_connect=") else {
                    return text(StatusCode::BAD_REQUEST, "cf_connect is not percent-encoded text\n");
                };
                let first = match connect.is_empty() {
                    true => Vec::new(),
                    false => websocket::from_client(Encoding::Json, &connect),
                };
                *upgraded.lock() = Some((info, first));
                let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
                *response.headers_mut() = headers;
                response
            }
            Err(Refusal::Other) => {
                text(StatusCode::BAD_REQUEST, "this is a WebSocket endpoint: connect with a Centrifugo SDK\n")
            }
            Err(Refusal::Origin) => self.forbidden(request.headers().get(header::ORIGIN)),
        }
    }

    fn forbidden(&self, origin: Option<&HeaderValue>) -> Answer {
        let origin = origin.map(|origin| String::from_utf8_lossy(origin.as_bytes()));
        let origin = origin.as_deref().map(shortened);
        match self.node.admission.throttles.origin.pass(&self.node.env) {
            Some(more) => {
                tracing::info!(?origin, more, "refused: the origin is not in client.allowed_origins");
            }
            None => tracing::debug!(?origin, "refused: the origin is not in client.allowed_origins"),
        }
        text(StatusCode::FORBIDDEN, "this origin may not connect: see client.allowed_origins\n")
    }
}

/// Decodes the parameter of a query that begins with `name=`; empty if absent, `None` if its
/// encoding is invalid.
pub(super) fn parameter(query: &str, name: &str) -> Option<Vec<u8>> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)).unwrap_or_default();
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(out)
}

/// Answers a CORS preflight request: the page may send the requested headers.
fn preflight(requested: &HeaderMap) -> Answer {
    let mut response = text(StatusCode::NO_CONTENT, "");
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(names) = requested.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("300"));
    response
}

pub(super) fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    UnsyncBoxBody::new(Full::new(bytes).map_err(|never| match never {}))
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(whole(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_command_is_found_in_a_query() {
        let found = |query: &str| parameter(query, "cf_connect=").map(|found| String::from_utf8(found).expect("text"));
        assert_eq!(found("a=b&cf_connect=%7B%22id%22%3A1+%7D&c=d").as_deref(), Some("{\"id\":1 }"));
        assert_eq!(found("").as_deref(), Some(""));
        assert_eq!(found("cf_connect=%7"), None);
        assert_eq!(found("cf_connect=%zz"), None);
    }
}
