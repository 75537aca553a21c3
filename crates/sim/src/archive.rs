//! The archive of a run: a store that outlives the machine, and restores from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_archive::{
    Archive, ArchiveError, ArchiveOptions, ArchiveParts, ArchiveReader, ArchiveState, DiskId, Members, PoolMember,
    RestoreError, RestorePlace, TakeOver, TransferProgress,
};
use steadfast_disk::Disk;
use steadfast_flow::{BoxFuture, Env, Lease, Runtime};
use steadfast_log::Log;
use steadfast_net::{Fate, Fates, MemoryStore};
use steadfast_store::Store;

use crate::kept::Kept;
use crate::members::disk_name;
use crate::moment::ClientKnowledge;
use crate::outcome::Outcome;
use crate::plan::ArchivePlan;
use crate::rng::Rng;
use crate::shared::Shared;
use crate::standby::{RestoredState, StandbyMachine};

/// Time in which an archive catches up once its store answers.
const CATCH_UP: Duration = Duration::from_secs(600);

/// What was known at each look at the logs.
#[derive(Default)]
struct Looks {
    /// By the number of the first look at which it was known.
    known: BTreeMap<u64, ClientKnowledge>,
    /// The count of changes at the last one.
    last: Option<u64>,
}

impl Looks {
    /// Notes what is known at a look.
    fn note(&mut self, look: u64, shared: &Shared) {
        let now = shared.changes();
        if self.last != Some(now) {
            self.known.insert(look, ClientKnowledge::new(shared));
            self.last = Some(now);
        }
    }

    /// What was known at a look.
    fn at(&self, look: u64) -> Option<&ClientKnowledge> {
        self.known.range(..=look).next_back().map(|(_, known)| known)
    }

    /// Drops what was known at looks after one.
    fn forget_after(&mut self, look: u64) {
        self.known.retain(|first, _| *first <= look);
        self.last = None;
    }

    /// Drops what was known at no look that a head names, or will name.
    fn forget_but(&mut self, named: [Option<u64>; 2]) {
        let first = |look: u64| self.known.range(..=look).next_back().map(|(first, _)| *first);
        let kept: Vec<u64> = named.into_iter().flatten().filter_map(first).collect();
        self.known.retain(|first, _| kept.contains(first));
        self.last = None;
    }
}

/// The environment of an archive: its wall clock counts the looks, so that each has its own time.
struct CountedLooks {
    env: Env,
    looks: Arc<AtomicU64>,
}

impl Runtime for CountedLooks {
    fn now(&self) -> Duration {
        self.env.now()
    }

    fn wall_ms(&self) -> u64 {
        self.looks.load(Relaxed)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.env.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.env.spawn(name, task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let env = self.env.clone();
        Box::pin(async move { env.blocking(work).await.unwrap_or_default() })
    }

    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }
}

/// The members of the pool. Each look at them is a moment that may be restored.
struct Watched {
    store: Store,
    shared: Arc<Shared>,
    looks: Arc<Mutex<Looks>>,
    archive: Arc<Mutex<Option<Archive>>>,
    counted: Arc<AtomicU64>,
    /// The last look of the lives before.
    begun: u64,
}

impl Members for Watched {
    fn members(&self) -> Vec<PoolMember> {
        let mut looks = self.looks.lock();
        let status = self.archive.lock().as_ref().map(Archive::status);
        match status.filter(|status| status.tenure > 0) {
            Some(status) => looks.forget_but([status.archived_ms, status.shipping_ms]),
            // Before the claim no cut is taken: the head names one of an earlier life.
            None => looks.forget_after(self.begun),
        }
        looks.note(self.counted.fetch_add(1, Relaxed) + 1, &self.shared);
        self.store.members()
    }

    fn log(&self, disk: DiskId) -> Option<Log> {
        self.store.members().into_iter().find(|member| member.id == disk)?.log
    }
}

/// The store of a run's archive, with what was known of the pool at each cut.
#[derive(Default)]
pub(crate) struct Elsewhere {
    remote: Option<MemoryStore>,
    kept: Arc<Kept>,
    looks: Arc<Mutex<Looks>>,
    /// How many looks there were.
    counted: Arc<AtomicU64>,
    /// The archive of the last life.
    last: Arc<Mutex<Option<Archive>>>,
    /// The newest look that was known to be archived.
    floor: u64,
    standby: Arc<StandbyMachine>,
}

/// A machine onto which a pool is restored.
#[derive(Clone)]
pub(crate) struct BlankMachine {
    pub(crate) remote: MemoryStore,
    /// Its own owner numbers.
    pub(crate) kept: Arc<Kept>,
}

/// The archive in one life.
#[derive(Clone)]
pub(crate) struct LifeArchive {
    plan: ArchivePlan,
    remote: MemoryStore,
    kept: Arc<Kept>,
    looks: Arc<Mutex<Looks>>,
    counted: Arc<AtomicU64>,
    archive: Arc<Mutex<Option<Archive>>>,
    /// Whether the disks may be older than the archive.
    maybe_older: bool,
    standby: Arc<StandbyMachine>,
}

impl Elsewhere {
    /// The archive for a life.
    pub(crate) fn begin(&mut self, plan: &ArchivePlan, maybe_older: bool, rng: Rng, env: &Env) -> LifeArchive {
        let remote = self.in_env(plan, rng, env);
        self.last = Arc::default();
        let (kept, looks, counted) = (self.kept.clone(), self.looks.clone(), self.counted.clone());
        let (plan, archive, standby) = (plan.clone(), self.last.clone(), self.standby.clone());
        LifeArchive { plan, remote, kept, looks, counted, archive, maybe_older, standby }
    }

    fn in_env(&mut self, plan: &ArchivePlan, rng: Rng, env: &Env) -> MemoryStore {
        let fates = plan.fates(rng, env);
        let remote = match &self.remote {
            Some(remote) => remote.in_env(env, fates),
            None => MemoryStore::new(env, fates),
        };
        self.remote.insert(remote).clone()
    }

    /// After a life: notes what was archived. Returns whether its process owned the archive.
    pub(crate) fn end(&mut self, shared: &Shared) -> bool {
        // It holds the store, whose members know it.
        let Some(status) = self.last.lock().take().map(|archive| archive.status()) else { return false };
        self.floor = self.floor.max(status.archived_ms.unwrap_or(0));
        shared.counts.lock().archive_deleted += status.deleted;
        status.tenure > 0
    }

    /// Ends the standby: a new one begins in the next life. Returns the one that there was.
    pub(crate) fn take_standby(&mut self) -> Arc<StandbyMachine> {
        std::mem::take(&mut self.standby)
    }

    /// Restores all disks. Returns the restored state; `None` if there is none yet.
    pub(crate) async fn restore(
        onto: BlankMachine,
        disks: Vec<(usize, Arc<dyn Disk>)>,
        env: Env,
    ) -> Outcome<Option<RestoredState>> {
        let reader = ArchiveReader::new(Arc::new(onto.remote), None, &env);
        // All states that can be restored are whole.
        match reader.verify(&TransferProgress::default()).await {
            Ok(check) if check.damaged > 0 => return Err(format!("ARCHIVE: states are damaged: {:?}", check.damage)),
            Ok(_) | Err(ArchiveError::NothingYet(_) | ArchiveError::Foreign(_)) => {}
            Err(e) => return Err(format!("ARCHIVE: it cannot be verified: {e}")),
        }
        let archived = match reader.take_over(onto.kept, "sim", TakeOver::Any).await {
            Ok(archived) => archived,
            Err(ArchiveError::NothingYet(_)) => return Ok(None),
            Err(ArchiveError::Foreign(why)) if why.contains("no archive") => return Ok(None),
            Err(e) => return Err(format!("ARCHIVE: it cannot be taken over: {e}")),
        };
        let there = archived.disks();
        for of in &there {
            let named = disks.iter().find(|(number, _)| disk_name(*number) == of.name);
            let (_, disk) = named.ok_or_else(|| format!("ARCHIVE: it has a disk {}", of.name))?;
            let place = RestorePlace::new(disk);
            let fail = |e: RestoreError| format!("ARCHIVE: {} cannot be restored: {e}", of.name);
            archived.fill(of.id, &place, &TransferProgress::default()).await.map_err(fail)?;
            archived.finish(of.id, &place).await.map_err(fail)?;
        }
        if there.len() != disks.len() {
            return Err(format!("ARCHIVE: it has {} of {} disks", there.len(), disks.len()));
        }
        Ok(Some(RestoredState::new(&archived)))
    }

    /// A machine that knows nothing of the archive, for a restore; `None` if there is no archive.
    pub(crate) fn blank_machine(&mut self, env: &Env) -> Option<BlankMachine> {
        let well: Fates = Arc::new(|_| Fate::Answered(Duration::from_micros(100)));
        let remote = self.remote.as_ref()?.in_env(env, well);
        self.remote = Some(remote.clone());
        Some(BlankMachine { remote, kept: Arc::default() })
    }

    /// The restored machine is that of the pool now: takes over what was known at its state. If
    /// that is complete, it has all that was answered.
    pub(crate) fn continue_on(&mut self, machine: BlankMachine, state: RestoredState, shared: &Shared) -> Outcome {
        self.kept = machine.kept;
        let RestoredState { look, complete } = state;
        if look < self.floor {
            return Err(format!("ARCHIVE: look {look} was restored, and {} had been archived", self.floor));
        }
        if complete {
            shared.counts.lock().complete_restores += 1;
            return Ok(());
        }
        let looks = self.looks.lock();
        let known = looks.at(look).ok_or_else(|| format!("ARCHIVE: {look} was restored, which is no look"))?;
        known.restore(shared);
        Ok(())
    }
}

impl LifeArchive {
    /// Starts to follow, before the store serves.
    pub(crate) async fn start(&mut self, store: &Store, shared: &Arc<Shared>, env: &Env) -> Outcome {
        let archive = match self.try_start(store, shared, env).await {
            Ok(archive) => archive,
            // The life has none.
            Err(ArchiveError::Unreachable(_)) => return Ok(()),
            Err(ArchiveError::Older(_)) if self.maybe_older => {
                // As an operator would, with another prefix at the next start.
                self.remote.clear();
                self.kept.clear();
                *self.looks.lock() = Looks::default();
                self.standby.begin_anew();
                return Ok(());
            }
            Err(e) => return Err(format!("ARCHIVE: {e}")),
        };
        *self.archive.lock() = Some(archive);
        if self.plan.standby {
            let ArchiveOptions { interval, sabotage, .. } = self.plan.options;
            env.spawn("standby", self.standby.clone().follow(self.remote.clone(), interval, sabotage, env.clone()));
        }
        Ok(())
    }

    async fn try_start(&self, store: &Store, shared: &Arc<Shared>, env: &Env) -> Result<Archive, ArchiveError> {
        let members = Arc::new(Watched {
            store: store.clone(),
            shared: shared.clone(),
            looks: self.looks.clone(),
            archive: self.archive.clone(),
            counted: self.counted.clone(),
            begun: self.counted.load(Relaxed),
        });
        let (keeper, lease) = (self.kept.clone(), Lease::unlimited(env));
        let parts = ArchiveParts { store: Arc::new(self.remote.clone()), keeper, members, lease };
        let env = Env::new(CountedLooks { env: env.clone(), looks: self.counted.clone() });
        Archive::start(parts, self.plan.options.clone(), &env).await
    }

    /// Checks that the archive is well.
    pub(crate) fn check(&self) -> Outcome {
        self.standby.check()?;
        let Some(status) = self.archive.lock().as_ref().map(Archive::status) else { return Ok(()) };
        match (status.error, status.damaged_bytes) {
            // They were put back while the store was away.
            (Some(error), _) if self.maybe_older && error.contains("older than the archive") => Ok(()),
            (Some(error), _) => Err(format!("ARCHIVE: it has ended: {error}")),
            (None, 0) => Ok(()),
            (None, bytes) => Err(format!("ARCHIVE: {bytes} bytes seem damaged")),
        }
    }

    /// Ends it before the store closes: it must catch up.
    pub(crate) async fn stop(&self) -> Outcome {
        let Some(archive) = self.archive.lock().clone() else { return Ok(()) };
        archive.stop(CATCH_UP).await;
        self.check()?;
        let status = archive.status();
        // A stop does not wait for a claim whose requests fail.
        let is_claiming = status.state == ArchiveState::Claiming && status.failures > 0;
        if status.error.is_some() || is_claiming {
            return Ok(());
        }
        if status.state != ArchiveState::Following || status.lag_bytes > 0 || status.lag_seconds > 0.0 {
            return Err(format!("ARCHIVE: it does not catch up: {status:?}"));
        }
        Ok(())
    }
}
