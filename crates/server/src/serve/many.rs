//! A pool of several disks, each with its own log: opening, creating, describing.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use futures::future::join_all;
use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_log::Log;
use steadfast_store::{IndexKind, OpenReport, PoolDisk, Store, StoreOptions};

use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::contents::{Contents, look};
use crate::disks::making::{self, Begun};
use crate::disks::open::{self, Taking, open_file};
use crate::disks::{contents::Found, make};

/// The disks of one log, or why they could not be opened.
type Opened = Result<open::Disks, String>;

/// The disks of a pool: those of each log, by name; and the names that are hints only.
#[derive(Clone)]
pub struct PoolDisks(Vec<(String, Opened)>, Vec<String>);

impl PoolDisks {
    /// Opens the configured disks. A disk that cannot be opened is kept with its error.
    pub async fn open(config: &Config, env: &Env, taking: Taking) -> Self {
        let sets = config.disk_sets();
        let opened = join_all(sets.iter().map(|set| open::Disks::open(config, set, env, taking))).await;
        let hints = sets.iter().filter(|set| set.hint).map(crate::config::DiskSet::name).collect();
        Self(sets.iter().map(crate::config::DiskSet::name).zip(opened).collect(), hints)
    }

    /// The disks of one log.
    pub fn of_one(disks: open::Disks) -> Self {
        Self::of([disks].into_iter())
    }

    /// The disks of several logs.
    pub fn of(disks: impl Iterator<Item = open::Disks>) -> Self {
        Self(disks.map(|disks| (disks.name().to_owned(), Ok(disks))).collect(), Vec::new())
    }

    /// Inserts a disk, in place of one with the same name.
    pub fn insert(&mut self, name: String, disks: open::Disks) {
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, Ok(disks)));
    }

    /// Removes the disks for which `there` is false, and returns the open ones among them.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) -> Vec<open::Disks> {
        let (stay, gone) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| there(name));
        self.0 = stay;
        gone.into_iter().filter_map(|(_, disks): (String, Opened)| disks.ok()).collect()
    }

    /// The number of logs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The open disks.
    pub fn open_ones(&self) -> impl Iterator<Item = &open::Disks> {
        self.0.iter().filter_map(|(_, disks)| disks.as_ref().ok())
    }

    /// The disks as arguments of the store.
    pub(super) fn given(&self) -> Vec<PoolDisk> {
        let one = |(name, disks): &(String, Opened)| PoolDisk {
            name: name.clone(),
            disk: disks.as_ref().map(|disks| disks.top().clone()).map_err(Clone::clone),
            hint: self.1.contains(name),
        };
        self.0.iter().map(one).collect()
    }

    /// Stops the background tasks. Call it after the last flush.
    pub async fn close(&self) {
        join_all(self.open_ones().map(open::Disks::close)).await;
    }

    /// The errors of fast legs when they were opened.
    fn fast_leg_failures(&self) -> Vec<String> {
        let one = |disks: &open::Disks| {
            let fast = disks.superdisk()?;
            Some(format!("{}: the fast leg could not be made: {}", disks.name(), fast.why()?))
        };
        self.open_ones().filter_map(one).collect()
    }

    /// Every disk, as rows of the status.
    pub fn list(&self) -> Value {
        let rows = self.0.iter().enumerate().flat_map(|(number, (name, disks))| {
            let mut rows = match disks {
                Ok(disks) => disks.list(),
                Err(why) => vec![json!({
                    "role": "durable",
                    "index": 0,
                    "count": 1,
                    "path": name,
                    "device": false,
                    "size_bytes": 0,
                    "state": "missing",
                    "holds": why,
                    "stats": null,
                    "latency": null,
                })],
            };
            for row in &mut rows {
                (row["disk"], row["disks"]) = (json!(number), json!(self.0.len()));
                row["pool_disk"] = json!(name);
            }
            rows
        });
        Value::Array(rows.collect())
    }

    /// All disks as one, for the status: sums.
    pub fn describe(&self) -> Value {
        let mut sum = Value::Null;
        for disk in self.open_ones().map(open::Disks::top) {
            let one = json!({"geometry": disk.geometry(), "len_bytes": disk.len(), "stats": disk.stats()});
            if sum.is_null() {
                sum = one;
                continue;
            }
            for path in ["/len_bytes", "/geometry/capacity_bytes"] {
                add(sum.pointer_mut(path), one.pointer(path));
            }
            for (name, value) in one["stats"].as_object().into_iter().flatten() {
                let sum = sum["stats"].get_mut(name);
                if name.starts_with("oldest_") {
                    most(sum, value);
                } else {
                    add(sum, Some(value));
                }
            }
        }
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        sum["description"] = match &self.0[..] {
            [(_, Ok(only))] => json!(only.top().describe()),
            _ => json!(format!("{} disks: {}", names.len(), names.join(", "))),
        };
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

fn most(sum: Option<&mut Value>, other: &Value) {
    if let Some(sum) = sum
        && sum.as_u64() < other.as_u64()
    {
        *sum = other.clone();
    }
}

/// Opens the pool on its disks. Creates it if the disks are files and none exists, and completes an
/// interrupted creation.
///
/// # Errors
/// What is wrong and what to do.
pub async fn open(
    config: &Config,
    data: &DataDir,
    env: &Env,
    options: StoreOptions,
) -> Result<(PoolDisks, Store, OpenReport), String> {
    let paths: Vec<PathBuf> = config.disk_sets().into_iter().flat_map(|set| set.durable).collect();
    refuse_twice(&paths)?;
    let begun = making::begun(config)?;
    let new = paths.iter().all(|path| !path.exists() && !path.starts_with("/dev"));
    match begun {
        Begun::Forced => {
            return Err("a `steadfast format --force` of these disks was interrupted: some of them may still hold old data. Run it again, \
                        with --force, to overwrite them all"
                .to_owned());
        }
        Begun::Yes => tracing::info!("the creation of the pool was interrupted: completing it"),
        Begun::No if new => data.refuse_to_forget(&paths)?,
        Begun::No => {}
    }
    let making = new || begun == Begun::Yes;
    if making {
        making::begin(config, data, false)?;
        if let Err(why) = make_missing(config, env, &paths).await {
            if begun == Begun::No {
                // None of these files existed before, so all are of this start.
                paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
                making::end(data)?;
            }
            return Err(why);
        }
    }
    let mut disks = PoolDisks::open(config, env, Taking::Safe).await;
    if config.data.restored {
        data.discard_indexes()?;
    }
    let opened = Store::open_pool(disks.given(), IndexKind::Lsm(data.index()), env.clone(), options).await;
    let (store, report) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            disks.close().await;
            return Err(format!("the pool of {} disks: {e}", paths.len()));
        }
    };
    if making {
        making::end(data)?;
        tracing::info!(disks = paths.len(), "a new pool has been made");
    }
    for (name, why) in &report.missing {
        tracing::error!(
            "THE DISK {name} IS MISSING: {why}. Requests for its objects, and listings, get 503, its channels error 100; \
             other disks are served. What to do: connect or repair the disk, check that data.disks names it, then restart"
        );
    }
    for (name, why) in &report.left_out {
        tracing::warn!("the disk {name} {why}. It is not used; take it out of data.disks");
    }
    let names: Vec<String> = store.status().disks.into_iter().map(|disk| disk.name).collect();
    join_all(disks.retain(|name| names.iter().any(|there| there == name)).iter().map(open::Disks::close)).await;
    Ok((disks, store, report))
}

/// Refuses two names of one file or device, such as hard links.
fn refuse_twice(paths: &[PathBuf]) -> Result<(), String> {
    let mut seen: Vec<(&PathBuf, (u64, u64, u64))> = Vec::new();
    for path in paths {
        let Ok(meta) = std::fs::metadata(path) else { continue };
        // Two nodes with the same device number are one device.
        let is = if meta.rdev() > 0 { (0, 0, meta.rdev()) } else { (meta.dev(), meta.ino(), 0) };
        if let Some((first, _)) = seen.iter().find(|(_, other)| *other == is) {
            return Err(format!("{} and {} are the same disk: give one of them", first.display(), path.display()));
        }
        seen.push((path, is));
    }
    Ok(())
}

/// Formats the disks that are not formatted: all, or those that an interrupted creation left.
async fn make_missing(config: &Config, env: &Env, paths: &[PathBuf]) -> Result<(), String> {
    for path in paths {
        let shown = path.display();
        match look(path) {
            Found { contents: Contents::Pool { .. }, .. } => {}
            Found { contents: Contents::Absent, .. } if path.starts_with("/dev") => {
                return Err(format!("{shown}: no such device; the pool was not created on it yet"));
            }
            Found { contents: Contents::Absent | Contents::Blank, device: false, .. } => {
                make::create(path, config, env).await?;
            }
            Found { contents: Contents::Blank, device: true, .. } => {
                let disk = open_file(path, config, env, None, false).await?;
                let formatted = Log::format(&disk, env, &make::format_options(config, false)).await;
                formatted.map_err(|e| format!("{shown}: {e}"))?;
            }
            Found { contents, .. } => {
                return Err(format!(
                    "{shown} holds {contents}: the pool was not created on it. If that data may be lost, run `steadfast format --force`"
                ));
            }
        }
    }
    Ok(())
}

/// Creates one pool of disks that have just been formatted, and super-disks of those with fast
/// disks.
///
/// # Errors
/// When a disk cannot be opened or written.
pub async fn found(config: &Config, env: &Env) -> Result<(), String> {
    let disks = PoolDisks::open(config, env, Taking::All).await;
    let opened = Store::open_pool(disks.given(), IndexKind::memory(), env.clone(), StoreOptions::default()).await;
    let made = match opened {
        Ok((store, _)) => store.close().await.map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    };
    disks.close().await;
    made?;
    none_or_error(disks.fast_leg_failures())
}

/// Recreates the fast legs of an existing pool.
///
/// # Errors
/// When a disk cannot be opened or written.
pub async fn pair(config: &Config, env: &Env) -> Result<(), String> {
    let disks = PoolDisks::open(config, env, Taking::All).await;
    disks.close().await;
    let missing = disks.0.iter().filter_map(|(name, disks)| Some(format!("{name}: {}", disks.as_ref().err()?)));
    none_or_error(missing.chain(disks.fast_leg_failures()).collect())
}

fn none_or_error(failures: Vec<String>) -> Result<(), String> {
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
