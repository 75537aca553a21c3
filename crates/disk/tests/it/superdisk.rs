//! A super-disk over real files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{folder, open, options};
use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk, DiskOptions, FastState, IoMode, Stripe, StripeOptions, Superdisk, SuperdiskOptions};
use steadfast_flow::Env;

const MIB: u64 = 1 << 20;
const LEN: u64 = 8 * MIB;

fn file(folder: &Path, name: &str) -> Option<Arc<dyn Disk>> {
    let limits = DiskOptions { file_limit_bytes: Some(64 * MIB), ..options(IoMode::Auto) };
    open(&folder.join(name), &limits)
}

/// A pair whose fast leg is a stripe over two files.
async fn pair(folder: &Path) -> Option<Arc<Superdisk>> {
    let (durable, members) = (file(folder, "durable")?, vec![file(folder, "a")?, file(folder, "b")?]);
    let env = Env::tokio();
    if !Stripe::is_member(&members[0]).await.expect("reads") {
        Stripe::format(&members, &env, &StripeOptions::default(), false).await.expect("made");
    }
    let stripe = Stripe::open(members).await.expect("opens");
    Some(Superdisk::open(durable, Some(stripe), env, SuperdiskOptions::default()).await.expect("opens"))
}

fn bytes(at: u64) -> Bytes {
    (0..MIB).map(|i| ((at + i) % 249) as u8).collect::<Vec<_>>().into()
}

async fn check(disk: &Superdisk) {
    for at in (MIB..LEN).step_by(MIB as usize) {
        assert!(disk.read(at, MIB as usize).await.expect("read") == bytes(at), "at {at}");
    }
    assert_eq!(disk.read(MIB + 3 * BLOCK as u64, BLOCK).await.expect("read"), bytes(MIB).slice(3 * BLOCK..4 * BLOCK));
}

async fn until_clean(disk: &Superdisk) {
    let env = Env::tokio();
    for _ in 0..6000 {
        if disk.status().fast == FastState::Clean {
            return;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("never clean: {:#?}", disk.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_of_files_is_filled_reopened_and_filled_again_when_its_fast_leg_is_gone() {
    let folder = folder();
    let Some(disk) = pair(folder.path()).await else { return };
    disk.reserve(LEN).await.expect("room");
    for at in (MIB..LEN).step_by(MIB as usize) {
        // Not aligned in memory: each leg makes an aligned copy.
        disk.write(at, bytes(at)).await.expect("write");
    }
    disk.flush().await.expect("flush");
    check(&disk).await;
    until_clean(&disk).await;
    disk.close().await;
    drop(disk);

    let disk = pair(folder.path()).await.expect("as before");
    assert_eq!((disk.status().fast, disk.status().generation), (FastState::Clean, 2));
    check(&disk).await;
    assert_eq!((disk.status().reads_durable, disk.status().rebuilt_bytes), (0, 0));
    disk.close().await;
    drop(disk);

    for name in ["a", "b"] {
        std::fs::remove_file(folder.path().join(name)).expect("removed");
    }
    let disk = pair(folder.path()).await.expect("as before");
    check(&disk).await;
    until_clean(&disk).await;
    let before = disk.status().reads_durable;
    check(&disk).await;
    assert_eq!(disk.status().reads_durable, before, "{:#?}", disk.status());
    disk.close().await;
    drop(disk);

    // The durable leg alone is the pool.
    let alone = file(folder.path(), "durable").expect("as before");
    assert!(alone.read(3 * MIB, MIB as usize).await.expect("read") == bytes(3 * MIB));
}
