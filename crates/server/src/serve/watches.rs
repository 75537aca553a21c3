//! Log lines about failing, damaged and healing disks, with what the operator does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;

use super::engine::Engine;
use super::state::State;
use crate::disks::fast::FastLeg;
use crate::disks::words;

/// Starts the watches; they run until the server stops.
pub fn start(env: &Env, engine: &Engine, state: &Arc<State>) {
    env.spawn_critical("latch watch", latch(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("hang watch", hang(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("full watch", full(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("damage watch", damage(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("super-disk watch", superdisks(env.clone(), engine.clone(), state.clone()));
}

/// Logs once that a disk or the log refuses writes, and what to do.
async fn latch(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(200);
    let mut reported = BTreeSet::new();
    while !state.is_stopping() {
        for (disk, why) in engine.failed_disks() {
            if reported.insert(disk.clone()) {
                tracing::error!(
                    "THE DISK {disk} IS OUT OF SERVICE: {why}. Only its objects are affected; `steadfast status` shows how many. \
                     What to do: check the disk (dmesg, smartctl -a); repair or replace it; then restart the server"
                );
            }
        }
        if let Some(failure) = engine.failure() {
            tracing::error!(
                "WRITES ARE REFUSED: {failure}. Acknowledged data is on the disk and can be read. What to do: check the disk \
                 (dmesg, smartctl -a, free space); repair or replace it; then restart the server. A write that was answered \
                 \"outcome unknown\" may or may not exist after the restart. /health/ready answers 503 until then"
            );
            return;
        }
        env.sleep(EVERY).await;
    }
}

/// Logs when a disk hangs, since when, and what to do; and when it answers again.
async fn hang(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    // The start of each hang by path, on the process's clock.
    let mut known: BTreeMap<PathBuf, Duration> = BTreeMap::new();
    while !state.is_stopping() {
        let hanging: BTreeMap<PathBuf, u64> = engine.hanging().into_iter().collect();
        for (path, ms) in &hanging {
            if known.contains_key(path) {
                continue;
            }
            known.insert(path.clone(), env.now().saturating_sub(Duration::from_millis(*ms)));
            let since = words::utc(env.wall_ms().saturating_sub(*ms));
            tracing::error!(
                "THE DISK {} HANGS since {since}: it has not answered a request for {} s. Acknowledged data is not affected. \
                 Requests for this disk wait, then get 503 SlowDown; other disks continue. What to do: check the disk (dmesg, \
                 iostat -x, smartctl -a; for a network disk, the network). When it answers, the server continues by itself. If it \
                 does not: stop the server (kill -9 if it waits for the disk), repair or replace the disk, start the server",
                path.display(),
                ms / 1000
            );
        }
        known.retain(|path, since| {
            let still = hanging.contains_key(path);
            if !still {
                let took = env.now().saturating_sub(*since).as_secs();
                tracing::warn!(
                    "the disk {} answers again after {took} s: requests continue. If this happens again, replace it",
                    path.display()
                );
            }
            still
        });
        env.sleep(EVERY).await;
    }
}

/// Logs when a disk has no space for new data, and what to do; and when it has space again.
async fn full(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    let mut known: BTreeSet<String> = BTreeSet::new();
    while !state.is_stopping() {
        let now: BTreeSet<String> = engine.store().full_disks().into_iter().collect();
        for disk in now.difference(&known) {
            tracing::warn!(
                "THE DISK {disk} IS FULL: writes of new data get 507 InsufficientStorage; reads and deletes continue. What to do: delete \
                 objects, or free space on the pool's file system; the server then accepts writes by itself"
            );
        }
        for disk in known.difference(&now) {
            tracing::info!("the disk {disk} has space again");
        }
        known = now;
        env.sleep(EVERY).await;
    }
}

/// Logs each damage that the scrub finds once: what it concerns and what to do.
async fn damage(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    let mut known = BTreeMap::new();
    while !state.is_stopping() {
        for (damage, subjects) in engine.damage_since(&mut known) {
            let concerns = if subjects.is_empty() {
                "unknown: its records cannot be read".to_owned()
            } else {
                subjects.join(", ")
            };
            tracing::error!(
                extent = damage.extent, offset = damage.offset, what = %damage.what, %concerns,
                "STORED DATA IS DAMAGED. Reads of it fail with an error and never return wrong bytes. What to do: check the disk \
                 (smartctl -a, dmesg), restore the data named in `concerns` from its source, and replace the disk if more follows"
            );
        }
        env.sleep(EVERY).await;
    }
}

/// Logs when a fast leg changes its state, and what to do.
async fn superdisks(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(500);
    let mut reported: BTreeMap<String, SuperdiskReport> = BTreeMap::new();
    while !state.is_stopping() {
        for fast in engine.superdisks() {
            let name = if engine.is_many() { format!("super-disk {}", fast.disk()) } else { "super-disk".to_owned() };
            reported.entry(fast.disk().to_owned()).or_default().update(&name, &fast);
        }
        env.sleep(EVERY).await;
    }
}

/// What has been logged of a super-disk.
#[derive(Default)]
struct SuperdiskReport {
    /// The state that was logged last.
    reported_state: String,
    /// The state that was seen last, and in how many further checks.
    seen: String,
    lasted: u32,
    quarantined: u64,
    /// Healed places of the fast leg and of the durable leg.
    healed: [u64; 2],
}

impl SuperdiskReport {
    fn update(&mut self, name: &str, fast: &FastLeg) {
        // A write makes a region of the fast leg unclean for a moment: log only states that last.
        const LASTS: u32 = 4;
        let n = |key: &str| fast.status()[key].as_u64().unwrap_or_default();
        if fast.state() == self.seen {
            self.lasted += 1;
        } else {
            fast.state().clone_into(&mut self.seen);
            self.lasted = 0;
        }
        let passing = matches!(fast.state(), "clean" | "rebuilding") && self.lasted < LASTS;
        if fast.state() != self.reported_state && !passing {
            match words::advice(fast) {
                Some(advice) => tracing::warn!("{name}: {advice}"),
                None => tracing::info!("{name}: {}", words::line(fast)),
            }
            fast.state().clone_into(&mut self.reported_state);
        }
        if n("regions_quarantined") > self.quarantined {
            self.quarantined = n("regions_quarantined");
            tracing::warn!(
                regions = self.quarantined,
                "{name}: regions of the fast leg failed repeatedly and are quarantined; the pool serves them. What to do: check the \
                 fast disks (smartctl -a, dmesg) and replace the one that wears out"
            );
        }
        // Healing the fast leg is routine; damage of the pool is worth a warning each time.
        let now = [n("healed_fast"), n("healed_durable")];
        if now[1] > self.healed[1] {
            tracing::warn!(
                healed = now[1] - self.healed[1],
                "{name}: damaged places of the pool were healed from the fast leg. What to do: check the pool's disk (smartctl -a, \
                 dmesg), and replace it if more follows"
            );
        }
        if now[0] > self.healed[0] {
            tracing::info!(
                healed = now[0] - self.healed[0],
                "{name}: damaged places of the fast leg were healed from the pool"
            );
        }
        self.healed = now;
    }
}
