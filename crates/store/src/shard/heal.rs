//! An index that cannot be read: it is read again, or rebuilt from the log beside the one that is there, and put in its place.
//!
//! From the first error on nothing is applied (`StoreApplier::apply_some`), so all that is in the index is what was applied up to one record, and the
//! rebuilt one ends with just that. Then the log gives the records that wait, in order, as if nothing had been: those
//! who wait are answered, and publications are delivered. Until then new changes are refused; reads go on with what can be read.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfast_log::{Applier, Committed, Log, LogError};
use tokio::sync::watch;

use super::apply::{LogSlot, StoreApplier};
use super::checkpoint::Checkpoint;
use super::core::{Core, Persisted, Registry};
use crate::index::{Ailment, Health, LiveIndex};
use crate::{IndexKind, StoreError, StoreSabotage};

/// How often what could not be read is tried again before the index is rebuilt, and how long to wait each time.
const TRIES: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How long to wait before a rebuild is tried again: at first, and at most.
const REBUILD_AGAIN: Duration = Duration::from_secs(5);
const REBUILD_AGAIN_MAX: Duration = Duration::from_secs(300);

/// From the end of one verification of all files to the beginning of the next; and bytes a second of it.
const VERIFY_EVERY: Duration = Duration::from_secs(24 * 3600);
const VERIFY_BYTES_S: u64 = 16 << 20;

/// Heals the index until the store closes.
pub(super) async fn watch(core: Arc<Core>, log: Log, mut closing: watch::Receiver<bool>) {
    let mut health = core.index.health();
    let work = async {
        loop {
            if health.wait_for(|health| matches!(health, Health::Ailing(_))).await.is_err() {
                return;
            }
            let Some(ailment) = core.index.ailment() else { continue };
            heal(&core, &log, &ailment).await;
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        () = work => {}
    }
    // Who waits for it need not wait any longer.
    core.index.close();
}

async fn heal(core: &Arc<Core>, log: &Log, ailment: &Ailment) {
    if core.options.sabotage == StoreSabotage::IndexErrors {
        return core.index.recovered();
    }
    if !ailment.damaged {
        for _ in 0..TRIES {
            core.env.sleep(TRY_AGAIN).await;
            let (again, asked) = (core.clone(), ailment.clone());
            let reads = core.env.blocking(move || again.index.reads_again(&asked)).await;
            if reads == Some(true) && core.index.ailment().is_some_and(|now| !now.damaged) {
                tracing::info!("the index can be read again");
                return core.index.recovered();
            }
        }
    }
    tracing::error!(why = %ailment.why, "the index is rebuilt from the log; until then nothing is changed on this disk");
    let begun = core.env.now();
    let mut again = REBUILD_AGAIN;
    while let Err(e) = rebuild(core, log).await {
        tracing::error!(error = %e, "the index could not be rebuilt; trying again");
        core.env.sleep(again).await;
        again = (2 * again).min(REBUILD_AGAIN_MAX);
    }
    let took_ms = core.env.now().saturating_sub(begun).as_millis() as u64;
    tracing::info!(took_ms, "the index was rebuilt from the log");
}

/// Makes an index of the log up to where it has been applied, and puts it in the place of the one that there is.
async fn rebuild(core: &Arc<Core>, log: &Log) -> Result<(), StoreError> {
    let _nobody_else = core.persisting.lock().await;
    let kind = core.index.place_beside();
    let kind = kind.ok_or_else(|| StoreError::Index("an index that was replaced before is still being read".into()))?;
    let holding = log.begin_hold();
    // Whoever was applying is done, and from now on nobody does.
    let upto = {
        let _one = core.applying.lock();
        core.progress.borrow().lsn
    };
    let index = super::open_fresh(&kind, &core.env, &core.options).await?;
    let fresh = Arc::new(Core::new(
        core.env.clone(),
        LiveIndex::new(index, kind.clone()),
        core.pool,
        Checkpoint::default(),
        Registry::default(),
        None,
        core.read_ahead.clone(),
        core.checkpoint_log_bytes,
        core.options.clone(),
    ));
    let applier = Arc::new(StoreApplier { core: fresh.clone(), log: LogSlot::default() });
    let panicked = || StoreError::Index("rebuilding it panicked".into());
    let unreadable = || {
        let why = fresh.index.ailment().map_or_else(|| "it is damaged".to_owned(), |ailment| ailment.why);
        StoreError::Index(why)
    };
    let mut records = log.records_up_to(&holding, upto);
    loop {
        let batch = records.next().await?;
        // What the log cannot give, the index that is there may still know: it is not given up for one that would say that it is not there.
        if let Some(fault) = records.faults().first() {
            return Err(StoreError::Index(format!(
                "the log cannot give all records ({fault}); check the disk. What the index cannot say is an error until then; \
                 after a restart, what is certain is served"
            )));
        }
        if batch.is_empty() {
            break;
        }
        let applier = applier.clone();
        let applied = core.env.blocking(move || applier.apply_some(&batch) == batch.len()).await;
        if !applied.ok_or_else(panicked)? {
            return Err(unreadable());
        }
    }
    let ended = fresh.clone();
    core.env.blocking(move || ended.finish_replay()).await.ok_or_else(panicked)??;
    if !fresh.index.is_well() {
        return Err(unreadable());
    }
    // From here on the next start does not open it any more.
    core.index.condemn();
    put_in_place(core, &fresh, kind);
    Ok(())
}

fn put_in_place(core: &Core, fresh: &Core, kind: IndexKind) {
    let _one = core.applying.lock();
    core.accounts.lock().become_those_of(&fresh.accounts.lock());
    for (mine, new) in [(&core.objects, &fresh.objects), (&core.bytes, &fresh.bytes), (&core.uploads, &fresh.uploads)] {
        mine.store(new.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    // Nothing of it counts as saved: nothing is recycled until it is.
    *core.sealed.lock() = None;
    *core.persisted.lock() = Persisted::default();
    core.sealing.store(false, Ordering::Release);
    core.index.replace(fresh.index.held().index.clone(), kind);
    core.memtable_bytes.store(core.index.memtable_bytes(), Ordering::Relaxed);
    core.index.recovered();
    core.seal();
}

/// Verifies all files of the index now and then, slowly.
pub(super) async fn verify(core: Arc<Core>, mut closing: watch::Receiver<bool>) {
    let work = async {
        loop {
            let held = core.index.held();
            let generation = held.generation;
            let checks = if core.index.is_well() { held.index.checks() } else { Vec::new() };
            // Not held any longer: it may be replaced.
            drop(held);
            for check in checks {
                if core.index.held().generation != generation {
                    break;
                }
                match core.env.blocking(check).await {
                    Some(Ok(bytes)) => {
                        core.index.verified_bytes.fetch_add(bytes, Ordering::Relaxed);
                        core.env.sleep(Duration::from_micros(bytes.saturating_mul(1_000_000) / VERIFY_BYTES_S)).await;
                    }
                    Some(Err(e)) if e.damaged => {
                        core.index.fault_of(generation, &e);
                        break;
                    }
                    Some(Err(e)) => tracing::warn!(error = %e, "a file of the index cannot be verified now"),
                    None => {}
                }
            }
            core.env.sleep(VERIFY_EVERY).await;
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        () = work => {}
    }
}

impl Core {
    /// Waits for a commit for no longer than a write may wait while the index ails: it is durable, or will be, but cannot be seen before.
    pub(crate) async fn unless_ailing(
        &self,
        ticket: impl Future<Output = Result<Committed, LogError>>,
    ) -> Result<Committed, LogError> {
        let mut health = self.index.health();
        let ails = async {
            let ailing = health.wait_for(|health| matches!(health, Health::Ailing(_))).await.is_ok();
            self.env.sleep(self.options.write_wait).await;
            ailing && !self.index.is_well()
        };
        let ticket = std::pin::pin!(ticket);
        match futures::future::select(ticket, std::pin::pin!(ails)).await {
            futures::future::Either::Left((done, _)) => done,
            futures::future::Either::Right((true, _)) => {
                Err(LogError::Unknown { what: "commit", cause: "the index is being rebuilt".into() })
            }
            futures::future::Either::Right((false, ticket)) => ticket.await,
        }
    }
}
