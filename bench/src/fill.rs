//! Fills a store with many small objects without a server, for measurements of the start.

use std::path::PathBuf;

use bytes::Bytes;
use steadfast_disk::{DiskOptions, FileDisk};
use steadfast_flow::Env;
use steadfast_log::{Durability, FormatOptions, Log};
use steadfast_store::{Attributes, BucketSettings, Condition, IndexKind, Store, StoreError, StoreOptions};

/// Options of the data to create.
#[derive(Debug, Clone, clap::Args)]
pub struct FillArgs {
    /// Data directory of the server to be started.
    #[arg(long)]
    dir: PathBuf,
    /// Number of objects.
    #[arg(long, default_value_t = 1_000_000)]
    objects: usize,
    /// Bytes of each object.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Number of keys that are put and deleted once each before that.
    #[arg(long, default_value_t = 0)]
    deleted: usize,
}

/// Creates the objects in the bucket `bench` and closes the store.
///
/// # Errors
/// When the disk or the store fails.
pub fn run(args: &FillArgs) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let env = Env::tokio();
        let begin = env.now();
        let disk = FileDisk::open(args.dir.join("pool"), &DiskOptions { create: true, ..DiskOptions::default() })?;
        if disk.is_empty() {
            Log::format(&disk, &env, &FormatOptions::default()).await?;
        }
        let index = IndexKind::Lsm(args.dir.join("index"));
        let (store, _) = Store::open(disk, index, env.clone(), StoreOptions::default()).await?;
        store.buckets().create("bench", BucketSettings::default()).await?;
        let body = Bytes::from(vec![42u8; args.size]);
        let mut tasks = tokio::task::JoinSet::new();
        let clients = 256;
        for client in 0..clients {
            let (store, body, objects, deleted) = (store.clone(), body.clone(), args.objects, args.deleted);
            tasks.spawn(async move {
                for n in (client..deleted).step_by(clients) {
                    let key = format!("deleted/{:03}/{n:08}", n % 1000);
                    put(&store, &key, n, body.clone()).await?;
                    store.at("bench", &key).delete(Condition::None, Some(Durability::Async)).await?;
                }
                for n in (client..objects).step_by(clients) {
                    let key = format!("fill/{:03}/{n:08}", n % 1000);
                    put(&store, &key, n, body.clone()).await?;
                }
                Ok::<(), StoreError>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        store.close().await?;
        Ok(serde_json::json!({ "objects": args.objects, "seconds": (env.now() - begin).as_secs_f64() }))
    })
}

async fn put(store: &Store, key: &str, n: usize, body: Bytes) -> Result<(), StoreError> {
    let mut writer = store.at("bench", key).writer(Some(body.len() as u64)).await?;
    writer.write(body).await?;
    let attributes = Attributes { etag: format!("{n:032x}"), ..Attributes::default() };
    writer.commit(attributes, Condition::None, Some(Durability::Async)).await?;
    Ok(())
}
