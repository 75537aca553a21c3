//! The memory that this process may use, and the default size of the read cache.

use std::path::Path;

/// Minimum size of the read cache, in bytes.
const CACHE_BYTES_MIN: u64 = 256 << 20;

/// The default size of the read cache, in bytes: an eighth of the memory.
pub fn cache_bytes() -> u64 {
    let bytes = bytes(|path| std::fs::read_to_string(path).ok());
    (bytes.unwrap_or_default() / 8).max(CACHE_BYTES_MIN)
}

/// The memory of the machine, or the lowest limit of the cgroups of this process, in bytes. `read`
/// returns the text of a file.
fn bytes(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    // A line is `number:controllers:path`; version 2 has no controllers. A limit holds for all
    // below.
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let ancestors = Path::new(group).ancestors().map(|group| Path::new(root).join(group).join(file));
        // A value that is not a number is `max`: no limit.
        ancestors.filter_map(|path| read(&path)?.trim().parse().ok()).min()
    });
    machine.into_iter().chain(limits).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(files: &[(&str, &str)]) -> Option<u64> {
        let find = |path: &Path| files.iter().find(|(name, _)| path == Path::new(name));
        bytes(|path| find(path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_lowest_limit_counts() {
        let machine = ("/proc/meminfo", "MemTotal:       16384 kB\nMemFree:            1 kB\n");
        assert_eq!(bytes_of(&[]), None);
        assert_eq!(bytes_of(&[machine]), Some(16 << 20));
        let group = ("/proc/self/cgroup", "0::/a.slice/b.service\n");
        let max = ("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
        let above = ("/sys/fs/cgroup/a.slice/memory.max", "1000000\n");
        assert_eq!(bytes_of(&[machine, group, max]), Some(16 << 20));
        assert_eq!(bytes_of(&[machine, group, max, above]), Some(1_000_000));
        assert_eq!(bytes_of(&[machine, group, ("/sys/fs/cgroup/memory.max", "7\n")]), Some(7));
        let old = ("/proc/self/cgroup", "8:pids:/x\n4:cpu,memory:/x:y\n0::/\n");
        let none = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(bytes_of(&[machine, old, none]), Some(16 << 20));
        let limit = ("/sys/fs/cgroup/memory/x:y/memory.limit_in_bytes", "5000\n");
        assert_eq!(bytes_of(&[machine, old, none, limit]), Some(5000));
    }

    #[test]
    fn the_cache_is_never_small() {
        assert!(cache_bytes() >= CACHE_BYTES_MIN);
    }
}
