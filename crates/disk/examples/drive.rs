//! Measures the drivers against bare system calls, on the file system of a folder:
//! `cargo run --release -p steadfast-disk --example drive -- FOLDER`
#![allow(clippy::disallowed_methods, reason = "a measurement of the machine")]

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{FuturesUnordered, StreamExt};
use steadfast_disk::{BLOCK, BufPool, Disk, DiskOptions, FileDisk, IoMode};

const FILE_BYTES: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn line(name: &str, mut us: Vec<f64>) {
    us.sort_by(f64::total_cmp);
    let at = |q: f64| us[((us.len() - 1) as f64 * q) as usize];
    println!("{name:28} p50 {:7.1} us  p90 {:7.1}  p99 {:7.1}", at(0.5), at(0.9), at(0.99));
}

/// One 8 KiB commit after the other. The methods alternate, each with a separate file, so that all
/// see the same state of the machine.
async fn commits(folder: &Path, options: impl Fn(IoMode) -> DiskOptions) {
    const ROUND: usize = 50;
    let rounds = 60;
    let mut disks = Vec::new();
    for mode in [IoMode::Uring, IoMode::Threads] {
        let disk = FileDisk::open(folder.join(mode.to_string()), &options(mode)).expect("open");
        fill(&disk, 16 * MIB).await;
        disks.push((disk, Vec::new()));
    }
    let bare = folder.join("bare");
    let disk = FileDisk::open(&bare, &options(IoMode::Threads)).expect("open");
    fill(&disk, 16 * MIB).await;
    drop(disk);
    let bare = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(bare).expect("open");
    let pool = BufPool::new(MIB as usize);
    let mut buf = pool.try_get(2 * BLOCK).expect("memory");
    buf.set_len(2 * BLOCK);
    let mut bare_us = Vec::new();
    for round in 0..rounds {
        let at = |i: usize| ((round * ROUND + i) * 2 * BLOCK) as u64 % (16 * MIB);
        for i in 0..ROUND {
            let start = Instant::now();
            bare.write_all_at(&buf, at(i)).expect("write");
            bare.sync_data().expect("flush");
            bare_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        for (disk, us) in &mut disks {
            for i in 0..ROUND {
                let mut buf = disk.buffer(2 * BLOCK).await;
                buf.set_len(2 * BLOCK);
                let start = Instant::now();
                disk.write_flush(at(i), buf.freeze()).await.expect("write");
                us.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    line("commit 8 KiB bare", bare_us);
    for (name, (_, us)) in ["commit 8 KiB uring", "commit 8 KiB threads"].into_iter().zip(disks) {
        line(name, us);
    }
}

async fn fill(disk: &Arc<dyn Disk>, bytes: u64) {
    disk.reserve(bytes).await.expect("room");
    for at in (0..bytes).step_by(MIB as usize) {
        disk.write(at, vec![1; MIB as usize].into()).await.expect("write");
    }
    disk.flush().await.expect("flush");
}

async fn reads(disk: &Arc<dyn Disk>, name: &str, rounds: u64, depth: usize) {
    let mut us = Vec::new();
    let mut flying = FuturesUnordered::new();
    let all = Instant::now();
    for i in 0..rounds {
        let read = disk.read((i * 7919 * BLOCK as u64) % FILE_BYTES, BLOCK);
        flying.push(async move {
            let start = Instant::now();
            read.await.expect("read");
            start.elapsed().as_secs_f64() * 1e6
        });
        if flying.len() >= depth {
            us.extend(flying.next().await);
        }
    }
    us.extend(flying.by_ref().collect::<Vec<_>>().await);
    let rate = rounds as f64 / all.elapsed().as_secs_f64();
    line(&format!("{name} read 4 KiB depth {depth}"), us);
    println!("{:28} {rate:.0}/s", "");
}

async fn stream(disk: &Arc<dyn Disk>, name: &str, write: bool, depth: usize) {
    let start = Instant::now();
    let mut flying = FuturesUnordered::new();
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        let disk = disk.clone();
        flying.push(async move {
            if write {
                let mut buf = disk.buffer(MIB as usize).await;
                buf.set_len(MIB as usize);
                disk.write(at, buf.freeze()).await.expect("write");
            } else {
                disk.read(at, MIB as usize).await.expect("read");
            }
        });
        if flying.len() >= depth {
            flying.next().await;
        }
    }
    while flying.next().await.is_some() {}
    let rate = FILE_BYTES as f64 / MIB as f64 / start.elapsed().as_secs_f64();
    println!("{name} {} 1 MiB depth {depth}: {rate:.0} MiB/s", if write { "write" } else { "read" });
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let folder = std::env::args().nth(1).expect("usage: drive FOLDER");
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let path = folder.path().join("pool");
    let options = |io| DiskOptions { io, create: true, ..DiskOptions::default() };
    // On tasks, like in the server: the main thread of the runtime has a more expensive wake-up.
    let of = folder.path().to_owned();
    tokio::spawn(async move { commits(&of, options).await }).await.expect("task");
    let disk = FileDisk::open(&path, &options(IoMode::Auto)).expect("open");
    fill(&disk, FILE_BYTES).await;
    drop(disk);
    for mode in [IoMode::Uring, IoMode::Threads, IoMode::Uring, IoMode::Threads] {
        let disk = FileDisk::open(&path, &options(mode)).expect("open");
        let name = mode.to_string();
        let work = async move {
            reads(&disk, &name, 2000, 1).await;
            reads(&disk, &name, 20_000, 32).await;
            stream(&disk, &name, true, 8).await;
            stream(&disk, &name, false, 8).await;
        };
        tokio::spawn(work).await.expect("task");
        println!();
    }
}
