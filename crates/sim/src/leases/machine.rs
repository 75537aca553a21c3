//! A machine that owns the archive, or is a standby and takes it over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_archive::{
    Archive, ArchiveError, ArchiveOptions, ArchiveParts, ArchiveReader, ArchiveSabotage, FollowEnd, RestoreError,
    RestorePlace, Standby, StandbyDisk, StandbyParts, TakeOver, tenure_of_head,
};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::{Env, Lease};
use steadfast_log::{FormatOptions, Log, LogOptions};
use steadfast_net::{MemoryStore, RemoteStore};
use steadfast_store::{IndexKind, PoolDisk, Store, StoreOptions};
use tokio::sync::{oneshot, watch};

use super::link::{Link, LinkState};
use crate::executor::Executor;
use crate::kept::Kept;
use crate::outcome::Outcome;
use crate::process::MachineProcess;
use crate::trace::Trace;

/// The longest time between two answers of an owner.
const ANSWER_EVERY: Duration = Duration::from_millis(40);

/// Time after which a process that has ended is started again.
const RESTART: Duration = Duration::from_secs(1);

/// Most bytes of a disk.
const DISK_BYTES: u64 = 16 << 20;

fn blank_disk() -> Arc<MemDisk> {
    Arc::new(MemDisk::growable(DISK_BYTES))
}

/// What all machines did.
#[derive(Default)]
pub(super) struct LeaseLedger {
    pub(super) answers: u64,
    pub(super) take_overs: u64,
    /// When an owner answered last.
    pub(super) last_answer: Duration,
    pub(super) violation: Option<String>,
}

/// What an operator wants of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseOrder {
    Nothing,
    /// The owner hands the archive over, and ends.
    HandOver,
    /// The standby takes the archive over, if the owner has ended.
    Promote,
}

/// A machine, which outlives its processes. Clones share it.
#[derive(Clone)]
pub(super) struct LeaseMachine {
    pub(super) number: u64,
    pub(super) link: Arc<LinkState>,
    /// Whether its disks have a pool.
    pub(super) has_pool: Arc<AtomicBool>,
    pub(super) order: Arc<watch::Sender<LeaseOrder>>,
    /// No process is started.
    pub(super) is_off: Arc<AtomicBool>,
    process: Arc<Mutex<Option<MachineProcess>>>,
    disk: Arc<Mutex<Arc<MemDisk>>>,
    kept: Arc<Kept>,
    held: Arc<Kept>,
    store: MemoryStore,
    length: Duration,
    sabotage: ArchiveSabotage,
    ledger: Arc<Mutex<LeaseLedger>>,
    trace: Trace,
}

impl LeaseMachine {
    pub(super) fn new(
        number: u64,
        store: &MemoryStore,
        (length, sabotage): (Duration, ArchiveSabotage),
        ledger: &Arc<Mutex<LeaseLedger>>,
        executor: &Executor,
    ) -> Self {
        Self {
            number,
            link: Arc::default(),
            has_pool: Arc::new(AtomicBool::new(number == 0)),
            order: Arc::new(watch::Sender::new(LeaseOrder::Nothing)),
            is_off: Arc::default(),
            process: Arc::default(),
            disk: Arc::new(Mutex::new(blank_disk())),
            kept: Arc::default(),
            held: Arc::default(),
            store: store.clone(),
            length,
            sabotage,
            ledger: ledger.clone(),
            trace: executor.trace().clone(),
        }
    }

    fn note(&self, env: &Env, text: impl FnOnce() -> String) {
        let text = || format!("{}: {}", self.number, text());
        self.trace.note_with_text(env.now().as_nanos() as u64, "machine", [self.number, 0, 0], text);
    }

    /// Makes its disk a pool.
    pub(super) async fn format(&self, env: &Env) -> Outcome {
        let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
        Log::format(&self.disk(), env, &format).await.map(drop).map_err(|e| e.to_string())
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.lock().clone()
    }

    /// Starts one process after the other, as a service manager does.
    pub(super) async fn run(self, executor: Executor) {
        let env = executor.env();
        loop {
            let process = MachineProcess::new(executor.clone());
            *self.process.lock() = Some(process.clone());
            let (ended, end) = oneshot::channel::<()>();
            process.env().spawn("machine", self.clone().live(process.env(), ended));
            // It drops the sender when it ends, or is killed.
            let _ = end.await;
            process.kill();
            env.sleep(RESTART).await;
            while self.is_off.load(Relaxed) {
                env.sleep(RESTART).await;
            }
        }
    }

    /// What a process does.
    async fn live(self, env: Env, _ended: oneshot::Sender<()>) {
        let ended = match self.has_pool.load(Relaxed) {
            true => self.serve(&env).await.map_err(|e| e.to_string()),
            false => self.stand_by(&env).await.map_err(|e| e.to_string()),
        };
        self.note(&env, || format!("ended: {ended:?}"));
    }

    /// The process, to pause or to kill it.
    pub(super) fn process(&self) -> MachineProcess {
        self.process.lock().clone().expect("one was started")
    }

    fn remote(&self, env: &Env) -> Arc<dyn RemoteStore> {
        Arc::new(Link { store: self.store.clone(), state: self.link.clone(), env: env.clone() })
    }

    /// Serves its pool until another machine has the archive.
    async fn serve(&self, env: &Env) -> Result<(), ArchiveError> {
        let lease = Lease::unlimited(env);
        let disks = vec![PoolDisk { name: "d0".to_owned(), disk: Ok(self.disk()), hint: false }];
        let log = LogOptions { followed: true, ..LogOptions::default() };
        // A disk of a standby has been restored.
        let pool = StoreOptions { log, put_back: self.number > 0, ..StoreOptions::default() };
        let pool = Store::open_pool(disks, IndexKind::memory(), env.clone(), pool).await;
        let (pool, _) = pool.map_err(|e| ArchiveError::State(e.to_string()))?;
        let options = ArchiveOptions {
            interval: Duration::from_millis(500),
            lease: Some(self.length),
            claim_wait: Duration::from_secs(60),
            machine: self.number.to_string(),
            sabotage: self.sabotage,
            ..ArchiveOptions::default()
        };
        let parts = ArchiveParts {
            store: self.remote(env),
            keeper: self.kept.clone(),
            members: Arc::new(pool),
            lease: lease.clone(),
        };
        let error = match Archive::start(parts, options, env).await {
            Ok(archive) => {
                self.note(env, || format!("serves: {:?}", archive.status().tenure));
                tokio::select! {
                    biased;
                    error = archive.ended() => error,
                    () = self.ordered(LeaseOrder::HandOver) => {
                        archive.hand_over(Duration::from_secs(10)).await;
                        self.note(env, || "has stopped".to_owned());
                        // Until it is started again.
                        std::future::pending().await
                    }
                    never = self.answer(&archive, &lease, env) => match never {},
                }
            }
            Err(error) => error,
        };
        if matches!(error, ArchiveError::Superseded { .. }) {
            // As an operator would: its disks are blank then.
            self.kept.clear();
            self.held.clear();
            *self.disk.lock() = blank_disk();
            self.has_pool.store(false, Relaxed);
        }
        Err(error)
    }

    /// Ends its process, for good.
    pub(super) fn power_off(&self) {
        if let Some(process) = self.process.lock().take() {
            process.kill();
        }
    }

    /// Waits for an order.
    async fn ordered(&self, wanted: LeaseOrder) {
        let mut order = self.order.subscribe();
        // The machine holds the sender.
        let _ = order.wait_for(|order| *order == wanted).await;
    }

    /// Answers clients while the lease holds.
    async fn answer(&self, archive: &Archive, lease: &Lease, env: &Env) -> std::convert::Infallible {
        loop {
            let micros = env.random_u64() % ANSWER_EVERY.as_micros() as u64;
            env.sleep(Duration::from_micros(micros)).await;
            if !lease.holds() {
                continue;
            }
            let head = self.store.objects().get("head").and_then(tenure_of_head).expect("there is a head");
            let (own, mut ledger) = (archive.status().tenure, self.ledger.lock());
            (ledger.answers, ledger.last_answer) = (ledger.answers + 1, env.now());
            if head > own && ledger.violation.is_none() {
                ledger.violation =
                    Some(format!("LEASE: machine {} answers in tenure {own}, and the head has {head}", self.number));
            }
        }
    }

    /// Follows until it has taken the archive over.
    async fn stand_by(&self, env: &Env) -> Result<(), RestoreError> {
        let reader = ArchiveReader::new(self.remote(env), Some(Duration::from_secs(10)), env);
        let id = reader.newest().await?.disks()[0].id;
        let disks = BTreeMap::from([(id, StandbyDisk { disk: self.disk(), blank: true })]);
        let parts = StandbyParts {
            store: self.remote(env),
            owner: self.kept.clone(),
            held: self.held.clone(),
            id: [self.number as u8; 16],
            disks,
            takes_over: true,
            sabotage: self.sabotage,
        };
        let mut standby = Standby::open(parts, env).await?;
        let machine = self.number.to_string();
        loop {
            let promotion = match self.follow(&mut standby).await? {
                FollowEnd::Stopped => standby.promote(&reader, &machine, TakeOver::Idle).await,
                FollowEnd::Owned => standby.promote_owned(&reader).await,
                FollowEnd::LeaseEnded => standby.take_over(&reader, &machine).await,
            };
            self.order.send_replace(LeaseOrder::Nothing);
            match promotion {
                Ok(promotion) => {
                    promotion.finish(id, &RestorePlace::new(&self.disk())).await?;
                    self.note(env, || format!("has taken over: {:?}", promotion.tenure()));
                    self.ledger.lock().take_overs += 1;
                    self.has_pool.store(true, Relaxed);
                    return Ok(());
                }
                Err(error) => self.note(env, || format!("not taken over: {error}")),
            }
        }
    }

    /// Follows until it is to take the archive over.
    async fn follow(&self, standby: &mut Standby) -> Result<FollowEnd, RestoreError> {
        let (stop, stopped) = watch::channel(false);
        let mut following = std::pin::pin!(standby.follow(Duration::from_secs(1), stopped));
        tokio::select! {
            biased;
            end = &mut following => return end,
            () = self.ordered(LeaseOrder::Promote) => {}
        }
        stop.send_replace(true);
        following.await
    }

    /// Checks that the machines serve in the end, without faults.
    pub(super) fn check(ledger: &Mutex<LeaseLedger>, now: Duration) -> Outcome {
        let ledger = ledger.lock();
        match &ledger.violation {
            Some(violation) => Err(violation.clone()),
            None if now.saturating_sub(ledger.last_answer) > Duration::from_secs(1) => {
                Err(format!("LEASE: no machine has answered since {:?}", ledger.last_answer))
            }
            None => Ok(()),
        }
    }
}
