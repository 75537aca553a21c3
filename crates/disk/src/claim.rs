//! What the device below a path says about itself, from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::CacheClaim;

/// The sysfs folder of the whole block device with this number; for a partition, of the disk that it is part of.
/// `None` where no block device is behind it (tmpfs, network and some copy-on-write file systems).
pub(crate) fn device_folder(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if link.join("queue").is_dir() {
        return Some(link);
    }
    link.parent().filter(|parent| parent.join("queue").is_dir()).map(Path::to_path_buf)
}

/// The trimmed text of a file of the device's `queue` folder.
pub(crate) fn queue_text(device: u64, name: &str) -> Option<String> {
    let text = fs::read_to_string(device_folder(device)?.join("queue").join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// What the device claims about a volatile write cache.
pub(crate) fn cache_claim(device: u64) -> CacheClaim {
    match queue_text(device, "write_cache").as_deref() {
        Some("write back") => CacheClaim::WriteBack,
        Some("write through") => CacheClaim::WriteThrough,
        _ => CacheClaim::Unknown,
    }
}
