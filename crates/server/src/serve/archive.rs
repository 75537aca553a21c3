//! The archive of the server's pool.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_archive::{
    Archive, ArchiveError, ArchiveGate, ArchiveOptions, ArchiveParts, ArchiveStatus, Promise, StateKeeper,
    note_other_owner, refuse_left,
};
use steadfast_cluster::Tenure;
use steadfast_flow::{Env, Lease};
use steadfast_net::RemoteStore;

use super::ServeError;
use super::engine::Engine;
use super::state::State;
use crate::config::{Acknowledge, Config};
use crate::datadir::DataDir;
use crate::private_file;
use crate::report::duration;

/// Time that a stop gives the archive to get what is durable.
const STOP_WAIT: Duration = Duration::from_secs(10);

const BEHIND: &str = "The pool serves, and what it answers is on its own disks only. What to do: check the store, \
                      and the network to it; the archive then catches up by itself";

const WRITES_WAIT: &str = "Writes get 503, as archive.acknowledge is \"archived\"; reads continue. What to do: check the \
                           store, and the network to it; writes continue by themselves then";

const LEASE_ENDED: &str = "All connections are closed, as another machine may serve by now (archive.lease). What to do: check \
                           the store, and the network to it; clients are served by themselves then";

const NOT_YET: &str = "Writes are answered when the pool's own disks have them, until the first complete copy is made. \
                       This takes as long as copying the whole pool";

const GROWS: &str = "The archive follows, and grows. What to do: permit the key to list the bucket and to delete \
                     objects under the prefix";

/// What is wrong with an archive.
struct Fault {
    what: String,
    /// What it means, and what to do.
    advice: &'static str,
}

/// Keeps the owner numbers in a file.
pub(crate) struct StateFile(pub(crate) PathBuf);

impl StateKeeper for StateFile {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let text = private_file::read(&self.0).map_err(io::Error::other)?;
        Ok(text.map(String::into_bytes))
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        private_file::store(&self.0, text).map_err(io::Error::other)
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }
}

/// The store of the archive, and the gate for moves of slots; `None` without an archive.
#[derive(Debug, Clone)]
pub(super) struct ArchivePlan {
    store: Arc<dyn RemoteStore>,
    gate: ArchiveGate,
}

impl ArchivePlan {
    /// Reads the configuration.
    ///
    /// # Errors
    /// What is wrong with the place, or with the credentials; why the pool must have its archive.
    pub(super) async fn new(config: &Config, data: &DataDir, env: &Env) -> Result<Option<Self>, String> {
        let store = config.archive.store(env)?;
        if store.is_none() {
            refuse_left(Arc::new(StateFile(data.archive())), env).await.map_err(|e| e.to_string())?;
        }
        Ok(store.map(|store| Self { store, gate: ArchiveGate::default() }))
    }

    /// What moves of slots wait for.
    pub(super) fn gate(&self) -> ArchiveGate {
        self.gate.clone()
    }

    /// Starts to follow. The pool serves when this has returned.
    ///
    /// # Errors
    /// Why it must not.
    pub(super) async fn start(
        self,
        config: &Config,
        data: &DataDir,
        engine: &Engine,
        lease: Lease,
        env: &Env,
    ) -> Result<PoolArchive, ServeError> {
        let pool = engine.store();
        if pool.logs().iter().flat_map(|(_, _, log)| log).any(|log| log.superblock().zones.is_some()) {
            return Err("archive.to: a pool on zones cannot have an archive yet".to_owned().into());
        }
        let options = ArchiveOptions {
            promise: match config.archive.acknowledge {
                Acknowledge::Local => Promise::Local,
                Acknowledge::Archived => Promise::Archived,
            },
            interval: config.archive.interval,
            uploads_max: config.archive.uploads,
            claim_wait: config.archive.start_wait,
            lease: config.archive.lease(),
            retention: config.archive.retention,
            machine: machine(),
            pool: pool.status().log.pool,
            ..ArchiveOptions::default()
        };
        let parts = ArchiveParts {
            store: self.store,
            keeper: Arc::new(StateFile(data.archive())),
            members: Arc::new(pool.clone()),
            lease,
        };
        let archive = Archive::start(parts, options, env).await?;
        self.gate.set(archive.clone());
        let lag_warning = match config.archive.acknowledge {
            Acknowledge::Local => config.archive.lag_warning,
            Acknowledge::Archived => config.archive.lag_warning.min(config.store.write_wait),
        };
        Ok(PoolArchive { archive, acknowledge: config.archive.acknowledge, lag_warning })
    }
}

/// Notes that another process owns the archive: the next start must ask it before it serves.
pub(super) async fn note_superseded(data: &DataDir, env: &Env) {
    if let Err(error) = note_other_owner(Arc::new(StateFile(data.archive())), env).await {
        tracing::error!(%error, "the next start may not know that the archive has another owner");
    }
}

/// The name of this machine, for operators.
pub(crate) fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The archive of a pool that serves. Clones share it.
#[derive(Debug, Clone)]
pub struct PoolArchive {
    archive: Archive,
    acknowledge: Acknowledge,
    lag_warning: Duration,
}

impl PoolArchive {
    /// How far it is.
    pub(super) fn status(&self) -> ArchiveStatus {
        self.archive.status()
    }

    /// A warning if the archive is far behind, not followed any more, or cannot be cleaned.
    pub(super) fn warning(&self) -> Option<String> {
        self.fault().map(|fault| fault.what)
    }

    fn fault(&self) -> Option<Fault> {
        let (status, limit) = (self.archive.status(), self.lag_warning.as_secs_f64());
        let advice = if status.writes_wait { WRITES_WAIT } else { BEHIND };
        if let Some(error) = status.error {
            let what = format!("the archive is not followed any more: {error}");
            return Some(Fault { what, advice });
        }
        if status.lease_seconds == Some(0.0) {
            let what = match status.failing {
                Some(why) => format!("the lease on the archive has ended: {why}"),
                None => "the lease on the archive has ended".to_owned(),
            };
            return Some(Fault { what, advice: LEASE_ENDED });
        }
        if status.lag_seconds >= limit {
            let behind = format!("the archive is {} behind", duration(status.lag_seconds as u64));
            let what = match status.failing {
                Some(why) => format!("{behind}: {why}"),
                None => behind,
            };
            return Some(Fault { what, advice });
        }
        if self.acknowledge == Acknowledge::Archived && !status.writes_wait {
            let what = "writes do not wait for the archive yet".to_owned();
            return Some(Fault { what, advice: NOT_YET });
        }
        let why = status.delete_failing.filter(|_| status.delete_failing_seconds >= limit)?;
        let what = format!("expired objects of the archive cannot be deleted: {why}");
        Some(Fault { what, advice: GROWS })
    }

    /// Shows it in the status. Logs when it falls behind, and when it has caught up.
    pub(super) fn watch(&self, env: &Env, state: &Arc<State>) {
        const EVERY: Duration = Duration::from_secs(1);
        state.archive(self.clone());
        let (archive, env, state) = (self.clone(), env.clone(), state.clone());
        env.clone().spawn_critical("archive watch", async move {
            let mut last = None;
            while !state.is_stopping() {
                let now = archive.fault();
                match &now {
                    Some(Fault { what, advice }) if last != Some(*advice) => tracing::error!("{what}. {advice}"),
                    None if last.is_some() => tracing::info!("the archive has caught up"),
                    _ => {}
                }
                last = now.map(|fault| fault.advice);
                env.sleep(EVERY).await;
            }
        });
    }

    /// The tenure of the pool.
    pub(super) fn tenure(&self) -> Tenure {
        let (archive, number) = self.archive.tenure();
        Tenure { archive, number }
    }

    /// Why clients are not answered now.
    pub(super) fn not_ready(&self) -> Option<String> {
        let status = self.archive.status();
        (status.lease_seconds == Some(0.0)).then(|| format!("the lease on the archive {} has ended", status.to))
    }

    /// Waits until another process owns the archive, or is about to take it.
    pub(super) async fn superseded(&self) -> ServeError {
        match self.archive.ended().await {
            e @ (ArchiveError::Superseded { .. } | ArchiveError::Marked(_)) => e.into(),
            // Its lease cannot be renewed: it ends for a start that may succeed.
            e if self.archive.status().lease_seconds.is_some() => e.into(),
            // The pool serves without an archive, and warns.
            _ => std::future::pending().await,
        }
    }

    /// Ships what is durable, when nothing is accepted any more. `completed`: all that was accepted
    /// is answered. Then the archive is handed over.
    pub(super) async fn stop(&self, completed: bool, engine: &Engine, deadline: Duration, env: &Env) {
        let wait = STOP_WAIT.min(deadline);
        // Asynchronous commits were answered before they were durable.
        let flushed = env.timeout(wait, engine.store().flush()).await;
        if completed && matches!(flushed, Some(Ok(()))) {
            self.archive.hand_over(wait).await;
        } else {
            self.archive.stop(wait).await;
        }
    }
}
