//! The sessions of one process: what `steadfast-live` does with its partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_cluster::{Attachment, Channels, ClientId, Member, MemberChange, Sessions};
use steadfast_flow::{BoxFuture, Env};
use steadfast_store::{ChannelSink, HistoryQuery, Position, Publication};
use tokio::sync::{oneshot, watch};

use super::ledger::{Answer, ClusterLedger};
use super::members::NodeMembers;
use super::plan::{ChannelRule, Keeps};
use super::variants::SessionSabotage;
use crate::executor::Executor;

/// Publications of an answer, at most.
const LIMIT: usize = 10_000;

/// Name of a channel.
pub(crate) fn channel_name(channel: usize) -> String {
    format!("news:{channel}")
}

enum Progress {
    /// It is being made; the session keeps new publications.
    Subscribing(Vec<Arc<Publication>>),
    /// The channel began anew meanwhile: the attempt fails.
    Failed,
    Active,
}

struct Session {
    channel: usize,
    attempt: u64,
    progress: Progress,
    channels: Channels,
    attachment: Option<Attachment>,
    /// Dropped when the session ends.
    _end: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    /// The process takes no more sessions.
    ended: bool,
    sessions: BTreeMap<usize, Session>,
    /// The last publication or reset of each channel here.
    last: BTreeMap<usize, Position>,
}

/// The sessions of a process, and the channels that each subscribes to.
pub(crate) struct NodeSessions {
    pub(crate) node: usize,
    pub(crate) incarnation: u64,
    pub(crate) executor: Executor,
    pub(crate) env: Env,
    pub(crate) ledger: Arc<Mutex<ClusterLedger>>,
    pub(crate) rules: Vec<ChannelRule>,
    pub(crate) sabotage: SessionSabotage,
    /// Whether publications are not taken for now.
    pub(crate) busy: watch::Sender<bool>,
    pub(crate) members: NodeMembers,
    state: Mutex<State>,
}

impl NodeSessions {
    pub(crate) fn new(
        (node, incarnation): (usize, u64),
        executor: &Executor,
        env: Env,
        ledger: &Arc<Mutex<ClusterLedger>>,
        rules: Vec<ChannelRule>,
        sabotage: SessionSabotage,
    ) -> Self {
        Self {
            node,
            incarnation,
            executor: executor.clone(),
            members: NodeMembers::default(),
            env,
            ledger: ledger.clone(),
            rules,
            sabotage,
            busy: watch::Sender::new(false),
            state: Mutex::default(),
        }
    }

    pub(super) fn note(&self, what: &'static str, numbers: [u64; 3], text: impl FnOnce() -> String) {
        let node = self.node;
        self.executor
            .trace()
            .note_with_text(self.executor.now_ns(), what, numbers, || format!("node {node}: {}", text()));
    }

    fn number(name: &str) -> usize {
        name.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
    }

    /// Subscribes a client. `end` is dropped when the subscription ends.
    pub(crate) async fn subscribe(
        &self,
        channels: &Channels,
        (client, attempt): (usize, u64),
        since: Option<Position>,
        bytes_max: usize,
        end: oneshot::Sender<()>,
    ) -> Result<(), String> {
        if end.is_closed() {
            return Err("the client left before its request arrived".to_owned());
        }
        let channel = self.ledger.lock().clients[client].channel;
        let (rule, name) = (self.rules[channel], Arc::<str>::from(channel_name(channel)));
        let stored = rule.keeps != Keeps::Nothing;
        let attachment = channels.attach(&name, rule.bounds());
        let keeps = Progress::Subscribing(Vec::new());
        let session = Session { channel, attempt, progress: keeps, channels: channels.clone(), attachment, _end: end };
        {
            let mut state = self.state.lock();
            if state.ended {
                return Err("the process ends".to_owned());
            }
            state.sessions.insert(client, session);
        }
        self.note("subscribe", [client as u64, attempt, 0], || format!("client {client} since {since:?}"));
        let answer = async {
            if !stored {
                let position = Position::default();
                return Ok(Answer { since: None, position, recovered: false, missed: Vec::new(), bounded: false });
            }
            let handle = channels.open(&name)?;
            let mut position = handle.position().await?;
            let (mut recovered, mut bounded, mut missed) = (false, false, Vec::new());
            if let Some(since) = since {
                let query = HistoryQuery { since: Some(since), limit: LIMIT, reverse: false };
                let history = handle.history_within(query, bytes_max).await?;
                position = history.position;
                let reaches = history.publications.last().map_or(since.offset, |newest| newest.offset);
                recovered = history.complete && reaches == position.offset;
                // The home bounds its answers, too.
                bounded = bytes_max < usize::MAX || history.complete;
                missed = history.publications;
            }
            Ok(Answer { since, position, recovered, missed, bounded })
        };
        let answer: Result<Answer, steadfast_cluster::ChannelError> = answer.await;
        match answer {
            Ok(answer) if self.activate(client, attempt, &answer) => Ok(()),
            Ok(_) => {
                self.leave(client, Some(attempt));
                Err("the channel began anew".to_owned())
            }
            Err(error) => {
                self.note("refused", [client as u64, attempt, 0], || format!("client {client}: {error:?}"));
                self.leave(client, Some(attempt));
                Err(format!("{error:?}"))
            }
        }
    }

    fn activate(&self, client: usize, attempt: u64, answer: &Answer) -> bool {
        let mut state = self.state.lock();
        let Some(session) = state.sessions.get_mut(&client).filter(|session| session.attempt == attempt) else {
            return false;
        };
        let Progress::Subscribing(kept) = &mut session.progress else { return false };
        let kept = std::mem::take(kept);
        session.progress = Progress::Active;
        let (channels, channel) = (session.channels.clone(), session.channel);
        self.note("active", [client as u64, answer.position.offset, 0], || {
            let missed = answer.missed.len();
            format!("client {client} at {:?}, recovered {}, {missed} missed", answer.position, answer.recovered)
        });
        let mut ledger = self.ledger.lock();
        ledger.subscribed(client, answer, self.env.wall_ms());
        kept.iter().for_each(|publication| ledger.delivered(client, publication));
        drop((ledger, state));
        self.join(&channels, channel, client);
        true
    }

    /// Ends a subscription.
    pub(crate) fn leave(&self, client: usize, attempt: Option<u64>) {
        let ended = {
            let mut state = self.state.lock();
            let is_it =
                state.sessions.get(&client).is_some_and(|one| attempt.is_none_or(|wanted| one.attempt == wanted));
            if is_it { state.sessions.remove(&client) } else { None }
        };
        if let Some(Session { channel, channels, attachment, .. }) = ended {
            self.ledger.lock().left(client);
            self.note("left", [client as u64, 0, 0], || format!("client {client}"));
            self.unsubscribed(&channels, channel, client);
            drop(attachment);
        }
    }

    /// The information of a client changes, if it is subscribed.
    pub(crate) fn change(&self, client: usize) {
        let found = self.state.lock().sessions.get(&client).map(|one| (one.channels.clone(), one.channel));
        if let Some((channels, channel)) = found {
            self.update(&channels, channel, client);
        }
    }

    /// Whether a session is subscribed to a channel.
    pub(crate) fn has_subscriber(&self, channel: usize) -> bool {
        let is_active = |session: &Session| matches!(session.progress, Progress::Active);
        self.state.lock().sessions.values().any(|session| session.channel == channel && is_active(session))
    }

    /// Ends all subscriptions one by one, and takes no more.
    pub(crate) fn end(&self) {
        let clients: Vec<usize> = {
            let mut state = self.state.lock();
            state.ended = true;
            state.sessions.keys().copied().collect()
        };
        clients.into_iter().for_each(|client| self.leave(client, None));
    }

    /// Ends all subscriptions, as the end of the process does.
    pub(crate) fn clear(&self) {
        let sessions = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.sessions)
        };
        for (client, session) in &sessions {
            self.ledger.lock().left(*client);
            self.forget(session.channel, *client);
        }
    }
}

impl ChannelSink for NodeSessions {
    fn published(&self, name: &Arc<str>, epoch: u32, publication: &Arc<Publication>) {
        let (channel, offset) = (Self::number(name), publication.offset);
        self.note("publication", [channel as u64, offset, 0], || format!("channel {channel}: {offset} of {epoch}"));
        let mut state = self.state.lock();
        let mut ledger = self.ledger.lock();
        if self.rules[channel].home == self.node {
            ledger.at_home(channel, epoch, publication);
        }
        if offset > 0 {
            let last = state.last.insert(channel, Position { epoch, offset });
            if last.is_some_and(|last| last.epoch == epoch && offset <= last.offset) {
                let node = self.node;
                ledger.fail(|| format!("TWICE: node {node} delivers {offset} of channel {channel} after {last:?}"));
            }
        }
        for (client, session) in state.sessions.iter_mut().filter(|(_, session)| session.channel == channel) {
            match &mut session.progress {
                Progress::Subscribing(_) if self.sabotage == SessionSabotage::JoinsLate => {}
                Progress::Subscribing(kept) => kept.push(publication.clone()),
                Progress::Failed => {}
                Progress::Active => ledger.delivered(*client, publication),
            }
        }
    }
}

impl Sessions for NodeSessions {
    fn reset(&self, name: &Arc<str>, position: Position) {
        let channel = Self::number(name);
        self.note("reset", [channel as u64, position.offset, 0], || format!("channel {channel} at {position:?}"));
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            let mut ledger = self.ledger.lock();
            state.last.insert(channel, position);
            let now_ms = self.env.wall_ms();
            let State { sessions, .. } = &mut *state;
            let of: Vec<usize> = sessions.iter().filter(|(_, one)| one.channel == channel).map(|(n, _)| *n).collect();
            for client in of {
                let Some(session) = sessions.get_mut(&client) else { continue };
                match session.progress {
                    Progress::Subscribing(_) if self.sabotage == SessionSabotage::KeptOverReset => {}
                    Progress::Subscribing(_) | Progress::Failed => session.progress = Progress::Failed,
                    Progress::Active if ledger.reset(client, position, now_ms) => {
                        ended.extend(sessions.remove(&client).map(|session| (client, session)))
                    }
                    Progress::Active => {}
                }
            }
        }
        for (client, session) in ended {
            self.unsubscribed(&session.channels, session.channel, client);
        }
    }

    fn member_changed(&self, name: &Arc<str>, client: ClientId, member: &Member, change: MemberChange) {
        self.members.changed((Self::number(name), client), member, change);
    }

    fn announce(&self, name: &Arc<str>, client: ClientId, _: &Member, change: MemberChange) {
        self.on_announced(Self::number(name), client, change);
    }

    fn presence(&self, name: &str, limit: usize) -> Vec<(ClientId, Member)> {
        self.members.list(Self::number(name), limit)
    }

    fn presence_counts(&self, name: &str) -> (u32, u32) {
        let clients = self.members.list(Self::number(name), usize::MAX).len() as u32;
        (clients, clients)
    }

    fn keep_up(&self) -> Option<BoxFuture<'_, ()>> {
        let mut busy = self.busy.subscribe();
        (*self.busy.borrow()).then(|| -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let _ = busy.wait_for(|busy| !busy).await;
            })
        })
    }
}
