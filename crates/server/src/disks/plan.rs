//! The pool that `steadfast format` would create: its disks, their roles and their present content.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::contents::{Contents, Found, look};
use crate::config::Config;
use crate::config::human_size;

/// The role of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The pool itself: it holds all acknowledged data.
    Durable,
    /// A copy on fast disks, for reads.
    Fast,
}

/// A disk in its role.
#[derive(Debug, Clone, Serialize)]
pub struct Planned {
    /// Index of its log in the pool, from 0.
    pub disk: usize,
    /// Number of logs of the pool.
    pub disks: usize,
    /// Its role.
    pub role: Role,
    /// Index among the disks of that role, from 0.
    pub index: usize,
    /// Number of disks of that role.
    pub count: usize,
    /// Its path.
    pub path: PathBuf,
    /// Its present content.
    #[serde(flatten)]
    pub found: Found,
    /// Whether it is written zone by zone, in order.
    pub zoned: bool,
    /// Its maximum size as part of the pool, in bytes.
    pub will_hold_bytes: u64,
    /// Why it is refused; `None` if it can be used.
    pub refused: Option<String>,
}

/// A pool to be created.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Its disks.
    pub disks: Vec<Planned>,
    /// The capacity of the pool, in bytes.
    pub usable_bytes: u64,
    /// Whether an interrupted creation is completed.
    pub begun: bool,
}

/// What to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The pool too, not only the fast disks.
    pub pool: bool,
    /// Overwrite existing data.
    pub force: bool,
    /// An earlier creation of this pool was interrupted: its remains may be overwritten.
    pub begun: bool,
}

impl Plan {
    /// Reads the configured disks. Changes nothing.
    ///
    /// # Errors
    /// When the configuration is incomplete.
    pub fn make(config: &Config, scope: Scope) -> Result<Self, String> {
        let sets = config.disk_sets();
        let (mut disks, mut usable_bytes) = (Vec::new(), 0u64);
        // A file counts with its maximum size.
        let limit = |path: &Path, found: &Found| {
            if found.device { found.size_bytes } else { config.data.pool_size.map_or_else(|| room(path), |s| s.0) }
        };
        for (disk, set) in sets.iter().enumerate() {
            let (durable, fast) = (found_all(&set.durable), found_all(&set.fast));
            // A stripe has the size of its smallest disk times their number.
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

    /// Refuses one disk under two names: it would be written twice.
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

    /// The refused disks, each with its reason; empty if the pool can be created.
    pub fn refusals(&self) -> Vec<String> {
        self.refusals_of(|_| true)
    }

    /// The refused ones of some disks.
    pub fn refusals_of(&self, of: impl Fn(&Planned) -> bool) -> Vec<String> {
        let one = |d: &Planned| d.refused.as_ref().map(|why| format!("{}: {why}", d.path.display()));
        self.disks.iter().filter(|disk| of(disk)).filter_map(one).collect()
    }

    /// The plan as a table.
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
                None if disk.found.contents == Contents::Absent => "will be created".to_owned(),
                None if disk.found.contents.is_empty() => "blank".to_owned(),
                None if self.begun => "was begun, will be completed".to_owned(),
                None => format!("WILL BE OVERWRITTEN: {}", disk.found.contents),
            };
            let path = disk.path.display().to_string();
            let _ = writeln!(out, "{role:<24} {path:<28} {kind:<13} {:>10}  {fate}", human_size(disk.will_hold_bytes));
        }
        out
    }
}

/// The name of a role with the index of the disk in it and of the log in the pool, each from 0, and
/// their numbers.
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

/// The size of the file system of a file to be created, in bytes.
fn room(path: &Path) -> u64 {
    let exists = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(exists).map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize))
}

/// The size of each of `count` files of a fast leg, in bytes.
///
/// # Errors
/// When the configuration sets no size.
pub fn fast_file_bytes(config: &Config, count: usize) -> Result<u64, String> {
    match (config.superdisk.fast_size, config.data.pool_size) {
        (Some(each), _) => Ok(each.0),
        (None, Some(pool)) => {
            let each = pool.0.div_ceil(count.max(1) as u64);
            // Add the headers in front of the data.
            Ok(each.saturating_add(HEADERS_BYTES).next_multiple_of(1 << 20))
        }
        (None, None) => Err("a fast disk is a file: set its size with superdisk.fast_size (the size of the pool, \
                             or of the part that fast reads should cover)"
            .to_owned()),
    }
}

/// Bytes of a fast file besides its data: 16 MiB of a super-disk, 1 MiB of a stripe, and rounding.
const HEADERS_BYTES: u64 = 18 << 20;

/// Why a disk cannot become part of a pool; `None` if it can.
pub fn refuse_pool(path: &Path, found: &Found, scope: Scope) -> Option<String> {
    match &found.contents {
        Contents::Absent if !found.device && path.starts_with("/dev") => Some("no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        Contents::Absent => None,
        _ if scope.force => None,
        Contents::Pool { .. } if scope.begun => None,
        Contents::Blank if found.device || found.size_bytes == 0 => None,
        Contents::Blank => Some("the file exists already; --force replaces it".to_owned()),
        contents => Some(format!("it holds {contents}; --force overwrites it, and ALL ITS DATA IS LOST")),
    }
}

fn refuse_fast(path: &Path, found: &Found, scope: Scope) -> Option<String> {
    match &found.contents {
        Contents::Absent if path.starts_with("/dev") => Some("no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        contents if contents.is_empty() || scope.force => None,
        Contents::FastLeg { .. } if scope.begun => None,
        contents => Some(format!("it holds {contents}; --force overwrites it, and ALL ITS DATA IS LOST")),
    }
}

const IN_USE: &str = "it is in use: mounted, swapped to, part of a RAID or volume group, or open in another process";

/// Whether another user holds the device exclusively.
fn in_use(path: &Path) -> bool {
    let opened = OpenOptions::new().read(true).custom_flags(libc_o_excl()).open(path);
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
}

fn libc_o_excl() -> i32 {
    rustix::fs::OFlags::EXCL.bits() as i32
}
