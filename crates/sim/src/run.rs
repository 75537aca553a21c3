//! Runs: each seed is a history of lives on the same devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_archive::Promise;
use steadfast_disk::{Superdisk, SuperdiskSabotage};
use steadfast_store::Store;

use crate::archive::{BlankMachine, Elsewhere};
use crate::array::{Array, Bay};
use crate::counts::Counts;
use crate::disk::{Device, DiskSabotage};
use crate::executor::{End, Executor};
use crate::indexes::Indexes;
use crate::life::{LifeEnd, Machine, format};
use crate::members::Members;
use crate::model::{Model, Order};
use crate::moment::Moment;
use crate::plan::{DiskLife, FIRST, FastFate, Finish, IndexFate, IndexFaults, Life, Plan};
use crate::platter::{FaultCounts, Platter};
use crate::report::{RunReport, SimOptions, SimReport};
use crate::rng::Rng;
use crate::run_state::PublishedHistory;
use crate::seeds::Seeds;
use crate::shared::{Excuses, Noted, Shared};
use crate::standby::RestoredState;
use crate::trace::Trace;
use crate::variants::Variant;

const STEPS_MAX: u64 = 3_000_000;
const TIME_MAX: Duration = Duration::from_secs(3600);
const NAMES: [&str; 16] = [
    "a", "a/", "a/1", "a/2", "a/b/1", "a/b/2", "b", "b/c/1", "b/c/2", "b0", "c", "d/e/f/g", "Ä/ö", "zz", "zz/1", "zzz",
];

/// Runs the seeds. `progress` receives the number of finished runs and the total.
pub fn run(options: &SimOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> SimReport {
    let mut report = SimReport {
        seed: options.seed,
        runs: 0,
        pairs: 0,
        zoned: 0,
        pools: 0,
        moves: 0,
        channels: 0,
        indexes: 0,
        saturating: 0,
        once: 0,
        listened: 0,
        variant: options.variant,
        lives: 0,
        cuts: 0,
        events: 0,
        digest: 0,
        virtual_s: 0.0,
        requests: Counts::default(),
        faults: FaultCounts::default(),
        failures: Vec::new(),
    };
    let seeds = Seeds { first: options.seed, runs: options.runs, threads: options.threads };
    let run = |seed| {
        let keep = if options.trace { options.tail } else { 0 };
        let mut one = run_one(seed, options, keep, options.trace);
        if one.violation.is_some() && !options.trace {
            // Run the seed again, with event texts.
            one = run_one(seed, options, options.tail, false);
        }
        let failed = one.violation.is_some();
        (one, failed)
    };
    seeds.run(progress, run, |_, one| {
        report.runs += 1;
        report.pairs += u64::from(one.pair);
        report.zoned += u64::from(one.zoned);
        report.pools += u64::from(one.disks > 1);
        report.moves += u64::from(one.moves);
        report.channels += u64::from(one.channels);
        report.indexes += u64::from(one.indexes);
        report.saturating += u64::from(one.saturating);
        report.once += u64::from(one.once);
        report.listened += u64::from(one.listened);
        report.lives += one.lives;
        report.cuts += one.cuts;
        report.events += one.events;
        report.digest ^= one.trace_hash;
        report.virtual_s += one.virtual_ms as f64 / 1e3;
        report.requests.add(&one.requests);
        report.faults.add(&one.faults);
        if one.violation.is_some() {
            report.failures.push(one);
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report
}

/// Runs one seed, keeps the last `keep` events, and with `print` prints every event.
pub fn run_seed(seed: u64, variant: Option<Variant>, keep: usize, print: bool) -> RunReport {
    run_one(seed, &SimOptions { variant, ..SimOptions::default() }, keep, print)
}

fn run_one(seed: u64, options: &SimOptions, keep: usize, print: bool) -> RunReport {
    let mut rng = Rng::new(seed);
    let plan = Arc::new(Plan::new(&mut rng.fork(), options.variant, options.zoned));
    let trace = Trace::new(keep, print);
    let mut history = History::new(rng, plan.clone(), trace.clone());
    let outcome = history.run_lives();
    let violation = outcome.err();
    let counts = *history.shared.counts.lock();
    let mut faults = history.shared.faults();
    for array in &history.arrays {
        array.lock().fast.iter().for_each(|device| faults.add(&device.lock().counts));
    }
    RunReport {
        seed,
        fault_class: plan.fault_class,
        zoned: plan.disks.iter().any(|disk| disk.zones.is_some()),
        pair: plan.disks.iter().any(|disk| disk.fast.is_some()),
        disks: plan.disks.len() as u64,
        moves: plan.moves.is_some(),
        channels: plan.channels.is_some(),
        indexes: plan.index.faults,
        saturating: plan.saturating.is_some(),
        once: plan.once.is_some(),
        listened: !plan.store.mirrored.is_empty(),
        trace_hash: trace.hash(),
        events: trace.count(),
        lives: history.lives,
        cuts: history.cuts,
        virtual_ms: history.now.as_millis() as u64,
        requests: counts,
        faults,
        tail: if violation.is_some() { trace.tail() } else { Vec::new() },
        violation,
    }
}

struct History {
    rng: Rng,
    plan: Arc<Plan>,
    trace: Trace,
    /// Whether a start has created the pool of the disks.
    pool_created: bool,
    /// The devices of each disk.
    arrays: Vec<Arc<Mutex<Array>>>,
    /// For each disk: whether the fast leg was complete at the close.
    complete: Vec<bool>,
    shared: Arc<Shared>,
    now: Duration,
    lives: u64,
    cuts: u64,
    index: Indexes,
    /// The pool after each life, if a later life restores one.
    moments: Vec<Moment>,
    /// Whether the pool was restored to an earlier state and no store has been open since.
    put_back: bool,
    /// Whether disks may have different breaks of epochs: the next start with all of them makes a
    /// new one.
    uneven: bool,
    /// The store of the archive.
    elsewhere: Elsewhere,
    /// Whether the disks may be older than the archive.
    maybe_older: bool,
}

impl History {
    fn new(mut rng: Rng, plan: Arc<Plan>, trace: Trace) -> Self {
        let platter = |disk: &crate::plan::DiskPlan, rng: &mut Rng| -> Device {
            let len = if disk.profile.growable { 0 } else { disk.capacity_bytes };
            let mut platter = Platter::new(rng.fork(), disk.capacity_bytes, len);
            platter.faults_left = disk.faults;
            Arc::new(Mutex::new(platter))
        };
        let devices: Vec<Device> = plan.disks.iter().map(|disk| platter(disk, &mut rng)).collect();
        let order = match (&plan.moves, plan.disks.len()) {
            (Some(_), _) => Order::Unordered,
            (None, 1) => Order::OneLog,
            (None, _) => Order::PerKey,
        };
        let shared = Arc::new(Shared {
            model: Noted::new(Model::new(order)),
            uploads: Noted::default(),
            counts: Mutex::new(Counts::default()),
            at_start: Mutex::default(),
            made: Noted::default(),
            devices: devices.clone(),
            lists_without_missing: plan.lists_without_missing,
            missing: Mutex::default(),
            unseen: Mutex::default(),
            homes: Noted::default(),
            channels: Noted::new(PublishedHistory::new(plan.channels.as_ref())),
            listened: !plan.store.mirrored.is_empty(),
            received: Noted::default(),
            members: Mutex::new(Members::new(&plan)),
            unflushed: Mutex::default(),
            excuses: Excuses {
                index_fails: AtomicBool::new(false),
                waits_for_archive: plan.archive.as_ref().is_some_and(|of| of.options.promise == Promise::Archived),
            },
            trace: trace.clone(),
            buckets: plan.buckets.iter().zip([FIRST, "second"]).map(|(d, name)| (name.into(), *d)).collect(),
            keys: NAMES[..plan.keys as usize].iter().map(|name| Arc::from(*name)).collect(),
            cold_keys: plan.cold_keys as usize,
            small_max: plan.small_max,
            large_max: plan.large_max,
            large_per_mille: plan.large_per_mille,
        });
        let index = Indexes::new(plan.index.files);
        let arrays = devices.iter().zip(&plan.disks).map(|(device, disk)| {
            let array = Array::new(&mut rng, device.clone(), disk.capacity_bytes, disk.fast.as_ref());
            Arc::new(Mutex::new(array))
        });
        let arrays: Vec<_> = arrays.collect();
        Self {
            rng,
            trace,
            arrays,
            pool_created: false,
            complete: vec![false; plan.disks.len()],
            plan,
            shared,
            now: Duration::ZERO,
            lives: 0,
            cuts: 0,
            index,
            moments: Vec::new(),
            put_back: false,
            uneven: false,
            elsewhere: Elsewhere::default(),
            maybe_older: false,
        }
    }

    fn run_lives(&mut self) -> Result<(), String> {
        self.format()?;
        let (mut clean, mut after) = (false, None);
        let calm = vec![DiskLife::CALM; self.plan.disks.len()];
        // A life without faults that ends with a clean close.
        let calm = Life {
            finish: Finish::Clean,
            index: IndexFate::Kept,
            restored: false,
            from_archive: false,
            index_faults: IndexFaults::default(),
            disks: calm,
        };
        let restores = self.plan.lives.iter().any(|life| life.restored);
        let lives: Vec<Life> = self.plan.lives.iter().cloned().chain([calm.clone()]).collect();
        let count = lives.len();
        for (number, mut life) in lives.into_iter().enumerate() {
            if life.restored
                && let Some(was_clean) = self.restore_earlier()
            {
                (clean, self.put_back, self.maybe_older) = (was_clean, true, true);
            }
            if life.from_archive
                && self.pool_created
                && let Some(RestoredState { complete, .. }) = self.restore_from_archive()?
            {
                (clean, self.put_back, self.maybe_older) = (false, !complete, false);
                // A restored machine has no index, and those before are of another history.
                life.index = IndexFate::Deleted;
                self.index.forget_images();
            }
            for (device, fate) in self.shared.devices.iter().zip(&life.disks) {
                for _ in 0..fate.flips {
                    device.lock().flip_bit();
                }
            }
            let (lived, contents) = self.live(life, clean, None, number + 1 == count, false)?;
            clean = lived == LifeEnd::Closed;
            if lived == LifeEnd::Unopened {
                return Ok(());
            }
            after = contents;
            if restores && self.pool_created {
                self.moments.push(Moment::new(&self.shared, clean));
            }
            self.index.take_image();
        }
        // One more life, with a rebuilt index: it must show the same content.
        if clean {
            let life = Life { index: IndexFate::Deleted, ..calm };
            self.live(life, true, after, true, true)?;
        }
        Ok(())
    }

    fn format(&mut self) -> Result<(), String> {
        for disk in 0..self.arrays.len() {
            let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
            let mut bay = self.bay(disk, false, &executor);
            // Variants take effect after the format: a pool that never existed proves little.
            bay.plan.profile.sabotage = DiskSabotage::default();
            if let Some(fast) = &mut bay.plan.fast {
                fast.options.sabotage = SuperdiskSabotage::None;
            }
            let end = executor.run(format(bay, executor.env(), self.plan.clone()), STEPS_MAX, TIME_MAX);
            self.arrays[disk].lock().cut();
            self.arrays[disk].lock().zoned = None;
            self.now = executor.shut_down();
            match end {
                End::Done(outcome) => outcome?,
                other => return Err(format!("formatting did not end: {other:?}")),
            }
        }
        Ok(())
    }

    fn bay(&self, disk: usize, missing: bool, executor: &Executor) -> Bay {
        Bay {
            array: self.arrays[disk].clone(),
            plan: self.plan.disks[disk].clone(),
            missing,
            executor: executor.clone(),
        }
    }

    /// Applies a fate to the legs of a super-disk while the power is off. Returns true if the next
    /// life must not trust the fast leg.
    fn inject(&mut self, disk: usize, fate: DiskLife) -> bool {
        if self.plan.disks[disk].fast.is_none() || fate.missing {
            return false;
        }
        let mut rng = self.rng.fork();
        let stale = self.arrays[disk].lock().inject(fate.fast, &mut rng);
        let mut durable = self.shared.devices[disk].lock();
        durable.uncover();
        if std::mem::take(&mut self.complete[disk]) && fate.fast == FastFate::Kept {
            // After the superblocks and the super-disk's own metadata.
            (0..fate.covered_flips).for_each(|_| durable.flip_covered(1 << 20));
        }
        stale && self.plan.is_calm(disk) && !matches!(fate.fast, FastFate::Rotten(_)) && !durable.counts.damage()
    }

    /// Applies the fates of a life to the disks and the index, while the power is off. Returns true
    /// if the life must not trust a fast leg.
    fn apply_fates(&mut self, life: &mut Life) -> bool {
        if !self.pool_created {
            // Until the first start with all disks, the present disks form a pool without the
            // others.
            life.disks.iter_mut().for_each(|fate| fate.missing = false);
        }
        self.shared.members.lock().keep_one(&mut life.disks);
        let mut stale = false;
        for (disk, fate) in life.disks.iter().enumerate() {
            stale |= self.inject(disk, *fate);
        }
        *self.shared.missing.lock() = (0..life.disks.len()).filter(|disk| life.disks[*disk].missing).collect();
        *self.shared.at_start.lock() = self.shared.faults();
        self.index.inject(life.index, &mut self.rng.fork());
        let index_faults = life.index_faults;
        let fails = life.index == IndexFate::Torn || index_faults.at_start.is_some() || index_faults.at_work.is_some();
        self.shared.excuses.index_fails.store(fails, Ordering::Relaxed);
        stale
    }

    /// Cuts the power of all devices, and ends a lack of space.
    fn cut_power(&self) {
        for array in &self.arrays {
            array.lock().cut();
            let device = array.lock().durable.clone();
            let mut platter = device.lock();
            let room = platter.capacity_bytes();
            platter.room_bytes = room;
        }
    }

    fn live(
        &mut self,
        mut life: Life,
        clean: bool,
        before: Option<crate::survey::Contents>,
        last: bool,
        idle: bool,
    ) -> Result<(LifeEnd, Option<crate::survey::Contents>), String> {
        self.lives += 1;
        let stale = self.apply_fates(&mut life);
        if self.uneven {
            self.shared.received.lock().lose_epochs();
        }
        let now = self.now.as_nanos() as u64;
        self.trace
            .note_with_text(now, "life", [self.lives, 0, 0], || format!("{}: {life:?} clean {clean}", self.lives));
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        let (after, opened) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new((None, Vec::new()))));
        let complete = Arc::new(Mutex::new(self.complete.clone()));
        let bays = life.disks.iter().enumerate().map(|(disk, fate)| self.bay(disk, fate.missing, &executor)).collect();
        let machine = Machine {
            shared: self.shared.clone(),
            plan: self.plan.clone(),
            executor: executor.clone(),
            bays,
            index: self.index.kind.clone(),
            index_faults: life.index_faults,
            rng: self.rng.fork(),
            finish: life.finish,
            clean,
            before,
            last,
            idle,
            after: after.clone(),
            opened: opened.clone(),
            complete: complete.clone(),
            fates: life.disks.clone(),
            put_back: self.put_back,
            archive: None,
        };
        let mut machine = machine;
        if let Some(plan) = &self.plan.archive {
            let rng = self.rng.fork();
            machine.archive = Some(self.elsewhere.begin(plan, self.maybe_older, rng, &executor.env()));
        }
        if let Finish::Cut(steps) = life.finish {
            executor.cut_after(steps);
        }
        self.index.take_image_later(&executor, &mut self.rng.fork());
        let end = executor.run(machine.live(), STEPS_MAX, TIME_MAX);
        // No request of the shutdown reaches the medium.
        self.cut_power();
        self.complete.clone_from(&complete.lock());
        let (store, superdisks) = std::mem::take(&mut *opened.lock());
        self.pool_created |= store.is_some();
        let whole = store.is_some() && life.disks.iter().all(|fate| !fate.missing);
        self.uneven = (self.uneven || self.put_back) && !whole;
        self.put_back &= store.is_none();
        self.maybe_older &= !self.elsewhere.end(&self.shared);
        let healed = self.note(store.as_ref(), &superdisks);
        let zoned: Vec<_> = self.arrays.iter().filter_map(|array| array.lock().zoned.take()).collect();
        let refused: u64 = zoned.iter().map(|zoned| zoned.refused()).sum();
        drop((store, superdisks));
        self.now = executor.shut_down();
        self.shared.flushed_by(self.now, self.plan.saturating);
        let lived = match end {
            End::Done(lived) => lived?,
            End::Cut => LifeEnd::Cut,
            End::Deadlock(names) => return Err(format!("deadlock: {}", tally(&names))),
            End::Limit(which, names) => return Err(format!("the run exceeds the limit of {which}: {}", tally(&names))),
            End::Panic(task, message) => return Err(format!("panic in {task}: {message}")),
        };
        let damaged = || self.arrays.iter().any(|array| array.lock().durable.lock().counts.damage());
        if refused > 0 && !damaged() {
            return Err(format!("a zoned device would have refused {refused} requests"));
        }
        // The heal counters are sums over all disks.
        if stale && healed > 0 && self.arrays.len() == 1 {
            return Err(format!("a stale fast leg was trusted: {healed} reads or structures needed other bytes"));
        }
        self.cuts += u64::from(lived == LifeEnd::Cut);
        let contents = after.lock().take();
        Ok((lived, contents))
    }

    /// Adds the background work to the counts. Returns how often a copy differed from the expected
    /// content.
    fn note(&self, store: Option<&Store>, superdisks: &[(usize, Arc<Superdisk>)]) -> u64 {
        let mut counts = self.shared.counts.lock();
        for (_, superdisk) in superdisks {
            let status = superdisk.status();
            counts.reads_fast += status.reads_fast;
            counts.rebuilt_bytes += status.rebuilt_bytes;
        }
        let Some(store) = store else { return 0 };
        counts.index_rebuilt += store.status().index.rebuilt;
        let log = store.status().log;
        counts.recycled += log.compaction.recycled;
        counts.records_moved += log.compaction.records_moved;
        counts.chunks_moved += log.compaction.chunks_moved;
        counts.scrubs += log.scrub.passes;
        let [durable, fast] = log.heal.healed;
        counts.healed_durable += durable;
        counts.healed_fast += fast;
        if !superdisks.is_empty() { durable + fast + log.reads_healed } else { 0 }
    }

    /// Restores all disks from the archive, on devices that are blank or hold what they held.
    /// Returns the state; `None` if there was nothing to restore.
    fn restore_from_archive(&mut self) -> Result<Option<RestoredState>, String> {
        let executor = Executor::new(self.rng.fork(), self.now, self.trace.clone());
        let Some(machine) = self.elsewhere.blank_machine(&executor.env()) else { return Ok(None) };
        let images: Vec<_> = self.shared.devices.iter().map(|device| device.lock().image()).collect();
        let archive = self.plan.archive.as_ref().expect("there is an archive");
        let sabotage = archive.options.sabotage;
        let standby = (archive.standby && self.rng.one_in(2)).then(|| self.elsewhere.take_standby());
        if standby.is_some() || self.rng.one_in(2) {
            self.shared.devices.iter().for_each(|device| device.lock().wipe());
        }
        let bays: Vec<Bay> = (0..self.arrays.len()).map(|disk| self.bay(disk, false, &executor)).collect();
        let (env, onto, promoted) = (executor.env(), machine.clone(), standby.clone());
        let work = async move {
            let mut disks = Vec::new();
            for (number, bay) in bays.iter().enumerate() {
                disks.push((number, bay.open().await.map_err(|e| e.to_string())?.disk));
            }
            match promoted {
                Some(standby) => standby.promote(onto.remote, disks, sabotage, env).await,
                None => Elsewhere::restore(onto, disks, env).await,
            }
        };
        let end = executor.run(work, STEPS_MAX, TIME_MAX);
        self.cut_power();
        self.now = executor.shut_down();
        let restored = match end {
            End::Done(restored) => restored?,
            other => return Err(format!("ARCHIVE: a restore did not end: {other:?}")),
        };
        let Some(state) = restored else {
            // Nothing was written: the disks are as they were.
            for (device, image) in self.shared.devices.iter().zip(&images) {
                device.lock().restore(image);
            }
            return Ok(None);
        };
        let kept = standby.map_or(machine.kept, |standby| standby.kept.clone());
        self.elsewhere.continue_on(BlankMachine { kept, ..machine }, state, &self.shared)?;
        self.shared.counts.lock().from_archive += 1;
        let now = self.now.as_nanos() as u64;
        self.trace.note(now, "from archive", "", [state.look, u64::from(state.complete), 0]);
        Ok(Some(state))
    }

    /// Restores the pool to its state after a life before the last one. Returns whether the store
    /// had been closed then.
    fn restore_earlier(&mut self) -> Option<bool> {
        let earlier = self.moments.len().checked_sub(1)?;
        let moment = &self.moments[..earlier].get(self.rng.below(earlier as u64) as usize)?;
        moment.restore(&self.shared);
        self.shared.counts.lock().gone_back += 1;
        let now = self.now.as_nanos() as u64;
        self.trace.note(now, "back", "", [0; 3]);
        Some(moment.clean)
    }
}

fn tally(names: &[&'static str]) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for name in names {
        *counts.entry(*name).or_insert(0) += 1;
    }
    counts.iter().map(|(name, count)| format!("{name} x{count}")).collect::<Vec<_>>().join(", ")
}
