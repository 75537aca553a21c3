//! Disk, log and store of one server, opened from its configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde_json::{Value, json};
use steadfast_flow::Env;
use steadfast_log::check::Damage;
use steadfast_log::{CompactionOptions, LogOptions, LogState, ScrubOptions, ScrubStatus, ScrubWish};
use steadfast_store::{IndexKind, PoolDisk, Store, StoreOptions};

use super::many;
use crate::config::Config;
use crate::control::ScrubAction;
use crate::datadir::DataDir;
use crate::disks::make;
use crate::disks::open::{self, FastLeg, Taking};
use crate::notify::Mirrors;

/// Disk and store. Cloning shares them.
#[derive(Clone)]
pub struct Engine {
    /// Those of each log. One, which may be a stripe or a super-disk, or several; they come and go.
    disks: Arc<RwLock<many::Disks>>,
    store: Store,
}

impl Engine {
    /// Opens the pool; makes one when there is none yet and it is a file.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub async fn open(config: &Config, data: &DataDir, env: &Env) -> Result<Self, String> {
        if config.is_many() {
            let begun = env.now();
            let (disks, store, report) = many::open(config, data, env, store_options(config)?).await?;
            tracing::info!(
                took_ms = env.now().saturating_sub(begun).as_millis(),
                disks = report.disks.len(),
                missing = report.missing.len(),
                index_rebuilt = report.index_rebuilt,
                replayed_records = report.replayed_records,
                "the pool is open"
            );
            return Ok(Self::new(disks, store, report.moves_unfinished));
        }
        let set = config.disk_sets().remove(0);
        if let [path] = &set.durable[..]
            && !path.exists()
        {
            refuse_to_forget(path, data)?;
            make::create(path, config, env).await?;
            tracing::info!(pool = %path.display(), "a new pool has been made");
        }
        let disks = open::Disks::open(config, &set, env, Taking::Safe).await?;
        tracing::info!(disk = %disks.top().describe(), "opening the pool");
        if config.data.restored {
            many::discard_indexes(data)?;
        }
        let begun = env.now();
        let index = IndexKind::Lsm(data.index());
        let given = PoolDisk { name: set.name(), disk: Ok(disks.top().clone()), hint: false };
        let opened = Store::open_pool(vec![given], index, env.clone(), store_options(config)?).await;
        let (store, report) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                disks.close().await;
                return Err(format!("{}: {e}", set.name()));
            }
        };
        let took_ms = env.now().saturating_sub(begun).as_millis();
        tracing::info!(
            took_ms,
            index_rebuilt = report.index_rebuilt,
            replayed_records = report.replayed_records,
            "the pool is open"
        );
        Ok(Self::new(many::Disks::of_one(disks), store, report.moves_unfinished))
    }

    fn new(disks: many::Disks, store: Store, moves_unfinished: bool) -> Self {
        if moves_unfinished {
            match store.resume_moves() {
                Ok(_) => tracing::info!("keys were being moved between disks: that goes on"),
                Err(e) => tracing::warn!("keys were being moved between disks, and that cannot go on now: {e}"),
            }
        }
        Self { disks: Arc::new(RwLock::new(disks)), store }
    }

    /// The disks as they are now.
    fn disks(&self) -> many::Disks {
        self.disks.read().clone()
    }

    /// A disk is about to come into the pool.
    pub fn came(&self, name: String, disks: open::Disks) {
        self.disks.write().came(name, disks);
    }

    /// Lets go of the disks that the pool does not have any more.
    pub fn forget_gone(&self) {
        let there: Vec<String> = self.store.status().disks.into_iter().map(|disk| disk.name).collect();
        drop(self.disks.write().retain(|name| there.iter().any(|there| there == name)));
    }

    /// How the super-disks are, those that there are.
    pub fn superdisks(&self) -> Vec<FastLeg> {
        self.disks().open_ones().filter_map(open::Disks::superdisk).collect()
    }

    /// Whether the pool has a log on each of several disks.
    pub fn is_many(&self) -> bool {
        self.disks.read().count() > 1
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Why no writes are taken; `None` when they are.
    pub fn trouble(&self) -> Option<String> {
        if self.is_many() {
            // One that has failed takes only its own objects to read-only.
            let all = || self.disks_in_trouble().iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>();
            return (!self.store.takes_writes()).then(|| format!("no disk takes writes: {}", all().join("; ")));
        }
        match self.store.status().log.log {
            LogState::Ok => None,
            LogState::Failed { what, cause } => Some(format!("a {what} failed: {cause}")),
            LogState::ReadOnly { why } => Some(format!("the pool is read-only: {why}")),
            LogState::Closed => Some("the log is closed".to_owned()),
        }
    }

    /// The disks that hang, each with for how many milliseconds.
    pub fn hanging(&self) -> Vec<(PathBuf, u64)> {
        self.disks().open_ones().flat_map(open::Disks::hanging).collect()
    }

    /// Why the server should get no requests; `None` when it should.
    pub fn not_ready(&self) -> Option<String> {
        if let Some(trouble) = self.trouble() {
            return Some(trouble);
        }
        if !self.is_many()
            && let Some((_, why)) = self.store.disks_in_trouble().pop()
        {
            return Some(why);
        }
        let hanging = self.hanging();
        let (path, ms) = hanging.first()?;
        // The others go on.
        let all = !self.is_many() || self.disks_in_trouble().len() + hanging.len() >= self.store.status().disks.len();
        all.then(|| format!("the disk {} hangs: it has not answered for {} s", path.display(), ms / 1000))
    }

    /// The disks that are full, or of which less than `reserve_percent` is free, in words.
    pub fn short_of_space(&self, reserve_percent: u8) -> Vec<String> {
        let full = self.store.full_disks();
        let word = |(name, spare): (String, u8)| {
            if full.contains(&name) {
                Some(format!("the disk {name} is full: it refuses new data"))
            } else if spare < reserve_percent {
                Some(format!("the disk {name} is nearly full ({spare} % free): it refuses publications of clients"))
            } else {
                None
            }
        };
        self.store.spare_percents().into_iter().filter_map(word).collect()
    }

    /// The disks of a pool of several that do not do all of their part, by name, and why.
    pub fn disks_in_trouble(&self) -> Vec<(String, String)> {
        if self.is_many() { self.store.disks_in_trouble() } else { Vec::new() }
    }

    /// Damages that the scrubs have found beyond those that are `known` of each disk, each with what it concerns.
    pub fn damage_since(&self, known: &mut BTreeMap<String, u64>) -> Vec<(Damage, Vec<String>)> {
        let mut found = Vec::new();
        for (disk, scrub) in self.store.scrubs() {
            let known = known.entry(disk).or_default();
            let (new, total) = self.damage_in(scrub, *known);
            *known = total;
            found.extend(new);
        }
        found
    }

    /// Begins or ends a pass of the scrub, or neither; what the scrub of each disk says.
    ///
    /// # Errors
    /// When the store is closed.
    pub fn scrub(&self, action: ScrubAction) -> Result<Value, String> {
        match action {
            ScrubAction::Start => self.store.scrub(ScrubWish::Start).map_err(|e| e.to_string())?,
            ScrubAction::Stop => self.store.scrub(ScrubWish::Stop).map_err(|e| e.to_string())?,
            ScrubAction::Status => {}
        }
        Ok(self.scrubs())
    }

    /// The scrub of each disk: how far it is, what it healed and where from, and what is damaged, with what that concerns.
    fn scrubs(&self) -> Value {
        let scrubs = self.store.scrubs().into_iter().map(|(disk, scrub)| {
            let mut shown = json!(scrub);
            shown["disk"] = json!(disk);
            let (found, _) = self.damage_in(scrub, 0);
            shown["damage"] = found
                .into_iter()
                .map(|(damage, concerns)| {
                    json!({"disk": disk, "extent": damage.extent, "epoch": damage.epoch, "offset": damage.offset, "len": damage.len,
                        "lsns": damage.lsns, "what": damage.what, "records": damage.records, "concerns": concerns})
                })
                .collect();
            shown
        });
        scrubs.collect()
    }

    fn damage_in(&self, scrub: ScrubStatus, known: u64) -> (Vec<(Damage, Vec<String>)>, u64) {
        let new = scrub.told.saturating_sub(known) as usize;
        if new == 0 {
            return (Vec::new(), scrub.told);
        }
        let names = self.store.names();
        let old = scrub.damage.len().saturating_sub(new);
        let found = scrub.damage.into_iter().skip(old).map(|damage| {
            let mut subjects: Vec<String> = damage.heads.iter().map(|head| names.describe(head)).collect();
            subjects.sort();
            subjects.dedup();
            (damage, subjects)
        });
        (found.collect(), scrub.told)
    }

    /// Puts disk and store into `status`.
    pub fn describe(&self, status: &mut Value) {
        let disks = self.disks();
        status["disk"] = disks.describe();
        status["disks"] = disks.list();
        status["disks_full"] = json!(self.store.full_disks().len());
        status["spare_percent"] = json!(self.store.spare_percents().into_iter().map(|(_, spare)| spare).min());
        status["disks_hanging"] = json!(self.hanging().len());
        status["superdisks"] = self.superdisks().iter().map(|fast| fast.status().clone()).collect();
        status["store"] = json!(self.store.status());
        // The heads of records mean nothing to people; what they concern does.
        let scrubs = self.scrubs();
        let all =
            scrubs.as_array().into_iter().flatten().flat_map(|scrub| scrub["damage"].as_array().into_iter().flatten());
        status["store"]["log"]["scrub"]["damage"] = all.cloned().collect();
        status["scrubs"] = scrubs;
    }

    /// Commits what was accepted, saves the index, stops the tasks.
    ///
    /// # Errors
    /// When that fails or takes longer than `deadline`: nothing acknowledged is lost, the next start replays more.
    pub async fn close(&self, deadline: Duration, env: &Env) -> Result<(), String> {
        let closing = async {
            let closed = self.store.close().await;
            self.disks().close().await;
            closed
        };
        match env.timeout(deadline.max(Duration::from_secs(1)), closing).await {
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => Err(format!("the pool could not be closed cleanly ({e}); the next start recovers it")),
            None => Err("the pool could not be closed in time; the next start recovers it".to_owned()),
        }
    }
}

/// An index without its pool means that the pool is somewhere else now: a new one would hide that.
fn refuse_to_forget(path: &Path, data: &DataDir) -> Result<(), String> {
    let index = data.index();
    let used = std::fs::read_dir(&index).is_ok_and(|mut entries| entries.next().is_some());
    if !used {
        return Ok(());
    }
    Err(format!(
        "the pool {} is missing, but {} shows that there was one: mount or restore it, or set data.pool. To begin anew, \
         remove {}",
        path.display(),
        index.display(),
        index.display()
    ))
}

fn percent(value: usize) -> u32 {
    value.min(100) as u32
}

fn store_options(config: &Config) -> Result<StoreOptions, String> {
    let mirrored = match config.live.listen {
        Some(_) => Mirrors::of(&config.live_options().map_err(|e| e.to_string())?).mirrored(),
        None => Vec::new(),
    };
    let log = LogOptions {
        pending_bytes_max: config.log.write_budget.0,
        async_window: config.log.async_window,
        gather: config.log.gather,
        prefill_ahead_bytes: config.log.prefill_ahead.0,
        body_writes_max: config.log.body_writes,
        compaction: CompactionOptions {
            enabled: config.compaction.enabled,
            bytes_s: config.compaction.rate.0,
            dead_percent_min: percent(config.compaction.dead_percent),
            dead_percent_min_low: percent(config.compaction.dead_percent_low),
            low_percent: percent(config.compaction.low_percent),
            interval: config.compaction.interval,
        },
        scrub: ScrubOptions {
            enabled: config.scrub.enabled,
            bytes_s: config.scrub.rate.0,
            interval: config.scrub.interval,
            window: config.scrub.window.map(|window| window.0),
        },
        ..LogOptions::default()
    };
    Ok(StoreOptions {
        log,
        mirrored: mirrored.into(),
        events_max: config.events.waiting,
        inline_max_bytes: config.store.inline_max.bytes(),
        write_wait: config.store.write_wait,
        read_ahead_bytes_max: config.store.read_ahead.0,
        cache_bytes: config.store.cache_bytes(),
        channel_tail_bytes: config.store.channel_tails.0,
        index_cache_bytes: config.store.index_cache.0,
        upload_expiry: config.store.upload_expiry,
        clock_confirm: config.store.clock_confirm,
        snapshots_max: config.snapshots.max,
        move_bytes_s: config.store.move_rate.0,
        serve_doubtful: config.data.serve_doubtful,
        ..StoreOptions::default()
    })
}
