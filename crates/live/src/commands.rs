//! What a session's commands do.

use std::sync::Arc;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use steadfast_store::{HistoryQuery, Position};
use uuid::Uuid;

use crate::answer::{Asked as AskedAnswer, SubscribeAnswer};
use crate::auth::{ConnectClaims, SubscribeClaims, TokenError, ttl};
use crate::config::NamespaceOptions;
use crate::filter;
use crate::node::{GATE_WAIT, Node, epoch_text, refusal};
use crate::outgoing::{Form, from_stored, in_form};
use crate::partition::{Asked, Hub, SessionId, SubscriptionKind, ToSession, Who};
use crate::protocol::Encoding;
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ChannelRequest, Command, ConnectRequest, ConnectResult, Empty, Expiry, HistoryRequest, HistoryResult,
    PresenceResult, Publication, PublishRequest, RefreshRequest, RefreshResult, Reply, SubRefreshRequest,
    SubscribeRequest, SubscribeResult,
};

/// A client that says this wants no subscription rather than one with a gap.
const REJECT_UNRECOVERED: i64 = 2;

/// Why a command is not carried out.
pub(crate) enum Refused {
    /// The command is refused.
    Error(ClientError),
    /// The session ends.
    End(Disconnected),
}

impl From<ClientError> for Refused {
    fn from(e: ClientError) -> Self {
        Self::Error(e)
    }
}

/// The worker's view of the node.
pub(crate) struct NodeHub(pub(crate) Arc<Node>);

impl Hub for NodeHub {
    fn carry_out(&self, session: SessionId, encoding: Encoding, who: Option<Arc<Who>>, commands: Vec<Asked>) {
        let node = self.0.clone();
        let quick = commands.iter().all(|asked| self.0.is_quick(&asked.command));
        let mut task = Box::pin(async move {
            node.carry_out(session, encoding, who, commands).await;
            node.to(session, ToSession::Ready);
        });
        // Most commands wait for nothing: on the worker's own thread they cost no task and no change of threads.
        if !quick || (&mut task).now_or_never().is_none() {
            self.0.env.spawn("live command", task);
        }
    }

    fn came(&self, who: &Arc<Who>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.came(who, channel, kind);
    }

    fn left(&self, session: SessionId, who: Option<&Arc<Who>>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.went(session, who, channel, kind);
    }

    fn gone(&self, session: SessionId, who: Option<&Arc<Who>>) {
        if let Some(who) = who {
            self.0.exit(session, who);
        }
    }

    fn wall_ms(&self) -> u64 {
        self.0.env.wall_ms()
    }

    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    fn delivered(&self) {
        self.0.delivered();
    }

    fn tick(&self) {
        self.0.forget_answers();
    }
}

/// A session whose command is carried out.
#[derive(Clone, Copy)]
struct Caller<'a> {
    session: SessionId,
    encoding: Encoding,
    who: &'a Arc<Who>,
}

impl Node {
    /// Whether a command can begin on a worker's thread: no signature to verify, and nothing to look up on a disk.
    fn is_quick(&self, command: &Command) -> bool {
        if let Some(connect) = &command.connect {
            connect.token.is_empty()
        } else if let Some(subscribe) = &command.subscribe {
            subscribe.token.is_empty() && self.is_in_use(&subscribe.channel)
        } else if let Some(publish) = &command.publish {
            self.is_in_use(&publish.channel)
        } else {
            command.unsubscribe.is_some() || command.ping.is_some()
        }
    }

    fn refuse(&self, session: SessionId, id: u32, refused: Refused) {
        match refused {
            Refused::Error(error) => {
                self.refusals.count(error.code);
                let reply = Reply { id, error: Some(error.into()), ..Reply::default() };
                self.to(session, ToSession::Reply(Box::new(reply)));
            }
            Refused::End(why) => self.to(session, ToSession::Disconnect(why)),
        }
    }

    async fn carry_out(&self, session: SessionId, encoding: Encoding, who: Option<Arc<Who>>, commands: Vec<Asked>) {
        let Some(who) = who else {
            let first = commands.into_iter().next().map(|asked| asked.command);
            let Some((id, Some(connect))) = first.map(|command| (command.id, command.connect)) else {
                return self.refuse(session, 0, Refused::End(codes::BAD_PROTOCOL));
            };
            if let Err(refused) = self.connect(session, encoding, id, connect).await {
                self.refuse(session, id, refused);
            }
            return;
        };
        let caller = Caller { session, encoding, who: &who };
        // Several at a time are publications: each gets its place before the next, and the answers are waited for together.
        let mut answers = FuturesOrdered::new();
        for asked in commands {
            let id = asked.command.id;
            if asked.over_rate {
                self.refuse(session, id, codes::TOO_MANY_REQUESTS.into());
            } else if let Some(publish) = asked.command.publish {
                match self.publish_command(caller, asked.subscribed.is_some(), publish).await {
                    Ok(answer) => answers.push_back(async move { (id, answer.await) }),
                    Err(error) => self.refuse(session, id, error.into()),
                }
            } else if let Err(refused) = self.other(caller, asked).await {
                self.refuse(session, id, refused);
            }
        }
        while let Some((id, answer)) = answers.next().await {
            match answer {
                Ok(_) => {
                    let reply = Reply { id, publish: Some(Empty {}), ..Reply::default() };
                    self.to(session, ToSession::Reply(Box::new(reply)));
                }
                Err(error) => self.refuse(session, id, error.into()),
            }
        }
    }

    async fn other(&self, caller: Caller<'_>, asked: Asked) -> Result<(), Refused> {
        let (command, subscribed) = (asked.command, asked.subscribed);
        let mut reply = Reply { id: command.id, ..Reply::default() };
        if let Some(request) = command.subscribe {
            return self.subscribe_command(caller, command.id, request, subscribed, asked.subscriptions).await;
        } else if let Some(ChannelRequest { channel }) = command.unsubscribe {
            reply.unsubscribe = Some(Empty {});
            let told = ToSession::Unsubscribed(channel.into(), Some(Box::new(reply)));
            self.to(caller.session, told);
            return Ok(());
        } else if let Some(request) = command.refresh {
            return self.refresh(caller, reply, request);
        } else if let Some(request) = command.sub_refresh {
            return self.sub_refresh(caller, reply, request, subscribed);
        } else if let Some(ChannelRequest { channel }) = command.presence {
            let options = self.namespace(&channel)?;
            self.may_ask(options.presence, options, caller, subscribed, Asks::Presence)?;
            let limit = self.config.client.history_max_publication_limit.max(10_000);
            reply.presence = Some(PresenceResult { presence: self.presence.list(&channel, limit) });
        } else if let Some(ChannelRequest { channel }) = command.presence_stats {
            let options = self.namespace(&channel)?;
            self.may_ask(options.presence, options, caller, subscribed, Asks::Presence)?;
            reply.presence_stats = Some(self.presence.stats(&channel));
        } else if let Some(request) = command.history {
            let options = self.namespace(&request.channel)?;
            self.may_ask(options.has_history(), options, caller, subscribed, Asks::History)?;
            reply.history = Some(self.history(&request).await?);
        } else if command.ping.is_some() {
            reply.ping = Some(Empty {});
        } else if command.rpc.is_some() {
            return Err(codes::METHOD_NOT_FOUND.into());
        } else if command.send.is_some() {
            return Err(codes::NOT_AVAILABLE.into());
        } else {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        self.to(caller.session, ToSession::Reply(Box::new(reply)));
        Ok(())
    }

    // Sessions.

    async fn connect(
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
        let who = Arc::new(Who { client: name, user, info: info.unwrap_or_default() });
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
        let caller = Caller { session, encoding, who: &who };
        let mut subscribed = Vec::with_capacity(channels.len());
        let mut failed = None;
        for channel in channels {
            let asks = request.subs.get(&channel).cloned().unwrap_or_default();
            let asks = SubscribeRequest { channel: channel.clone(), ..asks };
            let made = match self.namespace(&channel) {
                Ok(options) => {
                    let kind = kind_of(options, &asks, true);
                    self.subscribe(caller, options, asks, kind).await
                }
                Err(e) => Err(e.into()),
            };
            match made {
                Ok(made) => {
                    subscribed.push((made.channel, made.offset));
                    result.subs.insert(channel, made.answer.result.clone());
                }
                Err(refused) => {
                    failed = Some(refused);
                    break;
                }
            }
        }
        if let Some(refused) = failed {
            for (channel, _) in subscribed {
                self.to(session, ToSession::Unsubscribed(channel, None));
            }
            self.exit(session, &who);
            return Err(refused);
        }
        let reply = Box::new(Reply { id, connect: Some(result), ..Reply::default() });
        let expires_ms = lasts.map(|seconds| now_ms + u64::from(seconds) * 1000);
        self.to(session, ToSession::Connected { who, expires_ms, reply, subscribed });
        Ok(())
    }

    fn refresh(&self, caller: Caller<'_>, mut reply: Reply, request: RefreshRequest) -> Result<(), Refused> {
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

    // Subscriptions.

    /// Whether the session may subscribe; when the right to it ends, and what others are told.
    fn may_subscribe(
        &self,
        caller: Caller<'_>,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
    ) -> Result<(Option<u32>, Vec<u8>), Refused> {
        if !request.token.is_empty() {
            return self.subscribe_token(caller, &request.channel, &request.token);
        }
        if self.config.client.insecure {
            return Ok((None, Vec::new()));
        }
        let private = &self.config.channel.private_prefix;
        let denied = Err(codes::PERMISSION_DENIED.into());
        if !private.is_empty() && request.channel.starts_with(private.as_str()) {
            return denied;
        }
        let user = &caller.who.user;
        let named = self.config.names_user(&request.channel, user);
        let allowed = match named {
            Some(named) => named && options.allow_user_limited_channels,
            None if user.is_empty() => options.allow_subscribe_for_anonymous,
            None => options.allow_subscribe_for_client,
        };
        if allowed { Ok((None, Vec::new())) } else { denied }
    }

    fn subscribe_token(
        &self,
        caller: Caller<'_>,
        channel: &str,
        token: &str,
    ) -> Result<(Option<u32>, Vec<u8>), Refused> {
        let claims = self.verifier.verify::<SubscribeClaims>(token).map_err(|e| match e {
            TokenError::Expired => codes::TOKEN_EXPIRED,
            TokenError::Invalid(why) => {
                tracing::info!(%why, %channel, "a subscription token is not valid");
                codes::PERMISSION_DENIED
            }
        })?;
        if claims.channel != channel || claims.sub != caller.who.user {
            return Err(codes::PERMISSION_DENIED.into());
        }
        let lasts = ttl(claims.exp, claims.expire_at, self.env.wall_ms() / 1000);
        Ok((lasts, claims.info.map(|info| info.get().as_bytes().to_vec()).unwrap_or_default()))
    }

    async fn subscribe_command(
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
        let options = self.namespace(&request.channel)?;
        if subscribed.is_some() {
            return Err(codes::ALREADY_SUBSCRIBED.into());
        }
        if subscriptions >= self.config.client.channel_limit {
            return Err(codes::LIMIT_EXCEEDED.into());
        }
        let (lasts, info) = self.may_subscribe(caller, options, &request)?;
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
        let Made { channel, offset, mut answer } = self.subscribe(caller, options, request, kind).await?;
        if let Some(ttl) = lasts {
            let result = SubscribeResult { expires: true, ttl, ..answer.result.clone() };
            answer = Arc::new(SubscribeAnswer::new(result));
        }
        self.to(caller.session, ToSession::Subscribed { channel, offset, id, answer });
        Ok(())
    }

    /// Makes a subscription but for the last step.
    async fn subscribe(
        &self,
        caller: Caller<'_>,
        options: &NamespaceOptions,
        request: SubscribeRequest,
        kind: SubscriptionKind,
    ) -> Result<Made, Refused> {
        let recoverable = kind.positioned && (options.force_recovery || options.allow_recovery && request.recoverable);
        let (positioned, delta) = (kind.positioned, kind.delta);
        let _pass = self.subscribes.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let channel = self.join(caller.session, &request.channel, options)?;
        // In this order: what is published from here on is kept for the session, what was published before is in the store.
        self.to(caller.session, ToSession::Subscribing(channel.clone(), Box::new(kind)));
        let result = SubscribeResult { recoverable, positioned, delta, ..SubscribeResult::default() };
        let told = self.recover(caller, &channel, options, &request, result).await;
        match told {
            Ok((offset, answer)) => Ok(Made { channel, offset, answer }),
            Err(refused) => {
                self.to(caller.session, ToSession::Unsubscribed(channel, None));
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
    ) -> Result<(u64, Arc<SubscribeAnswer>), Refused> {
        if !options.has_history() {
            return Ok((0, Arc::new(SubscribeAnswer::new(result))));
        }
        let handle = self.handle(channel)?;
        let mut position = handle.position();
        let recovers = result.recoverable && request.recover;
        let mut asked = AskedAnswer {
            since: recovers.then(|| Position { epoch: parse_epoch(&request.epoch), offset: request.offset }),
            top: position,
            encoding: caller.encoding,
            delta: result.delta,
            recoverable: result.recoverable,
            positioned: result.positioned,
        };
        // Not with a filter, which each session may have of its own.
        let shared = request.tf.is_none();
        if shared && let Some(answer) = self.answer(channel, &asked) {
            return Ok((position.offset, answer));
        }
        if result.recoverable && request.recover {
            let _pass = self.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
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
            let history = handle.history(query).await.map_err(|e| refusal(&e))?;
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
            } else if request.flag & REJECT_UNRECOVERED != 0 {
                return Err(codes::UNRECOVERABLE_POSITION.into());
            }
            if let Some(filter) = &request.tf {
                result.publications.retain(|publication| filter::matches(filter, &publication.tags));
            }
            if result.delta {
                for publication in &mut result.publications {
                    *publication = in_form(publication, caller.encoding, Form::Whole, None).ok_or(codes::INTERNAL)?;
                }
            }
        }
        if result.positioned {
            result.epoch = epoch_text(position.epoch);
            result.offset = position.offset;
        }
        // One that was not recovered may be refused, as its client asks.
        let shared = shared && (result.recovered || !recovers);
        let answer = Arc::new(SubscribeAnswer::new(result));
        if shared {
            asked.top = position;
            self.keep_answer(channel, asked, &answer);
        }
        Ok((position.offset, answer))
    }

    fn sub_refresh(
        &self,
        caller: Caller<'_>,
        mut reply: Reply,
        request: SubRefreshRequest,
        subscribed: Option<bool>,
    ) -> Result<(), Refused> {
        if subscribed.is_none() {
            return Err(codes::PERMISSION_DENIED.into());
        }
        let (lasts, _) = self.subscribe_token(caller, &request.channel, &request.token)?;
        reply.sub_refresh = Some(Expiry { expires: lasts.is_some(), ttl: lasts.unwrap_or_default() });
        let expires_ms = lasts.map(|seconds| self.env.wall_ms() + u64::from(seconds) * 1000);
        let told = ToSession::SubRefreshed(request.channel.into(), expires_ms, Box::new(reply));
        self.to(caller.session, told);
        Ok(())
    }

    // Publications.

    async fn publish_command(
        &self,
        caller: Caller<'_>,
        subscribed: bool,
        request: PublishRequest,
    ) -> Result<impl Future<Output = Result<Position, ClientError>> + Send + use<>, ClientError> {
        let options = self.namespace(&request.channel)?;
        if request.data.is_empty() {
            return Err(codes::BAD_REQUEST);
        }
        let allowed = self.config.client.insecure
            || options.allow_publish_for_subscriber && subscribed
            || options.allow_publish_for_client && !caller.who.user.is_empty()
            || options.allow_publish_for_anonymous && caller.who.user.is_empty();
        if !allowed {
            return Err(codes::PERMISSION_DENIED);
        }
        let info = Some(caller.who.client_info(&[]));
        let publication = Publication { data: request.data, info, ..Publication::default() };
        self.submit(&request.channel, publication, false).await
    }

    fn may_ask(
        &self,
        there: bool,
        options: &NamespaceOptions,
        caller: Caller<'_>,
        subscribed: Option<bool>,
        what: Asks,
    ) -> Result<(), ClientError> {
        if !there {
            return Err(codes::NOT_AVAILABLE);
        }
        let (client, anonymous, subscriber) = match what {
            Asks::Presence => (
                options.allow_presence_for_client,
                options.allow_presence_for_anonymous,
                options.allow_presence_for_subscriber,
            ),
            Asks::History => (
                options.allow_history_for_client,
                options.allow_history_for_anonymous,
                options.allow_history_for_subscriber,
            ),
        };
        let user = !caller.who.user.is_empty();
        let allowed =
            self.config.client.insecure || subscriber && subscribed.is_some() || client && user || anonymous && !user;
        if allowed { Ok(()) } else { Err(codes::PERMISSION_DENIED) }
    }

    /// What was published in a channel that keeps it.
    ///
    /// # Errors
    /// Why it cannot be said.
    pub(crate) async fn history(&self, request: &HistoryRequest) -> Result<HistoryResult, ClientError> {
        let _pass = self.reads.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        let most = self.config.client.history_max_publication_limit;
        let limit = usize::try_from(request.limit).map_or(most, |limit| limit.min(most));
        let since = request.since.as_ref().map(|s| Position { epoch: parse_epoch(&s.epoch), offset: s.offset });
        let query = HistoryQuery { since, limit, reverse: request.reverse };
        let history = self.handle(&request.channel)?.history(query).await.map_err(|e| refusal(&e))?;
        let asked = request.since.as_ref().filter(|s| !s.epoch.is_empty());
        if asked.is_some_and(|s| parse_epoch(&s.epoch) != history.position.epoch) {
            return Err(codes::UNRECOVERABLE_POSITION);
        }
        let publications: Result<Vec<_>, _> = history.publications.iter().map(|p| from_stored(p)).collect();
        Ok(HistoryResult {
            publications: publications.map_err(|_| codes::INTERNAL)?,
            epoch: epoch_text(history.position.epoch),
            offset: history.position.offset,
        })
    }
}

/// A subscription that is made but for the last step: telling its session.
struct Made {
    channel: Arc<str>,
    /// Up to here the answer tells.
    offset: u64,
    answer: Arc<SubscribeAnswer>,
}

#[derive(Clone, Copy)]
enum Asks {
    Presence,
    History,
}

fn parse_epoch(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap_or_default()
}

/// What a subscription will be like.
fn kind_of(options: &NamespaceOptions, request: &SubscribeRequest, server_side: bool) -> SubscriptionKind {
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
        info: Vec::new(),
    }
}

/// A session's name in a request.
pub(crate) fn parse_client(text: &str) -> Option<Uuid> {
    Uuid::parse_str(text).ok()
}
