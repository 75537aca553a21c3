//! A session connects, and lasts longer.

use std::sync::Arc;

use super::subscribe::kind_of;
use super::{Caller, Refused};
use crate::auth::{ConnectClaims, TokenError, ttl};
use crate::node::{GATE_WAIT, Node};
use crate::partition::{SessionId, ToSession, Who};
use crate::protocol::Encoding;
use crate::protocol::codes;
use crate::protocol::message::{ConnectRequest, ConnectResult, RefreshRequest, RefreshResult, Reply, SubscribeRequest};

impl Node {
    pub(super) async fn connect(
        &self,
        session: SessionId,
        encoding: Encoding,
        id: u32,
        request: ConnectRequest,
    ) -> Result<(), Refused> {
        let _pass = self.connects.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let client = &self.config.client;
        let claims = if request.token.is_empty() {
            if !client.insecure && !client.allow_anonymous_connect_without_token {
                return Err(Refused::End(codes::INVALID_TOKEN));
            }
            None
        } else if client.insecure && !self.verifier.has_keys() {
            None
        } else {
            Some(self.verifier.verify::<ConnectClaims>(&request.token).map_err(|e| match e {
                TokenError::Expired => Refused::Error(codes::TOKEN_EXPIRED),
                TokenError::Invalid(why) => {
                    tracing::info!(%why, "a connection token is not valid");
                    Refused::End(codes::INVALID_TOKEN)
                }
            })?)
        };
        let now_ms = self.env.wall_ms();
        let lasts = claims.as_ref().and_then(|c| ttl(c.exp, c.expire_at, now_ms / 1000));
        let user = claims.as_ref().map(|c| c.sub.clone()).unwrap_or_default();
        let info = claims.as_ref().and_then(|c| c.info.as_ref()).map(|i| i.get().as_bytes().to_vec());
        let random = (u128::from(self.env.random_u64()) << 64) | u128::from(self.env.random_u64());
        let name = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        let who = Arc::new(Who { client: name, user, info: info.unwrap_or_default(), encoding });
        if !self.enter(session, &who) {
            return Err(Refused::End(codes::CONNECTION_LIMIT));
        }
        let mut channels: Vec<String> = self.config.personal_channel(&who.user).into_iter().collect();
        if let Some(claims) = claims {
            channels.extend(claims.channels);
            channels.extend(claims.subs.into_keys());
        }
        channels.sort_unstable();
        channels.dedup();
        let mut result = ConnectResult {
            client: who.client.to_string(),
            version: self.version.clone(),
            expires: lasts.is_some(),
            ttl: lasts.unwrap_or_default(),
            ping: client.ping_interval.0.as_secs() as u32,
            pong: true,
            time: now_ms as i64,
            ..ConnectResult::default()
        };
        let caller = Caller { session, who: &who };
        let mut subscribed = Vec::with_capacity(channels.len());
        let mut failed = None;
        for channel in channels {
            let asks = request.subs.get(&channel).cloned().unwrap_or_default();
            let asks = SubscribeRequest { channel: channel.clone(), ..asks };
            let made = match self.namespace(&channel) {
                Ok(options) => {
                    let kind = kind_of(options, &asks, true);
                    self.subscribe(caller, options, asks, kind, false).await
                }
                Err(e) => Err(e.into()),
            };
            match made {
                Ok(made) => {
                    subscribed.push(made.place);
                    result.subs.insert(channel, made.answer.result.clone());
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
        let reply = Box::new(Reply { id, connect: Some(result), ..Reply::default() });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        self.to(session, ToSession::Connected { who, expires_ms, reply, subscribed });
        Ok(())
    }

    pub(super) fn refresh(&self, caller: Caller<'_>, mut reply: Reply, request: RefreshRequest) -> Result<(), Refused> {
        let claims = self.verifier.verify::<ConnectClaims>(&request.token).map_err(|e| match e {
            TokenError::Expired => Refused::Error(codes::TOKEN_EXPIRED),
            TokenError::Invalid(_) => Refused::End(codes::INVALID_TOKEN),
        })?;
        if claims.sub != caller.who.user {
            return Err(Refused::End(codes::INVALID_TOKEN));
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
        self.to(caller.session, ToSession::Refreshed(expires_ms, Box::new(reply)));
        Ok(())
    }
}
