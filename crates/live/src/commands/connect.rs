//! A session connects, and lasts longer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::proxied::nonsense;
use super::subscribe::{Made, Mode, kind_of};
use super::{Caller, Refused};
use crate::auth::{ConnectClaims, TokenError, TokenKey, ttl};
use crate::node::{AnswerPermit, GATE_WAIT, Node};
use crate::options::{SubscribeOptions, bytes_of, info_of};
use crate::partition::{Arrived, Place, SessionId, ToSession, Transport, Who};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ConnectRequest, ConnectResult, Push, RefreshRequest, RefreshResult, Reply, SubscribeRequest, SubscribeResult,
    Subscribed,
};
use crate::proxy::Event;

/// Who is let in, and what goes with it.
#[derive(Default)]
struct Admitted {
    user: String,
    /// What others are told of the session,
    info: Vec<u8>,
    /// and what its client is.
    data: Vec<u8>,
    /// What is kept for the back end.
    meta: Option<Box<RawValue>>,
    /// For so many seconds; `None`: for ever.
    lasts: Option<u32>,
    /// Subscriptions that the server makes,
    subs: BTreeMap<String, SubscribeOptions>,
    /// and those among them that a token asks for.
    token_channels: BTreeSet<String>,
}

/// What the claims subscribe a session to.
fn subs_of(claims: &mut ConnectClaims) -> BTreeMap<String, SubscribeOptions> {
    let mut subs = std::mem::take(&mut claims.subs);
    for channel in std::mem::take(&mut claims.channels) {
        subs.entry(channel).or_default();
    }
    subs
}

/// How a unidirectional session ends whose connect is refused: only this tells its client whether to come again.
pub(super) fn end_of(error: &ClientError) -> Disconnected {
    match error {
        error if error.code == codes::TOKEN_EXPIRED.code || error.code == codes::EXPIRED.code => codes::SESSION_EXPIRED,
        error if error.code == codes::TOO_MANY_REQUESTS.code => codes::TOO_MANY_COMMANDS,
        error if error.temporary => codes::SERVER_ERROR,
        error if error.code == codes::PERMISSION_DENIED.code => codes::DISCONNECT_PERMISSION_DENIED,
        _ => codes::BAD_PROTOCOL,
    }
}

impl Node {
    fn refused_token(&self, e: TokenError) -> Refused {
        match e.for_client() {
            Ok(error) => error.into(),
            Err(why) => self.invalid_token(&why),
        }
    }

    /// A token that is not valid ends the session. Who sends it may be anybody: the log is not theirs to fill.
    fn invalid_token(&self, why: &str) -> Refused {
        match self.told.connection_token.pass(&self.env) {
            Some(more) => tracing::info!(?why, more, "a connection token is not valid"),
            None => tracing::debug!(?why, "a connection token is not valid"),
        }
        Refused::End(codes::INVALID_TOKEN)
    }

    /// Reads a connection token, and what it says of the session for others.
    fn connect_claims(&self, token: &str, key: &TokenKey) -> Result<(ConnectClaims, Vec<u8>), Refused> {
        let claims = self.verifier.verify::<ConnectClaims>(token, key).map_err(|e| self.refused_token(e))?;
        // Who may be given a subscription is not yet somebody who may connect.
        if !claims.channel.is_empty() {
            return Err(self.invalid_token("it has a channel: it is a subscription's"));
        }
        let info = info_of(claims.info.as_deref(), &claims.b64info);
        let info = info.map_err(|error| self.invalid_token(&error.message))?;
        Ok((claims, info))
    }

    /// Who connects, by token, with its key, or by what the back end says.
    async fn admit(&self, who: &Who, request: &ConnectRequest, key: Option<&TokenKey>) -> Result<Admitted, Refused> {
        let client = &self.config.client;
        let now_s = self.env.wall_ms() / 1000;
        let Some(key) = key else {
            if client.insecure && !request.token.is_empty() {
                return Ok(Admitted::default());
            }
            if let Some(proxy) = self.proxies.of(Event::Connect, "")
                && let Some(said) = self.ask_connect(proxy, who, request).await?
            {
                if said.expire_at > 0 && said.expire_at <= now_s {
                    return Err(Refused::End(codes::SESSION_EXPIRED));
                }
                let mut subs = said.subs;
                for channel in said.channels {
                    subs.entry(channel).or_default();
                }
                return Ok(Admitted {
                    user: said.user,
                    info: info_of(said.info.as_deref(), &said.b64info).map_err(|e| nonsense(&e))?,
                    data: bytes_of("data", said.data.as_deref(), &said.b64data).map_err(|e| nonsense(&e))?,
                    meta: said.meta,
                    lasts: ttl(None, i64::try_from(said.expire_at).ok(), now_s),
                    subs,
                    token_channels: BTreeSet::new(),
                });
            }
            if !client.insecure && !client.allow_anonymous_connect_without_token {
                return Err(Refused::End(codes::INVALID_TOKEN));
            }
            return Ok(Admitted::default());
        };
        let (mut claims, info) = self.connect_claims(&request.token, key)?;
        let subs = subs_of(&mut claims);
        Ok(Admitted {
            lasts: ttl(claims.exp, claims.expire_at, now_s),
            user: claims.sub,
            info,
            data: Vec::new(),
            meta: claims.meta,
            token_channels: subs.keys().cloned().collect(),
            subs,
        })
    }

    pub(super) async fn connect(
        &self,
        session: SessionId,
        arrived: Arrived,
        id: u32,
        request: ConnectRequest,
    ) -> Result<(), Refused> {
        let random = (u128::from(self.env.random_u64()) << 64) | u128::from(self.env.random_u64());
        let client: Uuid = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        let emulated = self.proxies.emulated(&request.headers);
        // Nobody yet, but with a name and the headers by which the back end may know it.
        let mut who = Who::new(client, arrived, emulated);
        // The back end and the endpoint of the keys have bounds of their own: while one is slow, those who do not need it come in.
        let (mut asked, mut key) = (None, None);
        if request.token.is_empty() {
            asked = Some(self.admit(&who, &request, None).await?);
        } else if self.verifier.has_keys() || !self.config.client.insecure {
            key = Some(self.verifier.key_of(&request.token).await.map_err(|e| self.refused_token(e))?);
        }
        let _pass = self.connects.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let admitted = match asked {
            Some(admitted) => admitted,
            None => self.admit(&who, &request, key.as_deref()).await?,
        };
        let Admitted { user, info, data, meta, lasts, mut subs, token_channels } = admitted;
        (who.user, who.token_channels) = (user, token_channels);
        who.learn(info, meta);
        let who = Arc::new(who);
        if !self.enter(session, &who) {
            return Err(Refused::End(codes::CONNECTION_LIMIT));
        }
        if let Some(personal) = self.config.personal_channel(&who.user) {
            subs.entry(personal).or_default();
        }
        let now_ms = self.env.wall_ms();
        // Where the back end is asked whether a session goes on, its client has nothing to do.
        let ttl = lasts.filter(|_| self.proxies.of(Event::Refresh, "").is_none());
        let unidirectional = who.arrived.transport.is_unidirectional();
        let emulated = matches!(who.arrived.transport, Transport::HttpStream | Transport::Sse);
        let mut result = ConnectResult {
            client: who.client.to_string(),
            session: who.arrived.session.as_deref().unwrap_or_default().to_owned(),
            version: self.version.clone(),
            expires: ttl.is_some(),
            ttl: ttl.unwrap_or_default(),
            data,
            ping: self.config.client.ping_interval.0.as_secs() as u32,
            // A unidirectional client is asked for nothing.
            pong: !unidirectional,
            node: if emulated { self.start.clone() } else { String::new() },
            time: now_ms as i64,
            ..ConnectResult::default()
        };
        let caller = Caller { session, who: &who };
        let mut subscribed: Vec<Place> = Vec::with_capacity(subs.len());
        let mut permits = Vec::new();
        let mut failed = None;
        for (channel, said) in subs {
            let asks = request.subs.get(&channel).cloned().unwrap_or_default();
            let request = SubscribeRequest { channel: channel.clone(), ..asks };
            match self.subscribe_first(caller, request, &said).await {
                Ok((place, answer, permit)) => {
                    permits.extend(permit);
                    subscribed.push(place);
                    result.subs.push(Subscribed { channel, result: answer });
                }
                Err(refused) => {
                    failed = Some(refused);
                    break;
                }
            }
        }
        if let Some(refused) = failed {
            for place in subscribed {
                self.to(session, ToSession::NotSubscribed(place.channel, place.attempt));
            }
            self.exit(session, &who);
            return Err(refused);
        }
        let reply = Box::new(match unidirectional {
            true => Reply { push: Some(Push { connect: Some(result), ..Push::default() }), ..Reply::default() },
            false => Reply { id, connect: Some(result), ..Reply::default() },
        });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        self.to(session, ToSession::Connected { who, expires_ms, reply, subscribed, permits });
        Ok(())
    }

    /// A subscription that comes with the session.
    async fn subscribe_first(
        &self,
        caller: Caller<'_>,
        request: SubscribeRequest,
        said: &SubscribeOptions,
    ) -> Result<(Place, SubscribeResult, AnswerPermit), Refused> {
        let options = said.of(self.namespace(&request.channel)?);
        let mut kind = kind_of(&options, &request, true);
        kind.info = said.info().map_err(|e| nonsense(&e))?;
        kind.expires_ms = said.expires_ms();
        let data = said.data().map_err(|e| nonsense(&e))?;
        let mode = Mode { unasked: false, own_copy: true };
        let Made { place, answer } = self.subscribe(caller, &options, request, kind, mode).await?;
        Ok((place, SubscribeResult { data, ..answer.result.clone() }, answer.permit.clone()))
    }

    pub(super) async fn refresh(
        &self,
        caller: Caller<'_>,
        mut reply: Reply,
        request: RefreshRequest,
    ) -> Result<(), Refused> {
        let key = self.verifier.key_of(&request.token).await.map_err(|e| self.refused_token(e))?;
        let claims = self.connect_claims(&request.token, &key).map_err(|refused| match refused {
            // With the error its client would give up: this way it gets another token and comes again.
            Refused::Error(error) if error == codes::TOKEN_EXPIRED => Refused::End(codes::SESSION_EXPIRED),
            refused => refused,
        });
        let (mut claims, info) = claims?;
        if claims.sub != caller.who.user {
            return Err(self.invalid_token("it is another user's than the session"));
        }
        // What the server subscribes a session to is said when it begins: it comes again, and gets what it is to have now.
        if !subs_of(&mut claims).into_keys().eq(caller.who.token_channels.iter().cloned()) {
            return Err(Refused::End(codes::INSUFFICIENT_STATE));
        }
        let now_ms = self.env.wall_ms();
        let lasts = ttl(claims.exp, claims.expire_at, now_ms / 1000);
        reply.refresh = Some(RefreshResult {
            client: caller.who.client.to_string(),
            version: self.version.clone(),
            expires: lasts.is_some(),
            ttl: lasts.unwrap_or_default(),
        });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        let renamed = caller.who.learn(info, claims.meta);
        self.to(caller.session, ToSession::Refreshed { expires_ms, renamed, reply: Some(Box::new(reply)) });
        Ok(())
    }
}
