//! A store over a disk in memory, for tests.

pub mod crashing;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_store::{
    Attributes, BucketSettings, Condition, IndexKind, MoveState, MoveStatus, OpenReport, PoolDisk, Store, StoreError,
    StoreOptions, Written,
};

pub const BUCKET: &str = "b";

pub struct Pool {
    pub disks: Vec<Arc<dyn Disk>>,
    /// The same disks in memory, where they are.
    pub mem: Vec<Arc<MemDisk>>,
    pub index: IndexKind,
    pub options: StoreOptions,
    pub dir: tempfile::TempDir,
}

/// Small bounds, so that small bodies exceed them.
pub fn options() -> StoreOptions {
    StoreOptions {
        inline_max_bytes: 2000,
        chunk_bytes: 10_000,
        read_piece_bytes: 4096,
        part_min_bytes: 1000,
        cache_bytes: 1 << 20,
        write_wait: Duration::from_secs(5),
        ..StoreOptions::default()
    }
}

/// Runs a test for each number of disks.
#[macro_export]
macro_rules! on_disks {
    ($(#[$meta:meta])* async fn $name:ident($disks:ident) $body:block) => {
        mod $name {
            use super::*;

            $(#[$meta])*
            async fn run($disks: usize) $body

            #[tokio::test]
            async fn on_one() {
                run(1).await;
            }

            #[tokio::test]
            async fn on_two() {
                run(2).await;
            }

            #[tokio::test]
            async fn on_five() {
                run(5).await;
            }
        }
    };
}

/// An empty disk, formatted.
pub async fn formatted() -> Arc<dyn Disk> {
    formatted_mem().await
}

/// The same as a disk that can be damaged.
pub async fn formatted_mem() -> Arc<MemDisk> {
    let mem = Arc::new(MemDisk::growable(256 << 20));
    let disk: Arc<dyn Disk> = mem.clone();
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("format");
    mem
}

impl Pool {
    pub async fn new(lsm: bool) -> Self {
        Self::of(1, lsm).await
    }

    /// A pool of `count` disks.
    pub async fn of(count: usize, lsm: bool) -> Self {
        let mut mem = Vec::new();
        for _ in 0..count {
            mem.push(formatted_mem().await);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let index = if lsm { IndexKind::Lsm(dir.path().join("index")) } else { IndexKind::memory() };
        let mut pool = Self { disks: Vec::new(), mem: Vec::new(), index, options: options(), dir };
        pool.replace(mem);
        pool
    }

    /// Replaces the disks.
    pub fn replace(&mut self, mem: Vec<Arc<MemDisk>>) {
        self.disks = mem.iter().map(|disk| disk.clone() as Arc<dyn Disk>).collect();
        self.mem = mem;
    }

    /// The disks as given to the store, named `d0` and so on.
    pub fn given(&self) -> Vec<PoolDisk> {
        let named = |(i, disk): (usize, &Arc<dyn Disk>)| PoolDisk {
            name: format!("d{i}"),
            disk: Ok(disk.clone()),
            hint: false,
        };
        self.disks.iter().enumerate().map(named).collect()
    }

    /// Opens on these of the disks.
    pub async fn open_on(&self, disks: Vec<PoolDisk>) -> Result<(Store, OpenReport), StoreError> {
        Store::open_pool(disks, self.index.clone(), Env::tokio(), self.options.clone()).await
    }

    pub async fn open_with_report(&self) -> (Store, OpenReport) {
        self.open_on(self.given()).await.expect("open")
    }

    pub async fn open(&self) -> Store {
        self.open_with_report().await.0
    }

    /// Deletes the index of a closed store.
    pub fn delete_index(&self) {
        match &self.index {
            IndexKind::Lsm(index) => {
                for entry in std::fs::read_dir(index.parent().expect("a directory")).expect("readable") {
                    std::fs::remove_dir_all(entry.expect("readable").path()).expect("removable");
                }
            }
            IndexKind::Memory(checkpoint) => checkpoint.clear(),
        }
    }

    /// Crashes a store. What was flushed is on the disks.
    ///
    /// The index of a pool in files is lost: a crash ends the tasks that write to it, but here they
    /// may still run beside those of the next store.
    pub fn crash(&mut self, store: Store) {
        let images = self.mem.iter().map(|disk| Arc::new(disk.image())).collect();
        drop(store);
        self.replace(images);
        if let IndexKind::Lsm(index) = &mut self.index {
            let fresh = index.with_file_name("crashed");
            std::fs::create_dir(&fresh).expect("made");
            *index = fresh.join("index");
        }
    }

    /// A fresh store with a bucket.
    pub async fn start(lsm: bool) -> (Self, Store) {
        Self::start_on(1, lsm).await
    }

    /// The same on several disks.
    pub async fn start_on(count: usize, lsm: bool) -> (Self, Store) {
        let pool = Self::of(count, lsm).await;
        let store = pool.open().await;
        store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
        (pool, store)
    }
}

pub fn named(name: &str, disk: &Arc<dyn Disk>) -> PoolDisk {
    PoolDisk { name: name.into(), disk: Ok(disk.clone()), hint: false }
}

/// Waits until no move is running.
pub async fn ended(store: &Store) -> MoveStatus {
    let mut moving = store.disks().moving();
    let ended = moving.wait_for(|m| m.as_ref().is_some_and(|m| m.state != MoveState::Running)).await;
    ended.expect("the store is there").clone().expect("something was moved")
}

pub async fn done(store: &Store) -> MoveStatus {
    let status = ended(store).await;
    assert_eq!((status.state, status.error.as_deref()), (MoveState::Done, None));
    assert_eq!(status.slots_done, status.slots_total);
    status
}

pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

pub fn etag(etag: &str) -> Attributes {
    Attributes { etag: etag.into(), ..Attributes::default() }
}

pub async fn put_if(
    store: &Store,
    key: &str,
    data: &[u8],
    tag: &str,
    condition: Condition,
) -> Result<Written, StoreError> {
    let mut writer = store.at(BUCKET, key).writer(None).await?;
    for piece in data.chunks(1777) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    writer.commit(etag(tag), condition, None).await
}

/// Copies an object with its attributes.
pub async fn copy(store: &Store, from: &str, to: &str) -> Result<Written, StoreError> {
    let reader = store.at(BUCKET, from).reader().await?;
    let (attributes, version) = (reader.info().attributes.clone(), reader.info().version);
    let home = store.at(BUCKET, to);
    match from == to {
        true => home.copy_onto_itself(attributes, Condition::None, Some(version), None).await,
        false => home.copy_from(reader, attributes, Condition::None, None).await,
    }
}

pub async fn put(store: &Store, key: &str, data: &[u8]) -> Written {
    put_if(store, key, data, "e", Condition::None).await.expect("put")
}

pub async fn read(store: &Store, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
    let reader = store.at(BUCKET, key).reader().await?;
    let mut out = Vec::new();
    let mut pieces = std::pin::pin!(reader.stream(range));
    while let Some(piece) = pieces.next().await {
        out.extend_from_slice(&piece?);
    }
    Ok(out)
}

pub async fn get(store: &Store, key: &str) -> Result<Vec<u8>, StoreError> {
    read(store, key, 0..u64::MAX).await
}
