//! Commands that concern the sessions of all nodes. Each node carries them out for its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use super::{Api, CHANNELS_MAX, SUBSCRIBES_TOGETHER, matches_pattern};
use crate::auth::TTL_MAX;
use crate::commands::{Subscriber, parse_client};
use crate::node::{Node, VERSION};
use crate::options::{SubscribeOptions, Wanted};
use crate::partition::{SessionId, SessionMessage};
use crate::protocol::codes::{self, ClientError, Disconnected};
use crate::protocol::message::{Expiry, Push, Reply, Unsubscribe};
use crate::session::SessionIdentity;

/// Selects the sessions of a command: all of a user, or one by client ID or session ID.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sessions {
    pub(crate) user: String,
    pub(crate) client: String,
    /// The session ID of an emulated or unidirectional transport.
    pub(crate) session: String,
}

/// How to disconnect sessions.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// Client IDs of sessions that stay connected.
    pub(crate) whitelist: Vec<String>,
    /// The code and reason, if not the default ones.
    pub(crate) with: Option<(u32, String)>,
}

/// New properties of sessions.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Renewal {
    /// Seconds since the Unix epoch; 0: no expiry.
    pub(crate) expire_at: u64,
    /// The sessions end now.
    pub(crate) expired: bool,
    /// The `info` shown to other clients; empty: unchanged.
    pub(crate) info: Vec<u8>,
}

/// The state of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Info {
    /// The name of the node.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) clients: usize,
    pub(crate) users: usize,
    pub(crate) channels: usize,
    /// The number of subscriptions.
    #[serde(default)]
    pub(crate) subs: usize,
    /// Uptime in seconds.
    pub(crate) uptime: u64,
}

/// A command for the sessions of all nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NodeCall {
    Subscribe(Sessions, Box<Wanted>),
    Unsubscribe(Sessions, String),
    Disconnect(Sessions, Ending),
    Refresh(Sessions, Renewal),
    /// The pattern of names.
    Channels(String),
    Info,
}

/// The result of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NodeResult {
    Nothing,
    /// The number of subscribers by channel.
    Channels(BTreeMap<String, usize>),
    Info(Info),
}

pub(super) type Outcome = Result<NodeResult, ClientError>;

impl NodeCall {
    async fn carry_out(self, node: &Node) -> Outcome {
        match self {
            Self::Subscribe(sessions, wanted) => subscribe(node, &sessions, &wanted).await,
            Self::Unsubscribe(sessions, channel) => unsubscribe(node, &sessions, &channel),
            Self::Disconnect(sessions, ending) => disconnect(node, &sessions, ending),
            Self::Refresh(sessions, renewal) => refresh(node, &sessions, renewal),
            Self::Channels(pattern) => {
                let found = node.channels.list(|name| matches_pattern(&pattern, name)).into_iter().take(CHANNELS_MAX);
                Ok(NodeResult::Channels(found.map(|(name, count)| (name.to_string(), count)).collect()))
            }
            Self::Info => {
                let (clients, users) = node.users.counts();
                let found = node.channels.list(|_| true);
                let (channels, subs) = (found.len(), found.iter().map(|(_, count)| count).sum());
                let name = node.homes.node_name().unwrap_or("steadfast").to_owned();
                let (version, uptime) = (VERSION.to_owned(), node.env.now().as_secs());
                Ok(NodeResult::Info(Info { name, version, clients, users, channels, subs, uptime }))
            }
        }
    }
}

/// Carries out the call of another node.
pub(crate) async fn answer_call(node: &Node, call: Bytes) -> Bytes {
    let outcome = match serde_json::from_slice::<NodeCall>(&call) {
        Ok(call) => call.carry_out(node).await,
        Err(error) => Err(ClientError::bad_request(format!("a node of another version: {error}"))),
    };
    serde_json::to_vec(&outcome).unwrap_or_default().into()
}

impl Api {
    /// Carries out a command here, then at all other nodes.
    pub(super) async fn on_all_nodes(&self, call: NodeCall) -> Result<Vec<NodeResult>, ClientError> {
        let node = &self.node;
        if node.homes.node_name().is_none() {
            return call.carry_out(node).await.map(|own| vec![own]);
        }
        let body = serde_json::to_vec(&call).map_err(|_| codes::INTERNAL)?;
        // The list of nodes has those that answer.
        let may_miss = matches!(call, NodeCall::Info);
        let mut results = vec![call.carry_out(node).await?];
        let mut silent = Vec::new();
        for (name, answer) in node.homes.call_others(body.into()).await {
            match answer.ok().and_then(|body| serde_json::from_slice::<Outcome>(&body).ok()) {
                Some(outcome) => results.push(outcome?),
                None => silent.push(name),
            }
        }
        match silent.is_empty() || may_miss {
            true => Ok(results),
            false => {
                let message = format!("internal server error: no answer from the nodes: {}", silent.join(", "));
                Err(ClientError { message: message.into(), ..codes::INTERNAL })
            }
        }
    }
}

async fn subscribe(node: &Node, sessions: &Sessions, wanted: &Wanted) -> Outcome {
    let options: &SubscribeOptions = &wanted.options;
    if options.expires_ms().is_some_and(|ends| ends <= node.env.wall_ms()) {
        return Err(codes::EXPIRED);
    }
    // Report errors of the request even if the user has no sessions.
    node.rules.namespace(&wanted.channel)?;
    options.info()?;
    options.data()?;
    for some in sessions.of(node).chunks(SUBSCRIBES_TOGETHER) {
        let each =
            some.iter().map(|(session, identity)| Subscriber::new(node, *session, identity).push_subscription(wanted));
        join_all(each).await.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(NodeResult::Nothing)
}

fn unsubscribe(node: &Node, sessions: &Sessions, channel: &str) -> Outcome {
    if channel.is_empty() {
        return Err(codes::BAD_REQUEST);
    }
    node.rules.namespace(channel)?;
    let (code, reason) = codes::UNSUBSCRIBED_BY_SERVER;
    for (session, _) in sessions.of(node) {
        let unsubscribe = Some(Unsubscribe { code, reason: reason.to_owned() });
        let push = Push { channel: channel.to_owned(), unsubscribe, ..Push::default() };
        let reply = Reply { push: Some(push), ..Reply::default() };
        node.partitions.send_to_session(session, SessionMessage::Unsubscribed(channel.into(), Some(Box::new(reply))));
    }
    Ok(NodeResult::Nothing)
}

fn disconnect(node: &Node, sessions: &Sessions, ending: Ending) -> Outcome {
    let why = match ending.with {
        None => codes::FORCE_DISCONNECT,
        Some((code, reason)) => match u16::try_from(code) {
            Ok(code @ 3000..5000) => Disconnected { code, reason: reason.into() },
            _ => return Err(ClientError::bad_request(format!("disconnect.code is {code}: use 3000 to 4999"))),
        },
    };
    for (session, identity) in sessions.of(node) {
        if !ending.whitelist.contains(&identity.client.to_string()) {
            node.partitions.send_to_session(session, SessionMessage::Disconnect(why.clone()));
        }
    }
    Ok(NodeResult::Nothing)
}

/// Sets a new expiry of the selected sessions.
fn refresh(node: &Node, sessions: &Sessions, renewal: Renewal) -> Outcome {
    let Renewal { expire_at, expired, info } = renewal;
    let now_ms = node.env.wall_ms();
    let lasts = expire_at.saturating_sub(now_ms / 1000);
    let expired = expired || expire_at > 0 && lasts == 0;
    for (session, identity) in sessions.of(node) {
        let message = if expired {
            SessionMessage::Disconnect(codes::SESSION_EXPIRED)
        } else {
            let expires_ms = (expire_at > 0).then(|| expire_at.saturating_mul(1000));
            let ttl = lasts.min(TTL_MAX) as u32;
            let refresh = Some(Expiry { expires: expires_ms.is_some(), ttl });
            let push = Some(Push { refresh, ..Push::default() });
            let reply = Some(Box::new(Reply { push, ..Reply::default() }));
            SessionMessage::Refreshed { expires_ms, renamed: identity.learn(info.clone(), None), reply }
        };
        node.partitions.send_to_session(session, message);
    }
    Ok(NodeResult::Nothing)
}

impl Sessions {
    /// The selected sessions that are connected.
    fn of(&self, node: &Node) -> Vec<(SessionId, Arc<SessionIdentity>)> {
        let client = match self.client.as_str() {
            "" => None,
            text => match parse_client(text) {
                Some(client) => Some(client),
                // No session has another ID.
                None => return Vec::new(),
            },
        };
        let mut found = node.users.sessions_of(&self.user, client);
        if !self.session.is_empty() {
            found.retain(|(_, identity)| identity.connection.session.as_deref() == Some(self.session.as_str()));
        }
        found
    }
}
