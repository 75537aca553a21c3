//! The network between the nodes: it delays, breaks connections, blocks a direction, and lags.
//!
//! A connection is a pipe in each direction. A pipe holds a bounded number of bytes; above it, the
//! frames stay in the outbox of their sender.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use steadfast_cluster::{Links, Transport, Wire};
use steadfast_flow::{BoxFuture, Env};
use tokio::sync::Notify;

use crate::executor::Executor;
use crate::process::MachineProcess;
use crate::rng::Rng;

/// How a connection ends for the reader of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipeEnd {
    /// Nothing arrives any more, without an error.
    Silent,
    /// The reader gets an error at once.
    Reset,
    /// The sender has ended: the reader gets the rest first.
    Finished,
}

#[derive(Default)]
struct PipeState {
    queue: VecDeque<(Duration, Bytes)>,
    bytes: usize,
    /// When the newest bytes arrive.
    newest: Duration,
    end: Option<PipeEnd>,
}

/// One direction of a connection.
struct Pipe {
    way: (usize, usize),
    state: Mutex<PipeState>,
    changed: Notify,
}

/// The state of the network from one node to another.
#[derive(Debug, Clone, Copy, Default)]
struct Direction {
    blocked: u32,
    lag: Duration,
}

struct NetworkState {
    rng: Rng,
    ways: BTreeMap<(usize, usize), Direction>,
    listening: BTreeMap<usize, (Links, MachineProcess)>,
    pipes: Vec<Weak<Pipe>>,
}

struct NetworkShared {
    executor: Executor,
    latency_us: u64,
    window: usize,
    state: Mutex<NetworkState>,
}

/// The connections of all nodes. Clones share it.
#[derive(Clone)]
pub(crate) struct Network(Arc<NetworkShared>);

/// The network as one node sees it.
pub(crate) struct Port {
    pub(crate) network: Network,
    pub(crate) own: usize,
    pub(crate) machine: MachineProcess,
}

/// The address of a node.
pub(crate) fn address(node: usize) -> String {
    format!("node{node}:7000")
}

impl Network {
    pub(crate) fn new(executor: Executor, rng: Rng, latency_us: u64, window: usize) -> Self {
        let (ways, listening) = (BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(NetworkState { rng, ways, listening, pipes: Vec::new() });
        Self(Arc::new(NetworkShared { executor, latency_us, window, state }))
    }

    pub(crate) fn listen(&self, node: usize, links: Links, machine: MachineProcess) {
        self.0.state.lock().listening.insert(node, (links, machine));
    }

    fn pipes(&self, wanted: impl Fn((usize, usize)) -> bool) -> Vec<Arc<Pipe>> {
        let mut state = self.0.state.lock();
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state.pipes.iter().filter_map(Weak::upgrade).filter(|pipe| wanted(pipe.way)).collect()
    }

    /// A node is gone. The others notice it at once, or not.
    pub(crate) fn gone(&self, node: usize, end: PipeEnd) {
        let listening = self.0.state.lock().listening.remove(&node);
        drop(listening);
        self.pipes(|way| way.0 == node || way.1 == node).iter().for_each(|pipe| pipe.end(end));
    }

    /// Breaks the connections between two nodes, as `end` says for what `from` sends, and at once
    /// for the rest.
    pub(crate) fn break_between(&self, from: usize, to: usize, end: PipeEnd) {
        for pipe in self.pipes(|way| way == (from, to) || way == (to, from)) {
            pipe.end(if pipe.way.0 == from { end } else { PipeEnd::Reset });
        }
    }

    fn change(&self, way: (usize, usize), change: impl FnOnce(&mut Direction)) {
        change(self.0.state.lock().ways.entry(way).or_default());
        self.pipes(|of| of == way).iter().for_each(|pipe| pipe.changed.notify_waiters());
    }

    /// Holds what is sent in this direction, or ends one hold.
    pub(crate) fn block(&self, way: (usize, usize), blocked: bool) {
        self.change(way, |way| if blocked { way.blocked += 1 } else { way.blocked -= 1 });
    }

    /// Delays what is sent in this direction from now on.
    pub(crate) fn lag(&self, way: (usize, usize), lag: Duration) {
        self.change(way, |way| way.lag = lag);
    }

    fn is_blocked(&self, way: (usize, usize)) -> bool {
        self.0.state.lock().ways.get(&way).is_some_and(|way| way.blocked > 0)
    }

    /// A new pipe, and what arrives on it.
    fn pipe(&self, way: (usize, usize)) -> (Arc<Pipe>, Wire) {
        let pipe = Arc::new(Pipe { way, state: Mutex::default(), changed: Notify::new() });
        self.0.state.lock().pipes.push(Arc::downgrade(&pipe));
        let reader = (self.clone(), pipe.clone(), false);
        let wire = stream::unfold(reader, async |(network, pipe, over)| {
            if over {
                return None;
            }
            let next = network.next(&pipe).await?;
            let over = next.is_err();
            Some((next, (network, pipe, over)))
        });
        (pipe, wire.boxed())
    }

    async fn next(&self, pipe: &Pipe) -> Option<Result<Bytes, String>> {
        let env = self.0.executor.env();
        loop {
            let changed = pipe.changed.notified();
            let wait = {
                let blocked = self.is_blocked(pipe.way);
                let mut state = pipe.state.lock();
                let due = state.queue.front().map(|(due, _)| due.saturating_sub(env.now()));
                match (state.end, due) {
                    (Some(PipeEnd::Reset), _) => return Some(Err("the connection is lost".to_owned())),
                    (Some(PipeEnd::Silent), _) => None,
                    _ if blocked => None,
                    (_, Some(Duration::ZERO)) => {
                        let (_, bytes) = state.queue.pop_front()?;
                        state.bytes -= bytes.len();
                        drop(state);
                        pipe.changed.notify_waiters();
                        return Some(Ok(bytes));
                    }
                    (Some(PipeEnd::Finished), None) => return None,
                    (_, due) => due,
                }
            };
            match wait {
                None => changed.await,
                Some(wait) => {
                    env.timeout(wait, changed).await;
                }
            }
        }
    }

    /// Sends the frames of an outbox into a pipe.
    async fn pump(self, mut frames: BoxStream<'static, Bytes>, pipe: Arc<Pipe>) {
        while let Some(frame) = frames.next().await {
            loop {
                let room = pipe.changed.notified();
                let full = {
                    let state = pipe.state.lock();
                    state.bytes > 0 && state.bytes + frame.len() > self.0.window && state.end.is_none()
                };
                if !full {
                    break;
                }
                room.await;
            }
            self.send(&pipe, frame);
        }
        pipe.end(PipeEnd::Finished);
    }

    fn send(&self, pipe: &Pipe, mut frame: Bytes) {
        let now = self.0.executor.env().now();
        while !frame.is_empty() {
            let (piece, delay) = {
                let mut state = self.0.state.lock();
                let lag = state.ways.get(&pipe.way).map_or(Duration::ZERO, |way| way.lag);
                let rng = &mut state.rng;
                let len = if rng.one_in(16) { rng.range(1, frame.len() as u64) as usize } else { frame.len() };
                let latency = self.0.latency_us / 2 + rng.below(self.0.latency_us + 1);
                (frame.split_to(len), Duration::from_micros(latency) + lag)
            };
            let mut state = pipe.state.lock();
            if state.end.is_some() {
                return;
            }
            state.newest = state.newest.max(now + delay);
            state.bytes += piece.len();
            let due = state.newest;
            state.queue.push_back((due, piece));
        }
        pipe.changed.notify_waiters();
    }
}

impl Pipe {
    fn end(&self, end: PipeEnd) {
        let mut state = self.state.lock();
        // The first end counts, except that an error ends a silence.
        if state.end.is_none() || end == PipeEnd::Reset {
            state.end = Some(end);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

impl Transport for Port {
    fn open(&self, to: &str, frames: BoxStream<'static, Bytes>) -> BoxFuture<'static, Result<Wire, String>> {
        let (network, own, machine, to) = (self.network.clone(), self.own, self.machine.clone(), to.to_owned());
        Box::pin(async move {
            let env: Env = machine.env();
            env.sleep(Duration::from_micros(network.0.latency_us)).await;
            let found = {
                let state = network.0.state.lock();
                state.listening.iter().find(|(node, _)| address(**node) == to).map(|(node, at)| (*node, at.clone()))
            };
            let (node, (links, other)) = found.ok_or("nothing listens")?;
            let (there, incoming) = network.pipe((own, node));
            let (back, answer) = network.pipe((node, own));
            let answers = links.accept(incoming, address(own), || {});
            env.spawn("socket", network.clone().pump(frames, there));
            other.env().spawn("socket", network.clone().pump(answers, back));
            Ok(answer)
        })
    }
}
