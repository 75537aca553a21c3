//! What the server says by itself while it runs: that a disk fails, is damaged, heals; and what to do about it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;

use super::engine::Engine;
use super::state::State;
use crate::disks::open::FastLeg;
use crate::disks::words;

/// Watches until the server stops.
pub fn start(env: &Env, engine: &Engine, state: &Arc<State>) {
    env.spawn_critical("latch watch", latch(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("hang watch", hang(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("full watch", full(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("damage watch", damage(env.clone(), engine.clone(), state.clone()));
    env.spawn_critical("super-disk watch", superdisks(env.clone(), engine.clone(), state.clone()));
}

/// Says once, and loudly, that the log takes no more writes, and what to do about it.
async fn latch(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(200);
    let mut told = BTreeSet::new();
    while !state.is_stopping() {
        for (disk, why) in engine.disks_in_trouble() {
            if told.insert(disk.clone()) {
                tracing::error!(
                    "THE DISK {disk} DOES NOT TAKE PART: {why}. Only objects on it are concerned; `steadfast status` says how many. \
                     What to do: look at the disk (dmesg, smartctl -a); repair or replace it; then restart the server"
                );
            }
        }
        if let Some(trouble) = engine.trouble() {
            tracing::error!(
                "WRITES ARE REFUSED: {trouble}. Everything acknowledged is on the disk and can be read. What to do: look at the \
                 disk (dmesg, smartctl -a, free space); repair or replace it; then restart the server. Writes that were \
                 answered \"outcome unknown\" may or may not be there after the restart. /health/ready answers 503 until then"
            );
            return;
        }
        env.sleep(EVERY).await;
    }
}

/// Says when a disk hangs, since when, and what to do about it; and when it answers again.
async fn hang(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    // By path: since when, by the process's clock.
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
                "THE DISK {} HANGS since {since}: it has not answered a request for {} s. What was acknowledged is not concerned. What is on \
                 this disk waits and is then answered with 503 SlowDown; everything else goes on. What to do: look at the disk (dmesg, iostat -x, \
                 smartctl -a; of a network disk, at the network). When it answers again, all goes on by itself. If it does not: stop the \
                 server (kill -9, when it waits for the disk), repair or replace the disk, start the server",
                path.display(),
                ms / 1000
            );
        }
        known.retain(|path, since| {
            let still = hanging.contains_key(path);
            if !still {
                let took = env.now().saturating_sub(*since).as_secs();
                tracing::warn!(
                    "the disk {} answers again after {took} s: all goes on. If this happens again, replace it",
                    path.display()
                );
            }
            still
        });
        env.sleep(EVERY).await;
    }
}

/// Says when a disk has no room for new data, and what to do about it; and when it has again.
async fn full(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    let mut known: BTreeSet<String> = BTreeSet::new();
    while !state.is_stopping() {
        let now: BTreeSet<String> = engine.store().full_disks().into_iter().collect();
        for disk in now.difference(&known) {
            tracing::warn!(
                "THE DISK {disk} IS FULL: new data on it is answered with 507 InsufficientStorage; reads and deletes go on. What to do: delete \
                 objects, or make room on the file system that the pool is on; writes are taken again by themselves when there is room"
            );
        }
        for disk in known.difference(&now) {
            tracing::info!("the disk {disk} has room again");
        }
        known = now;
        env.sleep(EVERY).await;
    }
}

/// Says of each damage that the scrub finds what it concerns and what to do about it, once.
async fn damage(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_secs(1);
    let mut known = BTreeMap::new();
    while !state.is_stopping() {
        for (damage, subjects) in engine.damage_since(&mut known) {
            let concerns =
                if subjects.is_empty() { "cannot be told from what is left".to_owned() } else { subjects.join(", ") };
            tracing::error!(
                extent = damage.extent, offset = damage.offset, what = %damage.what, %concerns,
                "STORED DATA IS DAMAGED. Reads of it answer with an error, never with wrong bytes. What to do: look at the disk \
                 (smartctl -a, dmesg), copy what is concerned again from its source, and replace the disk if more follows"
            );
        }
        env.sleep(EVERY).await;
    }
}

/// Says when a fast leg changes its state, and what to do about it.
async fn superdisks(env: Env, engine: Engine, state: Arc<State>) {
    const EVERY: Duration = Duration::from_millis(500);
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    while !state.is_stopping() {
        for fast in engine.superdisks() {
            let name = if engine.is_many() { format!("super-disk {}", fast.disk()) } else { "super-disk".to_owned() };
            told.entry(fast.disk().to_owned()).or_default().tell(&name, &fast);
        }
        env.sleep(EVERY).await;
    }
}

/// What has been said of a super-disk.
#[derive(Default)]
struct Told {
    /// The state that was told of.
    said: String,
    /// The one that was seen last, and how often.
    seen: String,
    lasted: u32,
    quarantined: u64,
    /// On the fast leg, on the durable one.
    healed: [u64; 2],
}

impl Told {
    fn tell(&mut self, name: &str, fast: &FastLeg) {
        // Whatever is written makes a place of the fast leg unclean for a moment: only what lasts is said.
        const LASTS: u32 = 4;
        let n = |key: &str| fast.status()[key].as_u64().unwrap_or_default();
        if fast.state() == self.seen {
            self.lasted += 1;
        } else {
            fast.state().clone_into(&mut self.seen);
            self.lasted = 0;
        }
        let passing = matches!(fast.state(), "clean" | "rebuilding") && self.lasted < LASTS;
        if fast.state() != self.said && !passing {
            match words::advice(fast) {
                Some(advice) => tracing::warn!("{name}: {advice}"),
                None => tracing::info!("{name}: {}", words::line(fast)),
            }
            fast.state().clone_into(&mut self.said);
        }
        if n("regions_quarantined") > self.quarantined {
            self.quarantined = n("regions_quarantined");
            tracing::warn!(
                regions = self.quarantined,
                "{name}: parts of the fast leg failed again and again and are not used any more; they are served from the pool. What \
                 to do: look at the fast disks (smartctl -a, dmesg) and replace the one that wears out"
            );
        }
        // The fast leg heals in passing; damage of the pool itself deserves a word each time.
        let now = [n("healed_fast"), n("healed_durable")];
        if now[1] > self.healed[1] {
            tracing::warn!(
                healed = now[1] - self.healed[1],
                "{name}: damaged places of the pool were healed from the fast leg. What to do: look at the pool's disk (smartctl -a, \
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
