//! WebSocket handshakes: their negotiation, and a fast path for complete requests.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};

use crate::deflate;
use crate::node::Node;
use crate::origin;
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::session::ConnectionInfo;
use crate::websocket;

const PROTOBUF: &str = "centrifuge-protobuf";
const JSON: &str = "centrifuge-json";

/// Maximum size in bytes of a request for the fast path; browsers and SDKs send some hundred.
const FAST_BYTES_MAX: usize = 2048;

/// Maximum number of headers of a request for the fast path.
const FAST_HEADERS_MAX: usize = 32;

/// Why a handshake is refused.
pub(crate) enum Refusal {
    /// The request does not ask for a WebSocket.
    Other,
    /// The origin of the page is not allowed.
    Origin,
}

/// Negotiates a handshake: the connection, and the headers of the answer.
pub(crate) fn agree<B>(
    node: &Node,
    request: &Request<B>,
    transport: Transport,
    address: Option<Arc<str>>,
) -> Result<(ConnectionInfo, HeaderMap), Refusal> {
    let headers = request.headers();
    let has_token = |name, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    let (Some(key), true, true, true) = (
        key,
        *request.method() == Method::GET,
        has_token(header::UPGRADE, "websocket") && has_token(header::CONNECTION, "upgrade"),
        has_token(header::SEC_WEBSOCKET_VERSION, "13"),
    ) else {
        return Err(Refusal::Other);
    };
    if !origin_allowed(node, headers) {
        return Err(Refusal::Origin);
    }
    // Of several, the first in this order.
    let requested = [JSON, PROTOBUF].into_iter().find(|name| has_token(header::SEC_WEBSOCKET_PROTOCOL, name));
    let requested = requested.filter(|_| !transport.is_unidirectional());
    let query = request.uri().query().unwrap_or_default();
    let format = query.split('&').any(|pair| matches!(pair, "format=protobuf" | "cf_protocol=protobuf"));
    let protobuf = (requested == Some(PROTOBUF) || format) && !transport.is_unidirectional();
    let encoding = if protobuf { Encoding::Protobuf } else { Encoding::Json };
    // For tools that do not answer pings of the protocol.
    let frame_pings =
        query.split('&').any(|pair| pair == "cf_ws_frame_ping_pong=true") && !transport.is_unidirectional();
    let deflate = node.deflate.filter(|_| transport == Transport::WebSocket);
    let offers = headers.get_all(header::SEC_WEBSOCKET_EXTENSIONS).iter().filter_map(|offer| offer.to_str().ok());
    let agreed = deflate.and_then(|_| deflate::agreed(offers));
    let deflate = deflate.filter(|_| agreed.is_some());
    let mut answer = HeaderMap::new();
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&websocket::accept_key(key)) {
        answer.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(agreed) = agreed {
        answer.insert(header::SEC_WEBSOCKET_EXTENSIONS, HeaderValue::from_static(agreed));
    }
    if let Some(requested) = requested {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(requested));
    }
    let headers = node.back_ends.proxies.kept(headers);
    Ok((ConnectionInfo { encoding, transport, deflate, headers, session: None, address, frame_pings }, answer))
}

/// Whether the origin of a request may connect. Browsers send an origin; other clients send none.
pub(crate) fn origin_allowed(node: &Node, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, place)| place == host));
    own || node.rules.config.client.allowed_origins.iter().any(|pattern| origin::fits(pattern, origin))
}

/// The fast path: answers a handshake at `path` that has arrived completely, without an HTTP server
/// for it. `None` is for any other request, refusals among them; the socket is then untouched.
///
/// # Errors
/// The socket failed and cannot be used.
pub(crate) fn fast(
    node: &Node,
    mut socket: &TcpStream,
    path: &str,
    address: Option<Arc<str>>,
) -> io::Result<Option<ConnectionInfo>> {
    let mut seen = [0; FAST_BYTES_MAX];
    let len = match socket.peek(&mut seen) {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some((request, head)) = whole(&seen[..len], path) else { return Ok(None) };
    let Ok((info, headers)) = agree(node, &request, Transport::WebSocket, address) else { return Ok(None) };
    let mut answer = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    for (name, value) in &headers {
        answer.extend_from_slice(name.as_str().as_bytes());
        answer.extend_from_slice(b": ");
        answer.extend_from_slice(value.as_bytes());
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"\r\n");
    // The bytes were peeked, so they can be read; and an unused non-blocking socket has buffer
    // space for the answer.
    socket.read_exact(&mut seen[..head])?;
    socket.write_all(&answer)?;
    Ok(Some(info))
}

/// A complete WebSocket request at `path` and the length of its head.
fn whole(seen: &[u8], path: &str) -> Option<(Request<()>, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; FAST_HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = parsed.parse(seen) else { return None };
    let target = parsed.path?;
    let query = target.strip_prefix(path)?;
    if parsed.method? != "GET" || parsed.version? != 1 || !(query.is_empty() || query.starts_with('?')) {
        return None;
    }
    let mut request = Request::new(());
    *request.uri_mut() = target.parse().ok()?;
    for header in parsed.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        if name == header::CONTENT_LENGTH || name == header::TRANSFER_ENCODING {
            return None;
        }
        request.headers_mut().append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    Some((request, head))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "GET /connection/websocket?format=protobuf HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";

    fn at_path(seen: &[u8]) -> Option<(Request<()>, usize)> {
        whole(seen, "/connection/websocket")
    }

    #[test]
    fn incomplete_handshakes_take_the_slow_path() {
        let (request, head) = at_path(format!("{HEAD}more").as_bytes()).expect("whole");
        assert_eq!((head, request.uri().query()), (HEAD.len(), Some("format=protobuf")));
        assert_eq!(request.headers().get("upgrade").map(HeaderValue::as_bytes), Some(&b"websocket"[..]));
        for cut in 0..HEAD.len() {
            assert!(at_path(&HEAD.as_bytes()[..cut]).is_none(), "{cut}");
        }
        for (part, other) in [
            ("GET", "POST"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("websocket?", "websockets?"),
            ("/connection/websocket?", "/api/info?"),
            ("Host: a", "Content-Length: 3"),
            ("Host: a", "Transfer-Encoding: chunked"),
            ("Host: a", "Host : a"),
            ("Host: a", "Host: \u{1}"),
        ] {
            assert!(HEAD.contains(part));
            assert!(at_path(HEAD.replacen(part, other, 1).as_bytes()).is_none(), "{other}");
        }
        let many = "X: 1\r\n".repeat(FAST_HEADERS_MAX);
        assert!(at_path(HEAD.replacen("Host: a\r\n", &many, 1).as_bytes()).is_none());
    }
}
