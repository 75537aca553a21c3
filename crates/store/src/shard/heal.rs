//! Healing of an unreadable index: it is read again, or rebuilt from the log next to the old one
//! and put in its place.
//!
//! From the first error on, no record is applied (`StoreApplier::apply`). So the index holds
//! exactly the records up to one LSN, and the rebuilt index ends with the same record. Then the log
//! delivers the waiting records in order: waiting callers are answered, and publications are
//! delivered. Until then new changes are refused; reads continue with what can be read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfast_flow::has_fault;
use steadfast_log::Log;
use tokio::sync::watch;

use super::applied::AppliedState;
use super::checkpoints::Checkpoints;
use super::rebuild::Rebuild;
use crate::index::{Health, IndexFailure, LiveIndex};
use crate::{IndexKind, StoreError, StoreSabotage};

/// How often a failed read is retried before the index is rebuilt, and the time between retries.
const TRIES: u32 = 5;
const READ_RETRY: Duration = Duration::from_millis(500);

/// Time before a failed rebuild is retried: initial and maximum.
const REBUILD_RETRY: Duration = Duration::from_secs(5);
const REBUILD_RETRY_MAX: Duration = Duration::from_secs(300);

/// Time from the end of one verification of all files to the start of the next, and its bytes per
/// second.
const VERIFY_EVERY: Duration = Duration::from_secs(24 * 3600);
const VERIFY_BYTES_S: u64 = 16 << 20;

/// Heals the index until the store closes.
pub(super) async fn watch(
    applied: Arc<AppliedState>,
    checkpoints: Arc<Checkpoints>,
    log: Log,
    mut closing: watch::Receiver<bool>,
) {
    let mut health = applied.index.health();
    let work = async {
        loop {
            if health.wait_for(|health| matches!(health, Health::Failed(_))).await.is_err() {
                return;
            }
            let Some(failure) = applied.index.failure() else { continue };
            heal(&applied, &checkpoints, &log, &failure).await;
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        () = work => {}
    }
    // The store closes: callers need not wait for the index any longer.
    applied.index.close();
}

async fn heal(applied: &Arc<AppliedState>, checkpoints: &Checkpoints, log: &Log, failure: &IndexFailure) {
    if has_fault(applied.options.sabotage, StoreSabotage::IndexErrors) {
        return applied.index.recovered();
    }
    if !failure.damaged {
        for _ in 0..TRIES {
            applied.env.sleep(READ_RETRY).await;
            let (retried, failed) = (applied.clone(), failure.clone());
            let reads = applied.env.blocking(move || retried.index.is_readable_again(&failed)).await;
            if reads == Some(true) && applied.index.failure().is_some_and(|now| !now.damaged) {
                tracing::info!("the index can be read again");
                return applied.index.recovered();
            }
        }
    }
    tracing::error!(why = %failure.why, "the index is being rebuilt from the log; until then the disk refuses \
     changes");
    let begun = applied.env.now();
    let mut pause = REBUILD_RETRY;
    while let Err(e) = rebuild(applied, checkpoints, log).await {
        tracing::error!(error = %e, "the index could not be rebuilt; retrying");
        applied.env.sleep(pause).await;
        pause = (2 * pause).min(REBUILD_RETRY_MAX);
    }
    let took_ms = applied.env.now().saturating_sub(begun).as_millis() as u64;
    tracing::info!(took_ms, "the index was rebuilt from the log");
}

/// Builds an index from the log up to the last applied record and puts it in the place of the
/// current one.
async fn rebuild(applied: &Arc<AppliedState>, checkpoints: &Checkpoints, log: &Log) -> Result<(), StoreError> {
    let _exclusive = checkpoints.exclude_writes().await;
    let kind = applied.index.rebuild_place();
    let kind = kind.ok_or_else(|| StoreError::Index("a previously replaced index is still being read".into()))?;
    let stopped = log.stop_recycling();
    // The applier has finished, and applies nothing from now on.
    let upto = log.with_usage(|_| applied.progress.borrow().lsn);
    let index = super::index_open::open_fresh(&kind, &applied.env, &applied.options).await?;
    let rebuild = Rebuild::new(applied, LiveIndex::new(index, kind.clone()), applied.options.clone());
    let mut records = log.records_up_to(&stopped, upto);
    loop {
        let batch = records.next().await?;
        // The current index may still know what the log cannot read: it is not replaced by one that
        // would call those keys absent.
        if let Some(fault) = records.faults().first() {
            return Err(StoreError::Index(format!(
                "the log cannot deliver all records ({fault}); check the disk. Until a restart, keys that the \
                 index cannot read are errors; after it, all certain keys are served"
            )));
        }
        if batch.is_empty() {
            break;
        }
        rebuild.apply(batch).await?;
    }
    let (fresh, counted) = rebuild.finish().await?;
    // The next start must not open it any more.
    applied.index.condemn();
    log.with_usage(|usage| {
        usage.replace_by(&counted);
        // None of it counts as saved: no extent is recycled until it is.
        checkpoints.start_over();
        install_rebuilt(applied, &fresh, kind);
        applied.index.recovered();
        checkpoints.seal(applied, usage);
    });
    Ok(())
}

fn install_rebuilt(applied: &AppliedState, fresh: &AppliedState, kind: IndexKind) {
    applied.counts.replace_by(&fresh.counts);
    applied.index.replace(fresh.index.held().index.clone(), kind);
    applied.memtable_bytes.store(applied.index.memtable_bytes(), Ordering::Relaxed);
}

/// Verifies all files of the index from time to time, slowly.
pub(super) async fn verify(applied: Arc<AppliedState>, mut closing: watch::Receiver<bool>) {
    let work = async {
        loop {
            let held = applied.index.held();
            let generation = held.generation;
            let checks = if applied.index.is_well() { held.index.checks() } else { Vec::new() };
            // Released: the index may be replaced.
            drop(held);
            for check in checks {
                if applied.index.held().generation != generation {
                    break;
                }
                match applied.env.blocking(check).await {
                    Some(Ok(bytes)) => {
                        applied.index.verified_bytes.fetch_add(bytes, Ordering::Relaxed);
                        applied
                            .env
                            .sleep(Duration::from_micros(bytes.saturating_mul(1_000_000) / VERIFY_BYTES_S))
                            .await;
                    }
                    Some(Err(e)) if e.damaged => {
                        applied.index.fault_of(generation, &e);
                        break;
                    }
                    Some(Err(e)) => tracing::warn!(error = %e, "a file of the index cannot be verified now"),
                    None => {}
                }
            }
            applied.env.sleep(VERIFY_EVERY).await;
        }
    };
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => {}
        () = work => {}
    }
}
