//! One life of the process: open the store, look through it, serve, and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::TryStreamExt;
use parking_lot::Mutex;
use steadfast_disk::Disk;
use steadfast_edge::{Edge, Handling, Origin};
use steadfast_log::LogOptions;
use steadfast_store::{IndexKind, ListQuery, PoolDisk, Store, StoreError, StoreOptions};
use tokio::sync::oneshot;

use super::client::{EdgeClient, shown};
use super::ledger::EdgeLedger;
use super::origin::SimOrigin;
use super::plan::{BUCKET, EdgeEnd, EdgeLife, EdgePlan};
use crate::disk::{Device, SimDisk};
use crate::executor::Executor;
use crate::rng::Rng;

/// More than the age at which the sweep removes what fills left behind, and the time between two.
const SWEPT_AFTER: Duration = Duration::from_secs(3600 + 2 * 600);

/// The state of a life.
pub(crate) struct EdgeProcess {
    pub(crate) plan: Arc<EdgePlan>,
    pub(crate) life: EdgeLife,
    pub(crate) number: u64,
    pub(crate) last: bool,
    pub(crate) executor: Executor,
    pub(crate) device: Device,
    pub(crate) index: IndexKind,
    pub(crate) ledger: Arc<Mutex<EdgeLedger>>,
}

impl EdgeProcess {
    /// Opens the edge, and runs the clients.
    pub(crate) async fn run(self, mut rng: Rng) -> Result<(), String> {
        let env = self.executor.env();
        let store = self.open().await?;
        self.check_stored(&store).await?;
        self.ledger.lock().begin_life();
        let healthy = Arc::new(AtomicBool::new(false));
        let origin = SimOrigin {
            ledger: self.ledger.clone(),
            executor: self.executor.clone(),
            rng: Arc::new(Mutex::new(rng.fork())),
            rates: self.life.rates,
            outage_until: env.now() + self.life.outage,
            healthy: healthy.clone(),
        };
        let origins: Vec<(_, Arc<dyn Origin>)> = vec![(self.plan.bucket.clone(), Arc::new(origin))];
        let edge = Edge::with_origins(store.clone(), env.clone(), origins, &self.plan.bounds).await?;
        let client = EdgeClient {
            edge,
            env: env.clone(),
            ledger: self.ledger.clone(),
            executor: self.executor.clone(),
            plan: self.plan.clone(),
            life: self.life.clone(),
            number: self.number,
            healthy: healthy.clone(),
        };
        env.spawn("publisher", client.clone().publish(rng.fork()));
        env.spawn("operator", client.clone().operate(rng.fork()));
        let mut ends = Vec::new();
        for _ in 0..self.life.clients {
            let (done, end) = oneshot::channel::<()>();
            let work = client.clone().run(rng.fork());
            env.spawn("client", async move {
                work.await;
                let _ = done.send(());
            });
            ends.push(end);
        }
        for end in ends {
            let _ = end.await;
        }
        if self.last {
            self.check_end(&store, &client, &healthy, &mut rng).await?;
        }
        if self.life.end == EdgeEnd::Closed {
            store.close().await.map_err(|error| format!("the store does not close: {error}"))?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<Store, String> {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(self.device.clone(), self.executor.clone(), self.plan.disk));
        let given = vec![PoolDisk { name: "d".into(), disk: Ok(disk), hint: false }];
        let mut log = LogOptions { async_window: self.plan.async_window, ..LogOptions::default() };
        log.compaction.enabled = false;
        log.scrub.enabled = false;
        let options = StoreOptions { chunk_bytes: 4096, inline_max_bytes: 1000, log, ..StoreOptions::default() };
        let opened = Store::open_pool(given, self.index.clone(), self.executor.env(), options).await;
        Ok(opened.map_err(|error| format!("the store does not open: {error}"))?.0)
    }

    /// Each stored object is a whole version of its key.
    async fn check_stored(&self, store: &Store) -> Result<(), String> {
        let query = ListQuery { limit: 1000, ..ListQuery::default() };
        let listed = match store.contents(BUCKET).objects(&query) {
            Ok(page) => page.objects,
            Err(StoreError::NoSuchBucket) => return Ok(()),
            Err(error) => return Err(format!("the objects cannot be listed: {error}")),
        };
        for object in listed {
            let reader = match store.at(BUCKET, &object.key).reader().await {
                Ok(reader) => reader,
                Err(StoreError::NoSuchKey) => continue,
                Err(error) => return Err(format!("{} cannot be read: {error}", object.key)),
            };
            let head = shown(reader.info(), Handling::Hit, None);
            let data: Result<Vec<_>, _> = reader.stream(0..u64::MAX).try_collect().await;
            let data = data.map_err(|error| format!("{} cannot be read: {error}", object.key))?.concat();
            if !self.ledger.lock().is_whole(&object.key, &head, &data) {
                let (key, bytes) = (&object.key, data.len());
                return Err(format!("HALF-OBJECT: {key} is stored with {bytes} bytes, as no version: {head:?}"));
            }
        }
        Ok(())
    }

    /// With an origin that has become well, each key is served, and nothing is left behind.
    async fn check_end(
        &self,
        store: &Store,
        client: &EdgeClient,
        healthy: &AtomicBool,
        rng: &mut Rng,
    ) -> Result<(), String> {
        healthy.store(true, Ordering::Relaxed);
        // What began before may still fail.
        let env = self.executor.env();
        env.sleep(Duration::from_secs(120)).await;
        if self.plan.swept {
            env.sleep(SWEPT_AFTER).await;
            let left = store.contents(BUCKET).fills(("", ""), 10).map_err(|error| format!("uploads: {error}"))?.uploads;
            if let Some(upload) = left.first() {
                return Err(format!("LEFT-OVER: a fill of {} of {} ms is left", upload.key, upload.created_ms));
            }
        }
        client.read_all(false, rng).await;
        client.read_all(true, rng).await;
        env.sleep(Duration::from_secs(5)).await;
        self.check_stored(store).await?;
        self.check_space(store, &client.edge)
    }

    /// What is counted is what is stored, and within the bound.
    fn check_space(&self, store: &Store, edge: &Edge) -> Result<(), String> {
        let counted = edge.status().buckets[0].used_bytes;
        let query = ListQuery { limit: 1000, ..ListQuery::default() };
        let listed =
            store.contents(BUCKET).objects(&query).map_err(|error| format!("the objects cannot be listed: {error}"))?;
        let mut stored: u64 = listed.objects.iter().map(|object| object.size).sum();
        for fill in store.contents(BUCKET).fills(("", ""), 1000).map_err(|error| format!("uploads: {error}"))?.uploads {
            let segments = store.at(BUCKET, &fill.key).fill(&fill.upload_id).parts(0, 10_000);
            let segments = segments.map_err(|error| format!("segments: {error}"))?.0;
            stored += segments.iter().map(|segment| segment.size).sum::<u64>();
        }
        // A segment that was being stored when its fill stopped counts although it is not there.
        if counted < stored {
            return Err(format!("SPACE: {counted} bytes are counted and {stored} stored"));
        }
        Ok(())
    }
}
