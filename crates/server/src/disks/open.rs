//! From the disks that the configuration names to the one that the log drives.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_disk::{Disk, DiskOptions, FileDisk, Stripe, StripeOptions, Superdisk, SuperdiskOptions, cache_warnings};
use steadfast_flow::Env;
use steadfast_store::StoreOptions;

use super::contents::{Contents, Found, look};
use super::plan::{Role, fast_file_bytes};
use crate::config::{Config, DiskSet, IoMode};
use crate::report::size;

/// How long a fast disk may take to be looked at and opened before the server goes on without it.
const FAST_PATIENCE: Duration = Duration::from_secs(2);

/// Memory for data on its way to a disk, and from it, that each disk of a pool of several gets at least.
const BUFFERS_BYTES_MIN: usize = 32 << 20;

/// Settings of memory that are too small to be shared out among so many disks, for people: each gets its least, which is more in all.
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
                size(whole),
                size(each),
                size(all)
            )
        })
        .collect()
}

/// The disks of one log, open.
#[derive(Clone)]
pub struct Disks(Arc<Inner>);

struct Inner {
    /// What the log drives.
    top: Arc<dyn Disk>,
    superdisk: Option<Arc<Superdisk>>,
    members: Vec<Member>,
    /// Why the fast leg as it is configured was not given to the super-disk.
    trouble: Option<Trouble>,
    /// Whether the configuration names a fast leg.
    wanted: bool,
    /// What to call all of it.
    name: String,
}

/// A disk in its role.
struct Member {
    role: Role,
    index: usize,
    count: usize,
    path: PathBuf,
    /// As it was before it was opened.
    found: Found,
    /// `None` when it could not be opened.
    disk: Option<Arc<dyn Disk>>,
}

/// Why a fast leg is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    kind: TroubleKind,
    what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TroubleKind {
    Missing,
    Foreign,
    Failed,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

fn trouble<T>(kind: TroubleKind, what: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble { kind, what: what.into() })
}

/// Which fast disks are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// Those that are blank or of this pool.
    Safe,
    /// All, whatever they hold: the operator has said so, and has been shown what that is.
    All,
}

impl Disks {
    /// Opens the disks of one log. Files of the fast leg are made and blank disks taken; nothing of somebody else's is touched, and a fast leg that
    /// cannot be used is done without.
    ///
    /// # Errors
    /// When the pool itself cannot be opened.
    pub async fn open(config: &Config, set: &DiskSet, env: &Env, taking: Taking) -> Result<Self, String> {
        Self::open_comparing(config, set, env, taking, None).await
    }

    /// As [`Disks::open`], for a caller without checksums: samples of the data, which is from `data.0` to `data.1`, are compared.
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
            return Ok(Self(Arc::new(Inner { top: durable, superdisk: None, members, trouble: None, wanted, name })));
        }
        // A pool that has had a fast leg stays a super-disk without one, so that what happens meanwhile is known when that comes back.
        let (fast, trouble) =
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
        Ok(Self(Arc::new(Inner { top: superdisk.clone(), superdisk: Some(superdisk), members, trouble, wanted, name })))
    }

    /// What to call them.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What the log drives.
    pub fn top(&self) -> &Arc<dyn Disk> {
        &self.0.top
    }

    /// Ends what goes on in the background. After the last flush.
    pub async fn close(&self) {
        if let Some(superdisk) = &self.0.superdisk {
            superdisk.close().await;
        }
    }

    /// How the super-disk is, if there is one.
    pub fn superdisk(&self) -> Option<FastLeg> {
        let superdisk = self.0.superdisk.as_ref()?;
        let mut status = json!(superdisk.status());
        if let Some(trouble) = &self.0.trouble {
            status["fast"] = match trouble.kind {
                TroubleKind::Missing => json!({"state": "missing", "why": trouble.what}),
                TroubleKind::Foreign => json!({"state": "foreign", "what": trouble.what}),
                TroubleKind::Failed => json!({"state": "failed", "why": trouble.what, "at_start": true}),
            };
        }
        status["configured"] = json!(self.0.wanted);
        status["disk"] = json!(self.0.name);
        let mut fast = FastLeg { status };
        let degraded = fast.degraded();
        fast.status["degraded"] = json!(degraded);
        Some(fast)
    }

    /// The pool's own disks that hang, each with for how many milliseconds. A fast disk that hangs is taken out of use by the super-disk.
    pub fn hanging(&self) -> Vec<(PathBuf, u64)> {
        let durable = self.0.members.iter().filter(|member| member.role == Role::Durable);
        let one =
            |member: &Member| Some((member.path.clone(), hangs_ms(member.disk.as_ref()?))).filter(|(_, ms)| *ms > 0);
        durable.filter_map(one).collect()
    }

    /// Every disk, for people and scripts: `index` of `count` in its role.
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

/// A disk that has not answered a request for so long hangs.
pub const HANGS: Duration = Duration::from_secs(5);

/// For how many milliseconds a disk has not answered a request, when that is long enough to say so; else 0.
fn hangs_ms(disk: &Arc<dyn Disk>) -> u64 {
    let stats = disk.stats();
    Some(stats.oldest_read_ms.max(stats.oldest_write_ms)).filter(|ms| u128::from(*ms) >= HANGS.as_millis()).unwrap_or(0)
}

/// The state of a fast disk that was not opened.
fn own_state(contents: &Contents) -> &'static str {
    match contents {
        Contents::Absent => "missing",
        Contents::Unreadable { .. } => "failed",
        Contents::Foreign { .. } | Contents::Pool { .. } => "foreign",
        Contents::Blank | Contents::StripeMember { .. } | Contents::FastLeg { .. } => "not used",
    }
}

/// The status of a super-disk, with the words for it.
#[derive(Debug, Clone)]
pub struct FastLeg {
    status: Value,
}

impl FastLeg {
    /// From what a server's status says; `None` when it has no super-disk.
    pub fn from_status(status: &Value) -> Option<Self> {
        status.is_object().then(|| Self { status: status.clone() })
    }

    /// Everything, as JSON.
    pub fn status(&self) -> &Value {
        &self.status
    }

    /// The disk whose fast leg it is.
    pub fn disk(&self) -> &str {
        self.status["disk"].as_str().unwrap_or("?")
    }

    /// One word.
    pub fn state(&self) -> &str {
        self.status["fast"]["state"].as_str().unwrap_or("missing")
    }

    /// Whether there is to be a fast leg and it is not in use.
    pub fn degraded(&self) -> bool {
        self.status["configured"] == Value::Bool(true) && matches!(self.state(), "missing" | "foreign" | "failed")
    }

    /// Whether it failed while the server started, and is looked at again at the next start only.
    pub fn failed_at_start(&self) -> bool {
        self.status["fast"]["at_start"] == Value::Bool(true)
    }

    /// What is wrong, if something is.
    pub fn why(&self) -> Option<&str> {
        ["what", "why"].iter().find_map(|key| self.status["fast"][key].as_str())
    }
}

async fn look_at(path: &Path, env: &Env) -> Found {
    let owned = path.to_owned();
    env.blocking(move || look(&owned)).await.unwrap_or(Found {
        device: false,
        size_bytes: 0,
        contents: Contents::Unreadable { why: "looking at it panicked".to_owned() },
    })
}

/// Opens the disk of a log alone, without a fast leg: for checks that change nothing.
///
/// # Errors
/// What is wrong, for people.
pub async fn open_durable(config: &Config, set: &DiskSet, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let mut disks = Vec::new();
    for path in &set.durable {
        let options =
            DiskOptions { read_only: true, ..options(config, config.data.pool_size.map(|size| size.0), false) };
        disks.push(open_with(path, options, env).await?);
    }
    stripe(disks).await
}

/// Opens the fast leg alone, to be read only.
///
/// # Errors
/// What is wrong, for people.
pub async fn open_fast_alone(config: &Config, set: &DiskSet, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let mut disks = Vec::new();
    for path in &set.fast {
        let options = DiskOptions { read_only: true, ..options(config, None, false) };
        disks.push(open_with(path, options, env).await?);
    }
    stripe(disks).await
}

/// One disk of several.
async fn stripe(mut disks: Vec<Arc<dyn Disk>>) -> Result<Arc<dyn Disk>, String> {
    match disks.pop() {
        Some(only) if disks.is_empty() => Ok(only),
        Some(last) => {
            disks.push(last);
            Stripe::open(disks).await.map_err(|e| e.to_string())
        }
        None => Err("no disk is configured".to_owned()),
    }
}

/// Opens the fast leg, or says why it is done without.
async fn open_fast(
    config: &Config,
    set: &DiskSet,
    env: &Env,
    taking: Taking,
    members: &mut Vec<Member>,
) -> (Option<Arc<dyn Disk>>, Option<Trouble>) {
    let paths = &set.fast;
    let mut found = Vec::new();
    for path in paths {
        let silent = || Found {
            device: false,
            size_bytes: 0,
            contents: Contents::Unreadable { why: format!("it did not answer for {} s", FAST_PATIENCE.as_secs()) },
        };
        found.push(env.timeout(FAST_PATIENCE, look_at(path, env)).await.unwrap_or_else(silent));
    }
    let begun = members.len();
    for (index, (path, found)) in paths.iter().zip(&found).enumerate() {
        let (path, found) = (path.clone(), found.clone());
        members.push(Member { role: Role::Fast, index, count: paths.len(), path, found, disk: None });
    }
    let opened = async {
        if taking == Taking::Safe {
            check_fast(paths, &found)?;
        }
        let mut disks = Vec::new();
        for (path, found) in paths.iter().zip(&found) {
            disks.push(open_fast_file(path, found, paths.len(), config, env).await?);
        }
        let leg = assemble_fast(&disks, &found, env, taking).await?;
        Ok((leg, disks))
    };
    let opened = env.timeout(FAST_PATIENCE * 2, opened).await;
    match opened.unwrap_or_else(|| trouble(TroubleKind::Failed, "it did not answer in time")) {
        Ok((leg, disks)) => {
            for (member, disk) in members[begun..].iter_mut().zip(disks) {
                member.disk = Some(disk);
            }
            (Some(leg), None)
        }
        Err(trouble) => (None, Some(trouble)),
    }
}

/// Whether these disks may be used, all of them together.
fn check_fast(paths: &[PathBuf], found: &[Found]) -> Result<(), Trouble> {
    for (path, found) in paths.iter().zip(found) {
        let shown = path.display();
        match &found.contents {
            Contents::Absent if path.starts_with("/dev") => {
                return trouble(TroubleKind::Missing, format!("{shown}: there is no such device"));
            }
            Contents::Unreadable { why } => return trouble(TroubleKind::Failed, format!("{shown}: {why}")),
            contents @ (Contents::Foreign { .. } | Contents::Pool { .. }) => {
                return trouble(TroubleKind::Foreign, format!("{shown} holds {contents}"));
            }
            contents @ Contents::StripeMember { .. } if paths.len() == 1 => {
                return trouble(TroubleKind::Foreign, format!("{shown} holds {contents}"));
            }
            contents @ Contents::FastLeg { .. } if paths.len() > 1 => {
                return trouble(
                    TroubleKind::Foreign,
                    format!("{shown} holds {contents}, alone and not one of several"),
                );
            }
            _ => {}
        }
    }
    let empty = found.iter().filter(|f| f.contents.is_empty()).count();
    if empty > 0 && empty < found.len() {
        let names = |pick: bool| {
            let picked = paths.iter().zip(found).filter(|(_, f)| f.contents.is_empty() == pick);
            picked.map(|(p, _)| p.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "{} is blank or missing, and {} belongs to a stripe that needs it: the fast disks must be made one again, with `steadfast format --fast-only`",
            names(true),
            names(false)
        );
        return trouble(TroubleKind::Missing, what);
    }
    Ok(())
}

async fn open_fast_file(
    path: &Path,
    found: &Found,
    count: usize,
    config: &Config,
    env: &Env,
) -> Result<Arc<dyn Disk>, Trouble> {
    let limit = if found.device {
        None
    } else {
        // One that is there may be as large as it is.
        match fast_file_bytes(config, count) {
            Ok(bytes) => Some(bytes),
            Err(_) if found.size_bytes > 0 => Some(found.size_bytes),
            Err(what) => return trouble(TroubleKind::Missing, what),
        }
    };
    let create = found.contents == Contents::Absent;
    let opened = open_file(path, config, env, limit, create).await;
    opened.or_else(|what| trouble(if create { TroubleKind::Missing } else { TroubleKind::Failed }, what))
}

/// The leg as one disk; blank disks are made a stripe first.
async fn assemble_fast(
    disks: &[Arc<dyn Disk>],
    found: &[Found],
    env: &Env,
    taking: Taking,
) -> Result<Arc<dyn Disk>, Trouble> {
    let all = taking == Taking::All;
    if disks.len() > 1 && (all || found.iter().all(|f| f.contents.is_empty())) {
        let made = Stripe::format(disks, env, &StripeOptions::default(), all).await;
        made.or_else(|e| trouble(TroubleKind::Failed, e.to_string()))?;
    }
    stripe(disks.to_vec()).await.or_else(|e| trouble(TroubleKind::Foreign, e))
}

/// Opens a file or device.
///
/// # Errors
/// What the operating system says, for people.
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
            "{}: its file system does not say how much room there is, or has none: say how large the pool may become, with data.pool_size",
            path.display()
        ));
    }
    Ok(disk)
}

fn options(config: &Config, limit_bytes: Option<u64>, create: bool) -> DiskOptions {
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

async fn open_with(path: &Path, options: DiskOptions, env: &Env) -> Result<Arc<dyn Disk>, String> {
    let path = path.to_owned();
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
        .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_too_little_for_so_many_disks_is_told_of() {
        let config = |disks: usize| {
            let disks: Vec<String> = (0..disks).map(|n| format!("\"d{n}\"")).collect();
            let text = format!("[data]\ndisks = [{}]\n[log]\nwrite_budget = \"64 MiB\"\n", disks.join(", "));
            crate::config::parse(&text).expect("valid")
        };
        let told = |disks: usize| {
            let all = memory_beyond_settings(&config(disks));
            all.into_iter().find(|text| text.starts_with("log.write_budget"))
        };
        assert_eq!((told(1), told(4)), (None, None));
        let text = told(8).expect("too little");
        assert!(text.contains("64 MiB") && text.contains("8 disks") && text.contains("128 MiB in all"), "{text}");
    }
}
