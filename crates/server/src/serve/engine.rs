//! Disk, log and store of one server, opened from its configuration.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_log::check::Damage;
use steadfast_log::{CompactionOptions, FormatOptions, Log, LogOptions, LogState, ScrubOptions, ScrubStatus};
use steadfast_store::{IndexKind, Store, StoreOptions};

use super::many;
use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::open::{self, FastLeg, Taking, open_file};

/// Disk and store. Cloning shares them.
#[derive(Clone)]
pub struct Engine {
    disks: Disks,
    store: Store,
}

/// What the store is on.
#[derive(Clone)]
enum Disks {
    /// One, which may be a stripe or a super-disk.
    One(open::Disks),
    /// Several, each with a log of its own.
    Many(many::Disks),
}

impl Engine {
    /// Opens the pool; makes one when there is none yet and it is a file.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub async fn open(config: &Config, data: &DataDir, env: &Env) -> Result<Self, String> {
        if !config.data.disks.0.is_empty() {
            let begun = env.now();
            let (disks, store, report) = many::open(config, data, env, store_options(config)).await?;
            tracing::info!(
                took_ms = env.now().saturating_sub(begun).as_millis(),
                disks = report.disks.len(),
                missing = report.missing.len(),
                index_rebuilt = report.index_rebuilt,
                replayed_records = report.replayed_records,
                "the pool is open"
            );
            return Ok(Self { disks: Disks::Many(disks), store });
        }
        let paths = config.pool_paths();
        if let [path] = &paths[..]
            && !path.exists()
        {
            refuse_to_forget(path, data)?;
            create(path, config, env).await?;
            tracing::info!(pool = %path.display(), "a new pool has been made");
        }
        let disks = open::Disks::open(config, env, Taking::Safe).await?;
        tracing::info!(disk = %disks.top().describe(), "opening the pool");
        let begun = env.now();
        let index = IndexKind::Lsm(data.index());
        let opened = Store::open(disks.top().clone(), index, env.clone(), store_options(config)).await;
        let (store, report) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                disks.close().await;
                let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                return Err(format!("{}: {e}", shown.join(", ")));
            }
        };
        let took_ms = env.now().saturating_sub(begun).as_millis();
        tracing::info!(
            took_ms,
            index_rebuilt = report.index_rebuilt,
            replayed_records = report.replayed_records,
            "the pool is open"
        );
        Ok(Self { disks: Disks::One(disks), store })
    }

    /// How the super-disk is, if there is one.
    pub fn superdisk(&self) -> Option<FastLeg> {
        match &self.disks {
            Disks::One(disks) => disks.superdisk(),
            Disks::Many(_) => None,
        }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Why no writes are taken; `None` when they are.
    pub fn trouble(&self) -> Option<String> {
        if let Disks::Many(_) = &self.disks {
            // One that has failed takes only its own objects to read-only.
            let all = || self.disks_in_trouble().iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>();
            return (!self.store.takes_writes()).then(|| format!("no disk takes writes: {}", all().join("; ")));
        }
        match self.store.status().log.log {
            LogState::Ok => None,
            LogState::Failed { what, cause } => Some(format!("a {what} failed: {cause}")),
            LogState::ReadOnly { why } => Some(format!("the pool is read-only: {why}")),
            LogState::Closed => Some("the log is closed".to_owned()),
        }
    }

    /// The disks of a pool of several that do not do all of their part, by name, and why.
    pub fn disks_in_trouble(&self) -> Vec<(String, String)> {
        if let Disks::One(_) = &self.disks {
            return Vec::new();
        }
        self.store.disks_in_trouble()
    }

    /// Damages that the scrubs have found beyond those that are `known` of each disk, each with what it concerns.
    pub fn damage_since(&self, known: &mut BTreeMap<String, u64>) -> Vec<(Damage, Vec<String>)> {
        let mut found = Vec::new();
        for (disk, scrub) in self.store.scrubs() {
            let known = known.entry(disk).or_default();
            let (new, total) = self.damage_in(scrub, *known);
            *known = total;
            found.extend(new);
        }
        found
    }

    fn damage_in(&self, scrub: ScrubStatus, known: u64) -> (Vec<(Damage, Vec<String>)>, u64) {
        let new = scrub.damaged.saturating_sub(known) as usize;
        if new == 0 {
            return (Vec::new(), scrub.damaged);
        }
        let names = self.store.names();
        let old = scrub.damage.len().saturating_sub(new);
        let found = scrub.damage.into_iter().skip(old).map(|damage| {
            let mut subjects: Vec<String> = damage.heads.iter().map(|head| names.describe(head)).collect();
            subjects.sort();
            subjects.dedup();
            (damage, subjects)
        });
        (found.collect(), scrub.damaged)
    }

    /// Puts disk and store into `status`.
    pub fn describe(&self, status: &mut Value) {
        status["disk"] = match &self.disks {
            Disks::One(disks) => {
                let disk = disks.top();
                json!({
                    "description": disk.describe(),
                    "geometry": disk.geometry(),
                    "len_bytes": disk.len(),
                    "stats": disk.stats(),
                })
            }
            Disks::Many(disks) => disks.describe(),
        };
        status["disks"] = match &self.disks {
            Disks::One(disks) => disks.list(),
            Disks::Many(disks) => disks.list(),
        };
        if let Some(fast) = self.superdisk() {
            status["superdisk"] = fast.status().clone();
            status["superdisk"]["degraded"] = json!(fast.degraded());
        }
        status["store"] = json!(self.store.status());
    }

    /// Commits what was accepted, saves the index, stops the tasks.
    ///
    /// # Errors
    /// When that fails or takes longer than `deadline`: nothing acknowledged is lost, the next start replays more.
    pub async fn close(&self, deadline: Duration, env: &Env) -> Result<(), String> {
        let closing = async {
            let closed = self.store.close().await;
            if let Disks::One(disks) = &self.disks {
                disks.close().await;
            }
            closed
        };
        match env.timeout(deadline.max(Duration::from_secs(1)), closing).await {
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => Err(format!("the pool could not be closed cleanly ({e}); the next start recovers it")),
            None => Err("the pool could not be closed in time; the next start recovers it".to_owned()),
        }
    }
}

/// Whether `path` is a block device.
pub fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// An index without its pool means that the pool is somewhere else now: a new one would hide that.
fn refuse_to_forget(path: &Path, data: &DataDir) -> Result<(), String> {
    let index = data.index();
    let used = std::fs::read_dir(&index).is_ok_and(|mut entries| entries.next().is_some());
    if !used {
        return Ok(());
    }
    Err(format!(
        "the pool {} is missing, but {} shows that there was one: mount or restore it, or set data.pool. To begin anew, \
         remove {}",
        path.display(),
        index.display(),
        index.display()
    ))
}

/// Makes a pool file beside its final name and then renames it, so that a pool is there whole or not at all. Replaces what is there.
///
/// # Errors
/// When there is no room, or what the file system says.
pub async fn create(path: &Path, config: &Config, env: &Env) -> Result<(), String> {
    let shown = path.display().to_string();
    let fail = |e: io::Error| format!("{shown}: {e}");
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unfinished: PathBuf = path.with_file_name(name);
    match std::fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let limit = config.data.pool_size.map(|size| size.0);
    let disk = open_file(&unfinished, config, env, limit, true).await?;
    Log::format(&disk, env, &format_options(config, false)).await.map_err(|e| format!("{shown}: {e}"))?;
    drop(disk);
    std::fs::rename(&unfinished, path).map_err(fail)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|d| d.sync_all()).map_err(fail)
}

/// How a pool is laid out.
pub fn format_options(config: &Config, force: bool) -> FormatOptions {
    FormatOptions { extent_bytes: config.data.extent_size.map(|size| size.0), force }
}

fn percent(value: usize) -> u32 {
    value.min(100) as u32
}

fn store_options(config: &Config) -> StoreOptions {
    let log = LogOptions {
        pending_bytes_max: config.log.write_budget.0,
        async_window: config.log.async_window,
        gather: config.log.gather,
        prefill_ahead_bytes: config.log.prefill_ahead.0,
        body_writes_max: config.log.body_writes,
        compaction: CompactionOptions {
            enabled: config.compaction.enabled,
            bytes_s: config.compaction.rate.0,
            dead_percent_min: percent(config.compaction.dead_percent),
            dead_percent_min_low: percent(config.compaction.dead_percent_low),
            low_percent: percent(config.compaction.low_percent),
            interval: config.compaction.interval,
        },
        scrub: ScrubOptions {
            enabled: config.scrub.enabled,
            bytes_s: config.scrub.rate.0,
            interval: config.scrub.interval,
        },
        ..LogOptions::default()
    };
    StoreOptions {
        log,
        inline_max_bytes: config.store.inline_max.bytes(),
        write_wait: config.store.write_wait,
        read_ahead_bytes_max: config.store.read_ahead.0,
        cache_bytes: config.store.cache.0,
        index_cache_bytes: config.store.index_cache.0,
        upload_expiry: config.store.upload_expiry,
        ..StoreOptions::default()
    }
}
