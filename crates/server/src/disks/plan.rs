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
}

/// What is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// The pool too, not only the fast disks.
    pub pool: bool,
    /// Whatever is there now.
    pub force: bool,
}

impl Plan {
    /// Looks at the disks that the configuration names. Changes nothing.
    ///
    /// # Errors
    /// When the configuration does not say enough.
    pub fn make(config: &Config, scope: Scope) -> Result<Self, String> {
        let mut disks = Vec::new();
        let pool = config.pool_paths();
        let (durable, fast) = (found_all(&pool), found_all(&config.fast_paths()));
        // As large as the smallest allows, times their number; a file is as large as it may become.
        let limit = |path: &Path, found: &Found| {
            if found.device { found.size_bytes } else { config.data.pool_size.map_or_else(|| room(path), |s| s.0) }
        };
        let smallest = durable.iter().map(|(path, found)| limit(path, found)).min().unwrap_or(0);
        let usable_bytes = smallest.saturating_mul(durable.len() as u64);
        if scope.pool {
            for (index, (path, found)) in durable.iter().enumerate() {
                let refused = refuse_pool(path, found, scope.force);
                disks.push(Planned {
                    role: Role::Durable,
                    index,
                    count: durable.len(),
                    path: path.clone(),
                    found: found.clone(),
                    will_hold_bytes: limit(path, found),
                    refused,
                });
            }
        }
        for (index, (path, found)) in fast.iter().enumerate() {
            let kept = found.device || (found.contents == Contents::Blank && found.size_bytes > 0);
            let will_hold_bytes = if kept { found.size_bytes } else { fast_file_bytes(config)? };
            let refused = refuse_fast(path, found, scope.force);
            disks.push(Planned {
                role: Role::Fast,
                index,
                count: fast.len(),
                path: path.clone(),
                found: found.clone(),
                will_hold_bytes,
                refused,
            });
        }
        let mut plan = Self { disks, usable_bytes };
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
            let role = role(disk.role, disk.index, disk.count);
            let kind = if disk.found.device { "block device" } else { "file" };
            let fate = match &disk.refused {
                Some(why) => format!("REFUSED: {why}"),
                None if disk.found.contents == Contents::Absent => "will be made".to_owned(),
                None if disk.found.contents.is_empty() => "blank".to_owned(),
                None => format!("WILL BE OVERWRITTEN: {}", disk.found.contents),
            };
            let path = disk.path.display().to_string();
            let _ = writeln!(out, "{role:<18} {path:<28} {kind:<13} {:>10}  {fate}", size(disk.will_hold_bytes));
        }
        out
    }
}

/// The name of a role.
pub fn role(role: Role, index: usize, count: usize) -> String {
    let name = match role {
        Role::Durable => "pool",
        Role::Fast => "fast leg",
    };
    if count > 1 { format!("{name}, {} of {count}", index + 1) } else { name.to_owned() }
}

fn found_all(paths: &[PathBuf]) -> Vec<(PathBuf, Found)> {
    paths.iter().map(|path| (path.clone(), look(path))).collect()
}

/// All of the file system that a file is to be on.
fn room(path: &Path) -> u64 {
    let exists = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(exists).map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize))
}

/// How large each file of the fast leg is made.
///
/// # Errors
/// When the configuration does not say.
pub fn fast_file_bytes(config: &Config) -> Result<u64, String> {
    match (config.superdisk.fast_size, config.data.pool_size) {
        (Some(each), _) => Ok(each.0),
        (None, Some(pool)) => {
            let each = pool.0.div_ceil(config.superdisk.fast.0.len().max(1) as u64);
            // Room for the headers in front of the data.
            Ok(each.saturating_add(HEADERS_BYTES).next_multiple_of(1 << 20))
        }
        (None, None) => Err("superdisk.fast names a file: say with superdisk.fast_size how large it is to be made \
                             (as large as the pool, or as much of it as is to be fast)"
            .to_owned()),
    }
}

/// What a fast file needs beside its data.
const HEADERS_BYTES: u64 = 16 << 20;

fn refuse_pool(path: &Path, found: &Found, force: bool) -> Option<String> {
    match &found.contents {
        Contents::Absent if !found.device && path.starts_with("/dev") => Some("there is no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        Contents::Absent => None,
        _ if force => None,
        Contents::Blank if found.device || found.size_bytes == 0 => None,
        Contents::Blank => Some("the file exists already; --force replaces it".to_owned()),
        contents => Some(format!("it holds {contents}; --force overwrites it, and ALL THAT IS ON IT IS LOST")),
    }
}

fn refuse_fast(path: &Path, found: &Found, force: bool) -> Option<String> {
    match &found.contents {
        Contents::Absent if path.starts_with("/dev") => Some("there is no such device".to_owned()),
        Contents::Unreadable { .. } => Some(found.contents.to_string()),
        _ if found.device && in_use(path) => Some(IN_USE.to_owned()),
        contents if contents.is_empty() || force => None,
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
