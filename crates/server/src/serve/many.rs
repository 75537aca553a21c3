//! A pool of several disks, each with a log of its own: opening, making, describing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use steadfast_disk::{Disk, DiskOptions, FileDisk};
use steadfast_flow::Env;
use steadfast_log::Log;
use steadfast_store::{IndexKind, OpenReport, PoolDisk, Store, StoreOptions};

use super::engine::{format_options, is_block_device};
use crate::config::{Config, IoMode};
use crate::datadir::DataDir;

/// Memory for data on its way to a disk, and from it, that each gets at least.
const BUFFERS_BYTES_MIN: usize = 32 << 20;

/// A disk, or what is wrong with it.
type Opened = Result<Arc<dyn Disk>, String>;

/// The disks of a pool, by their paths.
#[derive(Clone)]
pub struct Disks(Vec<(PathBuf, Opened)>);

impl Disks {
    /// Opens the disks that the configuration names. One that cannot be opened is kept, with what is wrong with it.
    pub async fn open(config: &Config, env: &Env) -> Self {
        let paths = config.disk_paths();
        let opened = paths.iter().map(|path| open_one(path, config, env, false));
        Self(paths.iter().cloned().zip(futures::future::join_all(opened).await).collect())
    }

    /// The disks, with their paths.
    pub fn iter(&self) -> impl Iterator<Item = &(PathBuf, Opened)> {
        self.0.iter()
    }

    /// As the store takes them.
    fn given(&self) -> Vec<PoolDisk> {
        let one = |(path, disk): &(PathBuf, Opened)| PoolDisk { name: path.display().to_string(), disk: disk.clone() };
        self.0.iter().map(one).collect()
    }

    /// Every disk, for people and scripts.
    pub fn list(&self) -> Value {
        let rows = self.0.iter().enumerate().map(|(index, (path, disk))| {
            json!({
                "role": "durable",
                "index": index,
                "count": self.0.len(),
                "path": path,
                "device": is_block_device(path),
                "size_bytes": disk.as_ref().map_or(0, |disk| disk.len()),
                "state": if disk.is_ok() { "in use" } else { "missing" },
                "holds": disk.as_ref().err(),
                "stats": disk.as_ref().ok().map(|disk| disk.stats()),
            })
        });
        Value::Array(rows.collect())
    }

    /// All of them as one, for the status: sums.
    pub fn describe(&self) -> Value {
        let mut sum = Value::Null;
        for disk in self.0.iter().filter_map(|(_, disk)| disk.as_ref().ok()) {
            let one = json!({"geometry": disk.geometry(), "len_bytes": disk.len(), "stats": disk.stats()});
            if sum.is_null() {
                sum = one;
                continue;
            }
            for path in ["/len_bytes", "/geometry/capacity_bytes"] {
                add(sum.pointer_mut(path), one.pointer(path));
            }
            for (name, value) in one["stats"].as_object().into_iter().flatten() {
                add(sum["stats"].get_mut(name), Some(value));
            }
        }
        let names: Vec<String> = self.0.iter().map(|(path, _)| path.display().to_string()).collect();
        sum["description"] = json!(format!("{} disks: {}", names.len(), names.join(", ")));
        sum
    }
}

fn add(sum: Option<&mut Value>, other: Option<&Value>) {
    if let (Some(sum), Some(other)) = (sum, other)
        && let (Some(a), Some(b)) = (sum.as_u64(), other.as_u64())
    {
        *sum = json!(a.saturating_add(b));
    }
}

/// Opens the pool on its disks. Where they are files and none of them is there yet, they are made.
///
/// # Errors
/// What is wrong and what to do.
pub async fn open(
    config: &Config,
    data: &DataDir,
    env: &Env,
    options: StoreOptions,
) -> Result<(Disks, Store, OpenReport), String> {
    let paths = config.disk_paths();
    if paths.iter().all(|path| !path.exists() && !path.starts_with("/dev")) {
        refuse_to_forget(&paths, data)?;
        make(config, env, &paths, false).await?;
        tracing::info!(disks = paths.len(), "a new pool has been made");
    }
    let disks = Disks::open(config, env).await;
    let (store, report) = Store::open_pool(disks.given(), IndexKind::Lsm(data.index()), env.clone(), options)
        .await
        .map_err(|e| format!("the pool of {} disks: {e}", paths.len()))?;
    for (name, why) in &report.missing {
        tracing::error!(
            "THE DISK {name} IS MISSING: {why}. Objects on it, and listings, are answered with 503; all else goes on. What to \
             do: connect or repair the disk, see that data.disks names it, then restart"
        );
    }
    Ok((disks, store, report))
}

/// Makes the pool: every disk is formatted and told of the others.
///
/// # Errors
/// When a disk holds something and `force` is not set, is too small or fails.
pub async fn make(config: &Config, env: &Env, paths: &[PathBuf], force: bool) -> Result<(), String> {
    for path in paths {
        let shown = path.display();
        let device = is_block_device(path);
        if !device && path.exists() {
            if !force {
                return Err(format!("{shown} exists; --force replaces it, and ALL THAT IS IN IT IS LOST"));
            }
            std::fs::remove_file(path).map_err(|e| format!("{shown}: {e}"))?;
        }
        let disk = open_one(path, config, env, !device).await?;
        Log::format(&disk, env, &format_options(config, force)).await.map_err(|e| format!("{shown}: {e}"))?;
    }
    let disks = Disks::open(config, env).await;
    let (store, _) = Store::open_pool(disks.given(), IndexKind::memory(), env.clone(), StoreOptions::default())
        .await
        .map_err(|e| e.to_string())?;
    store.close().await.map_err(|e| e.to_string())
}

/// The indexes of the disks of pools: beside that of a pool of one disk.
///
/// # Errors
/// When the directory cannot be read.
pub fn indexes(data: &DataDir) -> Result<Vec<PathBuf>, String> {
    let index = data.index();
    let prefix = format!("{}.", index.file_name().unwrap_or_default().to_string_lossy());
    let fail = |e: std::io::Error| format!("{}: {e}", data.path().display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data.path()).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let of_disk = entry.file_name().to_string_lossy().strip_prefix(&prefix).is_some_and(|id| id.len() == 36);
        if of_disk && entry.file_type().map_err(fail)?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Indexes without their pool mean that the pool is somewhere else now: a new one would hide that.
fn refuse_to_forget(paths: &[PathBuf], data: &DataDir) -> Result<(), String> {
    let found = indexes(data)?;
    let Some(first) = found.first() else { return Ok(()) };
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "all disks of the pool are missing ({}), but {} shows that there was one: mount or restore them, or set data.disks. To \
         begin anew, remove {} index.* directories in {}",
        paths.join(", "),
        first.display(),
        found.len(),
        data.path().display()
    ))
}

async fn open_one(path: &Path, config: &Config, env: &Env, create: bool) -> Result<Arc<dyn Disk>, String> {
    let count = config.disk_paths().len().max(1);
    let share = |whole: usize| (whole / count).max(BUFFERS_BYTES_MIN.min(whole));
    let options = DiskOptions {
        io: match config.data.io {
            IoMode::Auto => steadfast_disk::IoMode::Auto,
            IoMode::Uring => steadfast_disk::IoMode::Uring,
            IoMode::Threads => steadfast_disk::IoMode::Threads,
        },
        create,
        queue_depth: config.data.queue_depth,
        pool_bytes: share(config.data.write_buffers.bytes()),
        read_pool_bytes: share(config.data.read_buffers.bytes()),
        file_limit_bytes: config.data.pool_size.map(|size| size.0),
        ..DiskOptions::default()
    };
    let path = path.to_owned();
    env.blocking(move || FileDisk::open(&path, &options))
        .await
        .unwrap_or_else(|| Err(std::io::Error::other("opening it panicked")))
        .map_err(|e| e.to_string())
}
