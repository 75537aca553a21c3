//! The commands of sessions.

mod about;
mod connect;
mod proxied;
mod subscribe;

use std::sync::Arc;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use steadfast_flow::Ended;
use steadfast_flow::stages::{self, Stage};
use steadfast_store::Position;
use uuid::Uuid;

use crate::channels::Submission;
use crate::config::Permission;
use crate::node::Node;
use crate::outgoing::drop_unencodable;
use crate::partition::{CommandSource, Hub, QueuedCommand, SessionId, SessionMessage, SubscriptionKind};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{ChannelRequest, Command, Empty, PresenceResult, Publication, PublishRequest, Reply};
use crate::proxy::ProxyEvent;
use crate::session::{ConnectionInfo, SessionIdentity};
use connect::Login;
use proxied::ProxyCalls;
pub(crate) use subscribe::Subscriber;

/// Why a command fails.
pub(crate) enum Refused {
    /// The command gets an error.
    Error(ClientError),
    /// The session ends.
    End(Disconnected),
}

impl From<ClientError> for Refused {
    fn from(e: ClientError) -> Self {
        Self::Error(e)
    }
}

/// The node as a [`Hub`] for workers.
pub(crate) struct NodeHub(pub(crate) Arc<Node>);

impl NodeHub {
    /// Starts a task that a session waits for. If the task is dropped unfinished, the session ends
    /// and its client reconnects.
    fn spawn_of(&self, session: SessionId, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut unfinished = Unfinished(Some(self.0.clone()), session);
        self.0.env.spawn(name, async move {
            task.await;
            unfinished.finished();
        });
    }

    /// Whether a command may begin on a worker's thread: it needs neither a signature check nor a
    /// disk read.
    fn is_quick(&self, command: &Command) -> bool {
        if let Some(connect) = &command.connect {
            connect.token.is_empty()
                && connect.subs.is_empty()
                && self.0.back_ends.proxies.of(ProxyEvent::Connect, "").is_none()
        } else if let Some(subscribe) = &command.subscribe {
            subscribe.token.is_empty()
                && self.0.channels.is_in_use(&subscribe.channel)
                && self.0.rules.decides(&subscribe.channel)
        } else if let Some(publish) = &command.publish {
            self.0.channels.is_in_use(&publish.channel) && self.0.rules.decides(&publish.channel)
        } else {
            command.unsubscribe.is_some() || command.ping.is_some()
        }
    }
}

/// Ends its session when it is dropped with the node still set.
struct Unfinished(Option<Arc<Node>>, SessionId);

impl Unfinished {
    /// Marks the task as finished.
    fn finished(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            node.partitions.send_to_session(self.1, SessionMessage::Disconnect(codes::SERVER_ERROR));
        }
    }
}

impl Hub for NodeHub {
    fn carry_out(&self, session: SessionId, source: CommandSource, commands: Vec<QueuedCommand>) {
        let node = self.0.clone();
        let quick = commands.iter().all(|queued| self.is_quick(&queued.command));
        let (mut operation, stages) = ("-", self.0.admission.slow_commands.begin(Stage::Other));
        if let Some(stages) = &stages {
            // Several commands at a time are publications; the log names the channel of the first.
            for queued in &commands {
                let (asks, channel, bytes) = about::about(&queued.command);
                operation = asks;
                stages.add_received(bytes as u64);
                stages.set_about(channel);
            }
        }
        let mut task = Box::pin(async move {
            stages::measured(stages.clone(), CommandRun { node: &node, session }.carry_out(source, commands)).await;
            if let Some(stages) = &stages {
                node.admission.slow_commands.end(stages, &Ended { operation, ..Ended::default() });
            }
            node.partitions.send_to_session(session, SessionMessage::Ready);
        });
        // Most commands complete without waiting: on the worker's thread they need neither a task
        // nor a thread switch.
        if !quick || (&mut task).now_or_never().is_none() {
            self.spawn_of(session, "live command", task);
        }
    }

    fn refresh(&self, session: SessionId, identity: Arc<SessionIdentity>) {
        let node = self.0.clone();
        self.spawn_of(session, "live refresh", async move { ProxyCalls(&node).refresh(session, &identity).await });
    }

    fn sub_refresh(&self, session: SessionId, identity: Arc<SessionIdentity>, channel: Arc<str>) {
        let node = self.0.clone();
        let task = async move { ProxyCalls(&node).sub_refresh(session, &identity, channel).await };
        self.spawn_of(session, "live refresh", task);
    }

    fn on_subscribed(&self, identity: &Arc<SessionIdentity>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.members.on_subscribed(identity, channel, kind);
    }

    fn set_presence(&self, identity: &Arc<SessionIdentity>, channel: &Arc<str>, kind: &SubscriptionKind) {
        self.0.members.set_presence(identity, channel, kind);
    }

    fn on_unsubscribed(
        &self,
        session: SessionId,
        identity: Option<&Arc<SessionIdentity>>,
        channel: &Arc<str>,
        kind: &SubscriptionKind,
    ) {
        self.0.members.on_unsubscribed(session, identity, channel, kind);
    }

    fn on_disconnected(&self, session: SessionId, identity: Option<&Arc<SessionIdentity>>) {
        if let Some(identity) = identity {
            self.0.users.exit(session, identity);
        }
    }

    fn wall_ms(&self) -> u64 {
        self.0.env.wall_ms()
    }

    fn now_ms(&self) -> u64 {
        self.0.env.now_ms()
    }

    fn delivered(&self) {
        self.0.partitions.delivered();
    }

    fn tick(&self) {
        self.0.channels.forget_answers();
    }
}

/// The session of a command.
#[derive(Clone, Copy)]
struct Caller<'a> {
    node: &'a Node,
    session: SessionId,
    identity: &'a Arc<SessionIdentity>,
}

impl Caller<'_> {
    /// The group of the client's address; `None` for a trusted proxy's.
    fn address(&self) -> Option<&Arc<str>> {
        self.identity.connection.address.as_ref()
    }

    /// Whether the session may read a feature of the channel, if the feature is enabled.
    fn may_ask(self, enabled: bool, right: Permission, subscribed: Option<bool>) -> Result<(), ClientError> {
        if !enabled {
            return Err(codes::NOT_AVAILABLE);
        }
        let granted = self.node.rules.is_granted(right, &self.identity.user, subscribed.is_some());
        if granted { Ok(()) } else { Err(codes::PERMISSION_DENIED) }
    }

    /// Carries out a command other than connect and publish.
    async fn dispatch(self, queued: QueuedCommand) -> Result<(), Refused> {
        let node = self.node;
        let (command, subscribed) = (queued.command, queued.subscribed);
        let mut reply = Reply { id: command.id, ..Reply::default() };
        if let Some(request) = command.subscribe {
            return Subscriber(self).command(command.id, request, subscribed, queued.subscriptions).await;
        } else if let Some(ChannelRequest { channel }) = command.unsubscribe {
            reply.unsubscribe = Some(Empty {});
            let message = SessionMessage::Unsubscribed(channel.into(), Some(Box::new(reply)));
            node.partitions.send_to_session(self.session, message);
            return Ok(());
        } else if let Some(request) = command.refresh {
            return Login { node, session: self.session }.refresh(self, reply, request).await;
        } else if let Some(request) = command.sub_refresh {
            return Subscriber(self).refresh(reply, request, subscribed).await;
        } else if let Some(ChannelRequest { channel }) = command.presence {
            let options = node.rules.client_namespace(&channel)?;
            self.may_ask(options.presence, options.presence_permission(), subscribed)?;
            let limit = node.rules.config.client.history_max_publication_limit.max(10_000);
            let (presence, permit) = node.members.clients_of(&channel, limit, self.address()).await?;
            reply.presence = Some(PresenceResult { presence });
            node.partitions
                .send_to_session(self.session, SessionMessage::Answer(Box::new(reply), vec![Arc::new(permit)]));
            return Ok(());
        } else if let Some(ChannelRequest { channel }) = command.presence_stats {
            let options = node.rules.client_namespace(&channel)?;
            self.may_ask(options.presence, options.presence_permission(), subscribed)?;
            reply.presence_stats = Some(node.members.counts(&channel).await?);
        } else if let Some(request) = command.history {
            let options = node.rules.client_namespace(&request.channel)?;
            self.may_ask(options.has_history(), options.history_permission(), subscribed)?;
            let most = node.rules.config.client.history_max_publication_limit;
            let mut page = node.histories.page(&request, most, self.address()).await?;
            drop_unencodable(self.identity.connection.encoding, &mut page.result.publications);
            reply.history = Some(page.result);
            node.partitions.send_to_session(
                self.session,
                SessionMessage::Answer(Box::new(reply), page.permit.into_iter().collect()),
            );
            return Ok(());
        } else if command.ping.is_some() {
            reply.ping = Some(Empty {});
        } else if let Some(request) = command.rpc {
            reply.rpc = Some(ProxyCalls(node).rpc(self.identity, &request).await?);
        } else if command.send.is_some() {
            // The client expects no reply, so it could not know of an error.
            return Err(Refused::End(codes::DISCONNECT_NOT_AVAILABLE));
        } else {
            return Err(Refused::End(codes::BAD_PROTOCOL));
        }
        node.partitions.send_to_session(self.session, SessionMessage::Reply(Box::new(reply)));
        Ok(())
    }

    async fn publish(
        self,
        subscribed: bool,
        request: PublishRequest,
    ) -> Result<impl Future<Output = Result<Position, ClientError>> + Send + use<>, Refused> {
        let node = self.node;
        let options = node.rules.client_namespace(&request.channel)?;
        let (data, skip_history, proxied) = match options.publish_proxy_enabled {
            true => ProxyCalls(node)
                .publish(self.identity, options, &request)
                .await
                .map(|(data, skip)| (data, skip, true))?,
            false => (request.data, false, false),
        };
        if !proxied && !node.rules.is_granted(options.publish_permission(), &self.identity.user, subscribed) {
            return Err(codes::PERMISSION_DENIED.into());
        }
        node.rules.check_data(options, &data)?;
        let info = Some(self.identity.client_info(&[]));
        let publication = Publication { data, info, ..Publication::default() };
        let wanted = Submission { skip_history, leaves_percent: node.publish_reserve, ..Submission::default() };
        Ok(node.publisher.submit(&request.channel, &publication.into(), wanted).await?.committed())
    }
}

/// The commands of a session that are carried out together.
#[derive(Clone, Copy)]
struct CommandRun<'a> {
    node: &'a Node,
    session: SessionId,
}

impl CommandRun<'_> {
    fn refuse(self, id: u32, refused: Refused) {
        match refused {
            Refused::Error(error) => {
                self.node.admission.refusals.count(error.code);
                stages::note(|stages| stages.set_outcome(error.code));
                let reply = Reply { id, error: Some(error.into()), ..Reply::default() };
                self.node.partitions.send_to_session(self.session, SessionMessage::Reply(Box::new(reply)));
            }
            Refused::End(why) => {
                stages::note(|stages| stages.set_outcome(why.code.into()));
                self.node.partitions.send_to_session(self.session, SessionMessage::Disconnect(why));
            }
        }
    }

    /// Executes the first command of a session, which must be connect.
    async fn carry_out_first(self, connection: ConnectionInfo, commands: Vec<QueuedCommand>) {
        let unidirectional = connection.transport.is_unidirectional();
        let first = commands.into_iter().next().map(|queued| queued.command);
        let Some((id, Some(connect))) = first.map(|command| (command.id, command.connect)) else {
            return self.refuse(0, Refused::End(codes::BAD_PROTOCOL));
        };
        let login = Login { node: self.node, session: self.session };
        if let Err(refused) = login.connect(connection, id, connect).await {
            let refused = match refused {
                Refused::Error(error) if unidirectional => {
                    self.node.admission.refusals.count(error.code);
                    Refused::End(connect::end_of(&error))
                }
                refused => refused,
            };
            self.refuse(id, refused);
        }
    }

    async fn carry_out(self, source: CommandSource, commands: Vec<QueuedCommand>) {
        let identity = match source {
            CommandSource::Known(identity) => identity,
            CommandSource::New(connection) => return self.carry_out_first(connection, commands).await,
        };
        let caller = Caller { node: self.node, session: self.session, identity: &identity };
        // Several commands at a time are publications: each gets its position before the next one,
        // and their commits are awaited together.
        let mut answers = FuturesOrdered::new();
        for queued in commands {
            let id = queued.command.id;
            if queued.command.channel() == Some("") {
                self.refuse(id, Refused::End(codes::BAD_PROTOCOL));
            } else if queued.over_rate {
                self.refuse(id, codes::TOO_MANY_REQUESTS.into());
            } else if let Some(publish) = queued.command.publish {
                match caller.publish(queued.subscribed.is_some(), publish).await {
                    Ok(answer) => answers.push_back(async move { (id, answer.await) }),
                    Err(refused) => self.refuse(id, refused),
                }
            } else if let Err(refused) = caller.dispatch(queued).await {
                self.refuse(id, refused);
            }
        }
        while let Some((id, answer)) = answers.next().await {
            match answer {
                Ok(_) => {
                    let reply = Reply { id, publish: Some(Empty {}), ..Reply::default() };
                    self.node.partitions.send_to_session(self.session, SessionMessage::Reply(Box::new(reply)));
                }
                Err(error) => self.refuse(id, error.into()),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

/// Parses the ID of a session in a request.
pub(crate) fn parse_client(text: &str) -> Option<Uuid> {
    Uuid::parse_str(text).ok()
}
