//! The pool that `steadfast format` would make: which disks, in which roles, and what is on them now.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::contents::{Contents, Found, look};
use crate::config::Config;
use crate::report::size;

/// What a disk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The pool itself: what is acknowledged is here.
    Durable,
    /// A copy on fast disks, for reads.
    Fast,
}

/// A disk in its role.
#[derive(Debug, Clone, Serialize)]
pub struct Planned {
    /// Of which of the pool's logs, from 0.
    pub disk: usize,
    /// How many logs the pool has.
    pub disks: usize,
    /// What it is for.
    pub role: Role,
    /// Which of the disks in that role, from 0.
    pub index: usize,
    /// How many disks share the role.
    pub count: usize,
    /// Where it is.
    pub path: PathBuf,
    /// What it is now.
    #[serde(flatten)]
    pub found: Found,
    /// Whether it is written zone by zone, in order.
    pub zoned: bool,
    /// How large it will be, in bytes, at most.
    pub will_hold_bytes: u64,
    /// Why it is not used as it is; `None` when it can be.
    pub refused: Option<String>,
}

/// A pool that could be made.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Its disks.
    pub disks: Vec<Planned>,
    /// What the pool can hold at most, in bytes.
    pub usable_bytes: u64,
    /// Whether making it was begun before, and is carried on.
    pub begun: bool,
}

/// What is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The pool too, not only the fast disks.
    pub pool: bool,
    /// Whatever is there now.
    pub force: bool,
    /// Making this pool was begun before and interrupted: what it left behind is its own.
    pub begun: bool,
}

impl Plan {
    /// Looks at the disks that the configuration names. Changes nothing.
    ///
    /// # Errors
    /// When the configuration does not say enough.
    pub fn make(config: &Config, scope: Scope) -> Result<Self, String> {
        let sets = config.disk_sets();
        let (mut disks, mut usable_bytes) = (Vec::new(), 0u64);
        // A file is as large as it may become.
        let limit = |path: &Path, found: &Found| {
            if found.device { found.size_bytes } else { config.data.pool_size.map_or_else(|| room(path), |s| s.0) }
        };
        for (disk, set) in sets.iter().enumerate() {
            let (durable, fast) = (found_all(&set.durable), found_all(&set.fast));
            // As large as the smallest of a stripe allows, times their number.
            let smallest = durable.iter().map(|(path, found)| limit(path, found)).min().unwrap_or(0);
            usable_bytes = usable_bytes.saturating_add(smallest.saturating_mul(durable.len() as u64));
            let planned = |role, index, count, (path, found): &(PathBuf, Found), will_hold_bytes, refused| Planned {
                disk,
                disks: sets.len(),
                role,
                index,
                count,
                path: path.clone(),
                found: found.clone(),
                zoned: (role == Role::Durable && config.data.zone_size.is_some()) || steadfast_disk::is_zoned(path),
                will_hold_bytes,
                refused,
            };
            for (index, one) in durable.iter().enumerate().filter(|_| scope.pool) {
                let refused = refuse_pool(&one.0, &one.1, scope);
                disks.push(planned(Role::Durable, index, durable.len(), one, limit(&one.0, &one.1), refused));
            }
            for (index, one) in fast.iter().enumerate() {
                let (path, found) = one;
                let kept = found.device || (found.contents == Contents::Blank && found.size_bytes > 0);
                let bytes = if kept { found.size_bytes } else { fast_file_bytes(config, fast.len())? };
                disks.push(planned(Role::Fast, index, fast.len(), one, bytes, refuse_fast(path, found, scope)));
            }
        }
        let mut plan = Self { disks, usable_bytes, begun: scope.begun && !scope.force };
        plan.refuse_twice();
        Ok(plan)
    }

    /// One disk under two names would be written twice.
    fn refuse_twice(&mut self) {
        let mut known: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
        for disk in &mut self.disks {
            let Ok(meta) = std::fs::metadata(&disk.path) else { continue };
            let identity = if disk.found.device { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) };
            if let Some(first) = known.get(&identity) {
                disk.refused = Some(format!("it is the same disk as {}", first.display()));
            } else {
                known.insert(identity, disk.path.clone());
            }
        }
    }

    /// The disks that are refused, each with its reason; empty when the pool can be made.
    pub fn refusals(&self) -> Vec<String> {
        let one = |d: &Planned| d.refused.as_ref().map(|why| format!("{}: {why}", d.path.display()));
        self.disks.iter().filter_map(one).collect()
    }

    /// The plan for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        for disk in &self.disks {
            let role = role(disk.role, (disk.index, disk.count), (disk.disk, disk.disks));
            let kind = match (disk.found.device, disk.zoned) {
                (true, false) => "block device",
                (true, true) => "zoned device",
                (false, false) => "file",
                (false, true) => "file, zoned",
            };
            let fate = match &disk.refused {
                Some(why) => format!("REFUSED: {why}"),
                None if disk.found.contents == Contents::Absent => "will be made".to_owned(),
                None if disk.found.contents.is_empty() => "blank".to_owned(),
                None if self.begun => "was begun, will be finished".to_owned(),
                None => format!("WILL BE OVERWRITTEN: {}", disk.found.contents),
            };
            let path = disk.path.display().to_string();
            let _ = writeln!(out, "{role:<24} {path:<28} {kind:<13} {:>10}  {fate}", size(disk.will_hold_bytes));
        }
        out
    }
}

/// The name of a role: which disk in it, and of which of the pool's logs, each from 0 and with how many there are.
pub fn role(role: Role, (index, count): (usize, usize), (disk, disks): (usize, usize)) -> String {
    let mut name = match role {
        Role::Durable => "pool",
        Role::Fast => "fast leg",
    }
    .to_owned();
    if disks > 1 {
        name.push_str(&format!(" disk {} of {disks}", disk + 1));
        if role == Role::Fast {
            name = format!("  fast leg of {}", disk + 1);
        }
    }
    if count > 1 { format!("{name}, {} of {count}", index + 1) } else { name }
}

fn found_all(paths: &[PathBuf]) -> Vec<(PathBuf, Found)> {
    paths.iter().map(|path| (path.clone(), look(path))).collect()
}

/// All of the file system that a file is to be on.
fn room(path: &Path) -> u64 {
    let exists = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(exists).map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize))
}

/// How large each of so many files of a fast leg is made.
///
/// # Errors
/// When the configuration does not say.
pub fn fast_file_bytes(config: &Config, count: usize) -> Result<u64, String> {
    match (config.superdisk.fast_size, config.data.pool_size) {
        (Some(each), _) => Ok(each.0),
        (None, Some(pool)) => {
            let each = pool.0.div_ceil(count.max(1) as u64);
            // Room for the headers in front of the data.
            Ok(each.saturating_add(HEADERS_BYTES).next_multiple_of(1 << 20))
        }
        (None, None) => Err("a fast disk is a file: say with superdisk.fast_size how large it is to be made \
                             (as large as the pool, or as much of it as is to be fast)"
            .to_owned()),
    }
}

/// What a fast file needs in addition to its data: 16 MiB of a super-disk, 1 MiB of a stripe, and rounding.
const HEADERS_BYTES: u64 = 18 << 20;

/// Why a disk is not made one of a pool; `None` when it can be.
pub fn refuse_pool(path: &Path, found: &Found, scope: Scope) -> Option<String> {
    match &found.contents {
        Contents::Absent if !found.device && path.starts_with("/dev") => Some("there is no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        Contents::Absent => None,
        _ if scope.force => None,
        Contents::Pool { .. } if scope.begun => None,
        Contents::Blank if found.device || found.size_bytes == 0 => None,
        Contents::Blank => Some("the file exists already; --force replaces it".to_owned()),
        contents => Some(format!("it holds {contents}; --force overwrites it, and ALL THAT IS ON IT IS LOST")),
    }
}

fn refuse_fast(path: &Path, found: &Found, scope: Scope) -> Option<String> {
    match &found.contents {
        Contents::Absent if path.starts_with("/dev") => Some("there is no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        contents if contents.is_empty() || scope.force => None,
        Contents::FastLeg { .. } if scope.begun => None,
        contents => Some(format!("it holds {contents}; --force overwrites it, and ALL THAT IS ON IT IS LOST")),
    }
}

const IN_USE: &str = "it is in use: mounted, swapped to, part of a RAID or volume group, or open in another process";

/// Whether the kernel says that somebody has a device for himself.
fn in_use(path: &Path) -> bool {
    let opened = OpenOptions::new().read(true).custom_flags(libc_o_excl()).open(path);
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
}

fn libc_o_excl() -> i32 {
    rustix::fs::OFlags::EXCL.bits() as i32
}
