//! Opens the configured disks as the one disk that the log drives.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_disk::{Disk, DiskOptions, FileDisk, Stripe, Superdisk, SuperdiskOptions, cache_warnings};
use steadfast_flow::Env;
use steadfast_store::StoreOptions;

use super::contents::{Contents, Found, look};
use super::fast::{FastLeg, LegFailure, open_fast, own_state};
use super::paths::named;
use super::plan::Role;
use crate::config::human_size;
use crate::config::{Config, DiskSet, IoMode};

/// Minimum size of the write buffers, and of the read buffers, of each disk of a pool of several.
const BUFFERS_BYTES_MIN: usize = 32 << 20;

/// Warnings of memory settings that are too small for the number of disks: each disk gets its
/// minimum, which is more in total.
pub fn memory_beyond_settings(config: &Config) -> Vec<String> {
    let count = config.data.disks.0.len().max(1) as u64;
    let shared = [
        ("store.cache", config.store.cache_bytes(), StoreOptions::CACHE_BYTES_MIN),
        ("store.index_cache", config.store.index_cache.0, StoreOptions::INDEX_CACHE_BYTES_MIN),
        ("log.write_budget", config.log.write_budget.0, StoreOptions::PENDING_BYTES_MIN),
        ("data.write_buffers", config.data.write_buffers.0, BUFFERS_BYTES_MIN as u64),
        ("data.read_buffers", config.data.read_buffers.0, BUFFERS_BYTES_MIN as u64),
    ];
    let beyond = shared.into_iter().filter(|(_, whole, least)| whole / count < *least.min(whole));
    beyond
        .map(|(name, whole, least)| {
            let (each, all) = (least.min(whole), least.min(whole) * count);
            format!(
                "{name} is {}, too little for {count} disks: each gets {}, {} in all; set it to at least that, or use fewer disks",
                human_size(whole),
                human_size(each),
                human_size(all)
            )
        })
        .collect()
}

/// The disks of one log, open.
#[derive(Clone)]
pub struct Disks(Arc<Inner>);

struct Inner {
    /// The disk that the log drives.
    top: Arc<dyn Disk>,
    superdisk: Option<Arc<Superdisk>>,
    members: Vec<Member>,
    /// Why the configured fast leg is not in use.
    failure: Option<LegFailure>,
    /// Whether the configuration names a fast leg.
    wanted: bool,
    /// Name of the whole set.
    name: String,
}

/// A disk in its role.
pub(super) struct Member {
    pub(super) role: Role,
    pub(super) index: usize,
    pub(super) count: usize,
    pub(super) path: PathBuf,
    /// Its content before it was opened.
    pub(super) found: Found,
    /// `None` if it could not be opened.
    pub(super) disk: Option<Arc<dyn Disk>>,
}

/// Which fast disks may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// Blank disks and those of this pool.
    Safe,
    /// All, whatever they hold: the operator has confirmed it after seeing their content.
    All,
}

impl Disks {
    /// Opens the disks of one log. Creates files of the fast leg and takes blank disks; foreign
    /// data is never touched, and a fast leg that cannot be used is left out.
    ///
    /// # Errors
    /// When the pool itself cannot be opened.
    pub async fn open(config: &Config, set: &DiskSet, env: &Env, taking: Taking) -> Result<Self, String> {
        Self::open_comparing(config, set, env, taking, None).await
    }

    /// As [`Disks::open`], for a caller without checksums: compares samples of the data, which lies
    /// from `data.0` to `data.1`.
    ///
    /// # Errors
    /// Those of [`Disks::open`].
    pub async fn open_for_block(
        config: &Config,
        set: &DiskSet,
        env: &Env,
        taking: Taking,
        data: (u64, u64),
    ) -> Result<Self, String> {
        Self::open_comparing(config, set, env, taking, Some(data)).await
    }

    async fn open_comparing(
        config: &Config,
        set: &DiskSet,
        env: &Env,
        taking: Taking,
        compare_at_open: Option<(u64, u64)>,
    ) -> Result<Self, String> {
        let mut members = Vec::new();
        let mut disks = Vec::new();
        for (index, path) in set.durable.iter().enumerate() {
            let found = look_at(path, env).await;
            let disk = open_file(path, config, env, config.data.pool_size.map(|size| size.0), false).await?;
            disks.push(disk.clone());
            members.push(Member {
                role: Role::Durable,
                index,
                count: set.durable.len(),
                path: path.clone(),
                found,
                disk: Some(disk),
            });
        }
        let (name, wanted) = (set.name(), !set.fast.is_empty());
        let durable = stripe(disks).await?;
        let paired = Superdisk::is_paired(&durable).await.map_err(|e| format!("{}: {e}", durable.describe()))?;
        if !wanted && !paired {
            return Ok(Self(Arc::new(Inner { top: durable, superdisk: None, members, failure: None, wanted, name })));
        }
        // A pool that had a fast leg stays a super-disk without it, so that changes meanwhile are
        // known when the leg returns.
        let (fast, failure) =
            if wanted { open_fast(config, set, env, taking, &mut members).await } else { (None, None) };
        let options = SuperdiskOptions {
            rebuild_bytes_s: config.superdisk.rebuild_rate.0,
            take_foreign_fast: taking == Taking::All,
            compare_at_open,
            ..SuperdiskOptions::default()
        };
        let superdisk = Superdisk::open(durable, fast, env.clone(), options)
            .await
            .map_err(|e| format!("the super-disk cannot be opened: {e}"))?;
        Ok(Self(Arc::new(Inner { top: superdisk.clone(), superdisk: Some(superdisk), members, failure, wanted, name })))
    }

    /// A disk that is no file or device of this machine.
    pub fn of(name: String, disk: Arc<dyn Disk>) -> Self {
        let found = Found { device: false, size_bytes: disk.len(), contents: Contents::Absent };
        let path = PathBuf::from(&name);
        let member = Member { role: Role::Durable, index: 0, count: 1, path, found, disk: Some(disk.clone()) };
        let members = vec![member];
        Self(Arc::new(Inner { top: disk, superdisk: None, members, failure: None, wanted: false, name }))
    }

    /// The name of the set.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The disk that the log drives.
    pub fn top(&self) -> &Arc<dyn Disk> {
        &self.0.top
    }

    /// Stops the background tasks. Call it after the last flush.
    pub async fn close(&self) {
        if let Some(superdisk) = &self.0.superdisk {
            superdisk.close().await;
        }
    }

    /// The state of the super-disk, if it is one.
    pub fn superdisk(&self) -> Option<FastLeg> {
        let superdisk = self.0.superdisk.as_ref()?;
        Some(FastLeg::of(superdisk, self.0.failure.as_ref(), self.0.wanted, &self.0.name))
    }

    /// The durable disks that hang, each with the duration in milliseconds. The super-disk itself
    /// takes a hanging fast disk out of use.
    pub fn hanging(&self) -> Vec<(PathBuf, u64)> {
        let durable = self.0.members.iter().filter(|member| member.role == Role::Durable);
        let one =
            |member: &Member| Some((member.path.clone(), hangs_ms(member.disk.as_ref()?))).filter(|(_, ms)| *ms > 0);
        let mut hanging: Vec<_> = durable.clone().filter_map(one).collect();
        // Reads that touch several members of a stripe take memory of the stripe.
        let ms = hangs_ms(&self.0.top);
        if let Some(first) = durable.clone().next()
            && hanging.is_empty()
            && self.0.superdisk.is_none()
            && ms > 0
        {
            hanging.push((first.path.clone(), ms));
        }
        hanging
    }

    /// Every disk as a row of the status: `index` of `count` in its role.
    pub fn list(&self) -> Vec<Value> {
        let fast = self.superdisk();
        let rows = self.0.members.iter().map(|member| {
            let mut row = json!({
                "role": member.role,
                "index": member.index,
                "count": member.count,
                "path": member.path,
                "device": member.found.device,
                "size_bytes": member.disk.as_ref().map_or(member.found.size_bytes, |disk| disk.len()),
                "stats": member.disk.as_ref().map(|disk| disk.stats()),
                "latency": member.disk.as_ref().and_then(|disk| disk.latencies()),
            });
            let hangs = member.disk.as_ref().is_some_and(|disk| hangs_ms(disk) > 0);
            row["state"] = match (member.role, &member.disk) {
                (Role::Durable, _) if hangs => json!("hangs"),
                (Role::Durable, _) => json!("in use"),
                (Role::Fast, None) => json!(own_state(&member.found.contents)),
                (Role::Fast, Some(_)) => json!(fast.as_ref().map_or("missing", FastLeg::state)),
            };
            row["holds"] = match (member.role, &member.disk) {
                (Role::Fast, None) => json!(member.found.contents.to_string()),
                _ => Value::Null,
            };
            row
        });
        rows.collect()
    }
}

/// Age of an unanswered request at which a disk hangs.
pub const HANGS: Duration = Duration::from_secs(5);

/// The age of the oldest unanswered request in milliseconds if the disk hangs; else 0.
fn hangs_ms(disk: &Arc<dyn Disk>) -> u64 {
    let stats = disk.stats();
    Some(stats.oldest_read_ms.max(stats.oldest_write_ms)).filter(|ms| u128::from(*ms) >= HANGS.as_millis()).unwrap_or(0)
}

/// Reads what a disk holds, off the threads that serve requests.
pub(super) async fn look_at(path: &Path, env: &Env) -> Found {
    let owned = path.to_owned();
    env.blocking(move || look(&owned)).await.unwrap_or(Found {
        device: false,
        size_bytes: 0,
        contents: Contents::Unreadable { why: "reading it panicked".to_owned() },
    })
}

/// Opens the durable disk of a log without its fast leg, read-only.
///
/// # Errors
/// The reason, as a message.
pub async fn open_durable(config: &Config, set: &DiskSet, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let mut disks = Vec::new();
    for path in &set.durable {
        let options =
            DiskOptions { read_only: true, ..options(config, config.data.pool_size.map(|size| size.0), false) };
        disks.push(open_with(path, options, env).await?);
    }
    stripe(disks).await
}

/// Opens several disks as one stripe; a single disk as it is.
///
/// # Errors
/// When they are no stripe, as a message.
pub async fn stripe(mut disks: Vec<Arc<dyn Disk>>) -> Result<Arc<dyn Disk>, String> {
    match disks.pop() {
        Some(only) if disks.is_empty() => Ok(only),
        Some(last) => {
            disks.push(last);
            Stripe::open(disks).await.map_err(|e| e.to_string())
        }
        None => Err("no disk is configured".to_owned()),
    }
}

/// Opens a file or device.
///
/// # Errors
/// The operating system's error, as a message.
pub async fn open_file(
    path: &Path,
    config: &Config,
    env: &Env,
    limit_bytes: Option<u64>,
    create: bool,
) -> Result<Arc<dyn Disk>, String> {
    let disk = open_with(path, options(config, limit_bytes, create), env).await?;
    if create && limit_bytes.is_none() && disk.geometry().capacity_bytes == 0 {
        return Err(format!(
            "{}: its file system reports no free space: set the maximum size of the pool with data.pool_size",
            path.display()
        ));
    }
    Ok(disk)
}

/// The options of a file or device of the pool.
pub(super) fn options(config: &Config, limit_bytes: Option<u64>, create: bool) -> DiskOptions {
    // The disks of a pool of several share the memory.
    let count = config.data.disks.0.len().max(1);
    let share = |whole: usize| (whole / count).max(BUFFERS_BYTES_MIN.min(whole));
    DiskOptions {
        io: match config.data.io {
            IoMode::Auto => steadfast_disk::IoMode::Auto,
            IoMode::Uring => steadfast_disk::IoMode::Uring,
            IoMode::Threads => steadfast_disk::IoMode::Threads,
        },
        create,
        queue_depth: config.data.queue_depth,
        pool_bytes: share(config.data.write_buffers.bytes()),
        read_pool_bytes: share(config.data.read_buffers.bytes()),
        file_limit_bytes: limit_bytes,
        ..DiskOptions::default()
    }
}

/// Opens one path, off the threads that serve requests, and logs warnings of its write cache.
pub(super) async fn open_with(path: &Path, options: DiskOptions, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let (shown, path) = (path, path.to_owned());
    let open = move || {
        let disk = FileDisk::open(&path, &options)?;
        for warning in cache_warnings(&path) {
            tracing::warn!(disk = %path.display(), "{warning}");
        }
        Ok(disk)
    };
    env.blocking(open)
        .await
        .unwrap_or_else(|| Err(std::io::Error::other("opening it panicked")))
        .map_err(|e| named(shown, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_for_the_disks_is_reported() {
        let config = |disks: usize| {
            let disks: Vec<String> = (0..disks).map(|n| format!("\"d{n}\"")).collect();
            let text = format!("[data]\ndisks = [{}]\n[log]\nwrite_budget = \"64 MiB\"\n", disks.join(", "));
            crate::config::parse(&text).expect("valid")
        };
        let warning = |disks: usize| {
            let all = memory_beyond_settings(&config(disks));
            all.into_iter().find(|text| text.starts_with("log.write_budget"))
        };
        assert_eq!((warning(1), warning(4)), (None, None));
        let text = warning(8).expect("too little");
        assert!(text.contains("64 MiB") && text.contains("8 disks") && text.contains("128 MiB in all"), "{text}");
    }
}
