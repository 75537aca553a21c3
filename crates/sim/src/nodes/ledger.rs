//! What homes published, what clients have, and what they may see next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfast_store::{History, Position, Publication};

use super::members::MemberLedger;
use super::plan::{ChannelRule, Keeps};
use crate::model::channels::{Channels, Keeping, NUMBER_BYTES, body_of};
use crate::rng::stream_bytes;

/// The highest bit of the numbers of publications without history.
const UNSTORED: u64 = 1 << 63;

/// What a client has of its channel. It survives servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientState {
    pub(crate) channel: usize,
    pub(crate) positioned: bool,
    /// It has all up to here; `None`: it begins anew.
    pub(crate) position: Option<Position>,
    /// The numbers of the publications that it got in its present subscription.
    pub(crate) seen: BTreeSet<u64>,
    pub(crate) active: bool,
}

/// A channel, as far as its home knows.
struct HomeChannel {
    rule: ChannelRule,
    model: Channels,
    /// The number of the publication at each epoch and offset.
    places: BTreeMap<(u32, u64), u64>,
    /// All epochs, oldest first.
    epochs: Vec<u32>,
    /// Keys of requested publications.
    keys: BTreeMap<u64, u64>,
    /// The publication with a key that the home must know.
    keyed: BTreeMap<u64, KeyedPublication>,
}

/// A publication with an idempotency key.
struct KeyedPublication {
    number: u64,
    offset: u64,
    time_ms: u64,
    /// An earlier process of the home published it, and the present one has only what is kept.
    stored: bool,
}

impl KeyedPublication {
    /// Whether the home must know it when it publishes `next`.
    fn is_known(&self, rule: &ChannelRule, next: &Publication) -> bool {
        let is_kept = self.offset + rule.size > next.offset && self.time_ms + rule.ttl_ms > next.time_ms;
        !self.stored || is_kept
    }
}

/// The publications of each channel, and how far each client has read.
pub(crate) struct ClusterLedger {
    channels: Vec<HomeChannel>,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) members: MemberLedger,
    unstored: BTreeMap<u64, usize>,
    pub(crate) violation: Option<String>,
    pub(crate) deliveries: u64,
    pub(crate) recoveries: u64,
    pub(crate) resets: u64,
}

/// The answer to a subscribe request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) since: Option<Position>,
    pub(crate) position: Position,
    pub(crate) recovered: bool,
    pub(crate) missed: Vec<Arc<Publication>>,
    /// Whether the answer had a bound that it may have reached.
    pub(crate) bounded: bool,
}

fn number_of(publication: &Publication) -> u64 {
    let number = publication.body.get(..NUMBER_BYTES as usize).and_then(|number| number.try_into().ok());
    u64::from_le_bytes(number.unwrap_or_default())
}

impl ClusterLedger {
    pub(crate) fn new(rules: &[ChannelRule], clients: Vec<ClientState>) -> Self {
        let channel = |rule: &ChannelRule| HomeChannel {
            rule: *rule,
            model: Channels::new(1),
            places: BTreeMap::new(),
            epochs: Vec::new(),
            keys: BTreeMap::new(),
            keyed: BTreeMap::new(),
        };
        let channels = rules.iter().map(channel).collect();
        let (members, unstored) = (MemberLedger::default(), BTreeMap::new());
        Self { channels, clients, members, unstored, violation: None, deliveries: 0, recoveries: 0, resets: 0 }
    }

    /// Notes the first violation.
    pub(crate) fn fail(&mut self, why: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(why);
    }

    fn check(&mut self, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.fail(|| why);
        }
    }

    pub(crate) fn keeps(&self, channel: usize) -> Keeps {
        self.channels[channel].rule.keeps
    }

    /// A stored publication is requested. Returns its body.
    pub(crate) fn request(&mut self, channel: usize, key: Option<u64>, len: u64, sync: bool) -> (u64, Vec<u8>) {
        let of = &mut self.channels[channel];
        let keeping = Keeping { size: of.rule.size, ttl_ms: of.rule.ttl_ms };
        let number = of.model.ask(0, len, sync, keeping);
        of.keys.extend(key.map(|key| (number, key)));
        (number, body_of(number, len))
    }

    /// A publication without history is requested. Returns its body.
    pub(crate) fn request_unstored(&mut self, channel: usize, len: u64) -> (u64, Vec<u8>) {
        let number = UNSTORED | (self.unstored.len() as u64 + 1);
        self.unstored.insert(number, channel);
        let mut body = vec![0; len.max(NUMBER_BYTES) as usize];
        stream_bytes(number, 0, &mut body);
        body[..NUMBER_BYTES as usize].copy_from_slice(&number.to_le_bytes());
        (number, body)
    }

    /// The answer to a publication.
    pub(crate) fn published(&mut self, channel: usize, number: u64, position: Position) {
        let of = &self.channels[channel];
        let at = of.places.get(&(position.epoch, position.offset)).copied();
        let same_key = |at: u64| of.keys.get(&number).is_some_and(|key| of.keys.get(&at) == Some(key));
        if !at.is_some_and(|at| at == number || same_key(at)) {
            self.fail(|| {
                format!("WRONG-PLACE: {number} of channel {channel} is answered at {position:?}, which is {at:?}")
            });
        }
    }

    /// The home delivers a publication.
    pub(crate) fn at_home(&mut self, channel: usize, epoch: u32, publication: &Publication) {
        let number = number_of(publication);
        if publication.offset == 0 {
            if self.unstored.get(&number) != Some(&channel) {
                self.fail(|| format!("WRONG: {number} without history is not of channel {channel}"));
            }
            return;
        }
        let of = &mut self.channels[channel];
        let outcome = of.model.delivered(0, epoch, publication);
        of.place(epoch, publication.offset, number);
        let earlier = of.keys.get(&number).copied().and_then(|key| {
            let (offset, time_ms) = (publication.offset, publication.time_ms);
            of.keyed.insert(key, KeyedPublication { number, offset, time_ms, stored: false })
        });
        let earlier = earlier.filter(|earlier| earlier.is_known(&of.rule, publication)).map(|earlier| earlier.number);
        self.check(outcome);
        if let Some(earlier) = earlier {
            self.fail(|| format!("KEY: {number} of channel {channel} is published although {earlier} has its key"));
        }
    }

    /// A home has opened its disks.
    pub(crate) fn restarted(&mut self, channel: usize, history: &History, now_ms: u64) {
        let of = &mut self.channels[channel];
        let outcome = of.model.restarted(0, history, now_ms);
        let epoch = history.position.epoch;
        if of.epochs.last() != Some(&epoch) {
            of.epochs.push(epoch);
        }
        of.keyed.clear();
        for publication in &history.publications {
            let (number, offset, time_ms) = (number_of(publication), publication.offset, publication.time_ms);
            of.place(epoch, offset, number);
            if let Some(key) = of.keys.get(&number) {
                of.keyed.insert(*key, KeyedPublication { number, offset, time_ms, stored: true });
            }
        }
        self.check(outcome.map_err(|why| format!("channel {channel}: {why}")));
    }

    /// A home has closed its store.
    pub(crate) fn closed(&mut self, channel: usize) {
        self.channels[channel].model.closed();
    }

    pub(crate) fn begin_clear(&mut self, channel: usize) -> u64 {
        let of = &mut self.channels[channel];
        of.keyed.retain(|_, one| !one.stored);
        of.model.begin_clear(0)
    }

    pub(crate) fn cleared(&mut self, channel: usize, up_to: u64) {
        self.channels[channel].model.cleared(0, up_to);
    }

    /// The end of a channel at its home.
    pub(crate) fn top(&self, channel: usize) -> Position {
        self.channels[channel].model.stands(0)
    }

    /// A session became active with this answer.
    pub(crate) fn subscribed(&mut self, client: usize, answer: &Answer, now_ms: u64) {
        let state = &self.clients[client];
        let (channel, had) = (state.channel, state.position);
        let outcome = self.judge(channel, had, answer, now_ms);
        self.check(
            outcome.map_err(|why| format!("{why}: client {client} of channel {channel} with {had:?} got {answer:?}")),
        );
        self.recoveries += u64::from(answer.since.is_some());
        let state = &mut self.clients[client];
        state.seen.clear();
        (state.position, state.active) = (Some(answer.position), true);
    }

    fn judge(&self, channel: usize, had: Option<Position>, answer: &Answer, now_ms: u64) -> Result<(), String> {
        let of = &self.channels[channel];
        if of.rule.keeps == Keeps::Nothing {
            return Ok(());
        }
        let Answer { since, position, recovered, missed, bounded } = answer;
        let Some(since) = since else { return Ok(()) };
        let had = had.unwrap_or(*since);
        let age = |epoch: u32| of.epochs.iter().rposition(|one| *one == epoch);
        if age(position.epoch) < age(had.epoch) {
            return Err("OLD-EPOCH".to_owned());
        }
        if position.epoch == had.epoch && position.offset < had.offset {
            return Err("POSITION-BACKWARDS".to_owned());
        }
        if *recovered {
            let offsets: Vec<u64> = missed.iter().map(|one| one.offset).collect();
            if position.epoch != since.epoch || offsets != (since.offset + 1..=position.offset).collect::<Vec<_>>() {
                return Err("GAP".to_owned());
            }
            for one in missed {
                self.is_in_place(channel, position.epoch, one)?;
            }
        } else if !bounded && of.model.continues(0, *since, now_ms) {
            return Err("NEEDLESS: not recovered".to_owned());
        }
        Ok(())
    }

    fn is_in_place(&self, channel: usize, epoch: u32, publication: &Publication) -> Result<(), String> {
        let (number, offset) = (number_of(publication), publication.offset);
        match self.channels[channel].places.get(&(epoch, offset)) {
            Some(at) if *at == number => Ok(()),
            at => Err(format!("WRONG-PLACE: {number} is shown at {offset} of epoch {epoch}, which is {at:?}")),
        }
    }

    /// A session that is active gets a publication.
    pub(crate) fn delivered(&mut self, client: usize, publication: &Publication) {
        let state = &self.clients[client];
        let (channel, number, offset) = (state.channel, number_of(publication), publication.offset);
        let position = state.position.unwrap_or_default();
        if offset > 0 && offset <= position.offset {
            return;
        }
        self.deliveries += 1;
        let outcome = match offset {
            0 if self.unstored.get(&number) == Some(&channel) => Ok(()),
            0 => Err(format!("WRONG: {number} without history is not of the channel")),
            _ if state.positioned && offset != position.offset + 1 => {
                Err(format!("GAP: {offset} follows {position:?}"))
            }
            _ if state.positioned => self.is_in_place(channel, position.epoch, publication),
            _ => Ok(()),
        };
        self.check(outcome.map_err(|why| format!("{why}: client {client} of channel {channel}")));
        let state = &mut self.clients[client];
        if offset > 0 {
            state.position = Some(Position { offset, ..position });
        }
        if !state.seen.insert(number) {
            self.fail(|| format!("TWICE: client {client} of channel {channel} got {number} again"));
        }
    }

    /// An active session learns that publications may be missing. Returns whether it must recover.
    pub(crate) fn reset(&mut self, client: usize, position: Position, now_ms: u64) -> bool {
        self.resets += 1;
        let state = &mut self.clients[client];
        if !state.positioned {
            // It continues with what follows.
            state.position = Some(position);
            return false;
        }
        state.active = false;
        let (channel, had) = (state.channel, state.position);
        if had.is_some_and(|had| self.channels[channel].model.continues(0, had, now_ms)) {
            self.fail(|| format!("NEEDLESS: client {client} of channel {channel} at {had:?} is reset to {position:?}"));
        }
        true
    }

    /// A session has ended.
    pub(crate) fn left(&mut self, client: usize) {
        self.clients[client].active = false;
    }

    /// At rest, all clients are active, and at the end of their channels.
    pub(crate) fn check_rest(&mut self) {
        for client in 0..self.clients.len() {
            let state = &self.clients[client];
            let (top, position) = (self.top(state.channel), state.position.unwrap_or_default());
            let stored = self.keeps(state.channel) != Keeps::Nothing;
            let at_end = if state.positioned { position == top } else { position.offset == top.offset };
            if !state.active || stored && !at_end {
                let what = if state.active { "MISSED" } else { "WAITS" };
                let text = format!("{what}: client {client} is at rest as {state:?}; its channel is at {top:?}");
                self.fail(|| text);
            }
        }
    }

    /// At rest, all clients have got this publication without history.
    pub(crate) fn check_seen(&mut self, channel: usize, number: u64) {
        for client in 0..self.clients.len() {
            let state = &self.clients[client];
            if state.channel == channel && !state.seen.contains(&number) {
                self.fail(|| format!("MISSED: client {client} of channel {channel} did not get {number}"));
            }
        }
    }
}

impl HomeChannel {
    fn place(&mut self, epoch: u32, offset: u64, number: u64) {
        if self.epochs.last() != Some(&epoch) {
            self.epochs.push(epoch);
        }
        self.places.insert((epoch, offset), number);
    }
}
