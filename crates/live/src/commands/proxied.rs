//! What the back end is asked about, and what its answers mean.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::config::NamespaceOptions;
use crate::node::Node;
use crate::options::{SubscribeOptions, bytes_of, info_of};
use crate::partition::{SessionId, ToSession, Who};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{ConnectRequest, PublishRequest, RpcRequest, RpcResult, SubscribeRequest};
use crate::proxy::{Ask, ConnectSaid, Event, Proxy, PublishSaid, RefreshSaid, RpcSaid, Said, Trouble};

use super::Refused;
use super::subscribe::unsubscribed;

/// How much longer a session or subscription lasts about which the back end could not be asked, milliseconds.
const AGAIN_MS: u64 = 60_000;

impl From<Trouble> for Refused {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Busy => codes::TOO_MANY_REQUESTS.into(),
            Trouble::Failed => codes::INTERNAL.into(),
        }
    }
}

/// The result; what refuses a command refuses it.
fn result_of<R>(said: Said<R>) -> Result<Option<R>, Refused> {
    match said {
        Said::Result(result) => Ok(Some(result)),
        Said::Nothing => Ok(None),
        Said::Error(error) => Err(error.into()),
        Said::Disconnect(end) => Err(Refused::End(end)),
    }
}

/// What an answer holds that makes no sense; a client cannot help it.
pub(super) fn nonsense(error: &ClientError) -> Refused {
    tracing::warn!(error = %error.message, "an answer of the back end makes no sense");
    codes::INTERNAL.into()
}

impl Node {
    /// Who it is that connects without a token; `None` when the back end does not say.
    pub(super) async fn ask_connect(
        &self,
        proxy: &Proxy,
        who: &Who,
        request: &ConnectRequest,
    ) -> Result<Option<ConnectSaid>, Refused> {
        let ask = Ask {
            name: &request.name,
            version: &request.version,
            channels: request.subs.keys().map(String::as_str).collect(),
            ..Ask::new(who, &proxy.config)
        };
        result_of(proxy.ask(who, &ask.with(&request.data)?).await?)
    }

    /// Whether a session may subscribe.
    pub(super) async fn ask_subscribe(
        &self,
        who: &Who,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
    ) -> Result<SubscribeOptions, Refused> {
        let proxy = self.proxies.of(Event::Subscribe, &options.subscribe_proxy_name).ok_or(codes::NOT_AVAILABLE)?;
        let ask = Ask { channel: &request.channel, ..Ask::about(who, &proxy.config) };
        let said = result_of(proxy.ask::<SubscribeOptions>(who, &ask.with(&request.data)?).await?)?;
        let said = said.unwrap_or_default();
        said.info().and(said.data()).map_err(|e| nonsense(&e))?;
        Ok(said)
    }

    /// Whether a session may publish: what, and whether it stays out of the history.
    pub(super) async fn ask_publish(
        &self,
        who: &Who,
        options: &NamespaceOptions,
        request: &PublishRequest,
    ) -> Result<(Vec<u8>, bool), Refused> {
        let proxy = self.proxies.of(Event::Publish, &options.publish_proxy_name).ok_or(codes::NOT_AVAILABLE)?;
        let ask = Ask { channel: &request.channel, ..Ask::about(who, &proxy.config) };
        let said = result_of(proxy.ask::<PublishSaid>(who, &ask.with(&request.data)?).await?)?.unwrap_or_default();
        let data = bytes_of("data", said.data.as_deref(), &said.b64data).map_err(|e| nonsense(&e))?;
        Ok((if data.is_empty() { request.data.clone() } else { data }, said.skip_history))
    }

    /// Calls the back end.
    pub(super) async fn ask_rpc(&self, who: &Who, request: &RpcRequest) -> Result<RpcResult, Refused> {
        let namespace = self.config.rpc.namespace_of(&request.method).filter(|namespace| namespace.proxy_enabled);
        let proxy = namespace.and_then(|namespace| self.proxies.of(Event::Rpc, &namespace.proxy_name));
        let proxy = proxy.ok_or(codes::METHOD_NOT_FOUND)?;
        let ask = Ask { method: &request.method, ..Ask::about(who, &proxy.config) };
        let said = result_of(proxy.ask::<RpcSaid>(who, &ask.with(&request.data)?).await?)?.unwrap_or_default();
        let data = bytes_of("data", said.data.as_deref(), &said.b64data).map_err(|e| nonsense(&e))?;
        Ok(RpcResult { data })
    }

    /// A session's time is over: it goes on if the back end says so.
    pub(super) async fn refresh_unasked(&self, session: SessionId, who: &Who) {
        let Some(proxy) = self.proxies.of(Event::Refresh, "") else { return };
        let told = match self.lasts(proxy, who, "").await {
            // As in Centrifugo: only a subscription goes on for ever where no end is said.
            Ok(Lasts { expires_ms: Some(expires_ms), info, meta }) => {
                let renamed = who.learn(info, meta);
                ToSession::Refreshed { expires_ms: Some(expires_ms), renamed, reply: None }
            }
            Ok(Lasts { expires_ms: None, .. }) | Err(()) => ToSession::Disconnect(codes::SESSION_EXPIRED),
        };
        self.to(session, told);
    }

    /// The same of a subscription.
    pub(super) async fn sub_refresh_unasked(&self, session: SessionId, who: &Who, channel: Arc<str>) {
        let name = self.config.namespace_of(&channel).map(|options| options.sub_refresh_proxy_name.as_str());
        let Some(proxy) = self.proxies.of(Event::SubRefresh, name.unwrap_or_default()) else { return };
        let told = match self.lasts(proxy, who, &channel).await {
            Ok(Lasts { expires_ms, info, .. }) => ToSession::SubRefreshed { channel, expires_ms, info, reply: None },
            Err(()) => unsubscribed(channel, codes::UNSUBSCRIBED_EXPIRED),
        };
        self.to(session, told);
    }

    /// Until when something lasts whose time is over; an error when it ends.
    async fn lasts(&self, proxy: &Proxy, who: &Who, channel: &str) -> Result<Lasts, ()> {
        let ask = Ask { channel, ..Ask::about(who, &proxy.config) };
        let said = proxy.ask::<RefreshSaid>(who, &ask).await;
        let now_ms = self.env.wall_ms();
        let said = match said {
            // A back end that is down for a while ends nothing.
            Err(_) => return Ok(Lasts { expires_ms: Some(now_ms + AGAIN_MS), ..Lasts::default() }),
            Ok(Said::Result(said)) if !said.expired => said,
            Ok(_) => return Err(()),
        };
        let expires_ms = match said.expire_at {
            0 => None,
            at if at > now_ms / 1000 => Some(at.saturating_mul(1000)),
            _ => return Err(()),
        };
        let info = info_of(said.info.as_deref(), &said.b64info).unwrap_or_else(|error| {
            nonsense(&error);
            Vec::new()
        });
        Ok(Lasts { expires_ms, info, meta: said.meta })
    }
}

/// What a back end says of something that goes on.
#[derive(Default)]
struct Lasts {
    /// Until then, milliseconds since the Unix epoch; `None`: for ever.
    expires_ms: Option<u64>,
    /// What others are told of it, if that is said,
    info: Vec<u8>,
    /// and what is kept for the back end.
    meta: Option<Box<RawValue>>,
}
