//! The snapshot commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_store::{Store, StoreError};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::backup::export::{self, Export, FILE_BYTES_MAX};
use crate::backup::place::{Place, PlaceSpec};
use crate::backup::restore;
use crate::control::ProgressReporter;

/// Directory in the data directory for indexes of snapshots being exported.
const SCRATCH: &str = "snapshots";

/// Executes the snapshot commands.
pub struct Snapshots {
    env: Env,
    scratch: PathBuf,
    export_bytes_s: u64,
    /// Allows one export or restore at a time: each uses the full rate.
    one: Arc<Semaphore>,
    /// The running export or restore and its progress.
    working: Arc<Mutex<Option<Working>>>,
}

/// A running export or restore.
struct Working {
    what: String,
    at: watch::Receiver<Value>,
}

/// A directory, removed on drop if it is empty; otherwise the next start removes it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Snapshots {
    /// The snapshot commands of a server with this data directory. Removes what interrupted exports
    /// left there.
    pub fn new(env: &Env, data: &Path, export_bytes_s: u64) -> Self {
        let scratch = data.join(SCRATCH);
        match std::fs::remove_dir_all(&scratch) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %scratch.display(), error = %e, "the files of an interrupted export cannot be removed");
            }
            _ => {}
        }
        Self { env: env.clone(), scratch, export_bytes_s, one: Arc::new(Semaphore::new(1)), working: Arc::default() }
    }

    /// Creates a snapshot.
    ///
    /// # Errors
    /// Why not.
    pub async fn create(&self, store: &Store, name: &str) -> Result<Value, String> {
        let begun = self.env.now();
        let made = store.snapshots().create(name).await.map_err(|e| match e {
            StoreError::SnapshotExists => format!("there is a snapshot {name:?} already"),
            e => e.to_string(),
        })?;
        let mut value = json!(made);
        value["took_us"] = json!(u64::try_from(self.env.now().saturating_sub(begun).as_micros()).unwrap_or(u64::MAX));
        tracing::info!(name, objects = made.objects, "a snapshot was made");
        Ok(value)
    }

    /// Lists the snapshots and the running export or restore.
    pub fn list(&self, store: &Store) -> Value {
        let working = self.working.lock();
        let working = working.as_ref().map(|working| json!({"what": working.what, "progress": *working.at.borrow()}));
        let kept = store.snapshots().kept().map_or(0, |(bytes, _)| bytes);
        json!({"snapshots": store.snapshots().all(), "kept_bytes": kept, "working": working})
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// Why not.
    pub async fn delete(&self, store: &Store, name: &str) -> Result<Value, String> {
        store.snapshots().delete(name).await.map_err(|e| match e {
            StoreError::NoSuchSnapshot => format!("there is no snapshot {name:?}"),
            e => e.to_string(),
        })?;
        tracing::info!(name, "a snapshot was deleted");
        Ok(json!({"name": name, "deleted": true}))
    }

    /// Runs `work` in a task of its own: it completes even if the client disconnects.
    async fn to_its_end<F>(
        &self,
        what: String,
        reporter: &ProgressReporter,
        work: impl FnOnce(ProgressReporter) -> F,
    ) -> Result<Value, String>
    where
        F: Future<Output = Result<Value, String>> + Send + 'static,
    {
        let Ok(one) = self.one.clone().try_acquire_owned() else {
            let working = self.working.lock();
            let what = working.as_ref().map_or("another export or restore", |working| &working.what);
            return Err(format!(
                "{what} is running: wait until it has ended; `steadfast snapshot list` shows its progress"
            ));
        };
        let (sender, mut at) = watch::channel(Value::Null);
        *self.working.lock() = Some(Working { what: what.clone(), at: at.clone() });
        let (working, work) = (self.working.clone(), work(ProgressReporter::new(sender)));
        let (answer, mut answered) = oneshot::channel();
        self.env.spawn("backup", async move {
            let done = work.await;
            match &done {
                Ok(done) if done["missing_total"].as_u64().unwrap_or_default() > 0 => {
                    tracing::error!(what, %done, "it has ended, and objects are missing");
                }
                Ok(done) => tracing::info!(what, %done, "it has ended"),
                Err(why) => tracing::error!(what, why, "it has failed"),
            }
            *working.lock() = None;
            drop(one);
            // The client may have disconnected.
            let _ = answer.send(done);
        });
        loop {
            tokio::select! {
                biased;
                done = &mut answered => return done.unwrap_or_else(|_| Err("the server is stopping".to_owned())),
                Ok(()) = at.changed() => reporter.progress(at.borrow_and_update().clone()),
            }
        }
    }

    /// Exports a snapshot.
    ///
    /// # Errors
    /// Why not.
    pub async fn export(
        &self,
        store: &Store,
        (name, since): (String, Option<String>),
        to: &PlaceSpec,
        bytes_s: Option<u64>,
        reporter: &ProgressReporter,
    ) -> Result<Value, String> {
        let place = Place::new(to, &self.env)?;
        let what = format!("the export of the snapshot {name:?} to {}", place.shown());
        let scratch = self.scratch.join(format!("{:016x}", self.env.random_u64()));
        std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let removed = Scratch(scratch.clone());
        let bytes_s = bytes_s.unwrap_or(self.export_bytes_s);
        let export = Export { name, since, scratch, bytes_s, file_bytes_max: FILE_BYTES_MAX };
        let (store, env) = (store.clone(), self.env.clone());
        let work = |reporter: ProgressReporter| async move {
            let _removed = removed;
            export::run(&store, &env, &place, &export, |value| reporter.progress(value)).await
        };
        self.to_its_end(what, reporter, work).await
    }

    /// Restores an export.
    ///
    /// # Errors
    /// Why not.
    pub async fn restore(
        &self,
        store: &Store,
        name: &str,
        from: &PlaceSpec,
        overwrite: bool,
        reporter: &ProgressReporter,
    ) -> Result<Value, String> {
        let place = Place::new(from, &self.env)?;
        let what = format!("the restore of {name:?} from {}", place.shown());
        let (store, env, name) = (store.clone(), self.env.clone(), name.to_owned());
        let work = |reporter: ProgressReporter| async move {
            restore::run(&store, &env, &place, &name, overwrite, |value| reporter.progress(value)).await
        };
        self.to_its_end(what, reporter, work).await
    }
}
