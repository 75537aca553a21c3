//! Adding and removing disks while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_log::{Log, LogError};
use steadfast_store::{MoveState, MoveStatus, PoolDisk, StoreError};

use super::engine::Engine;
use crate::config::added_disks;
use crate::config::{Config, DiskSet};
use crate::control::ProgressReporter;
use crate::disks::contents::{Contents, look};
use crate::disks::make;
use crate::disks::open::{self, Taking, open_file};
use crate::disks::plan::{Scope, refuse_pool};

/// Interval between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Changes the disks of a server's pool.
#[derive(Clone)]
pub struct Membership {
    engine: Engine,
    config: Arc<Config>,
    env: Env,
    /// Allows one change at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Why a disk was not added to the pool.
struct Refusal {
    why: String,
    /// Whether the outcome is unknown: the commit that adds the disk may be durable.
    unknown: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, unknown: false }
    }
}

impl Membership {
    /// The membership of a server with this configuration.
    pub fn new(engine: Engine, config: &Config, env: &Env) -> Self {
        Self { engine, config: Arc::new(config.clone()), env: env.clone(), turn: Arc::default() }
    }

    /// Adds a disk to the pool, in place of another if one is named, and starts the move of keys.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub async fn add(&self, path: &Path, replaces: Option<String>) -> Result<(), String> {
        // In a task of its own: a client that disconnects must not leave the change half done.
        let (this, path) = (self.clone(), path.to_owned());
        self.to_end(async move { this.add_now(&path, replaces).await }).await
    }

    /// Starts to move the data off a disk, which then leaves the pool.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub async fn drain(&self, disk: String) -> Result<(), String> {
        let this = self.clone();
        self.to_end(async move {
            let disk = this.named(&disk);
            this.engine.store().disks().drain(&disk).await.map_err(|e| e.to_string())
        })
        .await
    }

    /// Gives up disks that are lost for good.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub async fn forget(&self, disks: Vec<String>) -> Result<Value, String> {
        let this = self.clone();
        let forgotten = self.to_end(async move {
            let disks: Vec<String> = disks.iter().map(|disk| this.named(disk)).collect();
            let forgotten = this.engine.store().disks().forget(&disks).await.map_err(|e| e.to_string())?;
            this.engine.forget_gone();
            this.forget_hints();
            Ok(json!(forgotten))
        });
        let forgotten = forgotten.await?;
        let mut done = self.result(None);
        done["forgotten"] = forgotten;
        Ok(done)
    }

    /// Resumes an unfinished move.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn resume(&self) -> Result<(), String> {
        match self.engine.store().disks().resume_moves() {
            Ok(true) => Ok(()),
            Ok(false) => Err("there is nothing to resume: all keys are on their disks".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    async fn to_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let turn = self.turn.clone();
        self.env.spawn("disks change", async move {
            let _turn = turn.lock().await;
            let _ = sender.send(work.await);
        });
        receiver.await.unwrap_or_else(|_| Err("the server is stopping".to_owned()))
    }

    /// The name of a disk in the pool. A configured path may be relative to the data directory, and
    /// a path has several spellings.
    fn named(&self, disk: &str) -> String {
        let within = self.config.data.dir.join(disk).display().to_string();
        let names: Vec<String> = self.engine.store().status().disks.into_iter().map(|disk| disk.name).collect();
        let is = |name: &str| names.iter().any(|other| other == name);
        if !is(disk) && !is(&within) {
            let same = |name: &&String| [disk, &within].iter().any(|given| same_path(name, given));
            if let Some(name) = names.iter().find(same) {
                return name.clone();
            }
        }
        if !is(disk) && is(&within) { within } else { disk.to_owned() }
    }

    async fn add_now(&self, path: &Path, replaces: Option<String>) -> Result<(), String> {
        let path = self.config.data.dir.join(path);
        let name = path.display().to_string();
        if self.engine.store().status().disks.iter().any(|disk| disk.name == name || same_path(&disk.name, &name)) {
            return Err(format!("{name} is a disk of the pool already"));
        }
        let owned = path.clone();
        let found = self.env.blocking(move || look(&owned)).await.ok_or("looking at the disk failed")?;
        let ours = matches!(found.contents, Contents::Pool { pair: None, .. });
        // The store decides on a disk that holds a pool: an earlier attempt may have formatted it.
        if !ours && let Some(why) = refuse_pool(&path, &found, Scope { pool: true, force: false, begun: false }) {
            return Err(format!("{name}: {}", why.split("; --force").next().unwrap_or_default()));
        }
        let dir = &self.config.data.dir;
        let known = added_disks::read(dir);
        added_disks::write(dir, &[&known[..], std::slice::from_ref(&path)].concat())?;
        let added = self.format_and_add(&path, &found.contents, ours, replaces).await;
        // If the outcome is unknown, the next start must find the disk in the hints.
        let surely_not = matches!(&added, Err(refusal) if !refusal.unknown)
            && !self.engine.store().status().disks.iter().any(|disk| disk.name == name);
        if surely_not {
            if found.contents == Contents::Absent {
                // This call created the file, and it holds no data.
                let _ = std::fs::remove_file(&path);
            }
            added_disks::write(dir, &known)?;
        }
        added.map_err(|refusal| refusal.why)
    }

    async fn format_and_add(
        &self,
        path: &Path,
        contents: &Contents,
        formatted: bool,
        replaces: Option<String>,
    ) -> Result<(), Refusal> {
        let (config, env) = (&*self.config, &self.env);
        let name = path.display().to_string();
        if !formatted {
            if *contents == Contents::Absent {
                make::create(path, config, env).await?;
            } else {
                let limit = config.data.pool_size.map(|size| size.0);
                let disk = open_file(path, config, env, limit, false).await?;
                let made = Log::format(&disk, env, &make::format_options(config, false)).await;
                made.map_err(|e| format!("{name}: {e}"))?;
            }
        }
        let set = DiskSet { durable: vec![path.to_owned()], fast: Vec::new(), hint: false };
        let disks = open::Disks::open(config, &set, env, Taking::Safe).await.map_err(|e| format!("{name}: {e}"))?;
        let disk = PoolDisk { name: name.clone(), disk: Ok(disks.top().clone()), hint: false };
        // Registered before the store adds it, so that the status never lacks it.
        self.engine.add_disks(name, disks);
        let store = self.engine.store();
        let added = match replaces {
            Some(old) => store.disks().replace(&self.named(&old), disk).await,
            None => store.disks().add(disk).await,
        };
        self.engine.forget_gone();
        added.map_err(|e: StoreError| Refusal {
            unknown: matches!(e, StoreError::Log(LogError::Unknown { .. } | LogError::Failed { .. })),
            why: e.to_string(),
        })
    }

    /// Reports the progress of the move until it ends.
    ///
    /// # Errors
    /// Why the move has not completed.
    pub async fn follow(&self, reporter: &ProgressReporter) -> Result<Value, String> {
        let mut moving = self.engine.store().disks().moving();
        loop {
            let now = moving.borrow_and_update().clone();
            let Some(now) = now else { return Ok(self.result(None)) };
            match now.state {
                MoveState::Running => reporter.progress(json!(now)),
                MoveState::Done => return Ok(self.result(Some(&now))),
                MoveState::Stopped => return Err("the server is stopping; the next start resumes the move".to_owned()),
                MoveState::Failed => {
                    let named: Vec<String> =
                        now.unmovable.iter().map(|u| format!("\n  {}: {}", u.name, u.why)).collect();
                    return Err(format!(
                        "{}; no data is lost. `steadfast disk resume` resumes the move{}",
                        now.error.unwrap_or_default(),
                        named.concat()
                    ));
                }
            }
            self.env.sleep(PROGRESS_INTERVAL).await;
            if moving.changed().await.is_err() {
                return Err("the server is stopping".to_owned());
            }
        }
    }

    /// The result of a command: what was moved, the disks, and the line for the configuration.
    pub fn result(&self, moved: Option<&MoveStatus>) -> Value {
        let names: Vec<String> = self.engine.store().status().disks.into_iter().map(|disk| disk.name).collect();
        let list: Vec<String> = names.iter().map(|name| format!("{:?}", configurable(name))).collect();
        json!({"moved": moved, "disks": names, "configure": format!("disks = [{}]", list.join(", "))})
    }

    /// Drops disks that have left the pool, until the server stops.
    pub async fn tidy(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut moving = self.engine.store().disks().moving();
        loop {
            if moving.borrow_and_update().as_ref().is_some_and(|m| m.state == MoveState::Done) {
                self.engine.forget_gone();
                self.forget_hints();
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                changed = moving.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Keeps only the hints of pool disks that the configuration does not name.
    fn forget_hints(&self) {
        let known = added_disks::read(&self.config.data.dir);
        let there: Vec<String> = self.engine.store().status().disks.into_iter().map(|disk| disk.name).collect();
        let configured: Vec<PathBuf> =
            self.config.disk_sets().into_iter().filter(|set| !set.hint).flat_map(|set| set.durable).collect();
        let keep: Vec<PathBuf> = known
            .iter()
            .filter(|path| there.contains(&path.display().to_string()) && !configured.contains(path))
            .cloned()
            .collect();
        if keep != known
            && let Err(why) = added_disks::write(&self.config.data.dir, &keep)
        {
            tracing::warn!("{why}");
        }
    }
}

/// Whether two paths lead to the same file, which need not exist.
fn same_path(a: &str, b: &str) -> bool {
    let real = |path: &str| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    real(a).is_some_and(|a| Some(a) == real(b))
}

/// The name of a disk for the configuration. Names of disks are relative to the server's working
/// directory; relative paths in the configuration are relative to the data directory.
fn configurable(name: &str) -> String {
    match std::path::absolute(name) {
        // The names of super-disks and stripes are not paths.
        Ok(path) if Path::new(name).is_relative() && path.exists() => path.display().to_string(),
        _ => name.to_owned(),
    }
}
