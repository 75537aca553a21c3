//! What the commands about snapshots do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_store::{Store, StoreError};
use tokio::sync::Semaphore;

use crate::backup::export::{self, Export, FILE_BYTES_MAX};
use crate::backup::place::{Place, PlaceSpec};
use crate::backup::restore;
use crate::control::Tell;

/// In the data directory: indexes of snapshots that are being exported.
const SCRATCH: &str = "snapshots";

/// Carries out the commands about snapshots.
pub struct Snapshots {
    env: Env,
    scratch: PathBuf,
    export_bytes_s: u64,
    /// One export or restore at a time: each reads and writes as much as it may.
    one: Arc<Semaphore>,
}

/// A directory that is removed when it is empty; else whoever empties it does that.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Snapshots {
    /// Those of a server with this data directory. What exports that were cut off have left there is removed.
    pub fn new(env: &Env, data: &Path, export_bytes_s: u64) -> Self {
        let scratch = data.join(SCRATCH);
        match std::fs::remove_dir_all(&scratch) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %scratch.display(), error = %e, "what an export has left behind cannot be removed");
            }
            _ => {}
        }
        Self { env: env.clone(), scratch, export_bytes_s, one: Arc::new(Semaphore::new(1)) }
    }

    /// Makes one.
    ///
    /// # Errors
    /// Why not.
    pub async fn create(&self, store: &Store, name: &str) -> Result<Value, String> {
        let begun = self.env.now();
        let made = store.create_snapshot(name).await.map_err(|e| match e {
            StoreError::SnapshotExists => format!("there is a snapshot {name:?} already"),
            e => e.to_string(),
        })?;
        let mut value = json!(made);
        value["took_us"] = json!(u64::try_from(self.env.now().saturating_sub(begun).as_micros()).unwrap_or(u64::MAX));
        tracing::info!(name, objects = made.objects, "a snapshot was made");
        Ok(value)
    }

    /// Those that there are.
    pub fn list(&self, store: &Store) -> Value {
        json!({"snapshots": store.snapshots(), "kept_bytes": store.snapshots_keep().map_or(0, |(bytes, _)| bytes)})
    }

    /// Deletes one.
    ///
    /// # Errors
    /// Why not.
    pub async fn delete(&self, store: &Store, name: &str) -> Result<Value, String> {
        store.delete_snapshot(name).await.map_err(|e| match e {
            StoreError::NoSuchSnapshot => format!("there is no snapshot {name:?}"),
            e => e.to_string(),
        })?;
        tracing::info!(name, "a snapshot was deleted");
        Ok(json!({"name": name, "deleted": true}))
    }

    fn only(&self) -> Result<tokio::sync::OwnedSemaphorePermit, String> {
        let one = self.one.clone().try_acquire_owned();
        one.map_err(|_| "another export or restore is going on: wait until it has ended".to_owned())
    }

    /// Exports one.
    ///
    /// # Errors
    /// Why not.
    pub async fn export(
        &self,
        store: &Store,
        (name, since): (String, Option<String>),
        to: &PlaceSpec,
        bytes_s: Option<u64>,
        tell: &Tell,
    ) -> Result<Value, String> {
        let _one = self.only()?;
        let place = Place::new(to, &self.env)?;
        let scratch = self.scratch.join(format!("{:016x}", self.env.random_u64()));
        std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let _removed = Scratch(scratch.clone());
        let bytes_s = bytes_s.unwrap_or(self.export_bytes_s);
        let export = Export { name, since, scratch, bytes_s, file_bytes_max: FILE_BYTES_MAX };
        let done = export::run(store, &self.env, &place, &export, |value| tell.progress(value)).await;
        if let Ok(done) = &done {
            tracing::info!(%done, "a snapshot was exported");
        }
        done
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
        tell: &Tell,
    ) -> Result<Value, String> {
        let _one = self.only()?;
        let place = Place::new(from, &self.env)?;
        let done = restore::run(store, &self.env, &place, name, overwrite, |value| tell.progress(value)).await;
        if let Ok(done) = &done {
            tracing::info!(%done, "an export was restored");
        }
        done
    }
}
