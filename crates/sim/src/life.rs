//! One life of the machine: open the store, check what survived, serve clients, and end.

mod work;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_disk::{Disk, Superdisk};
use steadfast_flow::Env;
use steadfast_log::{Log, LogError};
use steadfast_store::{BucketSettings, IndexKind, PoolDisk, Store, StoreError};

use crate::archive::LifeArchive;
use crate::array::{self, Bay};
use crate::channels;
use crate::client::Client;
use crate::executor::Executor;
use crate::indexes;
use crate::members::{Membership, disk_name};
use crate::outcome::Outcome;
use crate::plan::{DiskLife, FaultClass, Finish, IndexFaults, Plan};
use crate::rng::Rng;
use crate::saturating;
use crate::shared::Shared;
use crate::survey::{Contents, USAGE, contents, difference, survey, usage};

/// The end of a life without a planned power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// Closed.
    Closed,
    /// Ended without closing: the caller cuts the power.
    Cut,
    /// The pool could not be opened, and damage to the medium excuses that.
    Unopened,
}

pub(crate) struct Machine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) executor: Executor,
    /// The bay of each disk.
    pub(crate) bays: Vec<Bay>,
    pub(crate) index: IndexKind,
    /// Read failures of the index.
    pub(crate) index_faults: IndexFaults,
    pub(crate) rng: Rng,
    pub(crate) finish: Finish,
    /// Whether the store was closed before, so that all acknowledged data must be present.
    pub(crate) clean: bool,
    /// Content of the store at its close, to compare with a rebuilt index.
    pub(crate) before: Option<Contents>,
    /// Whether this is the last life, which checks everything and then closes.
    pub(crate) last: bool,
    /// Whether the life only checks, without clients.
    pub(crate) idle: bool,
    pub(crate) after: Arc<Mutex<Option<Contents>>>,
    /// The store once it is open, for its counters after the life has ended.
    pub(crate) opened: Arc<Mutex<InUse>>,
    /// For each disk: whether the store was closed with a complete fast leg.
    pub(crate) complete: Arc<Mutex<Vec<bool>>>,
    /// The fate of each disk.
    pub(crate) fates: Vec<DiskLife>,
    /// Whether the pool was restored to an earlier state and no store has been open since.
    pub(crate) put_back: bool,
    /// The archive, if the run has one.
    pub(crate) archive: Option<LifeArchive>,
}

/// A disk, or the reason why it is missing.
type DiskOrReason = Result<Arc<dyn Disk>, String>;

/// The store and the super-disks that a life has opened.
pub(crate) type InUse = (Option<Store>, Vec<(usize, Arc<Superdisk>)>);

impl Machine {
    fn env(&self) -> Env {
        self.executor.env()
    }

    /// Runs the life. An error is a violation.
    pub(crate) async fn live(mut self) -> Outcome<LifeEnd> {
        let Some(disks) = self.open_disks().await? else { return Ok(LifeEnd::Unopened) };
        indexes::fail_reads(&self.index, self.index_faults.at_start);
        let store = match self.open(&disks).await? {
            Some(store) => store,
            None => return Ok(LifeEnd::Unopened),
        };
        indexes::heal(&self.index, &store, &self.executor).await?;
        if let Some(archive) = &mut self.archive {
            archive.start(&store, &self.shared, &self.executor.env()).await?;
        }
        // Before any other task can move records.
        self.check_usage(&store)?;
        let client = Client { shared: self.shared.clone(), store: store.clone(), env: self.env(), number: 0 };
        if !survey(&client, self.clean).await? {
            return Ok(LifeEnd::Unopened);
        }
        self.check_contents(&store)?;
        let hub = match &self.plan.channels {
            Some(plan) => channels::survey(&self.shared, &store, &self.env(), plan).await?,
            None => None,
        };
        let whole = self.shared.missing.lock().is_empty();
        if let Err(error) = self.make_buckets(&store).await {
            return self.shared.write_may_fail(&error).map(|_| LifeEnd::Cut);
        }
        if !whole {
            self.buckets_stay(&store).await?;
        }
        if let Finish::CutAtWork(steps) = self.finish {
            self.executor.cut_after(steps);
        }
        self.begin_faults();
        indexes::fail_reads(&self.index, self.index_faults.at_work);
        let listened = hub.is_some();
        let background = self.begin_background(&store, whole, hub).await?;
        let mut worked = if self.idle { Ok(()) } else { self.work(&store).await };
        if let (Ok(()), Some(plan), false) = (&worked, self.plan.saturating, self.idle) {
            worked = saturating::work(&client, plan, &mut self.rng).await;
        }
        if self.last {
            self.shared.devices.iter().for_each(|device| device.lock().rates = Default::default());
            self.bays.iter().for_each(|bay| bay.array.lock().rates(Default::default()));
        }
        worked?;
        indexes::heal(&self.index, &store, &self.executor).await?;
        self.end_background(&background).await?;
        if let (Some(plan), true, false) = (self.plan.once, self.last, self.idle) {
            client.put_and_delete_once(plan).await?;
        }
        if self.last && !self.idle && self.plan.drain {
            client.drain().await?;
        }
        if let Some(operator) = &background.operator {
            operator.outcome()?;
        }
        self.check_end(&store, &client, whole)?;
        if matches!(self.finish, Finish::Clean) || self.last {
            return self.close(&store, whole, listened).await;
        }
        Ok(LifeEnd::Cut)
    }

    /// Opens the disks that the configuration names, and keeps the reason for each missing one.
    /// `None` where damage to the medium excuses a failure.
    async fn open_disks(&mut self) -> Outcome<Option<Vec<(usize, DiskOrReason)>>> {
        let mut disks = Vec::new();
        for (number, bay) in self.bays.iter().enumerate() {
            // A drained disk stays in the configuration until the operator removes it.
            let membership = self.shared.members.lock().memberships[number];
            if membership == Membership::Spare || membership == Membership::Left && self.rng.one_in(2) {
                continue;
            }
            if bay.missing {
                // The configuration may name the disk or not: both must work.
                if self.rng.one_in(2) {
                    disks.push((number, Err("the disk is absent".to_owned())));
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
                Err(_) if self.shared.damage() => return Ok(None),
                Err(error) => return Err(format!("the super-disk does not open: {error}")),
            }
        }
        Ok(Some(disks))
    }

    /// Compares the live bytes that a rebuilt index counts with those at the close of the store.
    fn check_usage(&mut self, store: &Store) -> Outcome {
        let Some(before) = &mut self.before else { return Ok(()) };
        let (was, now) = (before.remove(USAGE), usage(store));
        // Expired publications may count again until the store finds them expired.
        if was.as_ref() != Some(&now) && !self.shared.damage() && self.plan.channels.is_none() && !self.shared.listened
        {
            return Err(format!("a rebuilt index counts other live bytes: {was:?} became {now}"));
        }
        Ok(())
    }

    /// Compares the content that a rebuilt index shows with that at the close of the store.
    fn check_contents(&mut self, store: &Store) -> Outcome {
        let Some(before) = self.before.take() else { return Ok(()) };
        let now = contents(store, &self.shared)?;
        if now != before && !self.shared.damage() {
            return Err(format!("a rebuilt index shows other content: {}", difference(&before, &now)));
        }
        Ok(())
    }

    /// Checks the pool after all requests have been answered.
    fn check_end(&self, store: &Store, client: &Client, whole: bool) -> Outcome {
        let shared = &self.shared;
        if let Some(archive) = &self.archive {
            archive.check()?;
        }
        for (name, failure) in store.failed_disks() {
            shared.unavailable(&format!("the disk {name} of the pool: {failure}"), true)?;
        }
        if self.plan.fault_class == FaultClass::None && whole {
            // All requests have been answered, so every demand can be checked.
            shared.judge(shared.model.lock().check_demands())?;
        }
        for bucket in &shared.buckets {
            shared.judge(client.check_listing(&bucket.0, "", "", "", 1000))?;
        }
        Ok(())
    }

    /// Closes the store and its super-disks, and keeps the content for the next life.
    async fn close(&self, store: &Store, whole: bool, listened: bool) -> Outcome<LifeEnd> {
        let shared = &self.shared;
        // Cancelled requests may still be in flight.
        self.env().sleep(Duration::from_secs(30)).await;
        if let Some(archive) = &self.archive {
            archive.stop().await?;
        }
        let mut contents = if whole { contents(store, shared)? } else { Contents::new() };
        self.nothing_left_behind(store, &contents)?;
        match store.close().await {
            Ok(()) => {}
            Err(error) => {
                shared.write_may_fail(&error)?;
                return Ok(LifeEnd::Cut);
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
        contents.insert(USAGE.into(), usage(store));
        *self.after.lock() = whole.then_some(contents);
        Ok(LifeEnd::Closed)
    }

    async fn open(&mut self, disks: &[(usize, DiskOrReason)]) -> Outcome<Option<Store>> {
        let mut tries = 0;
        loop {
            let mut options = self.plan.store.clone();
            // Compaction on one disk during the open of another would change the comparison.
            options.log.compaction.enabled &= !self.idle;
            options.put_back = self.put_back;
            let given = disks
                .iter()
                .map(|(n, disk)| {
                    let hint = self.shared.members.lock().memberships[*n] == Membership::Joining;
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
                        if missing.iter().any(|disk| members.memberships[*disk] == Membership::Member && !named(*disk))
                        {
                            return Err(format!(
                                "the disks {missing:?} are missing, but the store reports {:?}",
                                report.missing
                            ));
                        }
                        // A disk that was joining or leaving may not belong to the pool.
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
                        return Err(format!(
                            "DELETES accumulate: a start replayed {replayed} records, more than {most}"
                        ));
                    }
                    self.shared
                        .trace
                        .note_with_text(now, "opened", [report.replayed_records, 0, 0], || format!("{report:?}"));
                    return Ok(Some(store));
                }
                Err(error) => {
                    let counts = self.shared.faults();
                    if counts.damage() {
                        return Ok(None);
                    }
                    tries += 1;
                    let disks_fail = counts.read_eio + counts.write_eio + counts.flush_eio + counts.full > 0;
                    if (disks_fail || self.shared.excuses.index_fails.load(Ordering::Relaxed)) && tries < 40 {
                        continue;
                    }
                    return Err(format!("the pool does not open: {error:?}"));
                }
            }
        }
    }

    /// After all moves have finished, each object must exist exactly once.
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

    /// Checks that no bucket can be created or changed while a disk is missing.
    async fn buckets_stay(&self, store: &Store) -> Outcome {
        for (name, _) in &self.shared.buckets {
            let tried = match store.buckets().get(name) {
                Ok(_) => store.buckets().change(name, |_| {}).await,
                Err(_) => continue,
            };
            match tried {
                Err(StoreError::Unavailable(why)) => self.shared.unavailable(&why, true).map(drop)?,
                other => return Err(format!("a bucket change succeeded, though a disk is missing: {other:?}")),
            }
        }
        Ok(())
    }

    async fn make_buckets(&self, store: &Store) -> Result<(), StoreError> {
        for (name, durability) in &self.shared.buckets {
            if store.buckets().get(name).is_ok() {
                // With a missing disk, the bucket's survival is not certain.
                if self.shared.missing.lock().is_empty() {
                    self.shared.made.lock().insert(name.clone());
                }
                continue;
            }
            match store
                .buckets()
                .create(name, BucketSettings { durability: *durability, ..BucketSettings::default() })
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
}

/// Formats a disk.
pub(crate) async fn format(bay: Bay, env: Env, plan: Arc<Plan>) -> Outcome {
    let disks = bay.open().await.map_err(|error| format!("blank devices do not open as a disk: {error}"))?;
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
