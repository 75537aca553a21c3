//! An archive that a pool follows into.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use steadfast_flow::{Env, Lease, has_fault};
use steadfast_log::Lsn;
use steadfast_net::RemoteStore;
use steadfast_store::MoveGate;
use tokio::sync::{oneshot, watch};

use crate::attempts::Attempts;
use crate::claim::{Claim, Claimed, may_start_early};
use crate::cleaner::Cleaner;
use crate::error::ArchiveError;
use crate::following::{Following, Members};
use crate::head::{Head, Promise};
use crate::head_writer::KnownHeadObject;
use crate::lease_keeper::LeaseKeeper;
use crate::name::DiskId;
use crate::named_objects::NamedObjects;
use crate::options::{ArchiveOptions, ArchiveSabotage};
use crate::own_state::{OwnState, StateKeeper};
use crate::progress::{ArchiveState, Progress};
use crate::shipper::Shipper;
use crate::stopping::Stopping;

/// How far an archive is, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct ArchiveStatus {
    /// The store.
    pub to: String,
    /// What it is doing.
    pub state: ArchiveState,
    /// Whether it has a complete copy, and follows.
    pub following: bool,
    /// Age in seconds of the oldest change that the archive does not have; 0 without one.
    pub lag_seconds: f64,
    /// Bytes that have become durable since the state that the archive has.
    pub lag_bytes: u64,
    /// When the logs were looked at last, in milliseconds since the Unix epoch: the lag is that of
    /// this moment.
    pub looked_ms: u64,
    /// When the newest state was taken that can be restored, in milliseconds since the Unix epoch.
    pub archived_ms: Option<u64>,
    /// When the state was taken that is being archived now, in milliseconds since the Unix epoch.
    pub shipping_ms: Option<u64>,
    /// Why requests to the store fail now.
    pub failing: Option<String>,
    /// For how many seconds they have failed; 0 if they do not.
    pub failing_seconds: f64,
    /// Why the archive cannot be used any more.
    pub error: Option<String>,
    /// Whether writes are answered only when the archive has them. This begins when it has a
    /// complete copy.
    pub writes_wait: bool,
    /// Time in seconds for which this process may answer its clients; `None`: it needs no lease.
    pub lease_seconds: Option<f64>,
    /// Tenure of this process; 0 before the archive is claimed.
    pub tenure: u64,
    /// Version of the head.
    pub version: u64,
    /// States that were archived since the start.
    pub cuts: u64,
    /// States that were given up since the start, because compaction recycled what they named.
    pub cuts_given_up: u64,
    /// Requests that create, since the start.
    pub creates: u64,
    /// Requests that replace the head, since the start.
    pub replaces: u64,
    /// Requests that read or list, since the start.
    pub reads: u64,
    /// When the oldest state was taken that can be restored, in milliseconds since the Unix epoch.
    pub oldest_ms: Option<u64>,
    /// Objects of expired states, and of interrupted uploads, that were deleted since the start.
    pub deleted: u64,
    /// Why such objects cannot be deleted now.
    pub delete_failing: Option<String>,
    /// For how many seconds that has failed; 0 if it does not.
    pub delete_failing_seconds: f64,
    /// Requests without a clear answer, or refused, since the start.
    pub failures: u64,
    /// Bytes stored since the start.
    pub sent_bytes: u64,
    /// Bytes that were found damaged on the disks, with no whole copy. The archive lacks them.
    pub damaged_bytes: u64,
}

struct Shared {
    attempts: Attempts,
    /// Those that delete.
    deletes: Attempts,
    following: Arc<Following>,
    progress: Arc<Progress>,
    stop: watch::Sender<Stopping>,
    lease: Lease,
    env: Env,
}

/// An archive that a pool follows into. Clones share it.
#[derive(Clone)]
pub struct Archive(Arc<Shared>);

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Archive({})", self.0.attempts.describe())
    }
}

/// What an archive needs of its surroundings.
pub struct ArchiveParts {
    /// Where it is.
    pub store: Arc<dyn RemoteStore>,
    /// Keeps the owner numbers.
    pub keeper: Arc<dyn StateKeeper>,
    /// The disks of the pool.
    pub members: Arc<dyn Members>,
    /// Until when clients may be answered. It ends when the archive starts, if there is one.
    pub lease: Lease,
}

/// A claim that is made while the server serves.
struct Claiming {
    archive: Archive,
    state: OwnState,
    options: ArchiveOptions,
}

impl Archive {
    /// Starts to follow. The pool is open, and serves when this has returned. Once for each opening
    /// of a pool: the logs tell only once what recovery has found.
    ///
    /// # Errors
    /// Why the pool must not serve.
    pub async fn start(parts: ArchiveParts, options: ArchiveOptions, env: &Env) -> Result<Self, ArchiveError> {
        let ArchiveParts { store, keeper, members, lease } = parts;
        if options.lease.is_some() {
            lease.end();
        }
        let state = OwnState::load(keeper, env).await?;
        let (attempts, progress) = (Attempts::new(store.clone(), env), Progress::new());
        if let Some(known) = state.known() {
            progress.owns(state.archive(), known.tenure);
        }
        let archive = Self(Arc::new(Shared {
            deletes: attempts.apart(),
            attempts,
            following: Arc::new(Following::new(members, options.sabotage, env)),
            progress: Arc::new(progress),
            stop: watch::Sender::new(Stopping::No),
            lease,
            env: env.clone(),
        }));
        let early = may_start_early(&state, &store, options.lease);
        let (wait, interval, sabotage) = (options.claim_wait, options.interval, options.sabotage);
        let claiming = Claiming { archive: archive.clone(), state, options };
        let (claimed, known) = oneshot::channel();
        let (shipped, archived) = oneshot::channel();
        // A claim is not cut off: it continues while the server serves.
        env.spawn_critical("archive", claiming.follow(claimed, shipped));
        let given_up = || ArchiveError::Unreachable("it was given up".to_owned());
        match env.timeout(wait, known).await {
            Some(claimed) => {
                let promise = claimed.unwrap_or_else(|_| Err(given_up()))?;
                let waits = !has_fault(sabotage, ArchiveSabotage::ServedUnarchived);
                if promise == Promise::Archived && waits {
                    // What recovery has found was never answered, and another owner may lack it.
                    if let Some(disk) = archive.0.following.unfollowed() {
                        return Err(ArchiveError::Unfollowed(disk));
                    }
                    archived.await.map_err(|_| given_up())?;
                }
            }
            None => {
                let failing = archive.0.attempts.failing().map(|(_, why)| why);
                let failing = failing.unwrap_or_else(|| "it is slow".to_owned());
                if let Err(why) = early {
                    archive.0.stop.send_replace(Stopping::Now);
                    return Err(ArchiveError::Unreachable(format!("{why}: {failing}")));
                }
                tracing::warn!(archive = %store.describe(), %failing, "serving before the archive is known");
            }
        }
        archive.clone().look(interval);
        Ok(archive)
    }

    /// Looks at the logs again and again.
    fn look(self, interval: Duration) {
        let env = self.0.env.clone();
        let mut stop = self.0.stop.subscribe();
        env.clone().spawn_critical("archive looks", async move {
            loop {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(Stopping::is_set) => return,
                    () = env.sleep(interval) => self.0.following.look(),
                }
            }
        });
    }

    /// How far it is.
    pub fn status(&self) -> ArchiveStatus {
        let (now, lag) = (self.0.progress.now(), self.0.following.lag());
        let (failing, delete_failing) = (self.0.attempts.failing(), self.0.deletes.failing());
        let counts = self.0.attempts.counts();
        ArchiveStatus {
            to: self.0.attempts.describe(),
            state: now.state,
            following: now.state == ArchiveState::Following,
            lag_seconds: lag.age.as_secs_f64(),
            lag_bytes: lag.bytes,
            looked_ms: lag.looked_ms,
            archived_ms: now.cut_ms,
            shipping_ms: lag.shipping_ms,
            failing_seconds: failing.as_ref().map_or(0.0, |(age, _)| age.as_secs_f64()),
            failing: failing.map(|(_, why)| why),
            error: now.error,
            writes_wait: now.promise == Promise::Archived,
            lease_seconds: self.0.lease.left().map(|left| left.as_secs_f64()),
            tenure: now.tenure,
            version: now.version,
            cuts: now.cuts,
            cuts_given_up: now.given_up,
            creates: counts.creates.load(Relaxed),
            replaces: counts.replaces.load(Relaxed),
            reads: counts.reads.load(Relaxed),
            oldest_ms: now.oldest_ms,
            deleted: counts.deleted.load(Relaxed),
            delete_failing_seconds: delete_failing.as_ref().map_or(0.0, |(age, _)| age.as_secs_f64()),
            delete_failing: delete_failing.map(|(_, why)| why),
            failures: counts.failures.load(Relaxed),
            sent_bytes: counts.sent_bytes.load(Relaxed),
            damaged_bytes: now.damaged_bytes,
        }
    }

    /// The identity of the archive, and the tenure of this pool in it. Until the first claim of
    /// this process, these are the last ones that the pool had; empty and 0 before those.
    pub fn tenure(&self) -> (String, u64) {
        self.0.progress.tenure()
    }

    /// Waits until the archive cannot be used any more.
    pub async fn ended(&self) -> ArchiveError {
        self.0.progress.ended().await
    }

    /// Ships what is durable now, for at most `wait`, and ends. The disks are still open.
    pub async fn stop(&self, wait: Duration) {
        self.end(Stopping::Now, wait).await;
    }

    /// As [`Archive::stop`], and hands the archive over: the next owner has all that was answered.
    /// Nothing is answered any more, and what was answered is durable.
    pub async fn hand_over(&self, wait: Duration) {
        self.end(Stopping::HandOver, wait).await;
    }

    async fn end(&self, how: Stopping, wait: Duration) {
        self.0.stop.send_replace(how);
        if self.0.env.timeout(wait, self.0.progress.stopped()).await.is_none() {
            let lag = self.0.following.lag();
            tracing::warn!(lag_bytes = lag.bytes, "the archive does not have all: the next start continues");
        }
    }
}

/// The archive of a pool, for its moves of slots: it is set when the pool is open. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ArchiveGate(Arc<OnceLock<Archive>>);

impl ArchiveGate {
    /// Sets the archive. Until then moves wait.
    ///
    /// # Panics
    /// When it is set twice.
    pub fn set(&self, archive: Archive) {
        assert!(self.0.set(archive).is_ok(), "a pool has one archive");
    }
}

impl MoveGate for ArchiveGate {
    fn has(&self, disk: [u8; 16], lsn: Lsn) -> bool {
        self.0.get().is_some_and(|archive| archive.0.progress.has(DiskId(disk), lsn))
    }
}

impl Claiming {
    async fn claim(&mut self) -> Result<Claimed, ArchiveError> {
        let shared = &self.archive.0;
        let claim = Claim { attempts: &shared.attempts, following: &shared.following, options: &self.options };
        let claimed = claim.make(&mut self.state).await?;
        shared.progress.owns(self.state.archive(), claimed.head.head.tenure);
        Ok(claimed)
    }

    /// Claims the archive, and begins the lease. A mark on the first claim does not count for the
    /// next one.
    async fn claim_leased(&mut self) -> Result<(Claimed, Option<LeaseKeeper>), ArchiveError> {
        loop {
            let claimed = self.claim().await?;
            match self.begin(&claimed.head.head).await {
                Err(ArchiveError::Marked(_)) => {}
                begun => return begun.map(|lease| (claimed, lease)),
            }
        }
    }

    /// Claims the archive, and ships. Sends the promise of the claim when that is known, and then
    /// that all is archived.
    async fn follow(mut self, known: oneshot::Sender<Result<Promise, ArchiveError>>, archived: oneshot::Sender<()>) {
        let shared = self.archive.0.clone();
        let mut stop = shared.stop.subscribe();
        let begun = tokio::select! {
            biased;
            _ = stop.wait_for(Stopping::is_set) => {
                shared.progress.stop();
                return;
            }
            begun = self.claim_leased() => begun,
        };
        let ended = match begun {
            Ok((claimed, lease)) => {
                let (attempts, following) = (shared.attempts.clone(), shared.following.clone());
                let options = self.options.clone();
                let Head { tenure, promise, .. } = claimed.head.head;
                let named = NamedObjects::new(&claimed.loaded);
                let cleaner = Arc::new(Cleaner::new(shared.deletes.clone(), tenure, options.sabotage));
                let beside = (shared.progress.clone(), cleaner.clone());
                let shipper = Shipper::new(claimed, attempts, following, options, beside);
                let _ = known.send(Ok(promise));
                let progress = shared.progress.clone();
                shared.env.spawn("archive deletes", async move {
                    tokio::select! {
                        biased;
                        () = progress.stopped() => {}
                        never = cleaner.run(named) => match never {},
                    }
                });
                let lost = self.keep(lease);
                tokio::select! {
                    biased;
                    Ok(error) = lost => Err(error),
                    shipped = shipper.run(shared.stop.subscribe(), archived) => match shipped {
                        Ok(shipper) => self.hand_over(shipper).await,
                        Err(e) => Err(e),
                    }
                }
            }
            Err(e) => {
                let _ = known.send(Err(e.clone()));
                Err(e)
            }
        };
        match ended {
            Ok(()) => {}
            Err(error @ ArchiveError::Broken { .. }) => {
                let mut stop = shared.stop.subscribe();
                let error = tokio::select! {
                    biased;
                    _ = stop.wait_for(Stopping::is_set) => error,
                    error = self.reason(error.clone()) => error,
                };
                self.end(error).await;
            }
            Err(error) => self.end(error).await,
        }
        shared.progress.stop();
    }

    /// Keeps the promise and the lease of the options, from the claim on that wrote this head.
    async fn begin(&mut self, head: &Head) -> Result<Option<LeaseKeeper>, ArchiveError> {
        if self.options.promise == Promise::Archived {
            self.state.promising().await?;
        }
        let leased = self.state.known().is_some_and(|known| known.leased);
        if self.options.lease.is_some() {
            self.state.leasing(true).await?;
        }
        let (attempts, lease) = (self.archive.0.attempts.apart(), self.archive.0.lease.clone());
        let keeper = LeaseKeeper::begin(attempts, lease, head, &self.options, leased).await?;
        self.state.leasing(keeper.is_some()).await?;
        Ok(keeper)
    }

    /// Keeps a lease as long as this process follows. The receiver gets why it was lost.
    fn keep(&self, lease: Option<LeaseKeeper>) -> oneshot::Receiver<ArchiveError> {
        let (lost, why) = oneshot::channel();
        if let Some(lease) = lease {
            let progress = self.archive.0.progress.clone();
            self.archive.0.env.spawn_critical("archive lease", async move {
                tokio::select! {
                    biased;
                    () = progress.stopped() => {}
                    error = lease.keep() => {
                        let error = match error {
                            ArchiveError::Superseded { machine, tenure, .. } => {
                                ArchiveError::Superseded { machine, tenure, kept: progress.archived_lsns() }
                            }
                            error => error,
                        };
                        // It may have ended by itself.
                        let _ = lost.send(error);
                    }
                }
            });
        }
        why
    }

    /// Hands the archive over, if that is wanted and it has everything.
    async fn hand_over(&mut self, shipper: Shipper) -> Result<(), ArchiveError> {
        let shared = &self.archive.0;
        let is_wanted = *shared.stop.borrow() == Stopping::HandOver;
        if !is_wanted || !shared.following.is_archived() {
            return Ok(());
        }
        self.state.closing().await?;
        shipper.close().await
    }

    /// Why the archive cannot be used, if it seems broken: another owner deletes what its head does
    /// not name.
    async fn reason(&self, error: ArchiveError) -> ArchiveError {
        let shared = &self.archive.0;
        match KnownHeadObject::read(&shared.attempts).await {
            Ok(KnownHeadObject { head, .. }) if !self.state.drew(head.owner) && self.state.known().is_some() => {
                ArchiveError::Superseded {
                    machine: head.machine,
                    tenure: head.tenure,
                    kept: shared.progress.archived_lsns(),
                }
            }
            _ => error,
        }
    }

    async fn end(&mut self, error: ArchiveError) {
        tracing::error!(%error, "the archive is not followed any more");
        if matches!(error, ArchiveError::Superseded { .. })
            && let Err(e) = self.state.superseded().await
        {
            tracing::error!(error = %e, "the next start may not know that the archive has another owner");
        }
        self.archive.0.progress.end(error);
    }
}
