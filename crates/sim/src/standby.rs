//! The standby of a run: another machine, whose disks follow the archive in all lives of its owner.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_archive::{
    ArchiveError, ArchiveReader, ArchiveSabotage, ArchivedDisk, ArchivedPool, DiskId, RestoreError, RestorePlace,
    Standby, StandbyDisk, StandbyParts, TakeOver,
};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_net::MemoryStore;
use tokio::sync::watch;

use crate::kept::Kept;
use crate::members::disk_name;
use crate::outcome::Outcome;

/// The mark of its disks.
const ID: [u8; 16] = [5; 16];

/// Most bytes of a disk.
const DISK_BYTES: u64 = 1 << 30;

/// Bytes of one copy onto the devices of the pool.
const COPY_BYTES: u64 = 1 << 20;

/// The state that a restore or a promotion has found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestoredState {
    /// The look at the logs that it shows.
    pub(crate) look: u64,
    /// Whether it has all that was answered.
    pub(crate) complete: bool,
}

impl RestoredState {
    pub(crate) fn new(of: &ArchivedPool) -> Self {
        Self { look: of.time_ms(), complete: of.is_complete() }
    }
}

/// A standby. Each write to its disks is durable at once.
#[derive(Default)]
pub(crate) struct StandbyMachine {
    disks: Mutex<BTreeMap<DiskId, Arc<MemDisk>>>,
    /// Its own owner numbers.
    pub(crate) kept: Arc<Kept>,
    held: Arc<Kept>,
    /// Why it cannot follow.
    failed: Mutex<Option<String>>,
}

impl StandbyMachine {
    async fn open(
        &self,
        there: &[ArchivedDisk],
        remote: &MemoryStore,
        sabotage: ArchiveSabotage,
        env: &Env,
    ) -> Result<Standby, RestoreError> {
        let mut disks = BTreeMap::new();
        for of in there {
            let mut known = self.disks.lock();
            let disk = known.entry(of.id).or_insert_with(|| Arc::new(MemDisk::growable(DISK_BYTES))).clone();
            disks.insert(of.id, StandbyDisk { disk: disk as Arc<dyn Disk>, blank: true });
        }
        let (owner, held) = (self.kept.clone(), self.held.clone());
        let store = Arc::new(remote.clone());
        let parts = StandbyParts { store, owner, held, id: ID, disks, takes_over: false, sabotage };
        Standby::open(parts, env).await
    }

    /// Follows until its power is cut.
    pub(crate) async fn follow(
        self: Arc<Self>,
        remote: MemoryStore,
        interval: Duration,
        sabotage: ArchiveSabotage,
        env: Env,
    ) {
        let reader = ArchiveReader::new(Arc::new(remote.clone()), None, &env);
        let (_stop, stopped) = watch::channel(false);
        loop {
            // There may be no copy yet, or states may have expired meanwhile.
            if let Ok(newest) = reader.newest().await {
                let followed = match self.open(&newest.disks(), &remote, sabotage, &env).await {
                    Ok(mut standby) => standby.follow(interval, stopped.clone()).await.map(Some),
                    Err(e) => Err(e),
                };
                match followed {
                    // A disk has joined: the next opening has a place for it.
                    Err(RestoreError::NoPlace(_)) => {}
                    ended => {
                        *self.failed.lock() = Some(format!("{ended:?}"));
                        return;
                    }
                }
            }
            env.sleep(interval).await;
        }
    }

    /// The archive is another one: its disks hold nothing of that.
    pub(crate) fn begin_anew(&self) {
        self.disks.lock().clear();
        self.held.clear();
    }

    /// Checks that it could follow.
    pub(crate) fn check(&self) -> Outcome {
        match &*self.failed.lock() {
            Some(why) => Err(format!("STANDBY: it does not follow: {why}")),
            None => Ok(()),
        }
    }

    /// Takes the archive over, and makes the devices those of the pool. Returns the
    /// state that they have; `None` if there is none yet.
    pub(crate) async fn promote(
        &self,
        remote: MemoryStore,
        devices: Vec<(usize, Arc<dyn Disk>)>,
        sabotage: ArchiveSabotage,
        env: Env,
    ) -> Outcome<Option<RestoredState>> {
        self.check()?;
        let reader = ArchiveReader::new(Arc::new(remote.clone()), None, &env);
        let fail = |e: &dyn std::fmt::Display| format!("STANDBY: it cannot be promoted: {e}");
        let there = match reader.newest().await {
            Ok(newest) => newest.disks(),
            Err(ArchiveError::NothingYet(_)) => return Ok(None),
            Err(ArchiveError::Foreign(why)) if why.contains("no archive") => return Ok(None),
            Err(e) => return Err(fail(&e)),
        };
        let mut standby = self.open(&there, &remote, sabotage, &env).await.map_err(|e| fail(&e))?;
        let state = standby.promote(&reader, "standby", TakeOver::Any).await.map_err(|e| fail(&e))?;
        for of in &there {
            let named = devices.iter().find(|(number, _)| disk_name(*number) == of.name);
            let (_, device) = named.ok_or_else(|| fail(&format!("it has a disk {}", of.name)))?;
            let disk: Arc<dyn Disk> = self.disks.lock()[&of.id].clone();
            state.finish(of.id, &RestorePlace::new(&disk)).await.map_err(|e| fail(&e))?;
            copy(&disk, device).await.map_err(|e| fail(&e))?;
        }
        if there.len() != devices.len() {
            return Err(fail(&format!("it has {} of {} disks", there.len(), devices.len())));
        }
        Ok(Some(RestoredState::new(&state)))
    }
}

async fn copy(from: &Arc<dyn Disk>, to: &Arc<dyn Disk>) -> io::Result<()> {
    to.reserve(from.len()).await?;
    let mut at = 0;
    while at < from.len() {
        let len = COPY_BYTES.min(from.len() - at);
        to.write(at, from.read(at, len as usize).await?).await?;
        at += len;
    }
    to.flush().await
}
