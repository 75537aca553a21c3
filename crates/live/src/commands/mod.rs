//! What a session's commands do.

mod about;
mod connect;
mod proxied;
mod subscribe;

use std::sync::Arc;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use steadfast_flow::Ended;
use steadfast_flow::stages::{self, Stage};
use steadfast_store::{HistoryQuery, Position};
use uuid::Uuid;

use crate::config::{NamespaceOptions, Right};
use crate::node::{AnswerPermit, Node, Submission, epoch_text};
use crate::outgoing::{from_stored, leave_out};
use crate::partition::{Arrived, Asked, Asker, Hub, SessionId, SubscriptionKind, ToSession, Who};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{
    ChannelRequest, Command, Empty, HistoryRequest, HistoryResult, PresenceResult, Publication, PublishRequest, Reply,
};
use crate::proxy::Event;

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

impl NodeHub {
    /// Starts a task that a session waits for: if it does not come to its end, the session is ended, and its client comes again.
    fn spawn_of(&self, session: SessionId, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut unfinished = Unfinished(Some(self.0.clone()), session);
        self.0.env.spawn(name, async move {
            task.await;
            unfinished.finished();
        });
    }
}

/// Ends a session when it is dropped with the node.
struct Unfinished(Option<Arc<Node>>, SessionId);

impl Unfinished {
    /// It is finished.
    fn finished(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            node.to(self.1, ToSession::Disconnect(codes::SERVER_ERROR));
        }
    }
}

impl Hub for NodeHub {
    fn carry_out(&self, session: SessionId, asker: Asker, commands: Vec<Asked>) {
        let node = self.0.clone();
        let quick = commands.iter().all(|asked| self.0.is_quick(&asked.command));
        let (mut operation, stages) = ("-", self.0.slow_commands.begin(Stage::Other));
        if let Some(stages) = &stages {
            // Several commands at a time are publications; the log names the channel of the first.
            for asked in &commands {
                let (asks, channel, bytes) = about::about(&asked.command);
                operation = asks;
                stages.add_received(bytes as u64);
                stages.set_about(channel);
            }
        }
        let mut task = Box::pin(async move {
            stages::measured(stages.clone(), node.carry_out(session, asker, commands)).await;
            if let Some(stages) = &stages {
                node.slow_commands.end(stages, &Ended { operation, ..Ended::default() });
            }
            node.to(session, ToSession::Ready);
        });
        // Most commands wait for nothing: on the worker's own thread they cost no task and no change of threads.
        if !quick || (&mut task).now_or_never().is_none() {
            self.spawn_of(session, "live command", task);
        }
    }

    fn refresh(&self, session: SessionId, who: Arc<Who>) {
        let node = self.0.clone();
        self.spawn_of(session, "live refresh", async move { node.refresh_unasked(session, &who).await });
    }

    fn sub_refresh(&self, session: SessionId, who: Arc<Who>, channel: Arc<str>) {
        let node = self.0.clone();
        let task = async move { node.sub_refresh_unasked(session, &who, channel).await };
        self.spawn_of(session, "live refresh", task);
    }

    fn joined(&self, who: &Arc<Who>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.joined(who, channel, kind);
    }

    fn set_presence(&self, who: &Arc<Who>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.set_presence(who, channel, kind);
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
    who: &'a Arc<Who>,
}

impl Node {
    /// Whether a command can begin on a worker's thread: no signature to verify, and nothing to look up on a disk.
    fn is_quick(&self, command: &Command) -> bool {
        if let Some(connect) = &command.connect {
            connect.token.is_empty() && self.proxies.of(Event::Connect, "").is_none()
        } else if let Some(subscribe) = &command.subscribe {
            subscribe.token.is_empty() && self.is_in_use(&subscribe.channel) && self.decides(&subscribe.channel)
        } else if let Some(publish) = &command.publish {
            self.is_in_use(&publish.channel) && self.decides(&publish.channel)
        } else {
            command.unsubscribe.is_some() || command.ping.is_some()
        }
    }

    /// Whether the server decides by itself who may do what in a channel.
    fn decides(&self, channel: &str) -> bool {
        let asks = |options: &NamespaceOptions| options.subscribe_proxy_enabled || options.publish_proxy_enabled;
        !self.config.namespace_of(channel).is_some_and(asks)
    }

    fn refuse(&self, session: SessionId, id: u32, refused: Refused) {
        match refused {
            Refused::Error(error) => {
                self.refusals.count(error.code);
                stages::note(|stages| stages.set_outcome(error.code));
                let reply = Reply { id, error: Some(error.into()), ..Reply::default() };
                self.to(session, ToSession::Reply(Box::new(reply)));
            }
            Refused::End(why) => {
                stages::note(|stages| stages.set_outcome(why.code.into()));
                self.to(session, ToSession::Disconnect(why));
            }
        }
    }

    /// The first command of a session: it connects.
    async fn carry_out_first(&self, session: SessionId, arrived: Arrived, commands: Vec<Asked>) {
        let unidirectional = arrived.transport.is_unidirectional();
        let first = commands.into_iter().next().map(|asked| asked.command);
        let Some((id, Some(connect))) = first.map(|command| (command.id, command.connect)) else {
            return self.refuse(session, 0, Refused::End(codes::BAD_PROTOCOL));
        };
        if let Err(refused) = self.connect(session, arrived, id, connect).await {
            let refused = match refused {
                Refused::Error(error) if unidirectional => {
                    self.refusals.count(error.code);
                    Refused::End(connect::end_of(&error))
                }
                refused => refused,
            };
            self.refuse(session, id, refused);
        }
    }

    async fn carry_out(&self, session: SessionId, asker: Asker, commands: Vec<Asked>) {
        let who = match asker {
            Asker::Known(who) => who,
            Asker::New(arrived) => return self.carry_out_first(session, arrived, commands).await,
        };
        let caller = Caller { session, who: &who };
        // Several at a time are publications: each gets its place before the next, and the answers are waited for together.
        let mut answers = FuturesOrdered::new();
        for asked in commands {
            let id = asked.command.id;
            if asked.over_rate {
                self.refuse(session, id, codes::TOO_MANY_REQUESTS.into());
            } else if let Some(publish) = asked.command.publish {
                match self.publish_command(caller, asked.subscribed.is_some(), publish).await {
                    Ok(answer) => answers.push_back(async move { (id, answer.await) }),
                    Err(refused) => self.refuse(session, id, refused),
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
            return self.refresh(caller, reply, request).await;
        } else if let Some(request) = command.sub_refresh {
            return self.sub_refresh(caller, reply, request, subscribed).await;
        } else if let Some(ChannelRequest { channel }) = command.presence {
            let options = self.named(&channel)?;
            self.may_ask(options.presence, options.asking_presence(), caller, subscribed)?;
            let limit = self.config.client.history_max_publication_limit.max(10_000);
            // Before the list is made, which takes the memory.
            let bytes = self.presence.list_bytes(&channel, limit);
            let permit = self.answer_permit(bytes).ok_or(codes::TOO_MANY_REQUESTS)?;
            reply.presence = Some(PresenceResult { presence: self.presence.list(&channel, limit) });
            self.to(caller.session, ToSession::Answer(Box::new(reply), vec![Arc::new(permit)]));
            return Ok(());
        } else if let Some(ChannelRequest { channel }) = command.presence_stats {
            let options = self.named(&channel)?;
            self.may_ask(options.presence, options.asking_presence(), caller, subscribed)?;
            reply.presence_stats = Some(self.presence.stats(&channel));
        } else if let Some(request) = command.history {
            let options = self.named(&request.channel)?;
            self.may_ask(options.has_history(), options.asking_history(), caller, subscribed)?;
            let (mut history, permit) = self.history(&request).await?;
            leave_out(caller.who.arrived.encoding, &mut history.publications);
            reply.history = Some(history);
            self.to(caller.session, ToSession::Answer(Box::new(reply), permit.into_iter().collect()));
            return Ok(());
        } else if command.ping.is_some() {
            reply.ping = Some(Empty {});
        } else if let Some(request) = command.rpc {
            reply.rpc = Some(self.ask_rpc(caller.who, &request).await?);
        } else if command.send.is_some() {
            return Err(codes::NOT_AVAILABLE.into());
        } else {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        self.to(caller.session, ToSession::Reply(Box::new(reply)));
        Ok(())
    }

    async fn publish_command(
        &self,
        caller: Caller<'_>,
        subscribed: bool,
        request: PublishRequest,
    ) -> Result<impl Future<Output = Result<Position, ClientError>> + Send + use<>, Refused> {
        let options = self.named(&request.channel)?;
        let (data, skip_history, asked) = match options.publish_proxy_enabled {
            true => self.ask_publish(caller.who, options, &request).await.map(|(data, skip)| (data, skip, true))?,
            false => (request.data, false, false),
        };
        let allowed = options.publishing().is_of(&caller.who.user, subscribed);
        if !asked && !allowed && !self.config.client.insecure {
            return Err(codes::PERMISSION_DENIED.into());
        }
        self.check_data(options, &data)?;
        let info = Some(caller.who.client_info(&[]));
        let publication = Publication { data, info, ..Publication::default() };
        let wanted = Submission { skip_history, leaves_percent: self.publish_reserve, ..Submission::default() };
        Ok(self.submit(&request.channel, &publication.into(), wanted).await?.committed())
    }

    /// Whether a session may ask for what the channel has, if it has it.
    fn may_ask(
        &self,
        there: bool,
        right: Right,
        caller: Caller<'_>,
        subscribed: Option<bool>,
    ) -> Result<(), ClientError> {
        if !there {
            return Err(codes::NOT_AVAILABLE);
        }
        let allowed = right.is_of(&caller.who.user, subscribed.is_some());
        if allowed || self.config.client.insecure { Ok(()) } else { Err(codes::PERMISSION_DENIED) }
    }

    /// What was published in a channel that keeps it, and the permit for that.
    ///
    /// # Errors
    /// Why it cannot be said; [`codes::TOO_MANY_REQUESTS`] when the budget for answers is exhausted.
    pub(crate) async fn history(&self, request: &HistoryRequest) -> Result<(HistoryResult, AnswerPermit), ClientError> {
        let most = self.config.client.history_max_publication_limit;
        let limit = usize::try_from(request.limit).map_or(most, |limit| limit.min(most));
        let since = request.since.as_ref().map(|s| Position { epoch: parse_epoch(&s.epoch), offset: s.offset });
        let query = HistoryQuery { since, limit, reverse: request.reverse };
        let read = self.read(&self.handle(&request.channel)?, query).await?;
        let (history, permit) = read.ok_or(codes::TOO_MANY_REQUESTS)?;
        let asked = request.since.as_ref().filter(|s| !s.epoch.is_empty());
        if asked.is_some_and(|s| parse_epoch(&s.epoch) != history.position.epoch) {
            return Err(codes::UNRECOVERABLE_POSITION);
        }
        let publications: Result<Vec<_>, _> = history.publications.iter().map(|p| from_stored(p)).collect();
        let result = HistoryResult {
            publications: publications.map_err(|_| codes::INTERNAL)?,
            epoch: epoch_text(history.position.epoch),
            offset: history.position.offset,
        };
        Ok((result, permit))
    }
}

#[cfg(test)]
pub(crate) mod tests;

fn parse_epoch(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap_or_default()
}

/// A session's name in a request.
pub(crate) fn parse_client(text: &str) -> Option<Uuid> {
    Uuid::parse_str(text).ok()
}
