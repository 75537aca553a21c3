//! Which disk of an archive is restored onto which disks of the configuration.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use steadfast_archive::ArchivedDisk;

use crate::config::{DiskSet, human_size};
use crate::disks::plan::{Plan, Planned, Role};

/// A disk of an archive, and its place.
#[derive(Debug, Clone)]
pub struct Assigned {
    /// The disk.
    pub of: ArchivedDisk,
    /// The configured disks onto which it is restored.
    pub set: DiskSet,
    /// Their number in the configuration, from 0.
    pub number: usize,
    /// Their capacity, or free space for them, in bytes.
    pub capacity_bytes: u64,
    /// Whether they are files, which are made anew.
    pub new_files: bool,
}

/// Configured disks onto which one may be restored.
struct FreePlace {
    set: DiskSet,
    number: usize,
    capacity_bytes: u64,
    is_empty: bool,
    is_files: bool,
}

impl FreePlace {
    fn new(number: usize, set: DiskSet, plan: &Plan) -> Self {
        let durable = || plan.disks.iter().filter(|disk| disk.disk == number && disk.role == Role::Durable);
        let capacity = |disk: &Planned| {
            if disk.found.device { disk.will_hold_bytes } else { disk.will_hold_bytes.min(room(disk)) }
        };
        let smallest = durable().map(capacity).min().unwrap_or(0);
        Self {
            number,
            capacity_bytes: smallest.saturating_mul(set.durable.len() as u64),
            is_empty: durable().all(|disk| disk.found.contents.is_empty()),
            is_files: durable().all(|disk| !disk.found.device && !disk.path.starts_with("/dev")),
            set,
        }
    }

    fn take(self, of: ArchivedDisk) -> Assigned {
        let Self { set, number, capacity_bytes, is_files: new_files, .. } = self;
        Assigned { of, set, number, capacity_bytes, new_files }
    }
}

/// Finds the place of each wanted disk, or of all: the one of its name, else a free one. The
/// largest disk gets the largest place.
///
/// # Errors
/// What is wrong with the names or the configuration.
pub fn assign(
    disks: &[ArchivedDisk],
    wanted: &[String],
    sets: Vec<DiskSet>,
    plan: &Plan,
) -> Result<Vec<Assigned>, String> {
    let sets = sets.into_iter().enumerate().filter(|(_, set)| !set.hint);
    let mut places: Vec<FreePlace> = sets.map(|(number, set)| FreePlace::new(number, set, plan)).collect();
    let names = || disks.iter().map(|of| of.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut left: Vec<ArchivedDisk> = Vec::new();
    if wanted.is_empty() {
        if places.len() != disks.len() {
            return Err(format!(
                "{} of the archived pool need a place each ({}), and the configuration names {}: name as many in data.disks, or \
                 one in data.pool",
                counted(disks.len()),
                names(),
                counted(places.len())
            ));
        }
        left.extend_from_slice(disks);
    } else {
        for name in wanted {
            let is = |of: &&ArchivedDisk| of.name == *name || of.id.to_string() == name.replace('-', "");
            let of = disks.iter().find(is);
            let of = of.ok_or_else(|| format!("the archived pool has no disk {name}; it has {}", names()))?;
            if !left.contains(of) {
                left.push(of.clone());
            }
        }
    }
    let mut assigned = Vec::new();
    left.retain(|of| {
        let place = places.iter().position(|place| place.set.name() == of.name);
        assigned.extend(place.map(|at| places.remove(at).take(of.clone())));
        place.is_none()
    });
    if !wanted.is_empty() && !left.is_empty() {
        // The other disks of the pool stay where they are.
        places.retain(|place| place.is_empty && !disks.iter().any(|of| of.name == place.set.name()));
        if places.len() != left.len() {
            let free: Vec<String> = places.iter().map(|place| place.set.name()).collect();
            return Err(format!(
                "{} of the archived pool need a place, and {} of the configuration are free ({}): name each new disk in \
                 data.disks in place of the lost one",
                counted(left.len()),
                counted(places.len()),
                free.join(", ")
            ));
        }
    }
    left.sort_by_key(|of| std::cmp::Reverse(of.needs_bytes));
    places.sort_by_key(|place| std::cmp::Reverse(place.capacity_bytes));
    assigned.extend(left.into_iter().zip(places).map(|(of, place)| place.take(of)));
    match assigned.iter().find(|one| one.capacity_bytes < one.of.needs_bytes) {
        Some(Assigned { of, set, capacity_bytes, .. }) => Err(format!(
            "{} has {}, and the disk {} needs {}",
            set.name(),
            human_size(*capacity_bytes),
            of.name,
            human_size(of.needs_bytes)
        )),
        None => Ok(assigned),
    }
}

/// Free space for a file that is made anew, in bytes.
fn room(file: &Planned) -> u64 {
    let exists = file.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let free = rustix::fs::statvfs(exists).map_or(u64::MAX, |fs| {
        let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
        // Some file systems do not know their size.
        if fs.f_blocks == 0 { u64::MAX } else { blocks.saturating_mul(fs.f_frsize) }
    });
    let replaced = std::fs::metadata(&file.path).map_or(0, |meta| meta.blocks().saturating_mul(512));
    free.saturating_add(replaced)
}

fn counted(disks: usize) -> String {
    format!("{disks} disk{}", if disks == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use steadfast_archive::DiskId;

    use super::*;
    use crate::config::Config;
    use crate::disks::plan::Scope;

    fn disk(id: u8, name: &str, needs_bytes: u64) -> ArchivedDisk {
        ArchivedDisk { id: DiskId([id; 16]), name: name.to_owned(), bytes: 0, needs_bytes }
    }

    fn find(disks: &[ArchivedDisk], wanted: &[&str], configured: &str) -> Result<Vec<(String, String)>, String> {
        let mut config = Config::default();
        config.set_text("data.disks", configured).expect("valid");
        config.set_text("data.pool_size", "1 GiB").expect("valid");
        let plan = Plan::make(&config, Scope { pool: true, force: false, begun: false }).expect("a plan");
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let assigned = assign(disks, &wanted, config.disk_sets(), &plan)?;
        Ok(assigned.into_iter().map(|one| (one.of.name, one.set.name())).collect())
    }

    #[test]
    fn each_disk_has_its_place() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temp.path().join(name).display().to_string();
        let (a, b, c, d) = (path("a"), path("b"), path("c"), path("d"));
        let three = [disk(1, &a, 1 << 20), disk(2, &b, 2 << 20), disk(3, &c, 3 << 20)];
        let pair = |x: &str, y: &str| (x.to_owned(), y.to_owned());
        let all = find(&three, &[], &format!("{c},{d},{a}")).expect("each has one");
        assert_eq!(all, [pair(&a, &a), pair(&c, &c), pair(&b, &d)]);
        let why = find(&three, &[], &format!("{a},{b}")).expect_err("two for three");
        assert!(why.contains("3 disks of") && why.contains("names 2 disks"), "{why}");
        let huge = [disk(1, "x", 1 << 20), disk(2, "y", 2 << 30)];
        let why = find(&huge, &[], &format!("{a},{b}")).expect_err("too small");
        assert!(why.contains("has 1 GiB, and the disk y needs 2 GiB"), "{why}");
        let why = find(&[disk(1, &a, 2 << 30)], &[], &a).expect_err("too small for the disk of its name");
        assert!(why.contains("needs 2 GiB"), "{why}");

        std::fs::write(PathBuf::from(&a), vec![7; 8192]).expect("an intact disk");
        std::fs::write(PathBuf::from(&c), vec![7; 8192]).expect("an intact disk");
        let by_name = find(&three, &[&b], &format!("{a},{b},{c}")).expect("its own place");
        assert_eq!(by_name, [pair(&b, &b)]);
        let id = uuid::Uuid::from_bytes([2; 16]).to_string();
        let onto_new = find(&three, &[&id], &format!("{a},{c},{d}")).expect("the free place");
        assert_eq!(onto_new, [pair(&b, &d)]);
        let why = find(&three, &[&b], &format!("{a},{c}")).expect_err("no place");
        assert!(why.contains("name each new disk"), "{why}");
        let why = find(&three, &["e"], &format!("{a},{b},{c}")).expect_err("unknown");
        assert!(why.contains("has no disk e"), "{why}");
    }
}
