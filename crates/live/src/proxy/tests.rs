//! Proxies against a back end with scripted answers.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::*;
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::session::ConnectionInfo;

/// The number of the connection, from 0, and the text of a request that the test back end received.
pub(crate) type ReceivedRequest = (usize, String);

/// Starts a back end that sends one answer after another, each when it gets a permit.
pub(crate) async fn back_end(
    env: &Env,
    answers: &'static [&'static str],
) -> (String, mpsc::Receiver<ReceivedRequest>, Arc<tokio::sync::Semaphore>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/ask?it=1", listener.local_addr().expect("bound"));
    let (received, requests) = mpsc::channel(64);
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let (spawner, allowed) = (env.clone(), permits.clone());
    let next = Arc::new(AtomicU64::new(0));
    env.spawn("back end", async move {
        let mut connections = 0;
        while let Ok((socket, _)) = listener.accept().await {
            let serve = serve(socket, connections, received.clone(), allowed.clone(), next.clone(), answers);
            spawner.spawn("back end", serve);
            connections += 1;
        }
    });
    (url, requests, permits)
}

async fn serve(
    mut socket: TcpStream,
    number: usize,
    received: mpsc::Sender<ReceivedRequest>,
    allowed: Arc<tokio::sync::Semaphore>,
    next: Arc<AtomicU64>,
    answers: &'static [&'static str],
) {
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let Ok(len @ 1..) = socket.read(&mut piece).await else { return };
        request.extend_from_slice(&piece[..len]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() < length.unwrap_or(0) {
            continue;
        }
        request.clear();
        let _ = received.send((number, text.clone())).await;
        let Ok(permit) = allowed.acquire().await else { return };
        permit.forget();
        let answer = answers[next.fetch_add(1, Relaxed) as usize % answers.len()];
        // Answers with another status than 200 begin with that status.
        let split = answer.split_once(' ').filter(|(status, _)| status.parse::<u16>().is_ok());
        let (status, body) = split.unwrap_or(("200", answer));
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn identity() -> SessionIdentity {
    let headers = [("cookie", "a=1"), ("x-trust", "own")]
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let emulated = [("x-trust", "claimed"), ("authorization", "emulated")]
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = Some(Arc::new(headers.into_iter().collect()));
    let connection = ConnectionInfo { headers, ..ConnectionInfo::of(Encoding::Protobuf, Transport::WebSocket) };
    let identity = SessionIdentity {
        emulated: Some(Arc::new(emulated.into_iter().collect())),
        ..SessionIdentity::ann(connection)
    };
    identity.learn(Vec::new(), Some(serde_json::from_str(r#"{"m": 1}"#).expect("JSON")));
    identity
}

fn proxies(url: &str, timeout: &str, limit: usize, waiting: usize, env: &Env) -> Proxies {
    let text = format!(
        r#"{{"rpc": {{"without_namespace": {{"proxy_enabled": true}}, "proxy": {{
            "endpoint": "{url}", "timeout": "{timeout}", "http_headers": ["Cookie", "X-Trust"],
            "emulated_headers": ["Authorization", "X-Trust"], "include_connection_meta": true,
            "http": {{"static_headers": {{"X-Key": "k", "Cookie": "static"}}, "status_to_code_transforms": [
                {{"status_code": 404, "to_error": {{"code": 404, "message": "not found", "temporary": true}}}},
                {{"status_code": 403, "to_disconnect": {{"code": 4503, "reason": "go"}}}}]}}}}}}}}"#
    );
    let config = serde_json::from_str(&text).expect("valid");
    Proxies::new(&config, limit, waiting, env).expect("valid")
}

async fn call(proxies: &Proxies, data: &[u8]) -> Result<ProxyReply<String>, ProxyError> {
    let (identity, proxy) = (identity(), proxies.of(ProxyEvent::Rpc, "").expect("there"));
    let ask = ProxyRequest { method: "m", ..ProxyRequest::about(&identity, &proxy.config) }.with(data).expect("JSON");
    let reply = proxy.ask::<RpcReply>(&identity, &ask).await?;
    Ok(match reply {
        ProxyReply::Result(result) => {
            ProxyReply::Result(result.data.map(|data| data.get().to_owned()).unwrap_or_default())
        }
        ProxyReply::Nothing => ProxyReply::Nothing,
        ProxyReply::Error(error) => ProxyReply::Error(error),
        ProxyReply::Disconnect(end) => ProxyReply::Disconnect(end),
    })
}

/// A timeout longer than any test takes.
const LONG: &str = "60s";

#[tokio::test]
async fn a_request_has_all_fields_and_its_connection_is_reused() {
    let env = Env::tokio();
    let answers = &[
        r#"{"result": {"data": {"x": 1}}}"#,
        r#"{"result": null}"#,
        r#"{"error": {"code": 1000, "message": "no"}}"#,
        r#"{"disconnect": {"code": 4500, "reason": "bad"}}"#,
        "404 x",
        "403 x",
        "500 x",
        "not JSON",
        r#"{"disconnect": {"code": 70000}}"#,
    ];
    let (url, mut requests, permits) = back_end(&env, answers).await;
    permits.add_permits(100);
    let proxies = proxies(&url, LONG, 4, 4, &env);
    assert_eq!(call(&proxies, b"[2]").await, Ok(ProxyReply::Result(r#"{"x": 1}"#.to_owned())));
    let (_, request) = requests.recv().await.expect("a request");
    let (head, body) = request.split_once("\r\n\r\n").expect("head and body");
    for line in [
        "POST /ask?it=1 HTTP/1.1",
        "content-type: application/json",
        "x-key: k",
        "cookie: a=1",
        "x-trust: own",
        "authorization: emulated",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    let expected = serde_json::json!({
        "client": Uuid::nil().to_string(), "transport": "websocket", "protocol": "protobuf", "encoding": "json",
        "user": "ann", "method": "m", "data": [2], "meta": {"m": 1},
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).expect("JSON"), expected);
    assert_eq!(call(&proxies, b"").await, Ok(ProxyReply::Nothing));
    let error = |code, message: &'static str, temporary| ClientError { code, message: message.into(), temporary };
    assert_eq!(call(&proxies, b"").await, Ok(ProxyReply::Error(error(1000, "no", false))));
    let end = |code, reason: &'static str| Disconnected { code, reason: reason.into() };
    assert_eq!(call(&proxies, b"").await, Ok(ProxyReply::Disconnect(end(4500, "bad"))));
    assert_eq!(call(&proxies, b"").await, Ok(ProxyReply::Error(error(404, "not found", true))));
    assert_eq!(call(&proxies, b"").await, Ok(ProxyReply::Disconnect(end(4503, "go"))));
    for _ in 0..3 {
        assert_eq!(call(&proxies, b"").await, Err(ProxyError::Failed));
    }
    while let Ok((connection, _)) = requests.try_recv() {
        assert_eq!(connection, 0, "sequential requests reuse one connection");
    }
    let status = proxies.status().remove(0);
    assert_eq!((status.event, status.requests, status.failures, status.in_flight), ("rpc", 9, 3, 0));
}

#[tokio::test]
async fn an_endless_answer_is_refused() {
    let env = Env::tokio();
    let long = format!("{{\"result\": {{\"data\": \"{}\"}}}}", "x".repeat(ANSWER_BYTES_MAX));
    let answers: &'static [&'static str] = Box::leak(Box::new([&*long.leak()]));
    let (url, _requests, permits) = back_end(&env, answers).await;
    permits.add_permits(1);
    let proxies = proxies(&url, LONG, 1, 0, &env);
    assert_eq!(call(&proxies, b"").await, Err(ProxyError::Failed));
}

#[tokio::test]
async fn a_full_proxy_refuses_at_once_and_a_slow_back_end_times_out() {
    let env = Env::tokio();
    let (url, mut requests, permits) = back_end(&env, &[r#"{"result": {}}"#]).await;
    let all = Arc::new(proxies(&url, LONG, 2, 0, &env));
    let (done, mut dones) = mpsc::channel(4);
    for _ in 0..2 {
        let (all, done) = (all.clone(), done.clone());
        env.spawn("call", async move {
            let _ = done.send(call(&all, b"").await).await;
        });
    }
    for _ in 0..2 {
        requests.recv().await.expect("a request");
    }
    assert_eq!(all.status()[0].in_flight, 2);
    assert_eq!(call(&all, b"").await, Err(ProxyError::Busy), "refused at once, despite the long timeout");
    assert_eq!(all.status()[0].refused, 1);
    permits.add_permits(2);
    for _ in 0..2 {
        assert_eq!(dones.recv().await, Some(Ok(ProxyReply::Result(String::new()))));
    }
    // The back end has no more permits and does not answer.
    let hurried = proxies(&url, "50ms", 2, 0, &env);
    let waited = env.timeout(Duration::from_secs(30), call(&hurried, b"")).await;
    assert_eq!(waited, Some(Err(ProxyError::Failed)));
    assert_eq!((hurried.status()[0].failures, hurried.status()[0].in_flight), (1, 0));
}

/// Counts warnings in the log.
#[derive(Default)]
struct Warnings(AtomicUsize);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn many_failures_log_one_line() {
    let proxies = proxies("http://127.0.0.1:1/", LONG, 1, 0, &Env::tokio());
    let proxy = proxies.of(ProxyEvent::Rpc, "").expect("there");
    let warnings = Arc::new(Warnings::default());
    tracing::subscriber::with_default(warnings.clone(), || {
        for _ in 0..1500 {
            assert_eq!(proxy.failed(&"it does not answer"), ProxyError::Failed);
        }
    });
    assert_eq!((warnings.0.load(Relaxed), proxies.status()[0].failures), (1, 1500));
}
