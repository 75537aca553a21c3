//! Centrifugo's proxies: a back end of the operator decides on events of clients, over HTTP or
//! gRPC.
//!
//! Each proxy has its own gate, so a slow back end for one kind of event delays no other. A request
//! fails with a temporary error if the gate stays full for the proxy's timeout, or if too many
//! requests wait.

pub(crate) mod grpc;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{Env, Gate, Throttle};
use steadfast_net::{Addresses, HttpClient, exchange, http_client_for, shown_url};

use crate::WARN_INTERVAL;
use crate::config::{LiveConfig, LiveConfigError};
use crate::metrics::ProxyStatus;
use crate::protocol::codes::{ClientError, Disconnected};
use crate::session::SessionIdentity;

use self::grpc::GrpcBackEnd;
use self::messages::Answer;
pub(crate) use self::messages::{ConnectReply, ProxyRequest, PublishReply, RefreshReply, RpcReply};
pub(crate) use crate::config::proxy::ProxyEvent;
use crate::config::proxy::{DisconnectObject, ErrorObject, ProxyConfig, name_of, names, used};

/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The reply of a back end.
#[derive(Debug, PartialEq)]
pub(crate) enum ProxyReply<R> {
    /// The result of the event.
    Result(R),
    /// An answer without a result.
    Nothing,
    /// An error for the client.
    Error(ClientError),
    /// The session is disconnected.
    Disconnect(Disconnected),
}

/// A result that both encodings can carry.
pub(crate) trait DecodeReply: DeserializeOwned {
    /// Decodes a result from gRPC.
    fn decode_reply(result: &[u8]) -> Result<Self, String>;
}

/// The client of a back end.
enum BackEndClient {
    Http(Uri, HttpClient),
    Grpc(GrpcBackEnd),
}

/// Why there is no usable reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyError {
    /// Too many requests are in flight.
    Busy,
    /// The request failed; the log has the cause.
    Failed,
}

/// The proxy of one kind of event to one back end.
pub(crate) struct Proxy {
    event: ProxyEvent,
    name: String,
    pub(crate) config: ProxyConfig,
    static_headers: HeaderMap,
    http_headers: Vec<HeaderName>,
    emulated_headers: Vec<HeaderName>,
    client: BackEndClient,
    gate: Gate,
    env: Env,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Bounds warnings: any client can cause a failure.
    warn_throttle: Throttle,
}

/// The proxies of a server.
#[derive(Default)]
pub(crate) struct Proxies {
    by: BTreeMap<ProxyEvent, BTreeMap<String, Proxy>>,
    /// Headers that some proxy forwards, of HTTP requests and of connect commands. A session keeps
    /// no others.
    http_headers: BTreeSet<String>,
    emulated_headers: BTreeSet<String>,
}

impl Proxies {
    /// The proxies that a configuration uses. Each has at most `limit` requests in flight and
    /// `waiting` queued.
    pub(crate) fn new(config: &LiveConfig, limit: usize, waiting: usize, env: &Env) -> Result<Self, LiveConfigError> {
        let mut all = Self::default();
        // The session keeps the header with its user until it is admitted.
        all.http_headers.extend([&config.client.user_id_http_header].map(|name| name.to_ascii_lowercase()));
        for ((event, name), proxy) in used(config)? {
            let fail = |e: String| LiveConfigError(format!("the {} proxy {name:?}: {e}", event.name()));
            let wrong = |e: String| fail(format!("endpoint: {:?}: {e}", shown_url(&proxy.endpoint)));
            let client = if proxy.is_grpc() {
                BackEndClient::Grpc(GrpcBackEnd::new(event, &proxy).map_err(fail)?)
            } else {
                let endpoint: Uri = proxy.endpoint.parse().map_err(|_| wrong("not a URL".to_owned()))?;
                let tls = proxy.http.tls.client("http.tls").map_err(fail)?;
                let client = http_client_for(&endpoint, limit, tls, Addresses::Any).map_err(wrong)?;
                BackEndClient::Http(endpoint, client)
            };
            if [&proxy.http.tls, &proxy.grpc.tls].iter().any(|tls| tls.enabled && tls.insecure_skip_verify) {
                let (event, endpoint) = (event.name(), shown_url(&proxy.endpoint));
                tracing::warn!(
                    event,
                    endpoint,
                    "tls.insecure_skip_verify is set: the certificate of this back end is not verified"
                );
            }
            all.http_headers.extend(proxy.http_headers.iter().map(|name| name.to_ascii_lowercase()));
            all.emulated_headers.extend(proxy.emulated_headers.iter().map(|name| name.to_ascii_lowercase()));
            let built = Proxy {
                event,
                name: name.clone(),
                static_headers: match proxy.is_grpc() {
                    true => proxy.grpc.static_metadata().map_err(fail)?,
                    false => proxy.static_headers().map_err(fail)?,
                },
                http_headers: names(&proxy.http_headers, "http_headers").map_err(fail)?,
                emulated_headers: names(&proxy.emulated_headers, "emulated_headers").map_err(fail)?,
                client,
                gate: Gate::new("live_proxy", limit, waiting, env.clone()),
                env: env.clone(),
                requests: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                warn_throttle: Throttle::new(WARN_INTERVAL),
                config: proxy,
            };
            all.by.entry(event).or_default().insert(name, built);
        }
        Ok(all)
    }

    /// The proxy of this name for an event; an empty name selects the default proxy.
    pub(crate) fn of(&self, event: ProxyEvent, name: &str) -> Option<&Proxy> {
        self.by.get(&event)?.get(name_of(name))
    }

    /// Whether there is any proxy for an event.
    pub(crate) fn has(&self, event: ProxyEvent) -> bool {
        self.by.contains_key(&event)
    }

    /// The headers of an HTTP request that a session keeps; `None` if there are none, which is
    /// usual.
    pub(crate) fn kept(&self, headers: &HeaderMap) -> Option<std::sync::Arc<HeaderMap>> {
        let kept: HeaderMap = headers
            .iter()
            .filter(|(name, _)| self.http_headers.contains(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        (!kept.is_empty()).then(|| std::sync::Arc::new(kept))
    }

    /// The headers of a connect command that a session keeps.
    pub(crate) fn emulated(&self, given: &BTreeMap<String, String>) -> Option<std::sync::Arc<HeaderMap>> {
        let mut kept = HeaderMap::new();
        for (name, value) in given {
            if self.emulated_headers.contains(&name.to_ascii_lowercase())
                && let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value))
            {
                kept.insert(name, value);
            }
        }
        (!kept.is_empty()).then(|| std::sync::Arc::new(kept))
    }

    /// The status of each proxy.
    pub(crate) fn status(&self) -> Vec<ProxyStatus> {
        self.by.values().flat_map(BTreeMap::values).map(Proxy::status).collect()
    }
}

impl Proxy {
    /// Sends a request to the back end and waits for its reply.
    pub(crate) async fn ask<R: DecodeReply>(
        &self,
        identity: &SessionIdentity,
        ask: &ProxyRequest<'_>,
    ) -> Result<ProxyReply<R>, ProxyError> {
        let (begun, timeout) = (self.env.now(), self.config.timeout.0);
        let _pass = self.gate.enter(timeout).await.map_err(|_| ProxyError::Busy)?;
        self.requests.fetch_add(1, Relaxed);
        // The timeout covers the gate and the request together: a client waits no longer, whatever
        // the cause.
        let rest = timeout.saturating_sub(self.env.now().saturating_sub(begun));
        let _lap = stages::enter(Stage::Proxy);
        match self.env.timeout(rest, self.exchange(identity, ask, rest)).await {
            Some(reply) => reply.map_err(|e| self.failed(&e)),
            None => Err(self.failed(&"the back end did not answer before the timeout")),
        }
    }

    async fn exchange<R: DecodeReply>(
        &self,
        identity: &SessionIdentity,
        ask: &ProxyRequest<'_>,
        within: Duration,
    ) -> Result<ProxyReply<R>, String> {
        match &self.client {
            BackEndClient::Http(endpoint, client) => {
                let body = serde_json::to_vec(ask).map_err(|e| e.to_string())?;
                let mut request = Request::post(endpoint.clone()).body(Full::from(body)).map_err(|e| e.to_string())?;
                *request.headers_mut() = self.headers(identity);
                request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                let answer = exchange(client, request, ANSWER_BYTES_MAX).await?;
                self.read(answer.status().as_u16(), answer.body())
            }
            BackEndClient::Grpc(back_end) => {
                // Metadata is plain ASCII; another value would fail the request.
                let given = self.headers(identity);
                let plain = given.iter().filter(|(_, value)| value.to_str().is_ok());
                let metadata = plain.map(|(name, value)| (name.clone(), value.clone())).collect();
                reply_of(back_end.ask(ask, metadata, within).await?)
            }
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> ProxyError {
        self.failures.fetch_add(1, Relaxed);
        let (proxy, event, endpoint) = (&self.name, self.event.name(), shown_url(&self.config.endpoint));
        match self.warn_throttle.pass(&self.env) {
            Some(more) => tracing::warn!(proxy, event, endpoint, %why, more, "a proxy request failed"),
            None => tracing::debug!(proxy, event, endpoint, %why, "a proxy request failed"),
        }
        ProxyError::Failed
    }

    fn headers(&self, identity: &SessionIdentity) -> HeaderMap {
        let mut headers = self.static_headers.clone();
        let mut hand_on = |names: &[HeaderName], given: Option<&HeaderMap>| {
            for (name, given) in names.iter().filter_map(|name| Some((name, given?))) {
                let mut values = given.get_all(name).iter();
                if let Some(first) = values.next() {
                    headers.insert(name.clone(), first.clone());
                    values.for_each(|value| {
                        headers.append(name.clone(), value.clone());
                    });
                }
            }
        };
        hand_on(&self.emulated_headers, identity.emulated.as_deref());
        hand_on(&self.http_headers, identity.connection.headers.as_deref());
        headers
    }

    fn read<R: DeserializeOwned>(&self, status: u16, body: &[u8]) -> Result<ProxyReply<R>, String> {
        if status != 200 {
            let transforms = &self.config.http.status_to_code_transforms;
            let transform = transforms.iter().find(|transform| transform.status_code == status);
            let transform = transform.ok_or_else(|| format!("the back end answered with status {status}"))?;
            return match transform.to_disconnect.code {
                0 => error_of(&transform.to_error),
                _ => disconnect_of(&transform.to_disconnect),
            };
        }
        reply_of(serde_json::from_slice(body).map_err(|e| format!("the answer cannot be decoded: {e}"))?)
    }

    fn status(&self) -> ProxyStatus {
        let gate = self.gate.status();
        ProxyStatus {
            event: self.event.name(),
            proxy: self.name.clone(),
            requests: self.requests.load(Relaxed),
            failures: self.failures.load(Relaxed),
            in_flight: gate.used,
            refused: gate.refused,
        }
    }
}

fn reply_of<R>(answer: Answer<R>) -> Result<ProxyReply<R>, String> {
    match answer {
        Answer { disconnect: Some(end), .. } => disconnect_of(&end),
        Answer { error: Some(error), .. } => error_of(&error),
        Answer { result: Some(result), .. } => Ok(ProxyReply::Result(result)),
        _ => Ok(ProxyReply::Nothing),
    }
}

fn error_of<R>(error: &ErrorObject) -> Result<ProxyReply<R>, String> {
    if error.code == 0 {
        return Err("the answer has an error without a code".into());
    }
    let message = error.message.clone().into();
    Ok(ProxyReply::Error(ClientError { code: error.code, message, temporary: error.temporary }))
}

fn disconnect_of<R>(end: &DisconnectObject) -> Result<ProxyReply<R>, String> {
    match u16::try_from(end.code) {
        Ok(code @ 3000..5000) => Ok(ProxyReply::Disconnect(Disconnected { code, reason: end.reason.clone().into() })),
        _ => Err(format!("the answer has disconnect code {}: use 4000 to 4999", end.code)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
