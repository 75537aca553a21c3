//! Brings back a failed fast leg: probes it after a while, reopens it if necessary, and takes it
//! back as at an opening. Only its content of clean regions counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::attach::{Probe, log_leg, probe};
use super::core::{Leg, SuperdiskShared, tick};
use super::options::SuperdiskSabotage;
use super::pair::{FAST_START, Identity, write_new_pair};
use super::write::Writes;
use crate::Disk;

/// Maximum factor of the retry interval for a fast leg whose flushes fail repeatedly.
const RETRY_FACTOR_MAX: u32 = 6;

/// Takes a fast leg that failed back into use.
#[derive(Clone, Copy)]
pub(crate) struct Revival<'a>(pub(crate) &'a Arc<SuperdiskShared>);

impl Revival<'_> {
    /// Probes a failed fast leg after a while.
    pub(crate) async fn probe_again(self) -> Option<Duration> {
        let closing = async {
            while !self.0.is_closing() {
                self.0.copier_wake.notified().await;
            }
        };
        let relapses = self.0.state.lock().relapses;
        let wait = self.0.options.fast_retry_interval * (1 << relapses.min(8)).min(RETRY_FACTOR_MAX);
        if self.0.env.timeout(wait, closing).await.is_none()
            // All requests must have returned: a late one must not find the leg in use again.
            && (self.0.fast_requests.load(SeqCst) == 0 || self.0.is_sabotaged(SuperdiskSabotage::LateWriteForgotten))
            && self.0.overdue.load(SeqCst) == 0
            && let Some(fast) = self.0.fast.clone()
            && self.reopen(&fast).await
        {
            self.revive(&fast).await;
        }
        Some(Duration::ZERO)
    }

    /// Reopens the fast leg if necessary. Returns whether it may be probed.
    async fn reopen(self, fast: &Arc<dyn Disk>) -> bool {
        let (spoiled, silent) = {
            let state = self.0.state.lock();
            (state.spoiled, state.silent)
        };
        if !spoiled && !silent {
            return true;
        }
        // The reopening continues after the timeout.
        match self.0.env.timeout(self.0.options.fast_write_limit, fast.reopen()).await {
            Some(Ok(())) => {
                tick(&self.0.counters.fast_reopened);
                let mut state = self.0.state.lock();
                (state.silent, state.fast_full) = (false, false);
                true
            }
            // The leg may recover without a reopening.
            Some(Err(error)) if error.kind() == io::ErrorKind::Unsupported && !spoiled => true,
            Some(Err(error)) => {
                let mut state = self.0.state.lock();
                if matches!(state.leg, Leg::Failed(_)) {
                    state.leg = Leg::Failed(format!("it cannot be reopened: {error}"));
                }
                false
            }
            None => false,
        }
    }

    async fn revive(self, fast: &Arc<dyn Disk>) {
        let before = {
            let state = self.0.state.lock();
            if state.intent.is_latched() {
                return;
            }
            state.identity
        };
        let limit = self.0.options.fast_open_limit;
        let probed = self.0.env.timeout(limit, probe(fast, Some(&before), self.0.options.take_foreign_fast)).await;
        self.0.state.lock().silent = matches!(probed, Some(Err(_)) | None);
        let (opening, stale) = match probed {
            Some(Ok(Probe::Ours(labels))) => match labels.refused_by(&before, self.0.options.sabotage) {
                None => (Ok(labels.oldest().opening), true),
                Some(why) => (Err(why), true),
            },
            Some(Ok(Probe::Blank)) => (Err("it was blank"), false),
            Some(Ok(Probe::Foreign(what))) => {
                let leg = Leg::Foreign(what);
                log_leg(&leg, Some(fast), None);
                self.0.state.lock().leg = leg;
                return;
            }
            Some(Err(_)) | None => return,
        };
        // The lock prevents rounds meanwhile: bits that are set without an event must not follow
        // this event.
        let one = self.0.rounds.lock().await;
        let Ok(identity) = self.new_event(opening.ok()).await else { return };
        if self.stamp_new(fast, identity).await.is_err() {
            let mut state = self.0.state.lock();
            (state.spoiled, state.silent) = (true, false);
            return;
        }
        let refused = opening.err();
        {
            let mut state = self.0.state.lock();
            let state = &mut *state;
            state.map.resize(self.0.durable.len(), self.0.fast_limit());
            if !self.0.is_sabotaged(SuperdiskSabotage::RevivedByMemory) {
                state.map.trust_only(|region| state.intent.is_clean(region));
            }
            state.leg = Leg::Up;
            state.stale = stale && refused.is_some();
            state.refused = refused.map(str::to_owned);
            state.relapses += u32::from(state.spoiled);
            state.spoiled = false;
        }
        drop(one);
        self.0.fast_works();
        self.0.intent_wake.notify_one();
        log_leg(&Leg::Up, Some(fast), refused);
    }

    /// Raises the event on the durable leg, durably. `opening` is the number in the fast leg's
    /// label. `None` for a refused fast leg: all bits are set.
    async fn new_event(self, opening: Option<u32>) -> io::Result<Identity> {
        let identity = self.0.state.lock().identity;
        let written = match opening {
            Some(opening) => identity.reopened(opening, &self.0.env).write_durable_flushed(&self.0.durable).await,
            None => write_new_pair(identity.renamed(&self.0.env), &self.0.durable, self.0.options.sabotage).await,
        };
        match &written {
            Ok(identity) => {
                let mut state = self.0.state.lock();
                state.identity = *identity;
                if opening.is_none() {
                    state.intent.set_all();
                    self.0.intent_done.notify_waiters();
                }
            }
            Err(error) => Writes(self.0).durable_flush_failed(error),
        }
        written
    }

    /// Writes the label that matches the durable leg's at both places of the fast leg.
    async fn stamp_new(self, fast: &Arc<dyn Disk>, identity: Identity) -> io::Result<()> {
        let one = self.0.stamping.clone().lock_owned().await;
        let fast = fast.clone();
        let work = async move {
            if fast.len() < FAST_START {
                fast.reserve(FAST_START).await?;
            }
            let stamped = identity.of_fast().write_new_fast(&fast).await;
            drop(one);
            stamped
        };
        self.0.on_fast("its label", work).await
    }
}
