//! Tests that need a feature of the machine: a tiny file system, a block device, a kernel that
//! refuses io_uring. Each test prints why it is skipped where the feature is missing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{aligned, at, folder, open, options, pattern};
use steadfast_disk::{BLOCK, DiskOptions, FileDisk, IoMode};

/// Runs a command and returns its output. On a failure, prints the reason and returns `None`.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let reason = match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => {
            return Some(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: {program} {}: {reason}", args.join(" "));
    None
}

/// A file system of 4 MiB; dropping it unmounts it.
struct Tiny(PathBuf);

impl Tiny {
    fn mount(at: &Path) -> Option<Self> {
        run("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", at.to_str()?])?;
        Some(Self(at.to_owned()))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_file_system_leaves_the_file_as_it_was() {
    let folder = folder();
    let Some(_tiny) = Tiny::mount(folder.path()) else { return };
    let path = folder.path().join("pool");
    let limit = DiskOptions { file_limit_bytes: Some(1 << 30), ..options(IoMode::Threads) };
    let Some(disk) = open(&path, &limit) else { return };
    disk.reserve(1 << 20).await.expect("room");
    let data = pattern(1, 2);
    disk.write_flush(0, aligned(&disk, &data).await).await.expect("write");
    let error = disk.reserve(64 << 20).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert_eq!((disk.len(), std::fs::metadata(&path).expect("there").len()), (1 << 20, 1 << 20));
    assert_eq!(disk.read(0, data.len()).await.expect("read"), data);
    disk.reserve(2 << 20).await.expect("as much as fits");
    assert_eq!(disk.len(), 2 << 20);
    // Freed space can be reserved.
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![0; 3 << 19]).expect("room");
    disk.reserve(3 << 20).await.expect_err("taken by the other file");
    std::fs::remove_file(&ballast).expect("removed");
    disk.reserve(3 << 20).await.expect("room again");
}

/// A block device over a file; dropping it detaches it.
struct Loop(String);

impl Loop {
    fn attach(file: &Path) -> Option<Self> {
        run("losetup", &["--find", "--show", "--direct-io=on", file.to_str()?]).map(Self)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[tokio::test]
async fn a_block_device_is_a_disk() {
    let folder = folder();
    let backing = folder.path().join("backing");
    std::fs::File::create(&backing).and_then(|f| f.set_len(at(1024))).expect("a file");
    let Some(device) = Loop::attach(&backing) else { return };
    for mode in crate::common::MODES {
        let quick = DiskOptions { lock_wait: std::time::Duration::ZERO, ..options(mode) };
        let Some(disk) = open(&PathBuf::from(&device.0), &quick) else { continue };
        assert_eq!((disk.len(), disk.geometry().capacity_bytes), (at(1024), at(1024)));
        assert!(!disk.geometry().growable && !disk.geometry().prefill_pays);
        let data = pattern(2, 300);
        disk.write_flush(at(700), aligned(&disk, &data).await).await.expect("write");
        assert!(disk.read(at(700), data.len()).await.expect("read") == data);
        assert_eq!(disk.read(at(1024), BLOCK).await.expect_err("past the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(disk.reserve(at(1025)).await.expect_err("fixed").kind(), ErrorKind::StorageFull);
        disk.discard(at(700), at(300)).await.expect("discard");
        let error = FileDisk::open(&device.0, &quick).err().expect("in use");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    }
}

#[tokio::test]
async fn a_devices_error_keeps_its_number() {
    let folder = folder();
    let backing = folder.path().join("backing");
    let file = std::fs::File::create(&backing).expect("a file");
    file.set_len(at(1024)).expect("room");
    let Some(device) = Loop::attach(&backing) else { return };
    // The device keeps its size, but its second half has no storage below it.
    file.set_len(at(512)).expect("shorter");
    for mode in crate::common::MODES {
        let Some(disk) = open(&PathBuf::from(&device.0), &options(mode)) else { continue };
        disk.read(at(100), 8 * BLOCK).await.expect("the good half");
        let error = disk.read(at(800), 8 * BLOCK).await.expect_err("the bad half");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        disk.read(at(100), 400 * BLOCK).await.expect("the good half, in pieces");
        disk.read(at(300), 400 * BLOCK).await.expect_err("one piece is bad");
        let stats = disk.stats();
        assert!(stats.errors >= 2 && stats.in_flight == 0 && stats.pool_used_bytes == 0, "{stats:?}");
    }
}

/// Makes the kernel refuse io_uring to this thread and the threads it starts, like container
/// runtimes.
fn refuse_io_uring() -> std::io::Result<()> {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        // Loads the number of the system call; skips one instruction if it is io_uring_setup.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live through the calls, which copy them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn where_io_uring_is_refused_threads_do_the_work() {
    let work = || {
        if let Err(error) = refuse_io_uring() {
            return eprintln!("skipped: no system call filter: {error}");
        }
        let folder = folder();
        let path = folder.path().join("pool");
        let Some(disk) = open(&path, &options(IoMode::Auto)) else { return };
        assert!(disk.describe().contains("threads"), "{}", disk.describe());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            disk.reserve(at(4)).await.expect("room");
            disk.write_flush(0, pattern(1, 4).into()).await.expect("write");
            assert_eq!(disk.read(0, 4 * BLOCK).await.expect("read"), pattern(1, 4));
        });
        drop(disk);
        let error = FileDisk::open(&path, &options(IoMode::Uring)).err().expect("asked for by name");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("use threads"), "{error}");
    };
    std::thread::spawn(work).join().expect("the thread");
}
