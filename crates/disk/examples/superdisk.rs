//! Measures a super-disk against its fast leg alone (reads) and its durable leg alone (commits), in
//! one run on one machine: `cargo run --release -p steadfast-disk --example superdisk -- FOLDER`
//!
//! The fast leg is a stripe over two files of the folder. The durable leg is a third file, with
//! 1.5 ms added to each read and each flush.
#![allow(clippy::disallowed_methods, reason = "a measurement of the machine")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use steadfast_disk::{
    BLOCK, Disk, DiskOptions, FastState, FileDisk, Slow, Slowness, Stripe, StripeOptions, Superdisk, SuperdiskOptions,
};
use steadfast_flow::Env;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 256 * MIB;
const ROUNDS: usize = 20;

fn file(folder: &Path, name: &str) -> Arc<dyn Disk> {
    let options = DiskOptions { create: true, ..DiskOptions::default() };
    FileDisk::open(folder.join(name), &options).expect("open")
}

async fn stripe(folder: &Path, name: &str, env: &Env) -> Arc<dyn Disk> {
    let members: Vec<_> = (0..2).map(|i| file(folder, &format!("{name}-{i}"))).collect();
    Stripe::format(&members, env, &StripeOptions::default(), true).await.expect("made");
    Stripe::open(members).await.expect("open")
}

fn slowed(disk: Arc<dyn Disk>, env: &Env) -> Arc<dyn Disk> {
    let late = Duration::from_micros(1500);
    let slowness = Slowness { read: late, flush: late, precise: true, ..Slowness::default() };
    Arc::new(Slow::new(disk, env.clone(), slowness))
}

async fn fill(disk: &Arc<dyn Disk>) {
    disk.reserve(BYTES).await.expect("room");
    for at in (MIB..BYTES).step_by(MIB as usize) {
        let mut buf = disk.buffer(MIB as usize).await;
        buf.set_len(MIB as usize);
        disk.write(at, buf.freeze()).await.expect("write");
    }
    disk.flush().await.expect("flush");
}

async fn read_us(disk: &Arc<dyn Disk>, i: u64) -> f64 {
    let at = MIB + i * 7919 * BLOCK as u64 % (BYTES - MIB);
    let start = Instant::now();
    disk.read(at, BLOCK).await.expect("read");
    start.elapsed().as_secs_f64() * 1e6
}

async fn commit_us(disk: &Arc<dyn Disk>, i: u64) -> f64 {
    let mut buf = disk.buffer(2 * BLOCK).await;
    buf.set_len(2 * BLOCK);
    let start = Instant::now();
    disk.write_flush(MIB + i * 2 * BLOCK as u64 % (BYTES - MIB), buf.freeze()).await.expect("write");
    start.elapsed().as_secs_f64() * 1e6
}

fn line(what: &str, disk: &str, us: &mut [f64]) {
    us.sort_by(f64::total_cmp);
    let at = |q: f64| us[((us.len() - 1) as f64 * q) as usize];
    println!("{what:24} {disk:14} p50 {:8.1} us  p90 {:8.1}  p99 {:8.1}", at(0.5), at(0.9), at(0.99));
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let folder = std::env::args().nth(1).expect("a folder on the file system to measure");
    let folder = Path::new(&folder).join("steadfast-superdisk");
    std::fs::create_dir_all(&folder).expect("a folder");
    let env = Env::tokio();
    let fast = stripe(&folder, "fast-alone", &env).await;
    let durable = slowed(file(&folder, "durable-alone"), &env);
    let (leg, under) = (stripe(&folder, "fast", &env).await, slowed(file(&folder, "durable"), &env));
    let options = SuperdiskOptions { take_foreign_fast: true, ..SuperdiskOptions::default() };
    let superdisk = Superdisk::open(under, Some(leg), env.clone(), options).await.expect("open");
    let whole: Arc<dyn Disk> = superdisk.clone();
    let disks = [("fast alone", &fast), ("durable alone", &durable), ("super-disk", &whole)];
    for (_, disk) in disks {
        fill(disk).await;
    }
    while superdisk.status().fast != FastState::Clean {
        env.sleep(Duration::from_millis(100)).await;
    }
    for (what, depth, each) in [("read 4 KiB, 1 at a time", 1, 200), ("read 4 KiB, 16", 16, 100)] {
        let mut us = [const { Vec::new() }; 3];
        for round in 0..ROUNDS as u64 {
            for ((_, disk), us) in disks.iter().zip(&mut us) {
                for i in 0..each {
                    us.extend(join_all((0..depth).map(|n| read_us(disk, (round * each + i) * depth + n))).await);
                }
            }
        }
        disks.iter().zip(&mut us).for_each(|((name, _), us)| line(what, name, us));
    }
    let mut us = [const { Vec::new() }; 3];
    for round in 0..ROUNDS as u64 {
        for ((_, disk), us) in disks.iter().zip(&mut us) {
            for i in 0..50 {
                us.push(commit_us(disk, round * 50 + i).await);
            }
        }
    }
    disks.iter().zip(&mut us).for_each(|((name, _), us)| line("commit 8 KiB", name, us));
    println!("{:#?}", superdisk.status());
    superdisk.close().await;
    std::fs::remove_dir_all(&folder).expect("remove the files");
}
