//! gRPC back ends: the client side of Centrifugo's `CentrifugoProxy`. Names and field numbers are
//! those of `proxy.proto` in github.com/centrifugal/centrifugo, internal/proxyproto.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use prost::Message;
use serde_json::value::RawValue;
use steadfast_net::{GrpcClient, grpc_client_over, with_causes};
use tonic::body::Body;
use tonic::metadata::MetadataMap;

use super::messages::{Answer, ConnectReply, ProxyRequest, PublishReply, RefreshReply, RpcReply};
use super::{ANSWER_BYTES_MAX, DecodeReply};
use crate::config::proxy::{DisconnectObject, ErrorObject, ProxyConfig, ProxyEvent};
use crate::config::proxy_grpc::origin_of;
use crate::grpc::{OverrideMessage, Raw, base64_of, expire_at, messages, put_field};
use crate::options::{Overrides, SubscribeOptions};

/// The gRPC client of a proxy.
pub(super) struct GrpcBackEnd {
    client: tonic::client::Grpc<GrpcClient<Body>>,
    path: PathAndQuery,
    event: ProxyEvent,
    credentials: HeaderMap,
}

impl GrpcBackEnd {
    /// Builds the client of a configuration. It connects with the first request.
    pub(super) fn new(event: ProxyEvent, proxy: &ProxyConfig) -> Result<Self, String> {
        let origin = origin_of(&proxy.endpoint, proxy.grpc.tls.enabled)?;
        let client = grpc_client_over(&origin, proxy.grpc.tls.client("grpc.tls")?)?;
        let client = tonic::client::Grpc::with_origin(client, origin).max_decoding_message_size(ANSWER_BYTES_MAX);
        let path = PathAndQuery::from_static(match event {
            ProxyEvent::Connect => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Connect",
            ProxyEvent::Refresh => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Refresh",
            ProxyEvent::Subscribe => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Subscribe",
            ProxyEvent::Publish => "/centrifugal.centrifugo.proxy.CentrifugoProxy/Publish",
            ProxyEvent::SubRefresh => "/centrifugal.centrifugo.proxy.CentrifugoProxy/SubRefresh",
            ProxyEvent::Rpc => "/centrifugal.centrifugo.proxy.CentrifugoProxy/RPC",
        });
        Ok(Self { client, path, event, credentials: proxy.grpc.credentials()? })
    }

    /// Sends a request with `within` as its gRPC timeout. The call itself has no bound: the caller
    /// sets one.
    pub(super) async fn ask<R: DecodeReply>(
        &self,
        ask: &ProxyRequest<'_>,
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
            // A status made from another error repeats the text of that error: report the cause
            // alone.
            Err(status) => Err(match std::error::Error::source(&status) {
                Some(cause) => with_causes(cause),
                None => format!("the back end answered with status {:?}: {}", status.code(), status.message()),
            }),
        }
    }
}

/// Encodes a request. All fields are text or bytes, which have the same encoding; empty fields are
/// omitted.
fn encoded(event: ProxyEvent, ask: &ProxyRequest<'_>) -> Bytes {
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
        ProxyEvent::Connect => &[(10, data), (11, base64), (12, ask.name.as_bytes()), (13, ask.version.as_bytes())],
        ProxyEvent::Refresh => &[(10, user), (11, meta)],
        ProxyEvent::Subscribe => &[(10, user), (11, channel), (13, meta), (14, data), (15, base64)],
        ProxyEvent::Publish => &[(10, user), (11, channel), (12, data), (13, base64), (14, meta)],
        ProxyEvent::Rpc => &[(10, user), (11, method), (12, data), (13, base64), (14, meta)],
        ProxyEvent::SubRefresh => &[(10, user), (11, channel), (12, meta)],
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
    /// The answer to any request; `result` encodes one of the messages below.
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

    /// Options of a subscription that a connect result makes.
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

    /// The result for a session or a subscription.
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

fn read<R: DecodeReply>(answer: Bytes) -> Result<Answer<R>, String> {
    let fail = |e: String| format!("the answer cannot be decoded: {e}");
    let answer = Response::decode(answer).map_err(|e| fail(e.to_string()))?;
    Ok(Answer {
        result: answer.result.map(|result| R::decode_reply(&result).map_err(fail)).transpose()?,
        error: answer.error.map(|error| ErrorObject {
            code: error.code,
            message: error.message,
            temporary: error.temporary,
        }),
        disconnect: answer.disconnect.map(|end| DisconnectObject { code: end.code, reason: end.reason }),
    })
}

/// Decodes an answer for the fuzzer: whether it has a result, an error and a disconnect.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn outcome(event: ProxyEvent, answer: Bytes) -> Result<[bool; 3], String> {
    fn parts<R>(answer: Answer<R>) -> [bool; 3] {
        [answer.result.is_some(), answer.error.is_some(), answer.disconnect.is_some()]
    }
    Ok(match event {
        ProxyEvent::Connect => parts(read::<ConnectReply>(answer)?),
        ProxyEvent::Subscribe => parts(read::<SubscribeOptions>(answer)?),
        ProxyEvent::Publish => parts(read::<PublishReply>(answer)?),
        ProxyEvent::Refresh | ProxyEvent::SubRefresh => parts(read::<RefreshReply>(answer)?),
        ProxyEvent::Rpc => parts(read::<RpcReply>(answer)?),
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

impl DecodeReply for SubscribeOptions {
    fn decode_reply(result: &[u8]) -> Result<Self, String> {
        // The field numbers that are read are the same in both messages.
        decode::<OptionsMessage>(result)?.try_into()
    }
}

/// Decodes the metadata of a session; `None` if there is none.
fn meta_of(bytes: &[u8]) -> Result<Option<Box<RawValue>>, String> {
    let meta = (!bytes.is_empty()).then(|| serde_json::from_slice(bytes)).transpose();
    meta.map_err(|e| format!("meta: {e}"))
}

impl DecodeReply for ConnectReply {
    fn decode_reply(result: &[u8]) -> Result<Self, String> {
        let decoded: ConnectResult = decode(result)?;
        let meta = meta_of(&decoded.meta)?;
        let subs = decoded.subs.into_iter().map(|(channel, options)| Ok((channel, options.try_into()?)));
        Ok(Self {
            user: decoded.user,
            expire_at: expire_at(decoded.expire_at)?,
            info: None,
            b64info: base64_of(decoded.b64info, &decoded.info),
            data: None,
            b64data: base64_of(decoded.b64data, &decoded.data),
            channels: decoded.channels,
            subs: subs.collect::<Result<_, String>>()?,
            meta,
        })
    }
}

impl DecodeReply for RefreshReply {
    fn decode_reply(result: &[u8]) -> Result<Self, String> {
        let decoded: RefreshResult = decode(result)?;
        Ok(Self {
            expired: decoded.expired,
            expire_at: expire_at(decoded.expire_at)?,
            info: None,
            b64info: base64_of(decoded.b64info, &decoded.info),
            meta: meta_of(&decoded.meta)?,
        })
    }
}

impl DecodeReply for PublishReply {
    fn decode_reply(result: &[u8]) -> Result<Self, String> {
        let decoded: PublishResult = decode(result)?;
        Ok(Self { data: None, b64data: base64_of(decoded.b64data, &decoded.data), skip_history: decoded.skip_history })
    }
}

impl DecodeReply for RpcReply {
    fn decode_reply(result: &[u8]) -> Result<Self, String> {
        let decoded: RpcResult = decode(result)?;
        Ok(Self { data: None, b64data: base64_of(decoded.b64data, &decoded.data) })
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
        for (endpoint, expected) in [
            ("grpc://", "URL"),
            ("grpc://b", "port"),
            ("grpc://:1", "host"),
            ("grpc://b:1/x", "path"),
            ("grpc://b:1?x", "path"),
        ] {
            assert!(
                origin(endpoint, false).is_err_and(|e| e.contains(expected)),
                "{endpoint}: {:?}",
                origin(endpoint, false)
            );
        }
    }

    #[test]
    fn answers_are_decoded_and_invalid_fields_are_named() {
        let options = fields(&[(2, b"{\"a\":1}"), (5, b"/wA="), (6, &fields(&[(1, &[8, 1])]))]);
        let sub = fields(&[(1, b"c"), (2, &options)]);
        let result =
            [&[0x10, 7][..], &fields(&[(1, b"ann"), (3, b"{}"), (7, b"x"), (8, &sub), (9, b"{\"m\":1}")])].concat();
        let answer = read::<ConnectReply>(fields(&[(1, &result)]).into()).expect("valid");
        let decoded = answer.result.expect("a result");
        assert_eq!((decoded.user.as_str(), decoded.expire_at, decoded.channels), ("ann", 7, vec!["x".to_owned()]));
        assert_eq!((decoded.b64info.as_str(), decoded.meta.expect("there").get()), ("e30=", "{\"m\":1}"));
        let sub = &decoded.subs["c"];
        assert_eq!((sub.info(), sub.data()), (Ok(b"{\"a\":1}".to_vec()), Ok(vec![0xff, 0])));
        assert!(sub.overrides.as_ref().is_some_and(|overrides| overrides.presence.as_ref().is_some_and(|p| p.value)));

        let error = [&[8, 144, 3, 24, 1][..], &fields(&[(2, b"no")])].concat();
        let answer = read::<RpcReply>(fields(&[(2, &error)]).into()).expect("valid");
        let error = answer.error.expect("an error");
        assert_eq!((error.code, error.message.as_str(), error.temporary), (400, "no", true));
        assert!(answer.result.is_none() && answer.disconnect.is_none());

        let minus = [&[0x10][..], &[0xff; 9], &[1]].concat();
        for (result, expected) in [(minus, "expire_at"), (fields(&[(9, b"{")]), "meta"), (vec![0xff], "the answer")] {
            let refused = read::<ConnectReply>(fields(&[(1, &result)]).into()).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
        assert!(read::<RpcReply>(vec![0xff].into()).is_err());
    }
}
