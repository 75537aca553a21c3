//! The claims of the device below a path, from sysfs.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::CacheClaim;

/// The claims of a device. They are not facts: sysfs can be wrong both ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceClaim {
    /// Kernel's name of the device; `None` where no block device was found behind the path.
    pub device: Option<String>,
    /// Model, where the device reports it.
    pub model: Option<String>,
    /// Write cache according to sysfs (`queue/write_cache`).
    pub cache: CacheClaim,
    /// NVMe only: whether the identification reports a volatile write cache, where it could be read
    /// (needs root).
    pub nvme_volatile_cache: Option<bool>,
    /// Whether the device can force a single write to the medium (`queue/fua`).
    pub fua: Option<bool>,
    /// Whether the device claims to be rotational (`queue/rotational`).
    pub rotational: Option<bool>,
}

impl fmt::Display for DeviceClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cache {
            CacheClaim::WriteThrough => "no volatile write cache (write through)",
            CacheClaim::WriteBack => "a volatile write cache (write back)",
            CacheClaim::Unknown => "nothing about its write cache",
        })?;
        if let Some(volatile) = self.nvme_volatile_cache {
            write!(f, "; NVMe identification: {}", if volatile { "volatile cache" } else { "no volatile cache" })?;
        }
        match (&self.device, &self.model) {
            (Some(device), Some(model)) => write!(f, "; {device}, {model}"),
            (Some(device), None) => write!(f, "; {device}"),
            _ => f.write_str("; no block device found behind the path"),
        }
    }
}

/// The sysfs folder of the whole block device with this number; for a partition, that of its disk.
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

/// The device's claim about a volatile write cache.
pub(crate) fn cache_claim(device: u64) -> CacheClaim {
    match queue_text(device, "write_cache").as_deref() {
        Some("write back") => CacheClaim::WriteBack,
        Some("write through") => CacheClaim::WriteThrough,
        _ => CacheClaim::Unknown,
    }
}

/// Whether `path` is a device whose zones must be written in order (`queue/zoned` of sysfs is
/// "host-managed").
pub fn is_zoned(path: &Path) -> bool {
    let number = fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device()).map(|meta| meta.rdev());
    number.is_some_and(must_be_written_in_order)
}

/// Like [`is_zoned`], for the device with this number.
pub(crate) fn must_be_written_in_order(device: u64) -> bool {
    // "host-aware" devices accept writes anywhere, and are driven like any other device.
    queue_text(device, "zoned").as_deref() == Some("host-managed")
}

/// All claims of the device below `path`.
pub(crate) fn device_claim(path: &Path) -> DeviceClaim {
    let number = fs::metadata(path)
        .map(|meta| if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() })
        .unwrap_or_default();
    let folder = device_folder(number);
    let device = folder.as_ref().and_then(|f| f.file_name()).map(|name| name.to_string_lossy().into_owned());
    let model = folder.and_then(|f| fs::read_to_string(f.join("device/model")).ok()).map(|text| text.trim().to_owned());
    let yes = |name| queue_text(number, name).map(|text| text == "1");
    DeviceClaim {
        nvme_volatile_cache: device.as_deref().and_then(nvme_volatile_cache),
        device,
        model,
        cache: cache_claim(number),
        fua: yes("fua"),
        rotational: yes("rotational"),
    }
}

/// Warnings about the write cache of the device below `path`: flushes may not reach it.
pub fn cache_warnings(path: &Path) -> Vec<String> {
    overridden(&device_claim(path)).into_iter().map(str::to_owned).collect()
}

/// Returns a warning if sysfs and the device disagree about the cache.
pub(crate) fn overridden(claim: &DeviceClaim) -> Option<&'static str> {
    let volatile = claim.nvme_volatile_cache?;
    match claim.cache {
        CacheClaim::WriteBack | CacheClaim::WriteThrough if volatile != (claim.cache == CacheClaim::WriteBack) => Some(
            "sysfs and the device's own identification disagree about the cache: queue/write_cache was overridden. \
             If it says \"write through\" wrongly, the kernel sends no flushes, and a power cut loses commits.",
        ),
        _ => None,
    }
}

/// `struct nvme_admin_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct NvmeAdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// `NVME_IOCTL_ADMIN_CMD`.
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xC048_4E41u32 as libc::Ioctl;
/// Byte of a controller's identification that reports a volatile write cache (VWC, bit 0).
const NVME_VWC: usize = 525;

/// Queries an NVMe controller; `None` for other devices, and without permission.
fn nvme_volatile_cache(device: &str) -> Option<bool> {
    const { assert!(size_of::<NvmeAdminCommand>() == 72) };
    // The controller of the name space "nvme0n1" is "nvme0".
    let (controller, _) = device.strip_prefix("nvme")?.split_once('n')?;
    let file = File::open(format!("/dev/nvme{controller}")).ok()?;
    let mut answer = vec![0u8; 4096];
    let mut command = NvmeAdminCommand {
        // Identify, controller.
        opcode: 0x06,
        address: answer.as_mut_ptr() as u64,
        data_len: 4096,
        words_10_15: [1, 0, 0, 0, 0, 0],
        timeout_ms: 1000,
        ..NvmeAdminCommand::default()
    };
    // SAFETY: the command has the kernel's layout, and its address points to `data_len` bytes that
    // this function owns.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    (done == 0).then(|| answer[NVME_VWC] & 1 == 1)
}
