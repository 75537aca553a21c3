//! Restores the pool of a data directory from its archive.

pub mod assign;
pub mod mark;
pub mod places;
pub mod standby_mark;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use serde::Serialize;
use steadfast_archive::{
    ArchiveError, ArchiveGate, ArchiveReader, ArchivedDisk, ArchivedPool, RestorePlace, StateKeeper, TakeOver,
    TransferProgress,
};
use steadfast_flow::Env;
use steadfast_net::RemoteStore;

use crate::config::{Config, DiskSet, added_disks};
use crate::datadir::DataDir;
use crate::disks::fast::FastLeg;
use crate::disks::making::{self, Begun};
use crate::disks::open::{Disks, Taking, open_durable};
use crate::disks::plan::{Plan, Role, Scope};
use crate::serve::archive::{StateFile, machine};
use crate::serve::engine::Engine;
use assign::{Assigned, assign};
use mark::{MarkedDisk, MarkedState, RestoreMark};
use places::{DiskPlaces, holds_pool};
use standby_mark::StandbyMark;

/// Time for which requests to the store are repeated.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Time that the closing of the restored pool may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(600);

/// What is to be restored.
#[derive(Debug, Clone, Default)]
pub struct RestoreRequest {
    /// A time in milliseconds since the Unix epoch: the last state that is not later. Without it,
    /// the newest state, and the pool continues the archive.
    pub at_ms: Option<u64>,
    /// The names of disks, or their identities; empty: all.
    pub disks: Vec<String>,
    /// Overwrite disks that hold data.
    pub force: bool,
    /// Take the archive from a server that writes to it.
    pub take_over: bool,
}

/// A pool that was restored.
#[derive(Debug, Clone, Serialize)]
pub struct Restored {
    /// The store of the archive.
    pub from: String,
    /// When the state was taken, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The tenure with which the archive was taken over; `None` for a state of an earlier time.
    pub tenure: Option<u64>,
    /// The restored disks: name in the archive, and the paths.
    pub disks: Vec<(String, String)>,
    /// Bytes of the restored disks in the archive.
    pub bytes: u64,
    /// Objects of the pool.
    pub objects: u64,
    /// Whether an interrupted restore was continued.
    pub continued: bool,
    /// What needs the attention of the operator.
    pub warnings: Vec<String>,
}

/// A restore under way.
pub struct Restoring<'a> {
    config: &'a Config,
    data: &'a DataDir,
    request: RestoreRequest,
    reader: ArchiveReader,
    from: String,
    progress: &'a TransferProgress,
    env: &'a Env,
}

impl<'a> Restoring<'a> {
    /// A restore into a data directory.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(
        config: &'a Config,
        data: &'a DataDir,
        request: RestoreRequest,
        store: Arc<dyn RemoteStore>,
        progress: &'a TransferProgress,
        env: &'a Env,
    ) -> Result<Self, String> {
        if config.data.zone_size.is_some() {
            return Err("data.zone_size: a pool on zones has no archive".to_owned());
        }
        if config.is_front()? {
            return Err("cluster.homes does not name this node, so it has no pool".to_owned());
        }
        let (from, reader) = (store.describe(), ArchiveReader::new(store, Some(PATIENCE), env));
        Ok(Self { config, data, request, reader, from, progress, env })
    }

    fn places(&self) -> DiskPlaces<'a> {
        DiskPlaces { config: self.config, env: self.env }
    }

    fn keeper(&self) -> Arc<dyn StateKeeper> {
        Arc::new(StateFile(self.data.archive()))
    }

    /// Restores the pool, and opens it once: that gives its channels new epochs, and makes its
    /// index.
    ///
    /// # Errors
    /// Why it cannot be restored. Another attempt continues.
    pub async fn run(&self) -> Result<Restored, String> {
        let before = RestoreMark::load(self.data)?;
        if let Some(mark) = &before
            && (&mark.from, mark.at_ms, &mark.wanted) != (&self.from, self.request.at_ms, &self.request.disks)
        {
            DataDir::refuse_restoring(self.data.path())?;
        }
        let before = before.and_then(|mark| mark.state);
        let continued = before.is_some();
        let (pool, state) = match before {
            Some(state) => self.again(state).await?,
            None => self.begin().await?,
        };
        let disks = of_state(&pool, &state)?;
        let id = state.id();
        let complete = state.complete;
        if !state.written {
            self.fill(&pool, &disks, state).await?;
        }
        self.end(&pool, &disks, (id, complete), continued).await
    }

    /// Makes the disks of a promoted standby those of the pool, and opens it once. Should that be
    /// interrupted, [`Restoring::run`] continues.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub async fn promote(&self, pool: &ArchivedPool, standby: &StandbyMark) -> Result<Restored, String> {
        let complete = pool.is_complete();
        let there: Vec<String> = pool.disks().iter().map(|of| of.id.to_string()).collect();
        // Others have left the pool since.
        let disks = standby.disks.iter().filter(|disk| there.contains(&disk.disk)).cloned().collect();
        let (tenure, fingerprint, id) = (pool.tenure(), pool.fingerprint(), standby.id.clone());
        let state = MarkedState { tenure, fingerprint, id, disks, written: true, complete };
        let disks = of_state(pool, &state)?;
        self.mark(Some(state.clone())).store(self.data)?;
        self.end(pool, &disks, (state.id(), complete), false).await
    }

    /// Makes the filled disks a pool, and opens it.
    async fn end(
        &self,
        pool: &ArchivedPool,
        disks: &[(ArchivedDisk, MarkedDisk)],
        (id, complete): ([u8; 16], bool),
        continued: bool,
    ) -> Result<Restored, String> {
        self.finish(pool, disks, id).await?;
        let is_restored = |set: &DiskSet| disks.iter().any(|(_, disk)| disk.paths == set.durable);
        let (objects, warnings) = self.open(is_restored, complete).await?;
        let shown = |(of, disk): &(ArchivedDisk, MarkedDisk)| {
            let paths: Vec<String> = disk.paths.iter().map(|path| path.display().to_string()).collect();
            (of.name.clone(), paths.join(", "))
        };
        let restored = Restored {
            from: self.from.clone(),
            time_ms: pool.time_ms(),
            tenure: pool.tenure(),
            disks: disks.iter().map(shown).collect(),
            bytes: disks.iter().map(|(of, _)| of.bytes).sum(),
            objects,
            continued,
            warnings,
        };
        if self.request.disks.is_empty() {
            self.data.note_restored(&serde_json::to_string_pretty(&restored).map_err(|e| e.to_string())?)?;
        }
        StandbyMark::remove(self.data)?;
        RestoreMark::remove(self.data)?;
        Ok(restored)
    }

    fn mark(&self, state: Option<MarkedState>) -> RestoreMark {
        let RestoreRequest { at_ms, disks, .. } = self.request.clone();
        RestoreMark { from: self.from.clone(), at_ms, wanted: disks, state }
    }

    fn new_id(&self) -> String {
        format!("{:016x}{:016x}", self.env.random_u64(), self.env.random_u64())
    }

    /// The state, for a restore that begins.
    async fn begin(&self) -> Result<(ArchivedPool, MarkedState), String> {
        // What cannot work must not take the archive from its owner.
        let newest = match self.request.at_ms {
            Some(at_ms) => self.reader.at(at_ms).await,
            None => self.reader.newest().await,
        };
        let newest = newest.map_err(|e| e.to_string())?;
        if !self.request.disks.is_empty() && making::begun(self.config)? != Begun::No {
            return Err("the creation of this pool was interrupted: it has nothing to restore".to_owned());
        }
        let assigned = self.assign(&newest)?;
        let pool = if self.request.at_ms.is_some() { newest } else { self.take_over().await? };
        let marked = |one: &Assigned| MarkedDisk {
            disk: one.of.id.to_string(),
            paths: one.set.durable.clone(),
            files: one.new_files,
            reached: 0,
        };
        let state = MarkedState {
            tenure: pool.tenure(),
            fingerprint: pool.fingerprint(),
            id: self.new_id(),
            disks: assigned.iter().map(marked).collect(),
            written: false,
            // One disk alone may be of another time than the others.
            complete: pool.is_complete() && self.request.disks.is_empty(),
        };
        self.mark(Some(state.clone())).store(self.data)?;
        Ok((pool, state))
    }

    async fn take_over(&self) -> Result<ArchivedPool, String> {
        // From here on no server may start, which would make a pool of its own.
        self.mark(None).store(self.data)?;
        let from = match (self.request.disks.is_empty(), self.request.take_over) {
            (false, _) => TakeOver::Own,
            (true, false) => TakeOver::Idle,
            (true, true) => TakeOver::Any,
        };
        match self.reader.take_over(self.keeper(), &machine(), from).await {
            Ok(pool) => Ok(pool),
            Err(e) => {
                let refused = matches!(e, ArchiveError::InUse { .. } | ArchiveError::Foreign(_));
                if refused || matches!(e, ArchiveError::Superseded { .. }) {
                    RestoreMark::remove(self.data)?;
                }
                Err(e.to_string())
            }
        }
    }

    /// The state, for a restore that was interrupted.
    async fn again(&self, mut state: MarkedState) -> Result<(ArchivedPool, MarkedState), String> {
        let pool = match (state.tenure, self.request.at_ms) {
            (Some(tenure), _) => self.reader.taken_over(self.keeper(), tenure).await,
            (None, at_ms) => self.reader.at(at_ms.unwrap_or(u64::MAX)).await,
        };
        let pool = pool.map_err(|e| match e {
            ArchiveError::Superseded { .. } => {
                format!("{e}. To give this restore up, remove {}", self.data.restoring().display())
            }
            e => e.to_string(),
        })?;
        self.look_again(&mut state).await?;
        if pool.fingerprint() != state.fingerprint {
            // The state of that time is in another object by now, with more.
            (state.fingerprint, state.id) = (pool.fingerprint(), self.new_id());
            state.begin_anew();
        }
        self.mark(Some(state.clone())).store(self.data)?;
        Ok((pool, state))
    }

    /// Looks whether the disks still hold what an interrupted restore has written. Others are
    /// checked as at its beginning.
    async fn look_again(&self, state: &mut MarkedState) -> Result<(), String> {
        let (id, sets) = (state.id(), self.config.disk_sets());
        let (mut ours, mut fresh) = (Vec::new(), Vec::new());
        for disk in &mut state.disks {
            let Some(number) = sets.iter().position(|set| set.durable == disk.paths) else {
                let paths: Vec<String> = disk.paths.iter().map(|path| path.display().to_string()).collect();
                return Err(format!(
                    "the interrupted restore writes {}: name it in the configuration",
                    paths.join(", ")
                ));
            };
            let there = open_durable(self.config, &sets[number], self.env).await;
            let is_ours = match &there {
                Ok(there) if RestorePlace::is_begun(there, id).await => true,
                Ok(there) => state.written && holds_pool(there, &disk.disk).await,
                Err(_) => false,
            };
            if is_ours {
                ours.push(number);
            } else {
                disk.reached = 0;
                fresh.push(number);
            }
        }
        if state.written && !fresh.is_empty() {
            // The others may have been opened, and hold more than the state.
            state.begin_anew();
        }
        let scope = |begun| Scope { pool: true, force: self.request.force, begun };
        // What lies on the fast disks may be of the interrupted attempt.
        let fast = Plan::make(self.config, scope(true))?
            .refusals_of(|disk| disk.role == Role::Fast && (ours.contains(&disk.disk) || fresh.contains(&disk.disk)));
        let durable = Plan::make(self.config, scope(false))?.refusals_of(|disk| {
            disk.role == Role::Durable && fresh.contains(&disk.disk) && !disk.found.contents.is_empty()
        });
        let refusals = [durable, fast].concat();
        if refusals.is_empty() { Ok(()) } else { Err(refusals.join("\n")) }
    }

    /// Finds the place of each disk that is to be restored.
    fn assign(&self, pool: &ArchivedPool) -> Result<Vec<Assigned>, String> {
        let scope = Scope { pool: true, force: self.request.force, begun: false };
        let plan = Plan::make(self.config, scope)?;
        let assigned = assign(&pool.disks(), &self.request.disks, self.config.disk_sets(), &plan)?;
        let refusals = plan.refusals_of(|disk| assigned.iter().any(|one| one.number == disk.disk));
        if refusals.is_empty() { Ok(assigned) } else { Err(refusals.join("\n")) }
    }

    /// Fills the disks. None of them holds a pool before all are filled.
    async fn fill(
        &self,
        pool: &ArchivedPool,
        disks: &[(ArchivedDisk, MarkedDisk)],
        state: MarkedState,
    ) -> Result<(), String> {
        if state.tenure.is_none() {
            // The restored pool is another history: it must not continue an archive.
            self.data.forget_archive()?;
        }
        if self.request.disks.is_empty() {
            // They are of the pool that was here before.
            making::end(self.data)?;
            if !added_disks::read(self.data.path()).is_empty() {
                added_disks::write(self.data.path(), &[])?;
            }
        }
        let (id, sets) = (state.id(), self.config.disk_sets());
        let state = Mutex::new(state);
        let one = |(of, disk): &(ArchivedDisk, MarkedDisk)| {
            let (of, disk, state) = (of.clone(), disk.clone(), &state);
            let set = sets.iter().find(|set| set.durable == disk.paths).expect("it is configured");
            async move {
                let onto = self.places().open(set, disk.files && disk.reached == 0).await?;
                let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", onto.describe());
                let reached = |extent: u32| {
                    let mut state = state.lock();
                    state.disks.iter_mut().filter(|of| of.disk == disk.disk).for_each(|of| of.reached = extent);
                    self.mark(Some(state.clone())).store(self.data).map_err(io::Error::other)
                };
                let place = RestorePlace { blank: disk.files, id, begin: disk.reached, ..RestorePlace::new(&onto) };
                let place = RestorePlace { reached: &reached, ..place };
                pool.fill(of.id, &place, self.progress).await.map_err(|e| fail(&e))
            }
        };
        try_join_all(disks.iter().map(one)).await?;
        let mut state = state.into_inner();
        state.written = true;
        self.mark(Some(state)).store(self.data)
    }

    /// Makes the filled disks those of the pool.
    async fn finish(
        &self,
        pool: &ArchivedPool,
        disks: &[(ArchivedDisk, MarkedDisk)],
        id: [u8; 16],
    ) -> Result<(), String> {
        let sets = self.config.disk_sets();
        for (of, disk) in disks {
            let set = sets.iter().find(|set| set.durable == disk.paths).expect("it is configured");
            let onto = self.places().open_again(set).await?;
            if RestorePlace::is_begun(&onto, id).await {
                let finished = pool.finish(of.id, &RestorePlace::new(&onto)).await;
                finished.map_err(|e| format!("{}: {e}", onto.describe()))?;
            }
        }
        Ok(())
    }

    /// Opens the restored pool once. `complete`: it has all that was answered. Returns the count of
    /// its objects, and what to warn of.
    async fn open(&self, is_restored: impl Fn(&DiskSet) -> bool, complete: bool) -> Result<(u64, Vec<String>), String> {
        let scope = Scope { pool: true, force: self.request.force, begun: true };
        let plan = Plan::make(self.config, scope)?;
        for (number, set) in self.config.disk_sets().into_iter().enumerate() {
            if set.fast.is_empty() || !is_restored(&set) {
                continue;
            }
            // Fast disks that hold something else are left out.
            let refusals = plan.refusals_of(|disk| disk.disk == number && disk.role == Role::Fast);
            let taking = if refusals.is_empty() { Taking::All } else { Taking::Safe };
            Disks::open(self.config, &set, self.env, taking).await?.close().await;
        }
        let mut config = self.config.clone();
        self.data.discard_indexes()?;
        // Channels that may have had more get other epochs.
        config.data.restored = !complete;
        // The archive does not follow yet: no key may change its disk.
        let no_moves = Some(ArchiveGate::default());
        let engine = Engine::open(&config, self.data, no_moves, self.env).await?;
        if let Some(why) = engine.failure() {
            // Its channels would keep their epochs.
            let _ = engine.close(CLOSE_DEADLINE, self.env).await;
            return Err(format!(
                "the restored pool takes no writes: {why}. To read it as it is, remove {} and start the server with --restored",
                self.data.restoring().display()
            ));
        }
        let mut warnings: Vec<String> =
            engine.failed_disks().into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
        let without_fast = |fast: &FastLeg| Some(format!("{}: {}", fast.disk(), fast.why()?));
        warnings.extend(engine.superdisks().iter().filter_map(without_fast));
        let objects = engine.store().status().objects;
        engine.close(CLOSE_DEADLINE, self.env).await?;
        Ok((objects, warnings))
    }
}

/// The disks of a state with their places.
///
/// # Errors
/// When the archived pool has other disks by now.
fn of_state(pool: &ArchivedPool, state: &MarkedState) -> Result<Vec<(ArchivedDisk, MarkedDisk)>, String> {
    let there = pool.disks();
    let of = |disk: &MarkedDisk| there.iter().find(|of| of.id.to_string() == disk.disk).cloned();
    let disks: Option<Vec<_>> = state.disks.iter().map(|disk| Some((of(disk)?, disk.clone()))).collect();
    disks.ok_or_else(|| "the disks of the archived pool have changed meanwhile: begin the restore anew".to_owned())
}
