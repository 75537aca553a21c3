//! How far a standby is.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::attempts::Attempts;
use crate::head::Head;
use crate::lease_watch::LeaseState;
use crate::transfer_progress::TransferProgress;

/// How far a standby is, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct StandbyStatus {
    /// The store.
    pub from: String,
    /// The machine of the owner; empty before a head was read.
    pub owner: String,
    /// The tenure of the owner.
    pub tenure: u64,
    /// Version of the head whose state the disks hold; 0 before they hold one.
    pub version: u64,
    /// When that state was taken, in milliseconds since the Unix epoch.
    pub copied_ms: Option<u64>,
    /// For how many seconds the disks may lack something that the archive has.
    pub lag_seconds: f64,
    /// Bytes that are to be copied now.
    pub lag_bytes: u64,
    /// Bytes that were copied since the start.
    pub copied_bytes: u64,
    /// Requests since the start.
    pub reads: u64,
    /// Why requests to the store fail now.
    pub failing: Option<String>,
    /// For how many seconds they have failed; 0 if they do not.
    pub failing_seconds: f64,
    /// Why the newest state cannot be copied.
    pub error: Option<String>,
    /// Time in seconds after which it takes the archive over by itself, unless the owner renews its
    /// lease; `None`: it does not.
    pub take_over_seconds: Option<f64>,
}

#[derive(Debug, Default)]
struct Reached {
    owner: String,
    tenure: u64,
    version: u64,
    copied_ms: Option<u64>,
    /// Beginning of the last look at which the disks had all.
    current: Duration,
    error: Option<String>,
    take_over: Option<Duration>,
}

/// How far a standby is. Clones share it.
#[derive(Clone)]
pub struct StandbyProgress {
    attempts: Attempts,
    known: Arc<Mutex<Reached>>,
    pub(crate) transfer: Arc<TransferProgress>,
}

impl StandbyProgress {
    pub(crate) fn new(attempts: &Attempts) -> Self {
        let known = Reached { current: attempts.env().now(), ..Reached::default() };
        Self { attempts: attempts.clone(), known: Arc::new(Mutex::new(known)), transfer: Arc::default() }
    }

    /// A head was read.
    pub(crate) fn read(&self, head: &Head) {
        let mut known = self.known.lock();
        (known.owner, known.tenure) = (head.machine.clone(), head.tenure);
    }

    /// The disks hold the state of a head.
    pub(crate) fn holds(&self, head: &Head) {
        let mut known = self.known.lock();
        assert!(head.version >= known.version, "heads have ascending versions");
        (known.version, known.copied_ms) = (head.version, head.cut.as_ref().map(|cut| cut.time_ms));
    }

    /// The disks hold all that the archive had at a time.
    pub(crate) fn current(&self, looked: Duration) {
        let mut known = self.known.lock();
        (known.current, known.error) = (looked, None);
    }

    /// The lease of the owner was looked at.
    pub(crate) fn lease(&self, lease: LeaseState) {
        self.known.lock().take_over = match lease {
            LeaseState::None => None,
            LeaseState::Holds(left) => Some(left),
            LeaseState::Ended => Some(Duration::ZERO),
        };
    }

    /// The newest state cannot be copied.
    pub(crate) fn failed(&self, why: String) {
        self.known.lock().error = Some(why);
    }

    /// How far it is.
    pub fn status(&self) -> StandbyStatus {
        let (known, failing) = (self.known.lock(), self.attempts.failing());
        StandbyStatus {
            from: self.attempts.describe(),
            owner: known.owner.clone(),
            tenure: known.tenure,
            version: known.version,
            copied_ms: known.copied_ms,
            lag_seconds: self.attempts.env().now().saturating_sub(known.current).as_secs_f64(),
            lag_bytes: self.transfer.left(),
            copied_bytes: self.transfer.done(),
            reads: self.attempts.counts().reads.load(Relaxed),
            failing_seconds: failing.as_ref().map_or(0.0, |(age, _)| age.as_secs_f64()),
            failing: failing.map(|(_, why)| why),
            error: known.error.clone(),
            take_over_seconds: known.take_over.map(|left| left.as_secs_f64()),
        }
    }
}
