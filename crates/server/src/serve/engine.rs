//! Disk, log and store of one server, opened from its configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde_json::{Value, json};
use steadfast_archive::ArchiveGate;
use steadfast_flow::Env;
use steadfast_log::check::Damage;
use steadfast_log::{CompactionOptions, LogOptions, LogState, ScrubOptions, ScrubRequest, ScrubStatus};
use steadfast_store::{IndexKind, MoveGate, PoolDisk, Store, StoreOptions};

use super::many;
use super::point::{PointRequest, ServedPoint};
use crate::config::Config;
use crate::control::ScrubAction;
use crate::datadir::DataDir;
use crate::disks::fast::FastLeg;
use crate::disks::make;
use crate::disks::open::{self, Taking};
use crate::notify::Mirrors;

/// Disk and store. Cloning shares them.
#[derive(Clone)]
pub struct Engine {
    /// The disks of each log: one (perhaps a stripe or a super-disk) or several. They change while
    /// the server runs.
    disks: Arc<RwLock<many::PoolDisks>>,
    store: Store,
    /// The state that it serves read-only; `None`: a pool that takes writes.
    point: Option<ServedPoint>,
}

impl Engine {
    /// Opens a state of an archive, to be served read-only.
    ///
    /// # Errors
    /// Why the archive cannot be read, as a message.
    pub async fn open_point(
        request: &PointRequest,
        config: &Config,
        data: &DataDir,
        env: &Env,
    ) -> Result<Self, String> {
        let (disks, store, point) = request.open(config, data, env).await?;
        Ok(Self { disks: Arc::new(RwLock::new(disks)), store, point: Some(point) })
    }

    /// The state that it serves read-only; `None`: a pool that takes writes.
    pub fn point(&self) -> Option<&ServedPoint> {
        self.point.as_ref()
    }

    /// Opens the pool; creates it if it is a file that does not exist.
    ///
    /// # Errors
    /// What is wrong and what to do.
    pub async fn open(config: &Config, data: &DataDir, gate: Option<ArchiveGate>, env: &Env) -> Result<Self, String> {
        let options = store_options(config, gate)?;
        if config.is_many() {
            let begun = env.now();
            let (disks, store, report) = many::open(config, data, env, options).await?;
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
            data.refuse_to_forget(&set.durable)?;
            make::create(path, config, env).await?;
            tracing::info!(pool = %path.display(), "a new pool has been made");
        }
        let disks = open::Disks::open(config, &set, env, Taking::Safe).await?;
        tracing::info!(disk = %disks.top().describe(), "opening the pool");
        if config.data.restored {
            data.discard_indexes()?;
        }
        let begun = env.now();
        let index = IndexKind::Lsm(data.index());
        let given = PoolDisk { name: set.name(), disk: Ok(disks.top().clone()), hint: false };
        let opened = Store::open_pool(vec![given], index, env.clone(), options).await;
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
        Ok(Self::new(many::PoolDisks::of_one(disks), store, report.moves_unfinished))
    }

    /// Refuses the start of a front where a pool is: its objects and channels would seem lost.
    ///
    /// # Errors
    /// Where the pool is, and what to do.
    pub fn refuse_pool(config: &Config, data: &DataDir) -> Result<(), String> {
        let pools = config.disk_sets().into_iter().flat_map(|set| set.durable);
        match pools.chain([data.index()]).find(|path| path.exists()) {
            Some(path) => Err(format!(
                "cluster.homes does not name this node, so it opens no pool, but {} exists: add the node to cluster.homes, or \
                 use another data.dir",
                path.display()
            )),
            None => Ok(()),
        }
    }

    fn new(disks: many::PoolDisks, store: Store, moves_unfinished: bool) -> Self {
        if moves_unfinished {
            match store.disks().resume_moves() {
                Ok(_) => tracing::info!("resuming the move of keys between disks"),
                Err(e) => tracing::warn!("the move of keys cannot be resumed now: {e}"),
            }
        }
        Self { disks: Arc::new(RwLock::new(disks)), store, point: None }
    }

    /// The disks as they are now.
    fn disks(&self) -> many::PoolDisks {
        self.disks.read().clone()
    }

    /// Registers a disk that is about to be added to the pool.
    pub fn add_disks(&self, name: String, disks: open::Disks) {
        self.disks.write().insert(name, disks);
    }

    /// Drops the disks that have left the pool.
    pub fn forget_gone(&self) {
        let there: Vec<String> = self.store.status().disks.into_iter().map(|disk| disk.name).collect();
        drop(self.disks.write().retain(|name| there.iter().any(|there| there == name)));
    }

    /// The state of each super-disk.
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

    /// Why writes are refused; `None` if they are accepted.
    pub fn failure(&self) -> Option<String> {
        if self.point.is_some() {
            return None;
        }
        if self.is_many() {
            // A failed disk makes only its own objects read-only.
            let all = || self.failed_disks().iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>();
            return (!self.store.takes_writes()).then(|| format!("no disk takes writes: {}", all().join("; ")));
        }
        match self.store.status().log.log {
            LogState::Ok | LogState::OpenedForReading => None,
            LogState::Failed { what, cause } => Some(format!("a {what} failed: {cause}")),
            LogState::ReadOnly { why } => Some(format!("the pool is read-only: {why}")),
            LogState::Closed => Some("the log is closed".to_owned()),
        }
    }

    /// The disks that hang, each with the duration in milliseconds.
    pub fn hanging(&self) -> Vec<(PathBuf, u64)> {
        self.disks().open_ones().flat_map(open::Disks::hanging).collect()
    }

    /// Why the server is not ready; `None` if it is.
    pub fn not_ready(&self) -> Option<String> {
        if let Some(failure) = self.failure() {
            return Some(failure);
        }
        if !self.is_many()
            && let Some((_, why)) = self.store.failed_disks().pop()
        {
            return Some(why);
        }
        let hanging = self.hanging();
        let (path, ms) = hanging.first()?;
        // Other disks continue to serve.
        let all = !self.is_many() || self.failed_disks().len() + hanging.len() >= self.store.status().disks.len();
        all.then(|| format!("the disk {} hangs: it has not answered for {} s", path.display(), ms / 1000))
    }

    /// A warning for each disk that is full or has less than `reserve_percent` free.
    pub fn short_of_space(&self, reserve_percent: u8) -> Vec<String> {
        if self.point.is_some() {
            return Vec::new();
        }
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

    /// The disks of a pool of several that are missing or refuse writes, each with the reason.
    pub fn failed_disks(&self) -> Vec<(String, String)> {
        if self.is_many() { self.store.failed_disks() } else { Vec::new() }
    }

    /// The damage that the scrubs have reported since the counts in `known`, with what it concerns.
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

    /// Starts or stops a pass of the scrub, or neither; returns the status of each disk's scrub.
    ///
    /// # Errors
    /// When the store is closed.
    pub fn scrub(&self, action: ScrubAction) -> Result<Value, String> {
        match action {
            ScrubAction::Start => self.store.scrub(ScrubRequest::Start).map_err(|e| e.to_string())?,
            ScrubAction::Stop => self.store.scrub(ScrubRequest::Stop).map_err(|e| e.to_string())?,
            ScrubAction::Status => {}
        }
        Ok(self.scrubs())
    }

    /// The status of each disk's scrub: progress, healed places, damage and what it concerns.
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
        let new = scrub.reported.saturating_sub(known) as usize;
        if new == 0 {
            return (Vec::new(), scrub.reported);
        }
        let names = self.store.buckets().names();
        let old = scrub.damage.len().saturating_sub(new);
        let found = scrub.damage.into_iter().skip(old).map(|damage| {
            let mut subjects: Vec<String> = damage.heads.iter().map(|head| names.describe(head)).collect();
            subjects.sort();
            subjects.dedup();
            (damage, subjects)
        });
        (found.collect(), scrub.reported)
    }

    /// Adds disk and store to `status`.
    pub fn describe(&self, status: &mut Value) {
        let disks = self.disks();
        status["disk"] = disks.describe();
        status["disks"] = disks.list();
        status["disks_full"] = json!(self.store.full_disks().len());
        status["spare_percent"] = json!(self.store.spare_percents().into_iter().map(|(_, spare)| spare).min());
        status["disks_hanging"] = json!(self.hanging().len());
        status["superdisks"] = self.superdisks().iter().map(|fast| fast.status().clone()).collect();
        status["store"] = json!(self.store.status());
        // Operators need the names of damaged objects, not the heads of records.
        let scrubs = self.scrubs();
        let all =
            scrubs.as_array().into_iter().flatten().flat_map(|scrub| scrub["damage"].as_array().into_iter().flatten());
        status["store"]["log"]["scrub"]["damage"] = all.cloned().collect();
        status["scrubs"] = scrubs;
        if let Some(point) = &self.point {
            status["point"] = json!(point);
        }
    }

    /// Commits accepted writes, saves the index and stops the tasks.
    ///
    /// # Errors
    /// When that fails or takes longer than `deadline`. No acknowledged data is lost; the next
    /// start replays more.
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

fn percent(value: usize) -> u32 {
    value.min(100) as u32
}

pub(super) fn store_options(config: &Config, gate: Option<ArchiveGate>) -> Result<StoreOptions, String> {
    let mirrored = match config.live.listen {
        Some(_) => Mirrors::of(&config.live_options().map_err(|e| e.to_string())?, &config.cluster.name).mirrored(),
        None => Vec::new(),
    };
    let log = LogOptions {
        pending_bytes_max: config.log.write_budget.0,
        async_window: config.log.async_window,
        followed: gate.is_some(),
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
        move_bytes_s: config.store.move_rate.0,
        serve_doubtful: config.data.serve_doubtful,
        put_back: config.data.restored,
        move_gate: gate.map(|gate| Arc::new(gate) as Arc<dyn MoveGate>),
        ..StoreOptions::default()
    })
}
