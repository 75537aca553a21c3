//! Restores the pool of a data directory from its archive.

mod assign;
mod mark;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use serde::Serialize;
use steadfast_archive::{
    ArchiveReader, ArchivedDisk, ArchivedPool, RestorePlace, StateKeeper, TakeOver, TransferProgress,
};
use steadfast_disk::{Disk, Stripe, StripeOptions};
use steadfast_flow::Env;
use steadfast_net::RemoteStore;

use crate::config::{Config, DiskSet};
use crate::datadir::DataDir;
use crate::disks::fast::FastLeg;
use crate::disks::open::{Disks, Taking, open_file, stripe};
use crate::disks::plan::{Plan, Scope};
use crate::serve::archive::{StateFile, machine};
use crate::serve::engine::Engine;
use assign::{Assigned, assign};
use mark::{MarkedDisk, RestoreMark};

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
    data: DataDir,
    request: RestoreRequest,
    reader: ArchiveReader,
    from: String,
    progress: &'a TransferProgress,
    env: &'a Env,
}

impl<'a> Restoring<'a> {
    /// Locks the data directory.
    ///
    /// # Errors
    /// What is wrong with the configuration or the directory.
    pub fn new(
        config: &'a Config,
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
        let data = DataDir::create(&config.data.dir)?;
        let (from, reader) = (store.describe(), ArchiveReader::new(store, Some(PATIENCE), env));
        Ok(Self { config, data, request, reader, from, progress, env })
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
        let before = RestoreMark::load(&self.data)?;
        let (pool, mark) = match before.clone() {
            Some(mark) => self.again(mark).await?,
            None => self.begin().await?,
        };
        let continued = before.is_some_and(|before| before.fingerprint == mark.fingerprint);
        let of_mark = |of: &ArchivedDisk| mark.disks.iter().find(|disk| disk.id == of.id.to_string());
        let disks: Vec<(ArchivedDisk, MarkedDisk)> =
            pool.disks().into_iter().filter_map(|of| Some((of.clone(), of_mark(&of)?.clone()))).collect();
        if !mark.written {
            self.write(&pool, &disks, mark).await?;
        }
        let (objects, warnings) = self.open(|set| disks.iter().any(|(_, disk)| disk.paths == set.durable)).await?;
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
        self.data.note_restored(&serde_json::to_string_pretty(&restored).map_err(|e| e.to_string())?)?;
        RestoreMark::remove(&self.data)?;
        Ok(restored)
    }

    /// The state, for a restore that begins.
    async fn begin(&self) -> Result<(ArchivedPool, RestoreMark), String> {
        // What cannot work must not take the archive from its owner.
        let newest = match self.request.at_ms {
            Some(at_ms) => self.reader.at(at_ms).await,
            None => self.reader.newest().await,
        };
        let newest = newest.map_err(|e| e.to_string())?;
        let assigned = self.assign(&newest)?;
        let pool = if self.request.at_ms.is_some() {
            newest
        } else {
            let from = match (self.request.disks.is_empty(), self.request.take_over) {
                (false, _) => TakeOver::Own,
                (true, false) => TakeOver::Idle,
                (true, true) => TakeOver::Any,
            };
            self.reader.take_over(self.keeper(), &machine(), from).await.map_err(|e| e.to_string())?
        };
        let marked = |one: &Assigned| MarkedDisk {
            id: one.of.id.to_string(),
            paths: one.set.durable.clone(),
            blank: one.new_files,
            reached: 0,
        };
        let mark = RestoreMark {
            from: self.from.clone(),
            at_ms: self.request.at_ms,
            wanted: self.request.disks.clone(),
            tenure: pool.tenure(),
            fingerprint: pool.fingerprint(),
            disks: assigned.iter().map(marked).collect(),
            written: false,
        };
        mark.store(&self.data)?;
        Ok((pool, mark))
    }

    /// The state, for a restore that was interrupted.
    async fn again(&self, mut mark: RestoreMark) -> Result<(ArchivedPool, RestoreMark), String> {
        if (&mark.from, mark.at_ms, &mark.wanted) != (&self.from, self.request.at_ms, &self.request.disks) {
            DataDir::refuse_restoring(self.data.path())?;
        }
        let pool = match (mark.tenure, mark.at_ms) {
            (Some(tenure), _) => self.reader.taken_over(self.keeper(), tenure).await,
            (None, at_ms) => self.reader.at(at_ms.unwrap_or(u64::MAX)).await,
        };
        let pool = pool.map_err(|e| e.to_string())?;
        if pool.fingerprint() != mark.fingerprint {
            // The state of that time is in another object by now, with more.
            mark.fingerprint = pool.fingerprint();
            mark.written = false;
            mark.disks.iter_mut().for_each(|disk| (disk.blank, disk.reached) = (false, 0));
            mark.store(&self.data)?;
        }
        let here = |disk: &MarkedDisk| self.config.disk_sets().iter().any(|set| set.durable == disk.paths);
        if let Some(other) = mark.disks.iter().find(|disk| !here(disk)) {
            let paths: Vec<String> = other.paths.iter().map(|path| path.display().to_string()).collect();
            return Err(format!("the interrupted restore writes {}: name it in the configuration", paths.join(", ")));
        }
        Ok((pool, mark))
    }

    /// Finds the place of each disk that is to be restored.
    fn assign(&self, pool: &ArchivedPool) -> Result<Vec<Assigned>, String> {
        let scope = Scope { pool: true, force: self.request.force, begun: false };
        let plan = Plan::make(self.config, scope)?;
        let assigned = assign(&pool.disks(), &self.request.disks, self.config.disk_sets(), &plan)?;
        let refusals = plan.refusals_of(|disk| assigned.iter().any(|one| one.number == disk));
        if refusals.is_empty() { Ok(assigned) } else { Err(refusals.join("\n")) }
    }

    /// Writes the disks.
    async fn write(
        &self,
        pool: &ArchivedPool,
        disks: &[(ArchivedDisk, MarkedDisk)],
        mark: RestoreMark,
    ) -> Result<(), String> {
        if mark.tenure.is_none() {
            // The restored pool is another history: it must not continue an archive.
            self.forget_archive()?;
        }
        let mark = Mutex::new(mark);
        let sets = self.config.disk_sets();
        let one = |(of, disk): &(ArchivedDisk, MarkedDisk)| {
            let (of, disk, mark) = (of.clone(), disk.clone(), &mark);
            let set = sets.iter().find(|set| set.durable == disk.paths).expect("it is configured");
            async move {
                let onto = self.open_place(set, disk.blank && disk.reached == 0).await?;
                let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", onto.describe());
                let capacity = onto.geometry().capacity_bytes;
                if capacity < of.needs_bytes {
                    let (has, needs) = (crate::config::human_size(capacity), crate::config::human_size(of.needs_bytes));
                    return Err(fail(&format!("it has {has}, and the disk {} needs {needs}", of.name)));
                }
                let reached = |extent: u32| {
                    let mut mark = mark.lock();
                    mark.disks.iter_mut().filter(|of| of.id == disk.id).for_each(|of| of.reached = extent);
                    mark.store(&self.data).map_err(io::Error::other)
                };
                let place = RestorePlace { disk: &onto, blank: disk.blank, begin: disk.reached, reached: &reached };
                pool.restore(of.id, &place, self.progress).await.map_err(|e| fail(&e))
            }
        };
        try_join_all(disks.iter().map(one)).await?;
        let mut mark = mark.into_inner();
        mark.written = true;
        mark.store(&self.data)
    }

    /// Forgets that the pool of this directory owned an archive.
    fn forget_archive(&self) -> Result<(), String> {
        let path = self.data.archive();
        match std::fs::remove_file(&path) {
            Ok(()) => self.data.sync().map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }

    /// Opens the disk of a log, which is to be written. `new`: it is made of new files.
    async fn open_place(&self, set: &DiskSet, new: bool) -> Result<Arc<dyn Disk>, String> {
        let limit = self.config.data.pool_size.map(|size| size.0);
        let mut disks = Vec::new();
        for path in &set.durable {
            if new {
                match std::fs::remove_file(path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {e}", path.display())),
                    _ => {}
                }
            }
            disks.push(open_file(path, self.config, self.env, limit, new).await?);
        }
        if disks.len() > 1 {
            let is_one = !new && Stripe::open(disks.clone()).await.is_ok();
            if !is_one {
                let formatted = Stripe::format(&disks, self.env, &StripeOptions::default(), true).await;
                formatted.map_err(|e| e.to_string())?;
            }
        }
        stripe(disks).await
    }

    /// Opens the restored pool once. Returns the count of its objects, and what to warn of.
    async fn open(&self, is_restored: impl Fn(&DiskSet) -> bool) -> Result<(u64, Vec<String>), String> {
        for set in self.config.disk_sets().into_iter().filter(|set| !set.fast.is_empty() && is_restored(set)) {
            // The fast disks were checked, or the operator has forced it.
            Disks::open(self.config, &set, self.env, Taking::All).await?.close().await;
        }
        let mut config = self.config.clone();
        config.data.restored = true;
        let engine = Engine::open(&config, &self.data, None, self.env).await?;
        let mut warnings: Vec<String> =
            engine.failed_disks().into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
        let without_fast = |fast: &FastLeg| Some(format!("{}: {}", fast.disk(), fast.why()?));
        warnings.extend(engine.superdisks().iter().filter_map(without_fast));
        let objects = engine.store().status().objects;
        engine.close(CLOSE_DEADLINE, self.env).await?;
        Ok((objects, warnings))
    }
}
