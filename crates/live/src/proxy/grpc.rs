//! Back ends over gRPC: Centrifugo's `CentrifugoProxy`. Names and numbers are those of `proxy.proto` in
//! github.com/centrifugal/centrifugo, internal/proxyproto.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tonic::metadata::MetadataMap;

use super::config::{DisconnectObject, ErrorObject, Event, ProxyConfig, ProxyHttpConfig, header_name};
use super::messages::{Answer, Ask, ConnectSaid, PublishSaid, RefreshSaid, RpcSaid};
use super::tls::ProxyTlsConfig;
use super::{ANSWER_BYTES_MAX, Heard};
use crate::grpc::message::{OverrideMessage, base64_of, expire_at};
use crate::grpc::{BINARY_SUFFIX, RESERVED_PREFIX, Raw, messages, put_field};
use crate::http_client::{GrpcClient, grpc_client_over, with_causes};
use crate::options::{Overrides, SubscribeOptions};

pub(super) const SCHEME: &str = "grpc://";

/// About the requests of a proxy to an endpoint over `grpc://`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyGrpcConfig {
    /// How the back end is met; without it, in the clear.
    pub tls: ProxyTlsConfig,
    /// A name of metadata that each request has,
    pub credentials_key: String,
    /// and its value.
    pub credentials_value: String,
}

impl ProxyGrpcConfig {
    /// Checks what the types do not.
    pub(super) fn check(&self, proxy: &ProxyConfig) -> Result<(), String> {
        if !proxy.is_grpc() {
            if *self != Self::default() {
                return Err("grpc: the endpoint does not begin with grpc://".into());
            }
            return Ok(());
        }
        origin_of(&proxy.endpoint, self.tls.enabled).map_err(|e| format!("endpoint: {:?}: {e}", proxy.endpoint))?;
        let ProxyHttpConfig { static_headers, status_to_code_transforms, tls } = &proxy.http;
        for (is_set, name) in [
            (!static_headers.is_empty(), "static_headers"),
            (!status_to_code_transforms.is_empty(), "status_to_code_transforms"),
            (tls.enabled, "tls"),
        ] {
            if is_set {
                return Err(format!("http.{name}: the endpoint begins with grpc://"));
            }
        }
        for (names, place) in [(&proxy.http_headers, "http_headers"), (&proxy.emulated_headers, "emulated_headers")] {
            names.iter().try_for_each(|name| metadata_name(name, place).map(drop))?;
        }
        self.tls.client("grpc.tls")?;
        self.credentials().map(drop)
    }

    /// What each request has.
    fn credentials(&self) -> Result<HeaderMap, String> {
        let mut metadata = HeaderMap::new();
        if self.credentials_key.is_empty() {
            if !self.credentials_value.is_empty() {
                return Err("grpc.credentials_value: credentials_key is not set".into());
            }
            return Ok(metadata);
        }
        let mut value = HeaderValue::from_str(&self.credentials_value)
            .map_err(|_| "grpc.credentials_value: not a value of metadata".to_owned())?;
        value.set_sensitive(true);
        metadata.insert(metadata_name(&self.credentials_key, "grpc.credentials_key")?, value);
        Ok(metadata)
    }
}

/// A name of metadata whose values are text.
fn metadata_name(name: &str, place: &str) -> Result<HeaderName, String> {
    let found = header_name(name, place)?;
    let text = found.as_str();
    if text.starts_with(RESERVED_PREFIX) || text.ends_with(BINARY_SUFFIX) || text == "proxy-connection" {
        return Err(format!("{place}: {name}: gRPC has no such metadata, or not as text"));
    }
    Ok(found)
}

/// Where a `grpc://` endpoint is, for HTTP/2.
fn origin_of(endpoint: &str, tls: bool) -> Result<Uri, String> {
    let rest = endpoint.strip_prefix(SCHEME).unwrap_or_default();
    let origin: Uri = format!("{}://{}", if tls { "https" } else { "http" }, rest).parse().map_err(|_| "not a URL")?;
    if origin.host().is_none_or(str::is_empty) || origin.port().is_none() {
        return Err("it names no host and port, as in grpc://127.0.0.1:12000".to_owned());
    }
    if !matches!(origin.path(), "" | "/") || origin.query().is_some() {
        return Err("it has a path, which gRPC has no use for".to_owned());
    }
    Ok(origin)
}

/// The back end of a proxy.
pub(super) struct GrpcBackEnd {
    client: tonic::client::Grpc<GrpcClient>,
    path: PathAndQuery,
    event: Event,
    credentials: HeaderMap,
}

impl GrpcBackEnd {
    /// That of a configuration; nothing is sent yet.
    pub(super) fn new(event: Event, proxy: &ProxyConfig) -> Result<Self, String> {
        let origin = origin_of(&proxy.endpoint, proxy.grpc.tls.enabled)?;
        let client = grpc_client_over(&origin, proxy.grpc.tls.client("grpc.tls")?)?;
        let client = tonic::client::Grpc::with_origin(client, origin).max_decoding_message_size(ANSWER_BYTES_MAX);
        let path = PathAndQuery::from_static(match event {
            Event::Connect => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Connect",
            Event::Refresh => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Refresh",
            Event::Subscribe => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Subscribe",
            Event::Publish => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Publish",
            Event::SubRefresh => "/centrifugal.centrifugo.proxy.CentrifugoProxy/SubRefresh",
            Event::Rpc => "/centrifugal.centrifugo.proxy.CentrifugoProxy/RPC",
        });
        Ok(Self { client, path, event, credentials: proxy.grpc.credentials()? })
    }

    /// Asks, and tells the back end how long the answer may take. It takes as long as the back end does: bound it.
    pub(super) async fn ask<R: Heard>(
        &self,
        ask: &Ask<'_>,
        mut metadata: HeaderMap,
        within: Duration,
    ) -> Result<Answer<R>, String> {
        metadata.extend(self.credentials.clone());
        let mut request = tonic::Request::new(encoded(self.event, ask));
        *request.metadata_mut() = MetadataMap::from_headers(metadata);
        request.set_timeout(within);
        let mut client = self.client.clone();
        client.ready().await.map_err(|e| with_causes(&e))?;
        match client.unary(request, self.path.clone(), Raw).await {
            Ok(answer) => read(answer.into_inner()),
            // One that is made of another error says what that says, and no more.
            Err(status) => Err(match std::error::Error::source(&status) {
                Some(cause) => with_causes(cause),
                None => format!("it answered with the status {:?}: {}", status.code(), status.message()),
            }),
        }
    }
}

/// A request. All its fields are text or bytes, which are the same on the wire; those that are empty are left out.
fn encoded(event: Event, ask: &Ask<'_>) -> Bytes {
    let user = ask.user.unwrap_or_default().as_bytes();
    let meta = ask.meta.as_deref().map(RawValue::get).unwrap_or_default().as_bytes();
    let base64 = if ask.encoding == "binary" { STANDARD.encode(ask.bytes) } else { String::new() };
    let data = if ask.encoding == "binary" { &[][..] } else { ask.bytes };
    let (base64, channel, method) = (base64.as_bytes(), ask.channel.as_bytes(), ask.method.as_bytes());
    let head = [
        (1, ask.client.as_bytes()),
        (2, ask.transport.as_bytes()),
        (3, ask.protocol.as_bytes()),
        (4, ask.encoding.as_bytes()),
    ];
    let own: &[(u32, &[u8])] = match event {
        Event::Connect => &[(10, data), (11, base64), (12, ask.name.as_bytes()), (13, ask.version.as_bytes())],
        Event::Refresh => &[(10, user), (11, meta)],
        Event::Subscribe => &[(10, user), (11, channel), (13, meta), (14, data), (15, base64)],
        Event::Publish => &[(10, user), (11, channel), (12, data), (13, base64), (14, meta)],
        Event::Rpc => &[(10, user), (11, method), (12, data), (13, base64), (14, meta)],
        Event::SubRefresh => &[(10, user), (11, channel), (12, meta)],
    };
    let channels = ask.channels.iter().map(|channel| (14, channel.as_bytes()));
    let mut out = Vec::new();
    for (tag, value) in head.into_iter().chain(own.iter().copied()).filter(|(_, value)| !value.is_empty()) {
        put_field(tag, value, &mut out);
    }
    channels.for_each(|(tag, value)| put_field(tag, value, &mut out));
    out.into()
}

messages! {
    /// The answer to any request; the result is one of those below.
    Response {
        result: Option<Vec<u8>> = [bytes = "vec", optional, tag = "1"],
        error: Option<ErrorMessage> = [message, optional, tag = "2"],
        disconnect: Option<DisconnectMessage> = [message, optional, tag = "3"],
    }

    ErrorMessage {
        code: u32 = [uint32, tag = "1"],
        message: String = [string, tag = "2"],
        temporary: bool = [bool, tag = "3"],
    }

    DisconnectMessage {
        code: u32 = [uint32, tag = "1"],
        reason: String = [string, tag = "2"],
    }

    /// Options of a subscription that comes with a session.
    OptionsMessage {
        expire_at: i64 = [int64, tag = "1"],
        info: Vec<u8> = [bytes = "vec", tag = "2"],
        b64info: String = [string, tag = "3"],
        data: Vec<u8> = [bytes = "vec", tag = "4"],
        b64data: String = [string, tag = "5"],
        overrides: Option<OverrideMessage> = [message, optional, tag = "6"],
    }

    ConnectResult {
        user: String = [string, tag = "1"],
        expire_at: i64 = [int64, tag = "2"],
        info: Vec<u8> = [bytes = "vec", tag = "3"],
        b64info: String = [string, tag = "4"],
        data: Vec<u8> = [bytes = "vec", tag = "5"],
        b64data: String = [string, tag = "6"],
        channels: Vec<String> = [string, repeated, tag = "7"],
        subs: BTreeMap<String, OptionsMessage> = [btree_map = "string, message", tag = "8"],
        meta: Vec<u8> = [bytes = "vec", tag = "9"],
    }

    /// Of a session and of a subscription.
    RefreshResult {
        expired: bool = [bool, tag = "1"],
        expire_at: i64 = [int64, tag = "2"],
        info: Vec<u8> = [bytes = "vec", tag = "3"],
        b64info: String = [string, tag = "4"],
        meta: Vec<u8> = [bytes = "vec", tag = "5"],
    }

    PublishResult {
        data: Vec<u8> = [bytes = "vec", tag = "1"],
        b64data: String = [string, tag = "2"],
        skip_history: bool = [bool, tag = "3"],
    }

    RpcResult {
        data: Vec<u8> = [bytes = "vec", tag = "1"],
        b64data: String = [string, tag = "2"],
    }
}

fn read<R: Heard>(answer: Bytes) -> Result<Answer<R>, String> {
    let fail = |e: String| format!("its answer: {e}");
    let answer = Response::decode(answer).map_err(|e| fail(e.to_string()))?;
    Ok(Answer {
        result: answer.result.map(|result| R::heard(&result).map_err(fail)).transpose()?,
        error: answer.error.map(|error| ErrorObject {
            code: error.code,
            message: error.message,
            temporary: error.temporary,
        }),
        disconnect: answer.disconnect.map(|end| DisconnectObject { code: end.code, reason: end.reason }),
    })
}

/// Reads an answer to such a request, for the fuzzer: whether there is a result in it, an error, an end.
pub(crate) fn outcome(event: Event, answer: Bytes) -> Result<[bool; 3], String> {
    fn parts<R>(answer: Answer<R>) -> [bool; 3] {
        [answer.result.is_some(), answer.error.is_some(), answer.disconnect.is_some()]
    }
    Ok(match event {
        Event::Connect => parts(read::<ConnectSaid>(answer)?),
        Event::Subscribe => parts(read::<SubscribeOptions>(answer)?),
        Event::Publish => parts(read::<PublishSaid>(answer)?),
        Event::Refresh | Event::SubRefresh => parts(read::<RefreshSaid>(answer)?),
        Event::Rpc => parts(read::<RpcSaid>(answer)?),
    })
}

fn decode<M: Message + Default>(result: &[u8]) -> Result<M, String> {
    M::decode(result).map_err(|e| e.to_string())
}

impl TryFrom<OptionsMessage> for SubscribeOptions {
    type Error = String;

    fn try_from(message: OptionsMessage) -> Result<Self, String> {
        Ok(Self {
            b64info: base64_of(message.b64info, &message.info),
            b64data: base64_of(message.b64data, &message.data),
            expire_at: expire_at(message.expire_at)?,
            overrides: message.overrides.map(Overrides::from),
            ..Self::default()
        })
    }
}

impl Heard for SubscribeOptions {
    fn heard(result: &[u8]) -> Result<Self, String> {
        // The same numbers as of the options of a subscription that comes with a session, as far as they are read.
        decode::<OptionsMessage>(result)?.try_into()
    }
}

/// What is attached to a session, if anything.
fn meta_of(bytes: &[u8]) -> Result<Option<Box<RawValue>>, String> {
    let meta = (!bytes.is_empty()).then(|| serde_json::from_slice(bytes)).transpose();
    meta.map_err(|e| format!("meta: {e}"))
}

impl Heard for ConnectSaid {
    fn heard(result: &[u8]) -> Result<Self, String> {
        let said: ConnectResult = decode(result)?;
        let meta = meta_of(&said.meta)?;
        let subs = said.subs.into_iter().map(|(channel, options)| Ok((channel, options.try_into()?)));
        Ok(Self {
            user: said.user,
            expire_at: expire_at(said.expire_at)?,
            info: None,
            b64info: base64_of(said.b64info, &said.info),
            data: None,
            b64data: base64_of(said.b64data, &said.data),
            channels: said.channels,
            subs: subs.collect::<Result<_, String>>()?,
            meta,
        })
    }
}

impl Heard for RefreshSaid {
    fn heard(result: &[u8]) -> Result<Self, String> {
        let said: RefreshResult = decode(result)?;
        Ok(Self {
            expired: said.expired,
            expire_at: expire_at(said.expire_at)?,
            info: None,
            b64info: base64_of(said.b64info, &said.info),
            meta: meta_of(&said.meta)?,
        })
    }
}

impl Heard for PublishSaid {
    fn heard(result: &[u8]) -> Result<Self, String> {
        let said: PublishResult = decode(result)?;
        Ok(Self { data: None, b64data: base64_of(said.b64data, &said.data), skip_history: said.skip_history })
    }
}

impl Heard for RpcSaid {
    fn heard(result: &[u8]) -> Result<Self, String> {
        let said: RpcResult = decode(result)?;
        Ok(Self { data: None, b64data: base64_of(said.b64data, &said.data) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(tag, value)| put_field(*tag, value, &mut out));
        out
    }

    #[test]
    fn endpoints_are_hosts_with_ports() {
        let origin = |endpoint, tls| origin_of(endpoint, tls).map(|origin| origin.to_string());
        assert_eq!(origin("grpc://b:12000", false).as_deref(), Ok("http://b:12000/"));
        assert_eq!(origin("grpc://[::1]:1/", true).as_deref(), Ok("https://[::1]:1/"));
        for (endpoint, says) in [
            ("grpc://", "URL"),
            ("grpc://b", "port"),
            ("grpc://:1", "host"),
            ("grpc://b:1/x", "path"),
            ("grpc://b:1?x", "path"),
        ] {
            assert!(
                origin(endpoint, false).is_err_and(|e| e.contains(says)),
                "{endpoint}: {:?}",
                origin(endpoint, false)
            );
        }
    }

    #[test]
    fn answers_are_read_and_what_makes_no_sense_is_named() {
        let options = fields(&[(2, b"{\"a\":1}"), (5, b"/wA="), (6, &fields(&[(1, &[8, 1])]))]);
        let sub = fields(&[(1, b"c"), (2, &options)]);
        let result =
            [&[0x10, 7][..], &fields(&[(1, b"ann"), (3, b"{}"), (7, b"x"), (8, &sub), (9, b"{\"m\":1}")])].concat();
        let answer = read::<ConnectSaid>(fields(&[(1, &result)]).into()).expect("valid");
        let said = answer.result.expect("a result");
        assert_eq!((said.user.as_str(), said.expire_at, said.channels), ("ann", 7, vec!["x".to_owned()]));
        assert_eq!((said.b64info.as_str(), said.meta.expect("there").get()), ("e30=", "{\"m\":1}"));
        let sub = &said.subs["c"];
        assert_eq!((sub.info(), sub.data()), (Ok(b"{\"a\":1}".to_vec()), Ok(vec![0xff, 0])));
        assert!(sub.overrides.as_ref().is_some_and(|overrides| overrides.presence.as_ref().is_some_and(|p| p.value)));

        let error = [&[8, 144, 3, 24, 1][..], &fields(&[(2, b"no")])].concat();
        let answer = read::<RpcSaid>(fields(&[(2, &error)]).into()).expect("valid");
        let error = answer.error.expect("an error");
        assert_eq!((error.code, error.message.as_str(), error.temporary), (400, "no", true));
        assert!(answer.result.is_none() && answer.disconnect.is_none());

        let minus = [&[0x10][..], &[0xff; 9], &[1]].concat();
        for (result, says) in [(minus, "expire_at"), (fields(&[(9, b"{")]), "meta"), (vec![0xff], "its answer")] {
            let refused = read::<ConnectSaid>(fields(&[(1, &result)]).into()).expect_err(says);
            assert!(refused.contains(says), "{refused}");
        }
        assert!(read::<RpcSaid>(vec![0xff].into()).is_err());
    }
}
