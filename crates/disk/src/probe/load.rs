//! Load on a disk for a given time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use steadfast_flow::Env;

use crate::latency::Histogram;
use crate::{BLOCK, Disk};

pub(super) const MIB: u64 = 1 << 20;

/// The kind of requests.
#[derive(Clone, Copy)]
pub(super) enum Pattern {
    /// Sequential, 1 MiB each.
    SequentialRead,
    /// Sequential, 1 MiB each.
    SequentialWrite,
    /// Random, 4 KiB each.
    RandomRead,
    /// Random, 4 KiB each.
    RandomWrite,
    /// Sequential writes of this many bytes, each with a flush.
    Commit(usize),
}

impl Pattern {
    fn bytes(self) -> usize {
        match self {
            Self::SequentialRead | Self::SequentialWrite => MIB as usize,
            Self::RandomRead | Self::RandomWrite => BLOCK,
            Self::Commit(bytes) => bytes,
        }
    }
}

/// The result of a run.
pub(super) struct Done {
    pub(super) latency: Histogram,
    requests: u64,
    bytes: u64,
    took: Duration,
}

impl Done {
    pub(super) fn per_s(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub(super) fn mib_per_s(&self) -> f64 {
        (self.bytes as f64 / MIB as f64 / self.took.as_secs_f64().max(1e-9) * 10.0).round() / 10.0
    }
}

/// A disk under load.
pub(super) struct Load {
    disk: Arc<dyn Disk>,
    env: Env,
    /// Used part of the disk in bytes.
    bytes: u64,
    /// Written data: noise, so that no device can compress it.
    noise: Option<Bytes>,
}

impl Load {
    pub(super) fn new(disk: Arc<dyn Disk>, env: Env, bytes: u64) -> Self {
        Self { disk, env, bytes, noise: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the disk once, as far as the time allows. Later measurements use only the written
    /// part.
    pub(super) async fn fill(&mut self, time: Duration) -> io::Result<()> {
        let start = self.env.now();
        let mut filled = 0;
        while filled < self.bytes && (filled < 8 * MIB || self.env.now() - start < time) {
            let noise = self.noise().await;
            let writes: FuturesUnordered<_> = (0..8)
                .map(|i| filled + i * MIB)
                .filter(|at| *at < self.bytes)
                .map(|at| self.disk.write(at, noise.clone()))
                .collect();
            filled += writes.len() as u64 * MIB;
            writes.collect::<Vec<_>>().await.into_iter().collect::<io::Result<()>>()?;
        }
        self.disk.flush().await?;
        self.bytes = filled;
        Ok(())
    }

    /// Keeps `depth` requests in flight for `time`, then waits for the last one.
    pub(super) async fn run(&mut self, pattern: Pattern, depth: usize, time: Duration) -> io::Result<Done> {
        let noise = self.noise().await;
        let mut done = Done { latency: Histogram::default(), requests: 0, bytes: 0, took: Duration::ZERO };
        let start = self.env.now();
        let mut flying = FuturesUnordered::new();
        let mut number = 0;
        loop {
            while flying.len() < depth && (number == 0 || self.env.now() - start < time) {
                flying.push(self.request(pattern, number, &noise));
                number += 1;
            }
            let Some(finished) = flying.next().await else { break };
            done.latency.record(finished?);
            done.requests += 1;
            done.bytes += pattern.bytes() as u64;
        }
        done.took = self.env.now() - start;
        Ok(done)
    }

    fn request(&self, pattern: Pattern, number: u64, noise: &Bytes) -> BoxFuture<'static, io::Result<Duration>> {
        let bytes = pattern.bytes() as u64;
        let places = (self.bytes / bytes).max(1);
        let place = match pattern {
            Pattern::RandomRead | Pattern::RandomWrite => self.env.random_u64() % places,
            _ => number % places,
        };
        let offset = place * bytes;
        let (disk, env, noise) = (self.disk.clone(), self.env.clone(), noise.slice(..bytes as usize));
        Box::pin(async move {
            let start = env.now();
            match pattern {
                Pattern::SequentialRead | Pattern::RandomRead => drop(disk.read(offset, bytes as usize).await?),
                Pattern::SequentialWrite | Pattern::RandomWrite => disk.write(offset, noise).await?,
                Pattern::Commit(_) => disk.write_flush(offset, noise).await?,
            }
            Ok(env.now() - start)
        })
    }

    async fn noise(&mut self) -> Bytes {
        if let Some(noise) = &self.noise {
            return noise.clone();
        }
        let mut buf = self.disk.buffer(MIB as usize).await;
        let mut state = self.env.random_u64() | 1;
        while buf.len() < MIB as usize {
            // Xorshift (Marsaglia 2003): enough to defeat compression.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            buf.put(&state.to_le_bytes());
        }
        self.noise.insert(buf.freeze()).clone()
    }
}
