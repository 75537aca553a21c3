//! One life of the machine: open, check what survived, serve clients, and end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use steadfast_disk::{Disk, Superdisk};
use steadfast_flow::Env;
use steadfast_log::{Durability, Log, LogError};
use steadfast_store::{BucketSettings, IndexKind, ListQuery, Store, StoreError};

use crate::array::{self, Bay};
use crate::client::{Client, Outcome, Shared, attributes, tag_of};
use crate::executor::Executor;
use crate::model::{Key, Seen};
use crate::plan::{Finish, Plan, Trouble};
use crate::rng::Rng;

/// How a life went that nothing cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lived {
    /// Closed.
    Closed,
    /// Given up without closing: the power is cut now.
    Cut,
    /// The pool could not be opened, for which damage to the medium is an excuse.
    Unopened,
}

pub(crate) struct Machine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) executor: Executor,
    pub(crate) bay: Bay,
    pub(crate) index: IndexKind,
    pub(crate) rng: Rng,
    pub(crate) finish: Finish,
    /// The store was closed before: all that was answered must be there.
    pub(crate) clean: bool,
    /// What was in the store when it was closed, to compare an index made anew with.
    pub(crate) before: Option<Contents>,
    /// The last life: look at everything, then close.
    pub(crate) last: bool,
    /// Only look; no clients.
    pub(crate) idle: bool,
    pub(crate) after: Arc<Mutex<Option<Contents>>>,
    /// The store once it is open, to ask what it did when the life has ended.
    pub(crate) opened: Arc<Mutex<InUse>>,
    /// Set when the store was closed and the fast leg holds everything.
    pub(crate) complete: Arc<AtomicBool>,
}

/// What a life has opened.
pub(crate) type InUse = (Option<Store>, Option<Arc<Superdisk>>);

/// All that a store shows, to compare two.
pub(crate) type Contents = BTreeMap<String, String>;

impl Machine {
    fn env(&self) -> Env {
        self.executor.env()
    }

    /// Lives. An error is a broken promise.
    pub(crate) async fn live(mut self) -> Outcome<Lived> {
        let disks = match self.bay.open().await {
            Ok(disks) => disks,
            Err(_) if self.shared.device.lock().counts.damage() => return Ok(Lived::Unopened),
            Err(error) => return Err(format!("the super-disk does not open: {error}")),
        };
        self.opened.lock().1 = disks.superdisk.clone();
        let store = match self.open(&disks.disk).await? {
            Some(store) => store,
            None => return Ok(Lived::Unopened),
        };
        if let Some(before) = &mut self.before {
            // Before anything else can move something.
            let (was, now) = (before.remove(USAGE), usage(&store));
            if was.as_ref() != Some(&now) && !self.shared.device.lock().counts.damage() {
                return Err(format!("an index made anew counts other live bytes: {was:?} became {now}"));
            }
        }
        let client = Client { shared: self.shared.clone(), store: store.clone(), env: self.env(), number: 0 };
        if !self.survey(&client).await? {
            return Ok(Lived::Unopened);
        }
        if let Some(before) = self.before.take() {
            let now = contents(&store, &self.shared)?;
            if now != before && !self.shared.device.lock().counts.damage() {
                return Err(format!("an index made anew shows other things: {}", difference(&before, &now)));
            }
        }
        if let Err(error) = self.make_buckets(&store).await {
            return self.shared.write_may_fail(&error).map(|_| Lived::Cut);
        }
        if let Finish::CutAtWork(steps) = self.finish {
            self.executor.cut_after(steps);
        }
        self.shared.device.lock().rates = self.plan.rates;
        if let Some(fast) = &self.plan.fast {
            self.bay.array.lock().rates(fast.rates);
            self.bay.disturb(self.rng.fork());
        }
        let worked = if self.idle { Ok(()) } else { self.work(&store).await };
        if self.last {
            self.shared.device.lock().rates = Default::default();
            self.bay.array.lock().rates(Default::default());
        }
        worked?;
        if self.last && !self.idle && self.plan.drain {
            client.drain().await?;
        }
        let shared = &self.shared;
        if self.plan.trouble == Trouble::None {
            // All has been answered: now everything can be told.
            shared.judge(shared.model.lock().check_demands())?;
        }
        for bucket in &shared.buckets {
            shared.judge(client.check_listing(&bucket.0, "", "", "", 1000))?;
        }
        if matches!(self.finish, Finish::Clean) || self.last {
            // What was given up midway may still be on its way.
            self.env().sleep(Duration::from_secs(30)).await;
            let mut contents = contents(&store, shared)?;
            match store.close().await {
                Ok(()) => {}
                Err(error) => {
                    shared.write_may_fail(&error)?;
                    return Ok(Lived::Cut);
                }
            }
            if let Some(superdisk) = &disks.superdisk {
                let complete = self.plan.is_calm() && array::settle(superdisk, &self.env()).await;
                superdisk.close().await;
                self.complete.store(complete, Ordering::Relaxed);
            }
            contents.insert(USAGE.into(), usage(&store));
            *self.after.lock() = Some(contents);
            return Ok(Lived::Closed);
        }
        Ok(Lived::Cut)
    }

    async fn open(&mut self, disk: &Arc<dyn Disk>) -> Outcome<Option<Store>> {
        let mut tries = 0;
        loop {
            let options = self.plan.store.clone();
            match Store::open(disk.clone(), self.index.clone(), self.env(), options).await {
                Ok((store, report)) => {
                    let now = self.env().now().as_nanos() as u64;
                    self.opened.lock().0 = Some(store.clone());
                    self.shared.trace.say(now, "opened", [report.replayed_records, 0, 0], || format!("{report:?}"));
                    return Ok(Some(store));
                }
                Err(error) => {
                    let counts = self.shared.device.lock().counts;
                    if counts.damage() {
                        return Ok(None);
                    }
                    tries += 1;
                    if counts.read_eio + counts.write_eio + counts.flush_eio + counts.full > 0 && tries < 40 {
                        continue;
                    }
                    return Err(format!("the pool does not open: {error:?}"));
                }
            }
        }
    }

    async fn make_buckets(&self, store: &Store) -> Result<(), StoreError> {
        for (name, durability) in &self.shared.buckets {
            if store.bucket(name).is_ok() {
                continue;
            }
            match store.create_bucket(name, BucketSettings { durability: *durability }).await {
                Ok(_) | Err(StoreError::BucketExists) => {
                    self.shared.made.lock().insert(name.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads everything and holds it against the model. False when damage to the medium is the reason that it cannot be done.
    async fn survey(&self, client: &Client) -> Outcome<bool> {
        let shared = &self.shared;
        let damage = shared.device.lock().counts.damage();
        let mut seen: BTreeMap<Key, Seen> = BTreeMap::new();
        for (bucket, _) in &shared.buckets {
            if client.store.bucket(bucket).is_err() {
                if shared.made.lock().contains(bucket) && !damage {
                    return Err(format!("LOST: the bucket {bucket} is gone"));
                }
                // Its creation may not have been answered; then nothing is in it.
                for key in &shared.keys {
                    seen.insert((bucket.clone(), key.clone()), None);
                }
                continue;
            }
            for name in &shared.keys {
                let key = (bucket.clone(), name.clone());
                let state = self.look(client, &key).await?;
                if let Some(state) = state {
                    seen.insert(key, state);
                } else if !damage {
                    return Err(format!("{key:?} cannot be read after a start"));
                }
            }
        }
        client.check_uploads(self.clean, &seen).or_else(|what| shared.judge(Err(what)))?;
        let mut model = shared.model.lock();
        if damage {
            model.restarted_damaged(&seen)?
        } else {
            model.restarted(&seen, self.clean)?
        }
        drop(model);
        for (bucket, _) in shared.buckets.iter().filter(|(bucket, _)| client.store.bucket(bucket).is_ok()) {
            shared.judge(client.check_listing(bucket, "", "", "", 3))?;
        }
        Ok(true)
    }

    /// What a key holds, whole. `None` when it cannot be read.
    async fn look(&self, client: &Client, key: &Key) -> Outcome<Option<Seen>> {
        for _ in 0..30 {
            let reader = match client.store.reader(&key.0, &key.1).await {
                Ok(reader) => reader,
                Err(StoreError::NoSuchKey) => return Ok(Some(None)),
                Err(error) => {
                    self.shared.read_may_fail(&error)?;
                    continue;
                }
            };
            let info = reader.info().clone();
            let tag = tag_of(&info.attributes.etag)?;
            if info.attributes != attributes(tag) {
                return Err(format!("WRONG attributes of {key:?}: {:?}", info.attributes));
            }
            let mut stream = std::pin::pin!(reader.stream(0..info.size));
            let mut at = 0;
            let mut whole = true;
            while let Some(piece) = stream.next().await {
                match piece {
                    Ok(data) => {
                        self.shared.model.lock().check_bytes(tag, info.size, at, &data)?;
                        at += data.len() as u64;
                    }
                    Err(error) => {
                        self.shared.read_may_fail(&error)?;
                        whole = false;
                        break;
                    }
                }
            }
            if whole {
                if at != info.size {
                    return Err(format!("WRONG length of {key:?}: {at}, not {}", info.size));
                }
                self.shared.model.lock().check_bytes(tag, info.size, 0, &[])?;
                return Ok(Some(Some((tag, info.version))));
            }
            if self.shared.device.lock().counts.damage() {
                return Ok(Some(Some((tag, info.version))));
            }
        }
        Ok(None)
    }

    /// Serves the clients until all have done what they wanted.
    async fn work(&mut self, store: &Store) -> Outcome {
        let env = self.env();
        let (done, mut outcomes) = tokio::sync::mpsc::channel::<Outcome>(64);
        for number in 1..=self.plan.clients {
            let client = Client { shared: self.shared.clone(), store: store.clone(), env: env.clone(), number };
            let (mut rng, plan, done) = (self.rng.fork(), self.plan.clone(), done.clone());
            env.spawn("client", async move {
                let mut outcome = Ok(());
                for _ in 0..plan.requests_each {
                    outcome = client.act_or_leave(&mut rng).await;
                    if outcome.is_err() {
                        break;
                    }
                    if plan.think_us_max > 0 {
                        client.env.sleep(Duration::from_micros(rng.below(plan.think_us_max))).await;
                    }
                }
                let _ = done.send(outcome).await;
            });
        }
        drop(done);
        if self.plan.trouble == Trouble::Full {
            self.squeeze();
        }
        while let Some(outcome) = outcomes.recv().await {
            outcome?;
        }
        Ok(())
    }

    /// The file system has no more room for a while.
    fn squeeze(&mut self) {
        let (env, device) = (self.env(), self.shared.device.clone());
        let mut rng = self.rng.fork();
        env.clone().spawn("squeeze", async move {
            env.sleep(Duration::from_micros(rng.below(100_000))).await;
            {
                let mut platter = device.lock();
                platter.room_bytes = platter.len() + rng.below(4 << 20);
            }
            env.sleep(Duration::from_micros(rng.below(3_000_000))).await;
            let mut platter = device.lock();
            platter.room_bytes = platter.capacity_bytes();
        });
    }
}

/// Formats the disk.
pub(crate) async fn format(bay: Bay, env: Env, plan: Arc<Plan>) -> Outcome {
    let disks = bay.open().await.map_err(|error| format!("blank disks cannot be put together: {error}"))?;
    match Log::format(&disks.disk, &env, &plan.format).await {
        Ok(_) => {
            if let Some(superdisk) = &disks.superdisk {
                superdisk.close().await;
            }
            Ok(())
        }
        Err(LogError::Open(what)) => Err(format!("a blank disk cannot be formatted: {what}")),
        Err(error) => Err(format!("a blank disk cannot be formatted: {error}")),
    }
}

/// Where the live bytes are among [`Contents`].
const USAGE: &str = "live bytes";

/// The live bytes of each extent that has any.
fn usage(store: &Store) -> String {
    let usage = store.status().log.usage;
    let live = usage.iter().filter(|u| u.live_bytes > 0);
    live.map(|u| format!("{}:{}:{} ", u.extent, u.epoch, u.live_bytes)).collect()
}

/// Lists everything.
pub(crate) fn contents(store: &Store, shared: &Shared) -> Outcome<Contents> {
    let mut all = Contents::new();
    for (bucket, durability) in &shared.buckets {
        let info = match store.bucket(bucket) {
            Ok(info) => info,
            Err(_) => continue,
        };
        let _: &Durability = durability;
        all.insert(format!("bucket {bucket}"), format!("{info:?}"));
        let query = ListQuery { limit: 100_000, ..ListQuery::default() };
        let page = store.list(bucket, &query).map_err(|error| format!("listing {bucket}: {error:?}"))?;
        for entry in page.objects {
            let info =
                store.object(bucket, &entry.key).map_err(|error| format!("{bucket}/{}: {error:?}", entry.key))?;
            all.insert(format!("object {bucket}/{}", entry.key), format!("{entry:?} {info:?}"));
        }
    }
    for upload in shared.uploads.lock().iter() {
        let (key, id) = upload.place();
        if let Ok(info) = store.upload(&key.0, &key.1, id) {
            let parts = store.parts(&key.0, &key.1, id, 0, 10_000).map_err(|error| format!("{key:?}: {error:?}"))?;
            all.insert(format!("upload {key:?} {id}"), format!("{info:?} {parts:?}"));
        }
    }
    Ok(all)
}

fn difference(a: &Contents, b: &Contents) -> String {
    let keys = a.keys().chain(b.keys());
    for key in keys {
        if a.get(key) != b.get(key) {
            return format!("{key}: {:?} became {:?}", a.get(key), b.get(key));
        }
    }
    String::new()
}
