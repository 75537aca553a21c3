//! Subscriptions: who may have them, what they were missing, and how long they last.

use std::sync::Arc;

use steadfast_store::{History, HistoryQuery, Position};
use tokio::sync::oneshot;

use super::{Caller, Refused, parse_epoch};
use crate::answer::{Asked, SubscribeAnswer};
use crate::auth::{SubscribeClaims, TokenError, ttl};
use crate::config::NamespaceOptions;
use crate::filter;
use crate::node::{GATE_WAIT, Node, bytes_of, epoch_text, refusal};
use crate::options::{SubscribeOptions, Wanted};
use crate::outgoing::{Form, from_stored, in_form, leave_out};
use crate::partition::{Place, SessionId, SubscriptionKind, ToSession, Told, Who};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{
    Expiry, Push, Reply, SubRefreshRequest, Subscribe, SubscribeRequest, SubscribeResult, Unsubscribe,
};

/// A client that says this wants no subscription rather than one with a gap.
const REJECT_UNRECOVERED: i64 = 2;

/// A subscription that is made but for the last step: telling its session.
pub(super) struct Made {
    pub(super) place: Place,
    pub(super) answer: Arc<SubscribeAnswer>,
}

/// How a subscription is made.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    /// Whether the server does it, and not the client's command.
    pub(super) unasked: bool,
    /// Whether the answer is encoded for this session alone, so that it needs a permit of its own.
    pub(super) own_copy: bool,
}

/// The right to subscribe.
#[derive(Default)]
struct Right {
    /// For so many seconds; `None`: for ever.
    lasts: Option<u32>,
    /// What others are told,
    info: Vec<u8>,
    /// and what the client is.
    data: Vec<u8>,
    said: SubscribeOptions,
}

impl Node {
    /// Whether the session may subscribe, and what is said of the subscription.
    async fn may_subscribe(
        &self,
        caller: Caller<'_>,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
    ) -> Result<Right, Refused> {
        if !request.token.is_empty() {
            return self.subscribe_token(caller, &request.channel, &request.token).await;
        }
        let private = &self.config.channel.private_prefix;
        let denied = Err(codes::PERMISSION_DENIED.into());
        let is_private = !private.is_empty() && request.channel.starts_with(private.as_str());
        let user = &caller.who.user;
        // The names of the users in a channel's name are who may subscribe: there is nothing to ask.
        let named = self.config.names_user(&request.channel, user).filter(|_| options.allow_user_limited_channels);
        if options.subscribe_proxy_enabled && !is_private && named.is_none() {
            let said = self.ask_subscribe(caller.who, options, request).await?;
            let (info, data) = (said.info()?, said.data()?);
            let now_ms = self.env.wall_ms();
            let lasts = match said.expires_ms() {
                Some(ends) if ends <= now_ms => return Err(codes::EXPIRED.into()),
                ends => ends.map(|ends| u32::try_from((ends - now_ms).div_ceil(1000)).unwrap_or(u32::MAX)),
            };
            return Ok(Right { lasts, info, data, said });
        }
        if self.config.client.insecure {
            return Ok(Right::default());
        }
        if is_private {
            return denied;
        }
        let allowed = named.unwrap_or_else(|| options.subscribing().is_of(user, false));
        if allowed { Ok(Right::default()) } else { denied }
    }

    async fn subscribe_token(&self, caller: Caller<'_>, channel: &str, token: &str) -> Result<Right, Refused> {
        let invalid = |why: &str| {
            match self.told.subscription_token.pass(&self.env) {
                Some(more) => tracing::info!(?why, ?channel, more, "a subscription token is not valid"),
                None => tracing::debug!(?why, ?channel, "a subscription token is not valid"),
            }
            codes::PERMISSION_DENIED
        };
        let refused = |e: TokenError| e.for_client().unwrap_or_else(|why| invalid(&why));
        let verifier = self.subscription_verifier.as_ref().unwrap_or(&self.verifier);
        let key = verifier.key_of(token).await.map_err(refused)?;
        let claims = verifier.verify::<SubscribeClaims>(token, &key).map_err(refused)?;
        if claims.channel != channel || claims.sub != caller.who.user {
            return Err(invalid("it is for another channel or user").into());
        }
        if !claims.client.is_empty() && claims.client != caller.who.client.to_string() {
            invalid("it is for another session");
            return Err(Refused::End(codes::INVALID_TOKEN));
        }
        let lasts = ttl(claims.exp, claims.expire_at, self.env.wall_ms() / 1000);
        let SubscribeClaims { info, b64info, data, b64data, overrides, .. } = claims;
        let said = SubscribeOptions { info, b64info, data, b64data, expire_at: 0, overrides };
        let info = said.info().map_err(|error| invalid(&error.message))?;
        let data = said.data().map_err(|error| invalid(&error.message))?;
        Ok(Right { lasts, info, data, said })
    }

    pub(super) async fn subscribe_command(
        &self,
        caller: Caller<'_>,
        id: u32,
        request: SubscribeRequest,
        subscribed: Option<bool>,
        subscriptions: usize,
    ) -> Result<(), Refused> {
        if request.channel.is_empty() {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        let options = self.named(&request.channel)?;
        if subscribed.is_some() {
            return Err(codes::ALREADY_SUBSCRIBED.into());
        }
        if subscriptions >= self.config.client.channel_limit {
            return Err(codes::LIMIT_EXCEEDED.into());
        }
        let Right { lasts, info, data, said } = self.may_subscribe(caller, options, &request).await?;
        let options = &said.of(options);
        if let Some(filter) = &request.tf {
            if !options.allow_tags_filter {
                return Err(codes::PERMISSION_DENIED.into());
            }
            if !filter::is_valid(filter) {
                return Err(codes::BAD_REQUEST.into());
            }
        }
        let mut kind = kind_of(options, &request, false);
        kind.info = info;
        kind.expires_ms = lasts.map(|seconds| self.env.wall_ms() + u64::from(seconds) * 1000);
        let refreshed = kind.refreshed;
        // Where the back end is asked whether it goes on, the client has nothing to do.
        let ttl = lasts.filter(|_| !refreshed);
        let own_copy = ttl.is_some() || !data.is_empty();
        let mode = Mode { unasked: false, own_copy };
        let Made { place, mut answer } = self.subscribe(caller, options, request, kind, mode).await?;
        if own_copy {
            let (expires, ttl) = (ttl.is_some(), ttl.unwrap_or_default());
            let result = SubscribeResult { expires, ttl, data, ..answer.result.clone() };
            answer = Arc::new(SubscribeAnswer::holding(result, answer.permit.clone()));
        }
        self.to(caller.session, ToSession::Subscribed(place, Told::Reply { id, answer }));
        Ok(())
    }

    /// Subscribes a session to what the back end wants, and tells it so. One that is subscribed stays as it is.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) async fn subscribe_unasked(
        &self,
        session: SessionId,
        who: &Arc<Who>,
        wanted: &Wanted,
    ) -> Result<(), ClientError> {
        let options = wanted.options.of(self.namespace(&wanted.channel)?);
        let since = wanted.since.clone().unwrap_or_default();
        let request = SubscribeRequest {
            channel: wanted.channel.clone(),
            recover: wanted.since.is_some(),
            epoch: since.epoch,
            offset: since.offset,
            ..SubscribeRequest::default()
        };
        let mut kind = kind_of(&options, &request, true);
        kind.info = wanted.options.info()?;
        kind.expires_ms = wanted.options.expires_ms();
        let data = wanted.options.data()?;
        let mode = Mode { unasked: true, own_copy: true };
        let made = self.subscribe(Caller { session, who }, &options, request, kind, mode).await;
        let Made { place, answer } = made.map_err(|refused| match refused {
            Refused::Error(error) => error,
            Refused::End(_) => codes::INTERNAL,
        })?;
        let result = &answer.result;
        // A client that is cut off before it has all that it missed goes on from where that begins.
        let offset = if result.publications.is_empty() { result.offset } else { since.offset };
        let subscribe = Subscribe {
            recoverable: result.recoverable,
            epoch: result.epoch.clone(),
            offset,
            positioned: result.positioned,
            data,
        };
        let push = Push { channel: wanted.channel.clone(), subscribe: Some(subscribe), ..Push::default() };
        let (done, made) = oneshot::channel();
        let permits = answer.permit.iter().cloned().collect();
        let told = Told::Push { push: Box::new(push), missed: result.publications.clone(), permits, done };
        self.to(session, ToSession::Subscribed(place, told));
        // A session that has ended says nothing.
        made.await.unwrap_or(Ok(()))
    }

    /// Makes a subscription but for the last step.
    pub(super) async fn subscribe(
        &self,
        caller: Caller<'_>,
        options: &NamespaceOptions,
        request: SubscribeRequest,
        kind: SubscriptionKind,
        mode: Mode,
    ) -> Result<Made, Refused> {
        let recoverable = kind.positioned && (options.force_recovery || options.allow_recovery && request.recoverable);
        let (positioned, delta) = (kind.positioned, kind.delta);
        let _pass = self.subscribes.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let channel = self.join(caller.session, &request.channel, options)?;
        // In this order: what is published from here on is kept for the session, what was published before is in the store.
        let attempt = self.next_attempt();
        let subscribing =
            ToSession::Subscribing { channel: channel.clone(), attempt, kind: Box::new(kind), unasked: mode.unasked };
        self.to(caller.session, subscribing);
        let result = SubscribeResult { recoverable, positioned, delta, ..SubscribeResult::default() };
        let told = self.recover(caller, &channel, options, &request, result, mode.own_copy).await;
        match told {
            Ok((offset, answer)) => Ok(Made { place: Place { channel, attempt, offset }, answer }),
            Err(refused) => {
                self.to(caller.session, ToSession::NotSubscribed(channel, attempt));
                Err(refused)
            }
        }
    }

    /// What was missed, and where the subscription begins.
    async fn recover(
        &self,
        caller: Caller<'_>,
        channel: &Arc<str>,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
        mut result: SubscribeResult,
        own_copy: bool,
    ) -> Result<(u64, Arc<SubscribeAnswer>), Refused> {
        if !options.has_history() {
            return Ok((0, Arc::new(SubscribeAnswer::new(result))));
        }
        let handle = self.handle(channel)?;
        let mut position = handle.position().map_err(|e| refusal(&e))?;
        let recovers = result.recoverable && request.recover;
        let mut asked = Asked {
            since: recovers.then(|| Position { epoch: parse_epoch(&request.epoch), offset: request.offset }),
            top: position,
            encoding: caller.who.arrived.encoding,
            delta: result.delta,
            recoverable: result.recoverable,
            positioned: result.positioned,
        };
        // Not with a filter, which each session may have of its own.
        let shared = request.tf.is_none();
        let mut taken = None;
        if shared && let Some(answer) = self.answer(channel, &asked) {
            if !own_copy || answer.permit.is_none() {
                return Ok((position.offset, answer));
            }
            // A copy takes as much again.
            let bytes = answer.result.publications.iter().map(bytes_of).sum();
            if let Some(permit) = self.answer_permit(bytes) {
                let copy = SubscribeAnswer::holding(answer.result.clone(), Some(Arc::new(permit)));
                return Ok((position.offset, Arc::new(copy)));
            }
        }
        if result.recoverable && request.recover {
            let cache = options.force_recovery_mode == "cache";
            let limit = self.config.client.recovery_max_publication_limit;
            // Nothing known yet is a position of any epoch: from the beginning.
            let from_nothing = request.epoch.is_empty() && request.offset == 0;
            let epoch = if from_nothing { position.epoch } else { parse_epoch(&request.epoch) };
            let since = Position { epoch, offset: request.offset };
            let query = if cache {
                HistoryQuery { since: None, limit: 1, reverse: true }
            } else {
                HistoryQuery { since: Some(since), limit, reverse: false }
            };
            // Without a permit the client gets nothing that it missed, and hears that it was not recovered.
            let (history, permit) = match self.read(&handle, query).await? {
                Some(read) => read,
                None => (History { publications: Vec::new(), position, complete: false }, None),
            };
            taken = permit;
            position = history.position;
            let reaches = history.publications.last().map_or(since.offset, |last| last.offset);
            result.was_recovering = true;
            result.recovered = if cache {
                !history.publications.is_empty() || position.offset == 0
            } else {
                history.complete && reaches == position.offset
            };
            if result.recovered {
                // In cache mode, only what the client does not have.
                let known = if cache && since.epoch == position.epoch { since.offset } else { 0 };
                let missed = history.publications.iter().filter(|p| p.offset > known);
                let missed: Result<Vec<_>, _> = missed.map(|stored| from_stored(stored)).collect();
                result.publications = missed.map_err(|_| codes::INTERNAL)?;
                leave_out(caller.who.arrived.encoding, &mut result.publications);
            } else if request.flag & REJECT_UNRECOVERED != 0 {
                return Err(codes::UNRECOVERABLE_POSITION.into());
            }
            if let Some(filter) = &request.tf {
                result.publications.retain(|publication| filter::matches(filter, &publication.tags));
            }
            if result.delta {
                for publication in &mut result.publications {
                    *publication =
                        in_form(publication, caller.who.arrived.encoding, Form::Whole, None).ok_or(codes::INTERNAL)?;
                }
            }
        }
        if result.positioned {
            result.epoch = epoch_text(position.epoch);
            result.offset = position.offset;
        }
        // One that was not recovered may be refused, as its client asks.
        let shared = shared && (result.recovered || !recovers);
        let permit = taken.filter(|_| !result.publications.is_empty());
        let answer = Arc::new(SubscribeAnswer::holding(result, permit));
        if shared {
            asked.top = position;
            self.keep_answer(channel, asked, &answer);
        }
        Ok((position.offset, answer))
    }

    pub(super) async fn sub_refresh(
        &self,
        caller: Caller<'_>,
        mut reply: Reply,
        request: SubRefreshRequest,
        subscribed: Option<bool>,
    ) -> Result<(), Refused> {
        if subscribed.is_none() {
            return Err(codes::PERMISSION_DENIED.into());
        }
        let SubRefreshRequest { channel, token } = request;
        let Right { lasts, info, .. } = match self.subscribe_token(caller, &channel, &token).await {
            // With the error its client would give up: this way it subscribes again, with another token.
            Err(Refused::Error(error)) if error == codes::TOKEN_EXPIRED => {
                reply.sub_refresh = Some(Expiry::default());
                self.to(caller.session, ToSession::Reply(Box::new(reply)));
                self.to(caller.session, unsubscribed(channel.into(), codes::UNSUBSCRIBED_EXPIRED));
                return Ok(());
            }
            right => right?,
        };
        reply.sub_refresh = Some(Expiry { expires: lasts.is_some(), ttl: lasts.unwrap_or_default() });
        let expires_ms = lasts.map(|seconds| self.env.wall_ms() + u64::from(seconds) * 1000);
        let (channel, reply) = (channel.into(), Some(Box::new(reply)));
        self.to(caller.session, ToSession::SubRefreshed { channel, expires_ms, info, reply });
        Ok(())
    }
}

/// A subscription ends, and its client is told why.
pub(super) fn unsubscribed(channel: Arc<str>, (code, reason): (u32, &str)) -> ToSession {
    let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
    let push = Push { channel: channel.as_ref().to_owned(), unsubscribe, ..Push::default() };
    ToSession::Unsubscribed(channel, Some(Box::new(Reply { push: Some(push), ..Reply::default() })))
}

/// What a subscription will be like.
pub(super) fn kind_of(options: &NamespaceOptions, request: &SubscribeRequest, server_side: bool) -> SubscriptionKind {
    let history = options.has_history();
    let recovers = options.force_recovery || options.allow_recovery && request.recoverable;
    let positioned = options.force_positioning || options.allow_positioning && request.positioned;
    SubscriptionKind {
        positioned: history && (recovers || positioned),
        join_leave: options.join_leave && (options.force_push_join_leave || request.join_leave),
        announced: options.join_leave,
        presence: options.presence,
        delta: !request.delta.is_empty() && options.allowed_delta_types.contains(&request.delta),
        server_side,
        filter: request.tf.clone().map(Box::new),
        expires_ms: None,
        refreshed: options.sub_refresh_proxy_enabled,
        info: Vec::new(),
    }
}
