//! Events that are brought to the back end of a user, which decides: Centrifugo's proxies, over HTTP and gRPC.
//!
//! Each proxy has a gate of its own, so a back end that is slow for one kind of event holds up no other; who finds it full
//! for longer than the proxy's timeout, or too many waiting, is told to come again.

pub(crate) mod config;
pub(crate) mod grpc;
mod messages;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_flow::stages::{self, Stage};
use steadfast_flow::{Env, Gate, Throttle};

use crate::config::{LiveConfig, LiveConfigError};
use crate::http_client::{HttpClient, exchange, http_client_over};
use crate::node::TOLD_EVERY;
use crate::partition::Who;
use crate::protocol::codes::{ClientError, Disconnected};

pub(crate) use self::config::Event;
use self::config::{DisconnectObject, ErrorObject, ProxyConfig, name_of, names, used};
use self::grpc::GrpcBackEnd;
use self::messages::Answer;
pub(crate) use self::messages::{Ask, ConnectSaid, PublishSaid, RefreshSaid, RpcSaid};
pub use self::tls::ProxyTlsConfig;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What a back end said.
#[derive(Debug, PartialEq)]
pub(crate) enum Said<R> {
    /// Its result,
    Result(R),
    /// or none.
    Nothing,
    /// The client is told this.
    Error(ClientError),
    /// The session ends.
    Disconnect(Disconnected),
}

/// The result of an answer, in both encodings.
pub(crate) trait Heard: DeserializeOwned {
    /// Reads what came over gRPC.
    fn heard(result: &[u8]) -> Result<Self, String>;
}

/// The way to a back end.
enum Way {
    Http(Uri, HttpClient),
    Grpc(GrpcBackEnd),
}

/// Why a back end said nothing that makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Too many requests are under way.
    Busy,
    /// The log says what went wrong.
    Failed,
}

/// How a proxy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// What is brought.
    pub event: &'static str,
    /// The proxy's name.
    pub proxy: String,
    /// Requests that were sent.
    pub requests: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Those that are under way.
    pub in_flight: u64,
    /// Events that found the proxy full.
    pub refused: u64,
}

/// The way of one kind of event to a back end.
pub(crate) struct Proxy {
    event: Event,
    name: String,
    pub(crate) config: ProxyConfig,
    static_headers: HeaderMap,
    http_headers: Vec<HeaderName>,
    emulated_headers: Vec<HeaderName>,
    way: Way,
    gate: Gate,
    env: Env,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Any client may cause a failure: of many, one line.
    told: Throttle,
}

/// The proxies of a server.
#[derive(Default)]
pub(crate) struct Proxies {
    by: BTreeMap<Event, BTreeMap<String, Proxy>>,
    /// Headers of requests and of connect commands that some proxy hands on: no others are kept for a session.
    http_headers: BTreeSet<String>,
    emulated_headers: BTreeSet<String>,
}

impl Proxies {
    /// Those that a configuration uses, with so many requests at a time each, and so many that wait.
    pub(crate) fn new(config: &LiveConfig, limit: usize, waiting: usize, env: &Env) -> Result<Self, LiveConfigError> {
        let mut all = Self::default();
        for ((event, name), proxy) in used(config)? {
            let fail = |e: String| LiveConfigError(format!("the {} proxy {name:?}: {e}", event.name()));
            let wrong = |e: String| fail(format!("endpoint: {:?}: {e}", proxy.endpoint));
            let way = if proxy.is_grpc() {
                Way::Grpc(GrpcBackEnd::new(event, &proxy).map_err(fail)?)
            } else {
                let endpoint: Uri = proxy.endpoint.parse().map_err(|_| wrong("not a URL".to_owned()))?;
                let tls = proxy.http.tls.client("http.tls").map_err(fail)?;
                let client = http_client_over(&endpoint, limit, tls).map_err(wrong)?;
                Way::Http(endpoint, client)
            };
            if [&proxy.http.tls, &proxy.grpc.tls].iter().any(|tls| tls.enabled && tls.insecure_skip_verify) {
                let (event, endpoint) = (event.name(), &proxy.endpoint);
                tracing::warn!(
                    event,
                    endpoint,
                    "tls.insecure_skip_verify: who answers for this back end is not verified"
                );
            }
            all.http_headers.extend(proxy.http_headers.iter().map(|name| name.to_ascii_lowercase()));
            all.emulated_headers.extend(proxy.emulated_headers.iter().map(|name| name.to_ascii_lowercase()));
            let made = Proxy {
                event,
                name: name.clone(),
                static_headers: proxy.static_headers().map_err(fail)?,
                http_headers: names(&proxy.http_headers, "http_headers").map_err(fail)?,
                emulated_headers: names(&proxy.emulated_headers, "emulated_headers").map_err(fail)?,
                way,
                gate: Gate::new("live_proxy", limit, waiting, env.clone()),
                env: env.clone(),
                requests: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                told: Throttle::new(TOLD_EVERY),
                config: proxy,
            };
            all.by.entry(event).or_default().insert(name, made);
        }
        Ok(all)
    }

    /// The proxy of this name for such events; empty: the default one.
    pub(crate) fn of(&self, event: Event, name: &str) -> Option<&Proxy> {
        self.by.get(&event)?.get(name_of(name))
    }

    /// What of a request's headers a session keeps; `None` where there is nothing, as mostly.
    pub(crate) fn kept(&self, headers: &HeaderMap) -> Option<std::sync::Arc<HeaderMap>> {
        let kept: HeaderMap = headers
            .iter()
            .filter(|(name, _)| self.http_headers.contains(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        (!kept.is_empty()).then(|| std::sync::Arc::new(kept))
    }

    /// The same of what a client gave in its connect command.
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

    /// How they are.
    pub(crate) fn status(&self) -> Vec<ProxyStatus> {
        self.by.values().flat_map(BTreeMap::values).map(Proxy::status).collect()
    }
}

impl Proxy {
    /// Asks the back end.
    pub(crate) async fn ask<R: Heard>(&self, who: &Who, ask: &Ask<'_>) -> Result<Said<R>, Trouble> {
        let (begun, timeout) = (self.env.now(), self.config.timeout.0);
        let _pass = self.gate.enter(timeout).await.map_err(|_| Trouble::Busy)?;
        self.requests.fetch_add(1, Relaxed);
        // The timeout is for the wait and the request together: a client waits no longer, whatever it is for.
        let rest = timeout.saturating_sub(self.env.now().saturating_sub(begun));
        let _lap = stages::enter(Stage::Proxy);
        match self.env.timeout(rest, self.exchange(who, ask, rest)).await {
            Some(said) => said.map_err(|e| self.failed(&e)),
            None => Err(self.failed(&"no answer in time")),
        }
    }

    async fn exchange<R: Heard>(&self, who: &Who, ask: &Ask<'_>, within: Duration) -> Result<Said<R>, String> {
        match &self.way {
            Way::Http(endpoint, client) => {
                let body = serde_json::to_vec(ask).map_err(|e| e.to_string())?;
                let mut request = Request::post(endpoint.clone()).body(Full::from(body)).map_err(|e| e.to_string())?;
                *request.headers_mut() = self.headers(who);
                request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                let answer = exchange(client, request, ANSWER_BYTES_MAX).await?;
                self.read(answer.status().as_u16(), answer.body())
            }
            Way::Grpc(back_end) => {
                // Metadata is plain ASCII; a header with something else in it would fail the request.
                let given = self.headers(who);
                let plain = given.iter().filter(|(_, value)| value.to_str().is_ok());
                let metadata = plain.map(|(name, value)| (name.clone(), value.clone())).collect();
                said(back_end.ask(ask, metadata, within).await?)
            }
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Trouble {
        self.failures.fetch_add(1, Relaxed);
        let (proxy, event, endpoint) = (&self.name, self.event.name(), &self.config.endpoint);
        match self.told.pass(&self.env) {
            Some(more) => tracing::warn!(proxy, event, endpoint, %why, more, "a back end failed"),
            None => tracing::debug!(proxy, event, endpoint, %why, "a back end failed"),
        }
        Trouble::Failed
    }

    fn headers(&self, who: &Who) -> HeaderMap {
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
        hand_on(&self.emulated_headers, who.emulated.as_deref());
        hand_on(&self.http_headers, who.arrived.headers.as_deref());
        headers
    }

    fn read<R: DeserializeOwned>(&self, status: u16, body: &[u8]) -> Result<Said<R>, String> {
        if status != 200 {
            let transforms = &self.config.http.status_to_code_transforms;
            let transform = transforms.iter().find(|transform| transform.status_code == status);
            let transform = transform.ok_or_else(|| format!("it answered with the status {status}"))?;
            return match transform.to_disconnect.code {
                0 => error_of(&transform.to_error),
                _ => disconnect_of(&transform.to_disconnect),
            };
        }
        said(serde_json::from_slice(body).map_err(|e| format!("its answer: {e}"))?)
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

fn said<R>(answer: Answer<R>) -> Result<Said<R>, String> {
    match answer {
        Answer { disconnect: Some(end), .. } => disconnect_of(&end),
        Answer { error: Some(error), .. } => error_of(&error),
        Answer { result: Some(result), .. } => Ok(Said::Result(result)),
        _ => Ok(Said::Nothing),
    }
}

fn error_of<R>(error: &ErrorObject) -> Result<Said<R>, String> {
    if error.code == 0 {
        return Err("its answer: an error without a code".into());
    }
    let message = error.message.clone().into();
    Ok(Said::Error(ClientError { code: error.code, message, temporary: error.temporary }))
}

fn disconnect_of<R>(end: &DisconnectObject) -> Result<Said<R>, String> {
    match u16::try_from(end.code) {
        Ok(code @ 3000..5000) => Ok(Said::Disconnect(Disconnected { code, reason: end.reason.clone().into() })),
        _ => Err(format!("its answer: the code {} of a disconnect; 4000 to 4999 are the back end's", end.code)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
