//! A directory over another one, passed through FUSE, that misbehaves on command: delays, holds, errors, flipped
//! bits, a bandwidth, and power cuts that lose what was not flushed. For the end-to-end tests.
//!
//! `steadfast-fusedisk BACKING MOUNTPOINT SOCKET` mounts, prints `ready`, and unmounts when its standard input ends.
//! Commands are JSON objects, one a line, on the Unix socket; see [`control`].

mod control;
mod faults;
mod fs;
mod nodes;
mod volatile;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use fuser::{Config, MountOption};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [backing, mountpoint, socket] = arguments.as_slice() else {
        eprintln!("usage: steadfast-fusedisk BACKING MOUNTPOINT SOCKET");
        return ExitCode::from(2);
    };
    match run(backing, mountpoint, socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-fusedisk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(backing: &Path, mountpoint: &Path, socket: &Path) -> std::io::Result<()> {
    let faults = Arc::new(faults::Faults::default());
    let disk = fs::FuseDisk::new(backing.to_path_buf(), Arc::clone(&faults));
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("fusedisk".into()), MountOption::NoAtime];
    // As many as requests may be held or delayed at a time, with room for others to pass.
    // More than a disk's queue is deep: what a test holds must not keep other requests from being served.
    config.n_threads = Some(96);
    let cache = disk.cache();
    let session = fuser::spawn_mount(disk, mountpoint, &config)?;
    control::serve(socket, Arc::clone(&faults), cache)?;
    println!("ready");
    // The end of standard input is the end of whoever started this, however it ended.
    let mut sink = [0u8; 64];
    let mut input = std::io::stdin().lock();
    while matches!(input.read(&mut sink), Ok(read) if read > 0) {}
    faults.clear();
    let _ = std::fs::remove_file(socket);
    session.umount_and_join()
}
