//! Exports and restores between stores over disks in memory.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{Durability, FormatOptions, Log, LogError};
use steadfast_store::{
    Attributes, BucketSettings, Condition, IndexKind, ListQuery, PartChoice, Store, StoreError, StoreOptions,
    StoredObject,
};

use super::export::{self, Export};
use super::manifest::Reader;
use super::place::{Place, PlaceSpec};
use super::{data_file, restore};

async fn store() -> Store {
    store_on(&MemDisk::growable(256 << 20)).await
}

async fn store_on(disk: &MemDisk) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
    Log::format(&disk, &Env::tokio(), &format).await.expect("formats");
    let options = StoreOptions { inline_max_bytes: 4000, chunk_bytes: 60_000, part_min_bytes: 1, ..Default::default() };
    Store::open(disk, IndexKind::memory(), Env::tokio(), options).await.expect("opens").0
}

fn body(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect::<Vec<_>>().into()
}

async fn put(store: &Store, bucket: &str, key: &str, seed: u64, len: usize) {
    let mut writer = store.at(bucket, key).writer(None).await.expect("begins");
    writer.write(body(seed, len)).await.expect("written");
    let mut attributes = Attributes { etag: format!("e{seed}"), ..Attributes::default() };
    attributes.system.insert("content-type".into(), "text/x".into());
    attributes.user.insert("k\"ö".into(), "v\n".into());
    attributes.tags.insert("t".into(), seed.to_string());
    attributes.checksums.insert("crc32".into(), "AAAA".into());
    attributes.checksum_type = "FULL_OBJECT".into();
    writer.commit(attributes, Condition::None, None).await.expect("commits");
}

async fn multipart(store: &Store, bucket: &str, key: &str) {
    let upload =
        store.at(bucket, key).create_upload(Attributes::default(), Condition::None).await.expect("begins").upload_id;
    let mut choices = Vec::new();
    for number in [2u16, 5] {
        let mut part = store.at(bucket, key).upload(&upload).writer(number, None).await.expect("begins");
        part.write(body(u64::from(number), 100_000)).await.expect("written");
        let attributes = Attributes { etag: format!("p{number}"), ..Attributes::default() };
        part.commit(attributes, Condition::None, None).await.expect("commits");
        choices.push(PartChoice { number, etag: format!("p{number}") });
    }
    let attributes = Attributes { etag: "0123456789abcdef0123456789abcdef-2".into(), ..Attributes::default() };
    store
        .at(bucket, key)
        .upload(&upload)
        .complete(choices, attributes, Condition::None, None)
        .await
        .expect("completes");
}

async fn fill(store: &Store) {
    store.buckets().create("a", BucketSettings::default()).await.expect("made");
    store
        .buckets()
        .create("b", BucketSettings { durability: Durability::Async, ..BucketSettings::default() })
        .await
        .expect("made");
    store.buckets().create("c", BucketSettings::default()).await.expect("made");
    for n in 0..40u64 {
        put(store, if n % 3 == 0 { "b" } else { "a" }, &format!("dir/{n}"), n, (n * n * 400) as usize).await;
    }
    put(store, "a", "../../etc/passwd\u{1}", 99, 10).await;
    multipart(store, "a", "parts").await;
}

type Content = Vec<(String, u64, Durability, Vec<(String, StoredObject, Vec<u8>)>)>;

async fn content(store: &Store) -> Content {
    let mut all = Content::new();
    for bucket in store.buckets().all().expect("buckets") {
        let mut objects = Vec::new();
        for entry in store
            .contents(&bucket.name)
            .objects(&ListQuery { limit: 1000, ..Default::default() })
            .expect("lists")
            .objects
        {
            let reader = store.at(&bucket.name, &entry.key).reader().await.expect("there");
            let stored = reader.stored();
            let mut bytes = Vec::new();
            let mut pieces = std::pin::pin!(reader.stream(0..u64::MAX));
            while let Some(piece) = pieces.next().await {
                bytes.extend_from_slice(&piece.expect("reads"));
            }
            objects.push((entry.key, stored, bytes));
        }
        all.push((bucket.name, bucket.created_ms, bucket.settings.durability, objects));
    }
    all
}

struct Backup {
    dir: tempfile::TempDir,
    env: Env,
    place: Place,
}

impl Backup {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let env = Env::tokio();
        let place = Place::new(&PlaceSpec::Dir(dir.path().join("to")), &env).expect("a place");
        Self { dir, env, place }
    }

    async fn export(&self, store: &Store, name: &str, since: Option<&str>) -> Result<serde_json::Value, String> {
        // The task of an earlier export may still be ending.
        let scratch = self.dir.path().join(format!("scratch-{}", self.env.random_u64()));
        let (name, since) = (name.to_owned(), since.map(str::to_owned));
        let export = Export { name, since, scratch, bytes_s: 0, file_bytes_max: 300_000 };
        export::run(store, &self.env, &self.place, &export, |_| {}).await
    }

    async fn restore(&self, store: &Store, name: &str, overwrite: bool) -> Result<serde_json::Value, String> {
        restore::run(store, &self.env, &self.place, name, overwrite, |_| {}).await
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("to").join(path)
    }
}

#[tokio::test]
async fn what_was_exported_is_restored_with_all_that_belongs_to_it() {
    let (store, backup) = (store().await, Backup::new());
    fill(&store).await;
    store.snapshots().create("one").await.expect("made");
    let before = content(&store).await;
    put(&store, "a", "dir/1", 1000, 50).await;
    put(&store, "a", "new", 1001, 5000).await;
    let summary = backup.export(&store, "one", None).await.expect("exported");
    assert_eq!((summary["objects"].as_u64(), summary["buckets"].as_u64()), (Some(42), Some(3)), "{summary}");
    assert!(summary["files"].as_u64() > Some(10), "bodies cross the borders of files: {summary}");
    assert!(backup.export(&store, "one", None).await.expect_err("twice").contains("already"));

    let fresh = self::store().await;
    let summary = backup.restore(&fresh, "one", false).await.expect("restored");
    assert_eq!(summary["objects"].as_u64(), Some(42));
    assert!(content(&fresh).await == before);
    // Existing objects are not replaced by default.
    let why = backup.restore(&fresh, "one", false).await.expect_err("it is full");
    assert!(why.contains("--overwrite"), "{why}");
    put(&fresh, "a", "dir/1", 1, 1).await;
    backup.restore(&fresh, "one", true).await.expect("replaced");
    assert!(content(&fresh).await == before);
}

#[tokio::test]
async fn an_incremental_export_writes_what_has_changed_and_restores_whole() {
    let (store, backup) = (store().await, Backup::new());
    fill(&store).await;
    store.snapshots().create("one").await.expect("made");
    let first = backup.export(&store, "one", None).await.expect("exported");
    let unchanged = first["bytes"].as_u64().expect("a number");
    let mut known = vec![content(&store).await];
    for (name, since) in [("two", "one"), ("three", "two")] {
        put(&store, "a", "dir/4", 77, 3000).await;
        put(&store, "b", &format!("new-{name}"), 78, 2000).await;
        store.at("a", "dir/7").delete(Condition::None, None).await.expect("deleted");
        store.snapshots().create(name).await.expect("made");
        known.push(content(&store).await);
        let summary = backup.export(&store, name, Some(since)).await.expect("exported");
        assert_eq!(summary["written_bytes"].as_u64(), Some(5000), "of {unchanged}: {summary}");
    }
    let reader = Reader::open(&backup.place, "three").await.expect("opens");
    assert_eq!(reader.header.name, "three");
    for (name, content) in ["one", "two", "three"].into_iter().zip(&known) {
        let fresh = self::store().await;
        backup.restore(&fresh, name, false).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(self::content(&fresh).await == *content, "{name}");
    }
    // An export of another pool is refused, and nothing is begun.
    let other = self::store().await;
    other.snapshots().create("four").await.expect("made");
    assert!(backup.export(&other, "four", Some("one")).await.expect_err("foreign").contains("another pool"));
    assert!(!backup.path("four").exists());
    assert!(backup.export(&store, "three", Some("none")).await.is_err());
}

#[tokio::test]
async fn an_export_that_was_not_finished_is_none_and_is_done_again() {
    let (store, backup) = (store().await, Backup::new());
    fill(&store).await;
    store.snapshots().create("one").await.expect("made");
    backup.export(&store, "one", None).await.expect("exported");
    // As after an interruption, with more files than the export will have.
    std::fs::rename(backup.path("one/manifest.jsonl"), backup.path("one/manifest.jsonl.part")).expect("renamed");
    std::fs::write(backup.path("one/unfinished"), "{}").expect("written");
    let files = std::fs::read_dir(backup.path("one/data")).expect("there").count() as u64;
    for stale in [files + 1, files + 2] {
        std::fs::write(backup.path("one").join(data_file(stale)), "old").expect("written");
    }
    let fresh = self::store().await;
    let why = backup.restore(&fresh, "one", false).await.expect_err("no export");
    assert!(why.contains("not finished"), "{why}");
    backup.export(&store, "one", None).await.expect("done again");
    assert_eq!(std::fs::read_dir(backup.path("one/data")).expect("there").count() as u64, files);
    assert!(!backup.path("one/unfinished").exists());
    backup.restore(&fresh, "one", false).await.expect("restored");
    assert!(content(&fresh).await == content(&store).await);
    // A foreign folder is left alone.
    store.snapshots().create("home").await.expect("made");
    std::fs::create_dir(backup.path("home")).expect("made");
    std::fs::write(backup.path("home/diary"), "x").expect("written");
    assert!(backup.export(&store, "home", None).await.expect_err("foreign").contains("not an export"));
}

#[tokio::test]
async fn damage_is_found_before_it_is_restored() {
    let (store, backup) = (store().await, Backup::new());
    fill(&store).await;
    store.snapshots().create("one").await.expect("made");
    backup.export(&store, "one", None).await.expect("exported");
    let spoil = |path: std::path::PathBuf, at: usize| {
        let whole = std::fs::read(&path).expect("there");
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        move || std::fs::write(&path, whole).expect("written")
    };
    // A damaged manifest: nothing is restored, wherever the damage is.
    let manifest = backup.path("one/manifest.jsonl");
    let len = std::fs::metadata(&manifest).expect("there").len() as usize;
    for at in (0..len).step_by(97) {
        let heal = spoil(manifest.clone(), at);
        let fresh = self::store().await;
        assert!(backup.restore(&fresh, "one", false).await.is_err(), "at {at}");
        assert!(fresh.buckets().all().expect("buckets").is_empty(), "at {at}");
        heal();
    }
    let whole = std::fs::read(&manifest).expect("there");
    std::fs::write(&manifest, &whole[..len / 2]).expect("written");
    assert!(backup.restore(&self::store().await, "one", false).await.is_err());
    std::fs::write(&manifest, &whole).expect("written");
    // A damaged body: its object is named and missing; all others are restored.
    let heal = spoil(backup.path("one/data/00000003"), 1000);
    let fresh = self::store().await;
    let summary = backup.restore(&fresh, "one", false).await.expect("the others are restored");
    assert_eq!((summary["missing_total"].as_u64(), summary["objects"].as_u64()), (Some(1), Some(41)), "{summary}");
    let missing = &summary["missing"][0];
    assert!(missing["why"].as_str().is_some_and(|why| why.contains("SHA-256")), "{summary}");
    let (bucket, key) = (missing["bucket"].as_str().expect("named"), missing["key"].as_str().expect("named"));
    assert!(matches!(fresh.at(bucket, key).reader().await.map(drop), Err(StoreError::NoSuchKey)), "{summary}");
    heal();
    // A missing or short file is detected before anything is restored.
    let file = backup.path("one/data/00000002");
    let whole = std::fs::read(&file).expect("there");
    std::fs::write(&file, &whole[..whole.len() - 1]).expect("written");
    let fresh = self::store().await;
    assert!(backup.restore(&fresh, "one", false).await.expect_err("short").contains("00000002"));
    std::fs::remove_file(&file).expect("removed");
    assert!(backup.restore(&fresh, "one", false).await.expect_err("missing").contains("missing"));
    assert!(fresh.buckets().all().expect("buckets").is_empty());
    std::fs::write(&file, &whole).expect("written");
    backup.restore(&fresh, "one", false).await.expect("restored");
}

/// Offset of a body that begins at a block of its own.
async fn place_of(disk: &MemDisk, data: &[u8]) -> u64 {
    for at in (0..disk.len()).step_by(BLOCK) {
        if disk.read(at, BLOCK).await.expect("reads")[..] == data[..BLOCK] {
            return at;
        }
    }
    panic!("it is nowhere");
}

#[tokio::test]
async fn damaged_bodies_are_named_and_the_others_are_exported() {
    let (disk, backup) = (MemDisk::growable(256 << 20), Backup::new());
    let store = store_on(&disk).await;
    fill(&store).await;
    put(&store, "a", "large", 12_345, 300_000).await;
    store.snapshots().create("one").await.expect("made");
    let seeds = [(20, 160_000), (34, 462_400), (12_345, 300_000)];
    for (seed, len) in seeds {
        let at = place_of(&disk, &body(seed, len)).await;
        disk.flip(at + 100, 1);
    }
    let summary = backup.export(&store, "one", None).await.expect("the others are exported");
    assert_eq!((summary["missing_total"].as_u64(), summary["objects"].as_u64()), (Some(3), Some(40)), "{summary}");
    let named: Vec<&str> =
        summary["missing"].as_array().expect("a list").iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(named, ["dir/20", "dir/34", "large"]);
    let fresh = self::store().await;
    let summary = backup.restore(&fresh, "one", false).await.expect("restored");
    assert_eq!((summary["objects"].as_u64(), summary["missing_in_export"].as_u64()), (Some(40), Some(3)), "{summary}");
}

/// Objects whose records are lost from the snapshot, and which the index knows.
#[tokio::test]
async fn what_the_snapshot_has_lost_is_named_by_the_index() {
    let disk = MemDisk::growable(256 << 20);
    let any: Arc<dyn Disk> = Arc::new(disk.clone());
    let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
    Log::format(&any, &Env::tokio(), &format).await.expect("formats");
    let (index, backup) = (IndexKind::memory(), Backup::new());
    let open = || Store::open(any.clone(), index.clone(), Env::tokio(), StoreOptions::default());
    let (store, _) = open().await.expect("opens");
    store.buckets().create("a", BucketSettings::default()).await.expect("made");
    for n in 0..60u64 {
        put(&store, "a", &format!("k{n:02}"), n, 60_000).await;
    }
    store.snapshots().create("one").await.expect("made");
    store.close().await.expect("closes");
    drop(store);
    // An extent of records in the middle.
    disk.write(3 << 20, vec![0; 1 << 20].into()).await.expect("writes");
    let (store, report) = open().await.expect("opens");
    assert_eq!(report.recovery.lost.len(), 1, "{:?}", report.recovery);
    let mut unreadable = Vec::new();
    for n in 0..60u64 {
        let key = format!("k{n:02}");
        let read = async {
            let reader = store.at("a", &key).reader().await?;
            let pieces: Vec<Result<Bytes, StoreError>> = reader.stream(0..u64::MAX).collect().await;
            pieces.into_iter().collect::<Result<Vec<_>, _>>()
        };
        match read.await {
            Ok(_) => {}
            Err(StoreError::Log(LogError::Damaged { .. })) => unreadable.push(key),
            Err(e) => panic!("{key}: {e}"),
        }
    }
    assert!(unreadable.len() > 5);
    let summary = backup.export(&store, "one", None).await.expect("the others are exported");
    let named: Vec<&str> =
        summary["missing"].as_array().expect("a list").iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(named, unreadable, "{summary}");
    assert_eq!(summary["objects"].as_u64(), Some(60 - unreadable.len() as u64), "{summary}");
    assert!(summary["faults"].as_array().is_some_and(|faults| !faults.is_empty()), "{summary}");
}
