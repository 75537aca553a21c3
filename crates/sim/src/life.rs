//! One life of the machine: open, check what survived, serve clients, and end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::{Disk, Superdisk};
use steadfast_flow::Env;
use steadfast_log::{Log, LogError};
use steadfast_store::{BucketSettings, IndexKind, PoolDisk, Store, StoreError};

use crate::array::{self, Bay};
use crate::channels;
use crate::client::{Client, Outcome};
use crate::events;
use crate::executor::Executor;
use crate::indexes::{self, IndexTrouble};
use crate::keeper::Keeper;
use crate::members::{MOVES_WAIT, Seat};
use crate::operator::{Operator, Shift};
use crate::plan::{DiskLife, Finish, Plan, Trouble};
use crate::rng::Rng;
use crate::shared::{Shared, disk_name};
use crate::survey::{Contents, USAGE, contents, difference, survey, usage};
use crate::tireless;

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
    /// One of each disk.
    pub(crate) bays: Vec<Bay>,
    pub(crate) index: IndexKind,
    /// How reads of it fail.
    pub(crate) trouble: IndexTrouble,
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
    /// By disk: set when the store was closed and the fast leg holds everything.
    pub(crate) complete: Arc<Mutex<Vec<bool>>>,
    /// What happens to each disk.
    pub(crate) fates: Vec<DiskLife>,
}

/// A disk, or why it is not there.
type Given = Result<Arc<dyn Disk>, String>;

/// What a life has opened.
pub(crate) type InUse = (Option<Store>, Vec<(usize, Arc<Superdisk>)>);

impl Machine {
    fn env(&self) -> Env {
        self.executor.env()
    }

    /// Lives. An error is a broken promise.
    pub(crate) async fn live(mut self) -> Outcome<Lived> {
        let mut disks = Vec::new();
        for (number, bay) in self.bays.iter().enumerate() {
            // One that has left stays in the configuration until somebody takes it out.
            let seat = self.shared.members.lock().seats[number];
            if seat == Seat::Spare || seat == Seat::Out && self.rng.one_in(2) {
                continue;
            }
            if bay.missing {
                // Named or not given at all: both must do.
                if self.rng.one_in(2) {
                    disks.push((number, Err("it is away".to_owned())));
                }
                continue;
            }
            match bay.open().await {
                Ok(opened) => {
                    if let Some(superdisk) = opened.superdisk {
                        self.opened.lock().1.push((number, superdisk));
                    }
                    disks.push((number, Ok(opened.disk)));
                }
                Err(_) if self.shared.damage() => return Ok(Lived::Unopened),
                Err(error) => return Err(format!("the super-disk does not open: {error}")),
            }
        }
        indexes::fail_reads(&self.index, self.trouble.at_start);
        let store = match self.open(&disks).await? {
            Some(store) => store,
            None => return Ok(Lived::Unopened),
        };
        indexes::heal(&self.index, &store, &self.executor).await?;
        if let Some(before) = &mut self.before {
            // Before anything else can move something.
            let (was, now) = (before.remove(USAGE), usage(&store));
            // Publications that were over may be there again, until they are met.
            if was.as_ref() != Some(&now)
                && !self.shared.damage()
                && self.plan.channels.is_none()
                && !self.shared.listened
            {
                return Err(format!("an index made anew counts other live bytes: {was:?} became {now}"));
            }
        }
        self.shared.freeze_snapshots();
        let client = Client { shared: self.shared.clone(), store: store.clone(), env: self.env(), number: 0 };
        if !survey(&client, self.clean).await? {
            return Ok(Lived::Unopened);
        }
        if let Some(before) = self.before.take() {
            let now = contents(&store, &self.shared)?;
            if now != before && !self.shared.damage() {
                return Err(format!("an index made anew shows other things: {}", difference(&before, &now)));
            }
        }
        let heard = match &self.plan.channels {
            Some(plan) => channels::survey(&self.shared, &store, &self.env(), plan).await?,
            None => None,
        };
        let whole = self.shared.missing.lock().is_empty();
        if let Err(error) = self.make_buckets(&store).await {
            return self.shared.write_may_fail(&error).map(|_| Lived::Cut);
        }
        if !whole {
            self.buckets_stay(&store).await?;
        }
        if let Finish::CutAtWork(steps) = self.finish {
            self.executor.cut_after(steps);
        }
        self.trouble_begins();
        indexes::fail_reads(&self.index, self.trouble.at_work);
        let operator = if self.idle || !whole { None } else { self.operator(&store) };
        let mut keeper = if self.idle || !whole || self.plan.snapshots == 0 { None } else { Some(self.keeper(&store)) };
        if let Some(keeper) = &mut keeper {
            keeper.survey().await?;
        }
        let kept = keeper.as_mut().map(|_| Shift::begin(&self.env(), "keeper", self.keeper(&store).work_for_life()));
        let listened = heard.is_some();
        let listening = self.shared.listened.then(|| {
            let work = events::listen(self.shared.clone(), store.clone(), self.env(), self.rng.fork());
            Shift::begin(&self.env(), "listener", work)
        });
        let aired = self.air(&store, heard);
        let mut worked = if self.idle { Ok(()) } else { self.work(&store).await };
        if let (Ok(()), Some(plan), false) = (&worked, self.plan.tireless, self.idle) {
            worked = tireless::work(&client, plan, &mut self.rng).await;
        }
        if self.last {
            self.shared.devices.iter().for_each(|device| device.lock().rates = Default::default());
            self.bays.iter().for_each(|bay| bay.array.lock().rates(Default::default()));
        }
        worked?;
        indexes::heal(&self.index, &store, &self.executor).await?;
        if let Some(listening) = listening {
            listening.outcome()?;
        }
        if let Some(aired) = aired {
            self.env().timeout(MOVES_WAIT, aired.ended()).await.ok_or("CHANNELS: they have no end")?;
            aired.outcome()?;
        }
        if let (Some(operator), true) = (&operator, self.last) {
            self.env().timeout(MOVES_WAIT, operator.ended()).await.ok_or("MOVES: they have no end")?;
        }
        if let Some(kept) = &kept {
            if self.last {
                self.env().timeout(MOVES_WAIT, kept.ended()).await.ok_or("SNAPSHOTS: they have no end")?;
            }
            kept.outcome()?;
        }
        let held = match &mut keeper {
            Some(keeper) if self.last => !keeper.end().await?,
            _ => false,
        };
        if let (Some(plan), true, false) = (self.plan.once, self.last, self.idle) {
            client.come_and_go(plan).await?;
        }
        if self.last && !self.idle && self.plan.drain && !held {
            client.drain().await?;
        }
        if let Some(operator) = operator {
            operator.outcome()?;
        }
        let shared = &self.shared;
        for (name, trouble) in store.disks_in_trouble() {
            shared.unavailable(&format!("the disk {name} of the pool: {trouble}"), true)?;
        }
        if self.plan.trouble == Trouble::None && whole {
            // All has been answered: now everything can be told.
            shared.judge(shared.model.lock().check_demands())?;
        }
        for bucket in &shared.buckets {
            shared.judge(client.check_listing(&bucket.0, "", "", "", 1000))?;
        }
        if matches!(self.finish, Finish::Clean) || self.last {
            // What was given up midway may still be on its way.
            self.env().sleep(Duration::from_secs(30)).await;
            let mut contents = if whole { contents(&store, shared)? } else { Contents::new() };
            self.nothing_left_behind(&store, &contents)?;
            match store.close().await {
                Ok(()) => {}
                Err(error) => {
                    shared.write_may_fail(&error)?;
                    return Ok(Lived::Cut);
                }
            }
            if listened {
                shared.channels.lock().model.closed();
            }
            let unseen = shared.unseen.lock().clone();
            shared.model.lock().closed(|key| unseen.contains_key(key));
            let superdisks = self.opened.lock().1.clone();
            for (disk, superdisk) in superdisks {
                let complete = self.plan.is_calm(disk) && array::settle(&superdisk, &self.env()).await;
                superdisk.close().await;
                self.complete.lock()[disk] = complete;
            }
            contents.insert(USAGE.into(), usage(&store));
            *self.after.lock() = whole.then_some(contents);
            return Ok(Lived::Closed);
        }
        Ok(Lived::Cut)
    }

    async fn open(&mut self, disks: &[(usize, Given)]) -> Outcome<Option<Store>> {
        let mut tries = 0;
        loop {
            let mut options = self.plan.store.clone();
            // What one disk moves while another opens would show.
            options.log.compaction.enabled &= !self.idle;
            let given = disks
                .iter()
                .map(|(n, disk)| {
                    let hint = self.shared.members.lock().seats[*n] == Seat::Coming;
                    PoolDisk { name: disk_name(*n), disk: disk.clone(), hint }
                })
                .collect();
            match Store::open_pool(given, self.index.clone(), self.env(), options).await {
                Ok((store, report)) => {
                    for (name, why) in &report.missing {
                        self.shared.unavailable(&format!("the disk {name} of the pool: {why}"), false)?;
                    }
                    {
                        let mut members = self.shared.members.lock();
                        let mut missing = self.shared.missing.lock();
                        let named = |disk: usize| report.missing.iter().any(|(name, _)| *name == disk_name(disk));
                        if missing.iter().any(|disk| members.seats[*disk] == Seat::In && !named(*disk)) {
                            return Err(format!("{missing:?} are missing, named are {:?}", report.missing));
                        }
                        // One that was coming or leaving may not be of the pool.
                        missing.retain(|disk| named(*disk));
                        members.opened(&report, &store.status())?;
                    }
                    self.shared.counts.lock().starts_incomplete += u64::from(!report.missing.is_empty());
                    let now = self.env().now().as_nanos() as u64;
                    self.opened.lock().0 = Some(store.clone());
                    if let Some(most) = self.plan.once.filter(|_| self.idle).map(|plan| plan.replayed_max)
                        && report.replayed_records > most
                    {
                        let replayed = report.replayed_records;
                        return Err(format!("DELETES pile up: {replayed} records are replayed, more than {most}"));
                    }
                    self.shared.trace.say(now, "opened", [report.replayed_records, 0, 0], || format!("{report:?}"));
                    return Ok(Some(store));
                }
                Err(error) => {
                    let counts = self.shared.faults();
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

    /// Where everything is where it is to be, each object is there once.
    fn nothing_left_behind(&self, store: &Store, contents: &Contents) -> Outcome {
        let members = self.shared.members.lock();
        if !members.moved || members.unfinished || !self.last || contents.is_empty() {
            return Ok(());
        }
        let (listed, there) =
            (contents.keys().filter(|name| name.starts_with("object ")).count() as u64, store.status().objects);
        if listed != there {
            return Err(format!("{there} objects are on the disks, {listed} are listed: copies were left behind"));
        }
        Ok(())
    }

    /// Disks come and go from now on, where that is planned.
    fn operator(&mut self, store: &Store) -> Option<Shift> {
        let moves = self.plan.moves.as_ref()?;
        let mut operator = Operator {
            shared: self.shared.clone(),
            plan: self.plan.clone(),
            store: store.clone(),
            env: self.env(),
            spare: moves.spare.map(|spare| self.bays[spare].clone()),
            rng: self.rng.fork(),
        };
        Some(Shift::begin(&self.env(), "operator", async move { operator.work().await }))
    }

    /// Publishers and subscribers begin, where there are channels.
    fn air(&mut self, store: &Store, heard: Option<Arc<channels::Hub>>) -> Option<Shift> {
        let (Some(hub), Some(plan), false) = (heard, self.plan.channels.clone(), self.idle) else { return None };
        let (store, env, rng) = (store.clone(), self.env(), self.rng.fork());
        Some(Shift::begin(&self.env(), "channels", channels::work(hub, store, env, rng, plan)))
    }

    fn keeper(&mut self, store: &Store) -> Keeper {
        let (shared, env, times) = (self.shared.clone(), self.env(), self.plan.snapshots);
        Keeper { shared, store: store.clone(), env, rng: self.rng.fork(), times }
    }

    /// What goes wrong while clients work.
    fn trouble_begins(&mut self) {
        for (disk, bay) in self.bays.iter().enumerate().filter(|(_, bay)| !bay.missing) {
            let device = self.shared.devices[disk].clone();
            device.lock().rates = bay.plan.rates;
            if let Some(fast) = &bay.plan.fast {
                bay.array.lock().rates(fast.rates);
                bay.disturb(self.rng.fork());
            }
            if let Some(after) = self.fates[disk].dies {
                let env = self.executor.env();
                env.clone().spawn("death", async move {
                    env.sleep(after).await;
                    device.lock().die();
                });
            }
        }
    }

    /// While a disk is missing, buckets can be neither made nor deleted.
    async fn buckets_stay(&self, store: &Store) -> Outcome {
        for (name, _) in &self.shared.buckets {
            let tried = match store.bucket(name) {
                Ok(info) => store.update_bucket(name, info.settings).await,
                Err(_) => continue,
            };
            match tried {
                Err(StoreError::Unavailable(why)) => self.shared.unavailable(&why, true).map(drop)?,
                other => return Err(format!("a bucket could be changed, though a disk is missing: {other:?}")),
            }
        }
        Ok(())
    }

    async fn make_buckets(&self, store: &Store) -> Result<(), StoreError> {
        for (name, durability) in &self.shared.buckets {
            if store.bucket(name).is_ok() {
                // Without all disks it is not certain.
                if self.shared.missing.lock().is_empty() {
                    self.shared.made.lock().insert(name.clone());
                }
                continue;
            }
            match store
                .create_bucket(name, BucketSettings { durability: *durability, ..BucketSettings::default() })
                .await
            {
                Ok(_) | Err(StoreError::BucketExists) => {
                    self.shared.made.lock().insert(name.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
        for disk in 0..self.bays.len() {
            if self.plan.disks[disk].squeezed && !self.bays[disk].missing {
                self.squeeze(disk);
            }
        }
        while let Some(outcome) = outcomes.recv().await {
            outcome?;
        }
        Ok(())
    }

    /// The file system has no more room for a while.
    fn squeeze(&mut self, disk: usize) {
        let (env, device) = (self.env(), self.shared.devices[disk].clone());
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

/// Formats a disk.
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
