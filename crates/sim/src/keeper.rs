//! The keeper of snapshots: makes, reads and deletes them while clients work and compaction runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use steadfast_flow::Env;
use steadfast_store::{Snapshot, Store, StoreError};

use crate::client::{Outcome, attributes, tag_of};
use crate::model::{Frozen, Key};
use crate::rng::Rng;
use crate::shared::Shared;

/// How many there are at a time.
const KEPT_MAX: usize = 2;

/// A snapshot as the model knows it.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    name: String,
    /// When it was asked for.
    start: u64,
    /// What it may show; `None` while it is being made.
    frozen: Option<Frozen>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its creation or its deletion has not been answered.
    Unsure,
    There,
    Gone,
}

/// What it takes to keep snapshots.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Store,
    pub(crate) env: Env,
    pub(crate) rng: Rng,
    /// Things done in a life.
    pub(crate) times: u64,
}

impl Keeper {
    /// After a start with all disks: those are there that must be, and no others. One of them is read.
    pub(crate) async fn survey(&mut self) -> Outcome {
        if !self.store.disks_in_trouble().is_empty() {
            return Ok(());
        }
        let there = self.store.snapshots();
        {
            let mut kept = self.shared.snapshots.lock();
            if let Some(info) = there.iter().find(|info| !info.whole) {
                return Err(format!("a snapshot is not whole, though all disks are there: {info:?}"));
            }
            if let Some(info) = there.iter().find(|info| !kept.iter().any(|kept| kept.name == info.name)) {
                return Err(format!("a snapshot that nobody made: {info:?}"));
            }
            for kept in kept.iter_mut() {
                let listed = there.iter().any(|info| info.name == kept.name);
                match (kept.stage, listed) {
                    (Stage::There, false) => return Err(format!("LOST: the snapshot {} is gone", kept.name)),
                    (Stage::Gone, true) => return Err(format!("the snapshot {} has come back", kept.name)),
                    (Stage::Unsure, true) => kept.stage = Stage::There,
                    (Stage::Unsure, false) => kept.stage = Stage::Gone,
                    _ => {}
                }
            }
            kept.retain(|kept| kept.stage != Stage::Gone || self.rng.one_in(2));
        }
        match self.some() {
            Some(name) => self.read(&name).await,
            None => Ok(()),
        }
    }

    /// Does what a keeper does.
    pub(crate) async fn work_for_life(mut self) -> Outcome {
        for _ in 0..self.times {
            self.env.sleep(Duration::from_micros(self.rng.below(60_000))).await;
            let count = self.names().len();
            match self.rng.below(4) {
                0..=1 if count < KEPT_MAX => self.make().await?,
                2 if count == KEPT_MAX => self.delete_some().await?,
                _ => match self.some() {
                    Some(name) => self.read(&name).await?,
                    None => self.make().await?,
                },
            }
        }
        Ok(())
    }

    /// Reads all, and deletes them. Whether there are none then: in a pool that they keep full to its last extent, not even their
    /// deletion finds room.
    pub(crate) async fn end(&mut self) -> Outcome<bool> {
        for name in self.names() {
            self.read(&name).await?;
        }
        for name in self.store.snapshots().into_iter().map(|info| info.name) {
            self.delete(&name).await?;
        }
        Ok(self.store.snapshots().is_empty())
    }

    fn names(&self) -> Vec<String> {
        let kept = self.shared.snapshots.lock();
        kept.iter().filter(|kept| kept.stage == Stage::There).map(|kept| kept.name.clone()).collect()
    }

    fn some(&mut self) -> Option<String> {
        let names = self.names();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    fn say(&self, what: &'static str, name: &str) {
        let now = self.env.now().as_nanos() as u64;
        self.shared.trace.say(now, what, [0; 3], || format!("keeper: {name}"));
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Kept)) {
        if let Some(kept) = self.shared.snapshots.lock().iter_mut().find(|kept| kept.name == name) {
            change(kept);
        }
    }

    async fn make(&self) -> Outcome {
        let start = self.shared.model.lock().tick();
        let name = format!("s{start}");
        self.say("snapshot", &name);
        let kept = Kept { name: name.clone(), start, frozen: None, stage: Stage::Unsure };
        self.shared.snapshots.lock().push(kept);
        let made = self.store.create_snapshot(&name).await;
        let frozen = self.shared.model.lock().freeze(start);
        self.say("snapshot made", &name);
        let stage = if made.is_ok() { Stage::There } else { Stage::Unsure };
        self.change(&name, |kept| (kept.frozen, kept.stage) = (Some(frozen), stage));
        match made {
            Ok(_) => {
                self.shared.counts.lock().snapshots_made += 1;
                Ok(())
            }
            // A disk is leaving.
            Err(StoreError::Snapshot(why)) if why.contains("is being taken out") => Ok(()),
            Err(error) => self.shared.write_may_fail(&error).map(drop),
        }
    }

    async fn delete_some(&mut self) -> Outcome {
        match self.some() {
            Some(name) => self.delete(&name).await,
            None => Ok(()),
        }
    }

    async fn delete(&self, name: &str) -> Outcome {
        self.say("snapshot delete", name);
        self.change(name, |kept| kept.stage = Stage::Unsure);
        match self.store.delete_snapshot(name).await {
            Ok(()) => {
                self.change(name, |kept| kept.stage = Stage::Gone);
                Ok(())
            }
            Err(error) => self.shared.write_may_fail(&error).map(drop),
        }
    }

    /// Reads a snapshot that is there and holds it against what it may show.
    async fn read(&self, name: &str) -> Outcome {
        self.say("snapshot read", name);
        let snapshot = match self.store.open_snapshot(name, None, 0, |_| ()).await {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => return self.shared.read_may_fail(&error).map_err(|what| format!("snapshot {name}: {what}")),
        };
        if let Some(fault) = snapshot.faults().first() {
            let error = StoreError::Log(fault.clone());
            return self.shared.read_may_fail(&error).map_err(|what| format!("snapshot {name}: {what}"));
        }
        let Some(seen) = self.read_all(&snapshot).await.map_err(|what| format!("snapshot {name}: {what}"))? else {
            return Ok(());
        };
        self.shared.counts.lock().snapshots_read += 1;
        let mut found = Ok(());
        self.change(name, |kept| {
            if let Some(frozen) = &mut kept.frozen {
                found = frozen.check(&seen);
            }
        });
        found.map_err(|what| format!("{name}: {what}"))
    }

    /// Everything in it; `None` when a fault is the reason that it cannot be read.
    async fn read_all(&self, snapshot: &Arc<Snapshot>) -> Outcome<Option<BTreeMap<Key, u64>>> {
        let mut seen = BTreeMap::new();
        for bucket in snapshot.buckets() {
            let known = self.shared.buckets.iter().find(|(name, _)| **name == *bucket.name);
            let Some((bucket, _)) = known else { return Err(format!("WRONG: it has the bucket {}", bucket.name)) };
            let mut after: Option<String> = None;
            loop {
                let page = match snapshot.next_page(bucket, after.clone(), 5).await {
                    Ok(page) => page,
                    Err(error) => return Err(format!("it cannot be listed: {error:?}")),
                };
                let Some(last) = page.last() else { break };
                after = Some(last.info.key.clone());
                for object in page {
                    let tag = tag_of(&object.info.attributes.etag)?;
                    if object.info.attributes != attributes(tag) {
                        return Err(format!("WRONG attributes of {:?}", object.info));
                    }
                    let reader = match snapshot.reader(bucket, &object).await {
                        Ok(reader) => reader,
                        Err(error) => return self.shared.read_may_fail(&error).map(|()| None),
                    };
                    let mut stream = std::pin::pin!(reader.stream(0..object.info.size));
                    let mut at = 0;
                    while let Some(piece) = stream.next().await {
                        match piece {
                            Ok(data) => {
                                self.shared.model.lock().check_bytes(tag, object.info.size, at, &data)?;
                                at += data.len() as u64;
                            }
                            Err(error) => return self.shared.read_may_fail(&error).map(|()| None),
                        }
                    }
                    if at != object.info.size {
                        return Err(format!("WRONG length of {:?}: {at}", object.info));
                    }
                    let name: Arc<str> = object.info.key.as_str().into();
                    seen.insert((bucket.clone(), name), tag);
                }
            }
        }
        Ok(Some(seen))
    }
}

impl Shared {
    /// The power has gone: what was being made may show what there was until then.
    pub(crate) fn freeze_snapshots(&self) {
        let model = self.model.lock();
        for kept in self.snapshots.lock().iter_mut().filter(|kept| kept.frozen.is_none()) {
            kept.frozen = Some(model.freeze(kept.start));
        }
    }
}
