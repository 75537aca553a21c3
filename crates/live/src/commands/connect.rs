//! The connect and refresh commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;
use steadfast_flow::Permit;
use uuid::Uuid;

use super::proxied::{ProxyCalls, nonsense};
use super::subscribe::{Asks, Mode, PreparedSubscription, Subscriber, kind_of};
use super::{Caller, Refused};
use crate::admission::GATE_WAIT;
use crate::answer::AnswerPermit;
use crate::auth::{ConnectClaims, TokenError, TokenKey, ttl};
use crate::node::{Node, VERSION};
use crate::options::{SubscribeOptions, bytes_of, info_of};
use crate::partition::{SessionId, SessionMessage, SubscriptionStart};
use crate::protocol::Transport;
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ConnectRequest, ConnectResult, Push, RefreshRequest, RefreshResult, Reply, SubscribeRequest, SubscribeResult,
    Subscribed,
};
use crate::proxy::ProxyEvent;
use crate::session::{ConnectionInfo, SessionIdentity};

/// The properties of an admitted session.
#[derive(Default)]
struct Admitted {
    user: String,
    /// Information for other clients.
    info: Vec<u8>,
    /// Data for the session's own client.
    data: Vec<u8>,
    /// Metadata kept for the back end.
    meta: Option<Box<RawValue>>,
    /// Lifetime, seconds; `None`: unlimited.
    lasts: Option<u32>,
    /// Subscriptions that the server makes.
    subs: BTreeMap<String, SubscribeOptions>,
    /// The subscriptions that a token requests.
    token_channels: BTreeSet<String>,
    /// The source of its user.
    source: UserSource,
}

/// The source of the user of a session.
#[derive(Default, PartialEq)]
enum UserSource {
    /// A token, or nothing.
    #[default]
    Token,
    /// The back end, which decides alone which channels the session begins with.
    Proxy,
    /// A header of the HTTP request. As in Centrifugo, the session begins without channels.
    Header,
}

/// The subscriptions that are made together with a session.
struct FirstSubscriptions {
    /// The results, for the client.
    results: Vec<Subscribed>,
    /// The subscriptions, for the worker.
    subscribed: Vec<SubscriptionStart>,
    /// The permits of the results.
    permits: Vec<Arc<Permit>>,
}

/// The subscriptions in the claims.
fn subs_of(claims: &mut ConnectClaims) -> BTreeMap<String, SubscribeOptions> {
    let mut subs = std::mem::take(&mut claims.subs);
    for channel in std::mem::take(&mut claims.channels) {
        subs.entry(channel).or_default();
    }
    subs
}

/// The close code of a unidirectional session whose connect was refused. Only the code shows its
/// client whether to reconnect.
pub(super) fn end_of(error: &ClientError) -> Disconnected {
    match error {
        error if error.code == codes::TOKEN_EXPIRED.code || error.code == codes::EXPIRED.code => codes::SESSION_EXPIRED,
        error if error.code == codes::TOO_MANY_REQUESTS.code => codes::TOO_MANY_COMMANDS,
        error if error.temporary => codes::SERVER_ERROR,
        error if error.code == codes::PERMISSION_DENIED.code => codes::DISCONNECT_PERMISSION_DENIED,
        _ => codes::BAD_PROTOCOL,
    }
}

/// A session that connects, or proves its user anew.
pub(super) struct Login<'a> {
    pub(super) node: &'a Node,
    pub(super) session: SessionId,
}

impl Login<'_> {
    fn refused_token(&self, e: TokenError) -> Refused {
        match e.for_client() {
            Ok(error) => error.into(),
            Err(why) => self.invalid_token(&why),
        }
    }

    /// An invalid token ends the session. Any client can send one, so the log line is throttled.
    fn invalid_token(&self, why: &str) -> Refused {
        match self.node.admission.throttles.connection_token.pass(&self.node.env) {
            Some(more) => tracing::info!(?why, more, "a connection token is invalid"),
            None => tracing::debug!(?why, "a connection token is invalid"),
        }
        Refused::End(codes::INVALID_TOKEN)
    }

    /// Verifies a connection token, and reads its information for other clients.
    fn connect_claims(&self, token: &str, key: &TokenKey) -> Result<(ConnectClaims, Vec<u8>), Refused> {
        let claims =
            self.node.back_ends.verifier.verify::<ConnectClaims>(token, key).map_err(|e| self.refused_token(e))?;
        // A token with a channel is a subscription token, and does not permit connecting.
        if !claims.channel.is_empty() {
            return Err(self.invalid_token("it has a channel: it is a subscription token"));
        }
        let info = info_of(claims.info.as_deref(), &claims.b64info);
        let info = info.map_err(|error| self.invalid_token(&error.message))?;
        Ok((claims, info))
    }

    /// Admits a session: by a token and its key, or by the connect proxy.
    async fn admit(
        &self,
        identity: &SessionIdentity,
        request: &ConnectRequest,
        key: Option<&TokenKey>,
    ) -> Result<Admitted, Refused> {
        let client = &self.node.rules.config.client;
        let now_s = self.node.env.wall_ms() / 1000;
        let Some(key) = key else {
            if client.insecure && !request.token.is_empty() {
                return Ok(Admitted::default());
            }
            if let Some(proxy) = self.node.back_ends.proxies.of(ProxyEvent::Connect, "")
                && let Some(reply) = ProxyCalls(self.node).connect(proxy, identity, request).await?
            {
                let mut subs = reply.subs;
                for channel in reply.channels {
                    subs.entry(channel).or_default();
                }
                return Ok(Admitted {
                    user: reply.user,
                    info: info_of(reply.info.as_deref(), &reply.b64info).map_err(|e| nonsense(&e))?,
                    data: bytes_of("data", reply.data.as_deref(), &reply.b64data).map_err(|e| nonsense(&e))?,
                    meta: reply.meta,
                    lasts: ttl(None, Some(i64::try_from(reply.expire_at).unwrap_or(i64::MAX)), now_s)?,
                    subs,
                    token_channels: BTreeSet::new(),
                    source: UserSource::Proxy,
                });
            }
            if !client.insecure && !client.allow_anonymous_connect_without_token {
                let user = identity.user_in_header(&client.user_id_http_header);
                let user = user.ok_or(Refused::End(codes::BAD_PROTOCOL))?;
                return Ok(Admitted { user, source: UserSource::Header, ..Admitted::default() });
            }
            return Ok(Admitted::default());
        };
        let (mut claims, info) = self.connect_claims(&request.token, key)?;
        if claims.sub.is_empty() && client.disallow_anonymous_connection_tokens {
            return Err(Refused::End(codes::DISCONNECT_PERMISSION_DENIED));
        }
        let subs = subs_of(&mut claims);
        Ok(Admitted {
            lasts: ttl(claims.exp, claims.expire_at, now_s)?,
            user: claims.sub,
            info,
            data: Vec::new(),
            meta: claims.meta,
            token_channels: subs.keys().cloned().collect(),
            subs,
            source: UserSource::Token,
        })
    }

    /// A new public ID of a session.
    fn new_client(&self) -> Uuid {
        let env = &self.node.env;
        let random = (u128::from(env.random_u64()) << 64) | u128::from(env.random_u64());
        uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
    }

    pub(super) async fn connect(
        &self,
        connection: ConnectionInfo,
        id: u32,
        request: ConnectRequest,
    ) -> Result<(), Refused> {
        let session = self.session;
        let emulated = self.node.back_ends.proxies.emulated(&request.headers);
        // No user yet, but an ID and the headers by which the back end may recognise the client.
        let mut identity = SessionIdentity::new(self.new_client(), connection, emulated);
        // The back end and the JWKS endpoint have their own bounds. So connects that need neither
        // proceed while one of them is slow.
        let (mut by_proxy, mut key) = (None, None);
        if request.token.is_empty() {
            by_proxy = Some(self.admit(&identity, &request, None).await?);
        } else if self.node.back_ends.verifier.has_keys() || !self.node.rules.config.client.insecure {
            key = Some(self.node.back_ends.verifier.key_of(&request.token).await.map_err(|e| self.refused_token(e))?);
        }
        let _pass = self.node.admission.connects.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let admitted = match by_proxy {
            Some(admitted) => admitted,
            None => self.admit(&identity, &request, key.as_deref()).await?,
        };
        let Admitted { user, info, data, meta, lasts, mut subs, token_channels, source } = admitted;
        if source == UserSource::Token {
            self.add_requested(&user, &request, &mut subs)?;
        }
        (identity.user, identity.token_channels) = (user, token_channels);
        identity.learn(info, meta);
        let identity = Arc::new(identity);
        let options = &self.node.rules.config.client;
        let personal = &options.subscribe_to_user_personal_channel;
        let alone = personal.enabled && personal.single_connection && source != UserSource::Header;
        let end =
            |other| self.node.partitions.send_to_session(other, SessionMessage::Disconnect(codes::CONNECTION_LIMIT));
        if !self.node.users.enter(session, &identity, alone, end) {
            return Err(Refused::End(codes::CONNECTION_LIMIT));
        }
        if source != UserSource::Header
            && let Some(personal) = self.node.rules.config.personal_channel(&identity.user)
        {
            subs.entry(personal).or_default();
        }
        if (1..subs.len()).contains(&options.channel_limit) {
            self.node.users.exit(session, &identity);
            return Err(Refused::End(codes::CHANNEL_LIMIT));
        }
        // Where the back end extends sessions, the client must not refresh.
        let ttl = lasts.filter(|_| self.node.back_ends.proxies.of(ProxyEvent::Refresh, "").is_none());
        let ConnectionInfo { transport, frame_pings, .. } = identity.connection;
        let unidirectional = transport.is_unidirectional();
        let emulated = matches!(transport, Transport::HttpStream | Transport::Sse);
        let now_ms = self.node.env.wall_ms();
        let caller = Caller { node: self.node, session, identity: &identity };
        let made = self.subscribe_all(caller, subs, &request).await;
        let FirstSubscriptions { results, subscribed, permits } =
            made.inspect_err(|_| self.node.users.exit(session, &identity))?;
        let result = ConnectResult {
            client: identity.client.to_string(),
            session: identity.connection.session.as_deref().unwrap_or_default().to_owned(),
            version: VERSION.to_owned(),
            expires: ttl.is_some(),
            ttl: ttl.unwrap_or_default(),
            data,
            ping: if frame_pings { 0 } else { options.ping_interval.0.as_secs() as u32 },
            // A unidirectional client sends no pongs.
            pong: !unidirectional && !frame_pings,
            node: if emulated { self.node.start.clone() } else { String::new() },
            time: if options.connect_include_server_time { now_ms as i64 } else { 0 },
            subs: results,
        };
        let reply = Box::new(match unidirectional {
            true => Reply { push: Some(Push { connect: Some(result), ..Push::default() }), ..Reply::default() },
            false => Reply { id, connect: Some(result), ..Reply::default() },
        });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        let connected = SessionMessage::Connected { identity, expires_ms, reply, subscribed, permits };
        self.node.partitions.send_to_session(session, connected);
        Ok(())
    }

    /// Adds the channels of the connect request to which the client may subscribe. Unidirectional
    /// clients have no other way to ask for channels.
    fn add_requested(
        &self,
        user: &str,
        request: &ConnectRequest,
        subs: &mut BTreeMap<String, SubscribeOptions>,
    ) -> Result<(), Refused> {
        for channel in request.subs.keys() {
            let options = self.node.rules.config.namespace_of(channel).ok_or(Refused::End(codes::BAD_PROTOCOL))?;
            let decides = self.node.rules.client_namespace(channel).is_ok()
                && !options.subscribe_proxy_enabled
                && !self.node.rules.is_private(channel);
            if decides && self.node.rules.permits(options, channel, user) {
                subs.entry(channel.clone()).or_default();
            }
        }
        Ok(())
    }

    /// Makes the subscriptions of a new session, in the order of their channels. After a failure
    /// none of them remains.
    async fn subscribe_all(
        &self,
        caller: Caller<'_>,
        subs: BTreeMap<String, SubscribeOptions>,
        request: &ConnectRequest,
    ) -> Result<FirstSubscriptions, Refused> {
        let mut made =
            FirstSubscriptions { results: Vec::new(), subscribed: Vec::with_capacity(subs.len()), permits: Vec::new() };
        for (channel, terms) in subs {
            let asks = request.subs.get(&channel).cloned().unwrap_or_default();
            // As in Centrifugo, such a subscription has no filter.
            let request = SubscribeRequest { channel: channel.clone(), tf: None, ..asks };
            match self.subscribe_first(caller, request, &terms).await {
                Ok((start, answer, permit)) => {
                    made.permits.extend(permit);
                    made.subscribed.push(start);
                    made.results.push(Subscribed { channel, result: answer });
                }
                Err(refused) => {
                    for start in made.subscribed {
                        self.node.partitions.send_to_session(
                            caller.session,
                            SessionMessage::NotSubscribed(start.channel, start.attempt),
                        );
                    }
                    return Err(refused);
                }
            }
        }
        Ok(made)
    }

    /// Makes a subscription together with the session.
    async fn subscribe_first(
        &self,
        caller: Caller<'_>,
        request: SubscribeRequest,
        terms: &SubscribeOptions,
    ) -> Result<(SubscriptionStart, SubscribeResult, AnswerPermit), Refused> {
        let options = terms.of(self.node.rules.namespace(&request.channel)?);
        let mut kind = kind_of(&options, &request, Asks::ByServer);
        kind.info = terms.info().map_err(|e| nonsense(&e))?;
        kind.expires_ms = terms.expires_ms();
        let data = terms.data().map_err(|e| nonsense(&e))?;
        let mode = Mode { from_server: false, own_copy: true };
        let PreparedSubscription { start, answer } =
            Subscriber(caller).subscribe(&options, request, kind, mode).await?;
        Ok((start, SubscribeResult { data, ..answer.result.clone() }, answer.permit.clone()))
    }

    pub(super) async fn refresh(
        &self,
        caller: Caller<'_>,
        mut reply: Reply,
        request: RefreshRequest,
    ) -> Result<(), Refused> {
        // Where the back end extends sessions, the client must not refresh.
        if request.token.is_empty() || self.node.back_ends.proxies.of(ProxyEvent::Refresh, "").is_some() {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        let key = self.node.back_ends.verifier.key_of(&request.token).await.map_err(|e| self.refused_token(e))?;
        let claims = self.connect_claims(&request.token, &key).map_err(|refused| match refused {
            // After this error the client would give up; after a disconnect it gets another token
            // and reconnects.
            Refused::Error(error) if error == codes::TOKEN_EXPIRED => Refused::End(codes::SESSION_EXPIRED),
            refused => refused,
        });
        let (mut claims, info) = claims?;
        if claims.sub != caller.identity.user {
            return Err(self.invalid_token("it is a token of another user"));
        }
        // Server-side subscriptions are made at connect: the client reconnects, and gets the
        // changed ones.
        if !subs_of(&mut claims).into_keys().eq(caller.identity.token_channels.iter().cloned()) {
            return Err(Refused::End(codes::INSUFFICIENT_STATE));
        }
        let now_ms = self.node.env.wall_ms();
        let lasts = ttl(claims.exp, claims.expire_at, now_ms / 1000)?;
        reply.refresh = Some(RefreshResult {
            expires: lasts.is_some(),
            ttl: lasts.unwrap_or_default(),
            ..RefreshResult::default()
        });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        let renamed = caller.identity.learn(info, claims.meta);
        self.node.partitions.send_to_session(
            caller.session,
            SessionMessage::Refreshed { expires_ms, renamed, reply: Some(Box::new(reply)) },
        );
        Ok(())
    }
}
