//! Subscriptions: permission, recovery and expiry.

use std::sync::Arc;

use steadfast_cluster::Channel;
use steadfast_store::{History, HistoryQuery, Position};
use tokio::sync::oneshot;

use super::proxied::ProxyCalls;
use super::{Caller, Refused};
use crate::admission::GATE_WAIT;
use crate::answer::{AnswerKey, AnswerPermit, SubscribeAnswer};
use crate::auth::{SubscribeClaims, TokenError, ttl, ttl_until};
use crate::channels::{bytes_of, refusal};
use crate::config::NamespaceOptions;
use crate::filter;
use crate::node::Node;
use crate::options::{SubscribeOptions, Wanted};
use crate::outgoing::{Form, drop_unencodable, from_stored, in_form};
use crate::partition::{SessionId, SessionMessage, SubscribeOutcome, SubscriptionKind, SubscriptionStart};
use crate::protocol::codes::{self, ClientError};
use crate::protocol::message::{Expiry, Push, Reply, SubRefreshRequest, Subscribe, SubscribeRequest, SubscribeResult};
use crate::protocol::{epoch_text, parse_epoch};
use crate::session::SessionIdentity;

/// The flag of a client that prefers an error to a subscription with a gap.
const REJECT_UNRECOVERED: i64 = 2;

/// A subscription that lacks only the last step: the message to its session.
pub(super) struct PreparedSubscription {
    pub(super) start: SubscriptionStart,
    pub(super) answer: Arc<SubscribeAnswer>,
}

/// How a subscription is made.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    /// Whether the server makes it, without a command of the client.
    pub(super) from_server: bool,
    /// Whether the answer is encoded for this session alone, and needs its own permit.
    pub(super) own_copy: bool,
}

/// The permission to subscribe, with its terms.
#[derive(Default)]
struct SubscribeGrant {
    /// Lifetime, seconds; `None`: unlimited.
    lasts: Option<u32>,
    /// Information for other clients.
    info: Vec<u8>,
    /// Data for the session's own client.
    data: Vec<u8>,
    terms: SubscribeOptions,
}

/// The position from which a request recovers. The epoch counts only if the request has one, as in
/// Centrifugo; `top` is the position of the channel.
fn since(request: &SubscribeRequest, top: Position) -> Position {
    let epoch = if request.epoch.is_empty() { top.epoch } else { parse_epoch(&request.epoch) };
    Position { epoch, offset: request.offset }
}

/// A session that subscribes.
#[derive(Clone, Copy)]
pub(crate) struct Subscriber<'a>(pub(super) Caller<'a>);

impl<'a> Subscriber<'a> {
    pub(crate) fn new(node: &'a Node, session: SessionId, identity: &'a Arc<SessionIdentity>) -> Self {
        Self(Caller { node, session, identity })
    }

    /// Decides whether the session may subscribe, and on which terms.
    async fn may_subscribe(
        self,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
    ) -> Result<SubscribeGrant, Refused> {
        if !request.token.is_empty() {
            return self.subscribe_token(&request.channel, &request.token).await;
        }
        let user = &self.0.identity.user;
        let is_private = self.0.node.rules.is_private(&request.channel);
        if options.subscribe_proxy_enabled
            && !is_private
            && self.0.node.rules.users_of(options, &request.channel, user).is_none()
        {
            let terms = ProxyCalls(self.0.node).subscribe(self.0.identity, options, request).await?;
            let (info, data) = (terms.info()?, terms.data()?);
            let now_ms = self.0.node.env.wall_ms();
            let lasts = match terms.expires_ms() {
                Some(ends) if ends <= now_ms => return Err(codes::EXPIRED.into()),
                ends => ends.map(|ends| ttl_until(ends / 1000, now_ms / 1000)),
            };
            return Ok(SubscribeGrant { lasts, info, data, terms });
        }
        let allowed = self.0.node.rules.config.client.insecure
            || !is_private && self.0.node.rules.permits(options, &request.channel, user);
        if allowed { Ok(SubscribeGrant::default()) } else { Err(codes::PERMISSION_DENIED.into()) }
    }

    async fn subscribe_token(self, channel: &str, token: &str) -> Result<SubscribeGrant, Refused> {
        let invalid = |why: &str| {
            match self.0.node.admission.throttles.subscription_token.pass(&self.0.node.env) {
                Some(more) => {
                    tracing::info!(?why, channel = ?steadfast_flow::shortened(channel), more, "a subscription token is invalid")
                }
                None => tracing::debug!(?why, ?channel, "a subscription token is invalid"),
            }
            codes::PERMISSION_DENIED
        };
        let refused = |e: TokenError| e.for_client().unwrap_or_else(|why| invalid(&why));
        let verifier = self.0.node.back_ends.subscription_verifier();
        let key = verifier.key_of(token).await.map_err(refused)?;
        let claims = verifier.verify::<SubscribeClaims>(token, &key).map_err(refused)?;
        if claims.channel != channel || claims.sub != self.0.identity.user {
            invalid("it is for another channel or user");
            return Err(Refused::End(codes::INVALID_TOKEN));
        }
        if !claims.client.is_empty() && claims.client != self.0.identity.client.to_string() {
            invalid("it is for another session");
            return Err(Refused::End(codes::INVALID_TOKEN));
        }
        let lasts = ttl(claims.exp, claims.expire_at, self.0.node.env.wall_ms() / 1000)?;
        let SubscribeClaims { info, b64info, data, b64data, overrides, .. } = claims;
        let terms = SubscribeOptions { info, b64info, data, b64data, expire_at: 0, overrides };
        let info = terms.info().map_err(|error| invalid(&error.message))?;
        let data = terms.data().map_err(|error| invalid(&error.message))?;
        Ok(SubscribeGrant { lasts, info, data, terms })
    }

    pub(super) async fn command(
        self,
        id: u32,
        request: SubscribeRequest,
        subscribed: Option<bool>,
        subscriptions: usize,
    ) -> Result<(), Refused> {
        if request.channel.is_empty() {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        if !matches!(request.delta.as_str(), "" | "fossil") {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        let options = self.0.node.rules.client_namespace(&request.channel)?;
        if request.kind != 0 {
            return Err(codes::PERMISSION_DENIED.into());
        }
        if subscribed.is_some() {
            return Err(codes::ALREADY_SUBSCRIBED.into());
        }
        if subscriptions >= self.0.node.rules.config.client.channel_limit {
            return Err(codes::LIMIT_EXCEEDED.into());
        }
        let SubscribeGrant { lasts, info, data, terms } = self.may_subscribe(options, &request).await?;
        let options = &terms.of(options);
        if request.tf.as_ref().is_some_and(|filter| !options.allow_tags_filter || !filter::is_valid(filter)) {
            return Err(codes::BAD_REQUEST.into());
        }
        let mut kind = kind_of(
            options,
            &request,
            Asks::ByClient {
                history: self.0.node.rules.is_granted(options.history_permission(), &self.0.identity.user, true),
                presence: self.0.node.rules.is_granted(options.presence_permission(), &self.0.identity.user, true),
            },
        );
        kind.info = info;
        kind.expires_ms = lasts.map(|seconds| self.0.node.env.wall_ms() + u64::from(seconds) * 1000);
        let refreshed = kind.refreshed;
        // Where the back end extends subscriptions, the client must not refresh.
        let ttl = lasts.filter(|_| !refreshed);
        let own_copy = ttl.is_some() || !data.is_empty();
        let mode = Mode { from_server: false, own_copy };
        let PreparedSubscription { start, mut answer } = self.subscribe(options, request, kind, mode).await?;
        if own_copy {
            let (expires, ttl) = (ttl.is_some(), ttl.unwrap_or_default());
            let result = SubscribeResult { expires, ttl, data, ..answer.result.clone() };
            answer = Arc::new(SubscribeAnswer::holding(result, answer.permit.clone()));
        }
        self.0
            .node
            .partitions
            .send_to_session(self.0.session, SessionMessage::Subscribed(start, SubscribeOutcome::Reply { id, answer }));
        Ok(())
    }

    /// Subscribes a session on request of the back end, and sends it a push. An existing
    /// subscription stays unchanged.
    ///
    /// # Errors
    /// When the subscription is refused.
    pub(crate) async fn push_subscription(self, wanted: &Wanted) -> Result<(), ClientError> {
        let options = wanted.options.of(self.0.node.rules.namespace(&wanted.channel)?);
        let since = wanted.since.clone().unwrap_or_default();
        let request = SubscribeRequest {
            channel: wanted.channel.clone(),
            recover: wanted.since.is_some(),
            epoch: since.epoch,
            offset: since.offset,
            ..SubscribeRequest::default()
        };
        let mut kind = kind_of(&options, &request, Asks::ByServer);
        kind.info = wanted.options.info()?;
        kind.expires_ms = wanted.options.expires_ms();
        let data = wanted.options.data()?;
        let mode = Mode { from_server: true, own_copy: true };
        let made = self.subscribe(&options, request, kind, mode).await;
        let PreparedSubscription { start, answer } = made.map_err(|refused| match refused {
            Refused::Error(error) => error,
            Refused::End(_) => codes::INTERNAL,
        })?;
        let result = &answer.result;
        let subscribe = Subscribe {
            recoverable: result.recoverable,
            epoch: result.epoch.clone(),
            offset: result.offset,
            positioned: result.positioned,
            data,
        };
        let push = Push { channel: wanted.channel.clone(), subscribe: Some(subscribe), ..Push::default() };
        let (done, made) = oneshot::channel();
        let permits = answer.permit.iter().cloned().collect();
        let outcome =
            SubscribeOutcome::Push { push: Box::new(push), missed: result.publications.clone(), permits, done };
        self.0.node.partitions.send_to_session(self.0.session, SessionMessage::Subscribed(start, outcome));
        // A session that has ended sends no result.
        made.await.unwrap_or(Ok(()))
    }

    /// Makes a subscription except for the last step.
    pub(super) async fn subscribe(
        self,
        options: &NamespaceOptions,
        mut request: SubscribeRequest,
        kind: SubscriptionKind,
        mode: Mode,
    ) -> Result<PreparedSubscription, Refused> {
        let (recoverable, positioned, delta) = (kind.recoverable, kind.positioned, kind.delta);
        let _pass = self.0.node.admission.subscribes.enter(GATE_WAIT).await.map_err(|_| codes::TOO_MANY_REQUESTS)?;
        if kind.presence || kind.announced {
            let bytes = self.0.identity.facts.read().info.len() + kind.info.len();
            self.0.node.members.check_join(&request.channel, bytes)?;
        }
        let channel = self.0.node.channels.join(self.0.session, &request.channel, options)?;
        // The order matters: the session keeps publications from here on, and the store has those
        // from before.
        let attempt = self.0.node.channels.next_attempt();
        let subscribing = SessionMessage::Subscribing {
            channel: channel.clone(),
            attempt,
            kind: Box::new(kind),
            from_server: mode.from_server,
        };
        self.0.node.partitions.send_to_session(self.0.session, subscribing);
        let cached = options.auto_cache_recover && options.force_recovery_mode == "cache";
        request.recover |= recoverable && cached && !mode.from_server;
        let was_recovering = request.recover;
        let result = SubscribeResult { recoverable, positioned, delta, was_recovering, ..SubscribeResult::default() };
        let outcome = self.recover(&channel, options, &request, result, mode.own_copy).await;
        match outcome {
            Ok((position, answer)) => {
                Ok(PreparedSubscription { start: SubscriptionStart { channel, attempt, position }, answer })
            }
            Err(refused) => {
                self.0.node.partitions.send_to_session(self.0.session, SessionMessage::NotSubscribed(channel, attempt));
                Err(refused)
            }
        }
    }

    /// Recovers missed publications, and determines the offset where the subscription starts.
    async fn recover(
        self,
        channel: &Arc<str>,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
        mut result: SubscribeResult,
        own_copy: bool,
    ) -> Result<(Position, Arc<SubscribeAnswer>), Refused> {
        if !options.has_history() {
            self.0.node.channels.watched(channel).await?;
            return Ok((Position::default(), Arc::new(SubscribeAnswer::new(result))));
        }
        let home = self.0.node.channels.channel(channel)?;
        let mut position = home.position().await.map_err(refusal)?;
        let recovers = result.recoverable && request.recover;
        let mut key = AnswerKey {
            since: recovers.then(|| since(request, position)),
            top: position,
            encoding: self.0.identity.connection.encoding,
            delta: result.delta,
            recoverable: result.recoverable,
            positioned: result.positioned,
        };
        // Sessions may have different filters, so a filtered answer is not shared. Nor is that of a
        // client whose recovery is not allowed: its key is that of a client without recovery.
        let shared = request.tf.is_none() && recovers == request.recover;
        if shared && let Some(answer) = self.0.node.channels.answer(channel, &key) {
            if !own_copy || answer.permit.is_none() {
                return Ok((position, answer));
            }
            // A copy takes the same memory again.
            let bytes = answer.result.publications.iter().map(bytes_of).sum();
            let permit = self
                .0
                .node
                .admission
                .answers
                .acquire(bytes)
                .and_then(|permit| self.0.node.admission.answers.assign(permit, self.0.address()));
            if let Some(permit) = permit {
                let copy = SubscribeAnswer::holding(answer.result.clone(), Some(Arc::new(permit)));
                return Ok((position, Arc::new(copy)));
            }
        }
        let mut permit = None;
        if recovers {
            let missed = self.read_missed(options, request, &home, position, &mut result);
            (position, permit) = missed.await?;
        }
        if result.positioned {
            result.epoch = epoch_text(position.epoch);
            // If the missed publications lead to the position of the channel, the client begins at
            // its own one, and is not ahead of what it has.
            // A filter may leave out the last one.
            let leads =
                request.tf.is_some() || result.publications.last().is_some_and(|last| last.offset == position.offset);
            result.offset = if result.recovered && leads { request.offset } else { position.offset };
        }
        // An unrecovered answer is not shared, because a client may ask for an error instead.
        let shared = shared && (result.recovered || !recovers);
        let permit = permit.filter(|_| !result.publications.is_empty());
        let answer = Arc::new(SubscribeAnswer::holding(result, permit));
        if shared {
            key.top = position;
            self.0.node.channels.keep_answer(channel, key, &answer);
        }
        Ok((position, answer))
    }

    /// Reads the publications that a client missed since its position, and adds them to `result`.
    /// `top` is the position of the channel. Returns the position of the read, and the permit of
    /// its memory.
    async fn read_missed(
        self,
        options: &NamespaceOptions,
        request: &SubscribeRequest,
        channel: &Channel,
        top: Position,
        result: &mut SubscribeResult,
    ) -> Result<(Position, AnswerPermit), Refused> {
        let cache = options.force_recovery_mode == "cache";
        let limit = self.0.node.rules.config.client.recovery_max_publication_limit;
        let since = since(request, top);
        let query = if cache {
            HistoryQuery { since: None, limit: 1, reverse: true }
        } else {
            HistoryQuery { since: Some(since), limit, reverse: false }
        };
        // Without a permit the client gets no missed publications, and `recovered` is false.
        let (history, permit) = match self.0.node.histories.read(channel, query, self.0.address()).await? {
            Some(read) => read,
            None => (History { publications: Vec::new(), position: top, complete: false }, None),
        };
        let position = history.position;
        let reaches = history.publications.last().map_or(since.offset, |last| last.offset);
        result.recovered = if cache {
            !history.publications.is_empty() || since.offset > 0 && since == position
        } else {
            history.complete && reaches == position.offset
        };
        if result.recovered {
            // In cache mode, only a publication that the client does not have.
            let known = if cache && since.epoch == position.epoch { since.offset } else { 0 };
            let missed = history.publications.iter().filter(|p| p.offset > known);
            let missed: Result<Vec<_>, _> = missed.map(|stored| from_stored(stored)).collect();
            result.publications = missed.map_err(|_| codes::INTERNAL)?;
            drop_unencodable(self.0.identity.connection.encoding, &mut result.publications);
        } else if request.flag & REJECT_UNRECOVERED != 0 {
            return Err(codes::UNRECOVERABLE_POSITION.into());
        }
        if let Some(filter) = &request.tf {
            result.publications.retain(|publication| filter::matches(filter, &publication.tags));
        }
        if result.delta {
            for publication in &mut result.publications {
                *publication = in_form(publication, self.0.identity.connection.encoding, Form::Whole, None)
                    .ok_or(codes::INTERNAL)?;
            }
        }
        Ok((position, permit))
    }

    pub(super) async fn refresh(
        self,
        mut reply: Reply,
        request: SubRefreshRequest,
        subscribed: Option<bool>,
    ) -> Result<(), Refused> {
        if subscribed.is_none() {
            return Err(codes::PERMISSION_DENIED.into());
        }
        let SubRefreshRequest { channel, token } = request;
        // Where the back end extends subscriptions, the client must not refresh.
        if self.0.node.rules.namespace(&channel)?.sub_refresh_proxy_enabled {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        if token.is_empty() {
            return Err(codes::BAD_REQUEST.into());
        }
        let SubscribeGrant { lasts, info, .. } = match self.subscribe_token(&channel, &token).await {
            Err(Refused::Error(error)) if error == codes::PERMISSION_DENIED => {
                return Err(Refused::End(codes::INVALID_TOKEN));
            }
            // After this error the client would give up; after an unsubscribe it subscribes again
            // with another token.
            Err(Refused::Error(error)) if error == codes::TOKEN_EXPIRED || error == codes::EXPIRED => {
                reply.sub_refresh = Some(Expiry::default());
                self.0.node.partitions.send_to_session(self.0.session, SessionMessage::Reply(Box::new(reply)));
                self.0.node.partitions.send_to_session(
                    self.0.session,
                    SessionMessage::unsubscribed(channel.into(), codes::UNSUBSCRIBED_EXPIRED),
                );
                return Ok(());
            }
            grant => grant?,
        };
        reply.sub_refresh = Some(Expiry { expires: lasts.is_some(), ttl: lasts.unwrap_or_default() });
        let expires_ms = lasts.map(|seconds| self.0.node.env.wall_ms() + u64::from(seconds) * 1000);
        let (channel, reply) = (channel.into(), Some(Box::new(reply)));
        self.0
            .node
            .partitions
            .send_to_session(self.0.session, SessionMessage::SubRefreshed { channel, expires_ms, info, reply });
        Ok(())
    }
}

/// The origin of a subscription: what its client may ask for because of its other rights.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    /// The server: by the options alone.
    ByServer,
    /// A client.
    ByClient {
        /// It may read the history, so it may ask for recovery and positioning.
        history: bool,
        /// It may read the presence, so it may ask for joins and leaves.
        presence: bool,
    },
}

/// The properties of a new subscription.
pub(super) fn kind_of(options: &NamespaceOptions, request: &SubscribeRequest, asks: Asks) -> SubscriptionKind {
    let (history, presence) = match asks {
        Asks::ByServer => (false, false),
        Asks::ByClient { history, presence } => (history, presence),
    };
    let recovers = options.force_recovery || (options.allow_recovery || history) && request.recoverable;
    let positioned = options.force_positioning || (options.allow_positioning || history) && request.positioned;
    SubscriptionKind {
        positioned: options.has_history() && (recovers || positioned),
        recoverable: options.has_history() && recovers,
        join_leave: options.join_leave && (options.force_push_join_leave || presence && request.join_leave),
        announced: options.join_leave,
        presence: options.presence,
        delta: !request.delta.is_empty() && options.allowed_delta_types.contains(&request.delta),
        server_side: matches!(asks, Asks::ByServer),
        filter: request.tf.clone().map(Box::new),
        expires_ms: None,
        refreshed: options.sub_refresh_proxy_enabled,
        info: Vec::new(),
    }
}
