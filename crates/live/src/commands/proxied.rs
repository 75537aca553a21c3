//! Requests to the back end, and their effects.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use steadfast_flow::log_rarely;

use crate::config::NamespaceOptions;
use crate::node::Node;
use crate::options::{SubscribeOptions, bytes_of, info_of};
use crate::partition::{SessionId, SessionMessage};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{ConnectRequest, PublishRequest, RpcRequest, RpcResult, SubscribeRequest};
use crate::proxy::{
    ConnectReply, Proxy, ProxyError, ProxyEvent, ProxyReply, ProxyRequest, PublishReply, RefreshReply, RpcReply,
};
use crate::session::SessionIdentity;

use super::Refused;

/// Extension of a session or subscription when the back end cannot be reached, milliseconds.
const RETRY_MS: u64 = 60_000;

impl From<ProxyError> for Refused {
    fn from(failure: ProxyError) -> Self {
        match failure {
            ProxyError::Busy => codes::TOO_MANY_REQUESTS.into(),
            ProxyError::Failed => codes::INTERNAL.into(),
        }
    }
}

/// The result of a reply; an error or disconnect refuses the command.
fn result_of<R>(reply: ProxyReply<R>) -> Result<Option<R>, Refused> {
    match reply {
        ProxyReply::Result(result) => Ok(Some(result)),
        ProxyReply::Nothing => Ok(None),
        ProxyReply::Error(error) => Err(error.into()),
        ProxyReply::Disconnect(end) => Err(Refused::End(end)),
    }
}

/// An invalid field in a reply of the back end. The client cannot correct it.
pub(super) fn nonsense(error: &ClientError) -> Refused {
    log_rarely!(warn, error = %error.message, "a reply of the back end is invalid: the command fails");
    codes::INTERNAL.into()
}

/// The back end, which decides what a node does not.
pub(super) struct ProxyCalls<'a>(pub(super) &'a Node);

impl ProxyCalls<'_> {
    /// Asks the back end who connects without a token; `None` if it does not answer that.
    pub(super) async fn connect(
        &self,
        proxy: &Proxy,
        identity: &SessionIdentity,
        request: &ConnectRequest,
    ) -> Result<Option<ConnectReply>, Refused> {
        let ask = ProxyRequest {
            name: &request.name,
            version: &request.version,
            channels: request.subs.keys().map(String::as_str).collect(),
            ..ProxyRequest::new(identity, &proxy.config)
        };
        result_of(proxy.ask(identity, &ask.with(&request.data)?).await?)
    }

    /// Asks the back end whether a session may subscribe.
    pub(super) async fn subscribe(
        &self,
        identity: &SessionIdentity,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
    ) -> Result<SubscribeOptions, Refused> {
        let proxy = self
            .0
            .back_ends
            .proxies
            .of(ProxyEvent::Subscribe, &options.subscribe_proxy_name)
            .ok_or(codes::NOT_AVAILABLE)?;
        let ask = ProxyRequest { channel: &request.channel, ..ProxyRequest::about(identity, &proxy.config) };
        let reply = result_of(proxy.ask::<SubscribeOptions>(identity, &ask.with(&request.data)?).await?)?;
        let reply = reply.unwrap_or_default();
        reply.info().and(reply.data()).map_err(|e| nonsense(&e))?;
        Ok(reply)
    }

    /// Asks the back end whether a session may publish. Returns the data, and whether to skip the
    /// history.
    pub(super) async fn publish(
        &self,
        identity: &SessionIdentity,
        options: &NamespaceOptions,
        request: &PublishRequest,
    ) -> Result<(Bytes, bool), Refused> {
        let proxy = self
            .0
            .back_ends
            .proxies
            .of(ProxyEvent::Publish, &options.publish_proxy_name)
            .ok_or(codes::NOT_AVAILABLE)?;
        let ask = ProxyRequest { channel: &request.channel, ..ProxyRequest::about(identity, &proxy.config) };
        let reply =
            result_of(proxy.ask::<PublishReply>(identity, &ask.with(&request.data)?).await?)?.unwrap_or_default();
        let data = bytes_of("data", reply.data.as_deref(), &reply.b64data).map_err(|e| nonsense(&e))?;
        Ok((if data.is_empty() { request.data.clone() } else { data.into() }, reply.skip_history))
    }

    /// Sends an RPC to the back end.
    pub(super) async fn rpc(&self, identity: &SessionIdentity, request: &RpcRequest) -> Result<RpcResult, Refused> {
        let ping = &self.0.rules.config.rpc.ping;
        if ping.enabled && request.method == ping.method {
            return Ok(RpcResult::default());
        }
        if !self.0.back_ends.proxies.has(ProxyEvent::Rpc) {
            return Err(if ping.enabled { codes::METHOD_NOT_FOUND } else { codes::NOT_AVAILABLE }.into());
        }
        let namespace = self.0.rules.config.rpc.namespace_of(&request.method).ok_or(codes::METHOD_NOT_FOUND)?;
        let proxy =
            self.0.back_ends.proxies.of(ProxyEvent::Rpc, &namespace.proxy_name).filter(|_| namespace.proxy_enabled);
        let proxy = proxy.ok_or(codes::NOT_AVAILABLE)?;
        let ask = ProxyRequest { method: &request.method, ..ProxyRequest::about(identity, &proxy.config) };
        let reply = result_of(proxy.ask::<RpcReply>(identity, &ask.with(&request.data)?).await?)?.unwrap_or_default();
        let data = bytes_of("data", reply.data.as_deref(), &reply.b64data).map_err(|e| nonsense(&e))?;
        Ok(RpcResult { data })
    }

    /// Asks the back end whether to extend an expired session.
    pub(super) async fn refresh(&self, session: SessionId, identity: &SessionIdentity) {
        let Some(proxy) = self.0.back_ends.proxies.of(ProxyEvent::Refresh, "") else { return };
        let message = match self.lasts(proxy, identity, "").await {
            // As in Centrifugo, only a subscription lasts without limit if the reply has no expiry.
            Ok(Lasts { expires_ms: Some(expires_ms), info, meta }) => {
                let renamed = identity.learn(info, meta);
                SessionMessage::Refreshed { expires_ms: Some(expires_ms), renamed, reply: None }
            }
            Ok(Lasts { expires_ms: None, .. }) | Err(()) => SessionMessage::Disconnect(codes::SESSION_EXPIRED),
        };
        self.0.partitions.send_to_session(session, message);
    }

    /// Asks the back end whether to extend an expired subscription.
    pub(super) async fn sub_refresh(&self, session: SessionId, identity: &SessionIdentity, channel: Arc<str>) {
        let name = self.0.rules.config.namespace_of(&channel).map(|options| options.sub_refresh_proxy_name.as_str());
        let Some(proxy) = self.0.back_ends.proxies.of(ProxyEvent::SubRefresh, name.unwrap_or_default()) else { return };
        let message = match self.lasts(proxy, identity, &channel).await {
            Ok(Lasts { expires_ms, info, .. }) => {
                SessionMessage::SubRefreshed { channel, expires_ms, info, reply: None }
            }
            Err(()) => SessionMessage::unsubscribed(channel, codes::UNSUBSCRIBED_EXPIRED),
        };
        self.0.partitions.send_to_session(session, message);
    }

    /// Asks the back end for a new expiry; an error if the session or subscription must end.
    async fn lasts(&self, proxy: &Proxy, identity: &SessionIdentity, channel: &str) -> Result<Lasts, ()> {
        let ask = ProxyRequest { channel, ..ProxyRequest::about(identity, &proxy.config) };
        let reply = proxy.ask::<RefreshReply>(identity, &ask).await;
        let now_ms = self.0.env.wall_ms();
        let reply = match reply {
            // An outage of the back end ends nothing.
            Err(_) => return Ok(Lasts { expires_ms: Some(now_ms + RETRY_MS), ..Lasts::default() }),
            Ok(ProxyReply::Result(reply)) if !reply.expired => reply,
            Ok(_) => return Err(()),
        };
        let expires_ms = match reply.expire_at {
            0 => None,
            at if at > now_ms / 1000 => Some(at.saturating_mul(1000)),
            _ => return Err(()),
        };
        let info = info_of(reply.info.as_deref(), &reply.b64info).unwrap_or_else(|error| {
            nonsense(&error);
            Vec::new()
        });
        Ok(Lasts { expires_ms, info, meta: reply.meta })
    }
}

/// An extension that the back end granted.
#[derive(Default)]
struct Lasts {
    /// Expiry, milliseconds since the Unix epoch; `None`: never.
    expires_ms: Option<u64>,
    /// Information for other clients; empty: unchanged.
    info: Vec<u8>,
    /// Metadata kept for the back end.
    meta: Option<Box<RawValue>>,
}
