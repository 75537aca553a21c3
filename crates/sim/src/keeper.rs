//! The snapshot keeper: creates, reads and deletes snapshots while clients work and compaction
//! runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use steadfast_flow::Env;
use steadfast_store::{Snapshot, Store, StoreError};

use crate::model::Key;
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::run_state::{KeptSnapshot, SnapshotState};
use crate::shared::Shared;
use crate::tags::{attributes, tag_of};

/// Maximum number of snapshots at a time.
const KEPT_MAX: usize = 2;

/// The keeper of one life.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Store,
    pub(crate) env: Env,
    pub(crate) rng: Rng,
    /// Number of actions in a life.
    pub(crate) times: u64,
}

impl Keeper {
    /// After a start with all disks: checks that exactly the expected snapshots exist, and reads
    /// one of them.
    pub(crate) async fn survey(&mut self) -> Outcome {
        if !self.store.failed_disks().is_empty() {
            return Ok(());
        }
        let there = self.store.snapshots().all();
        {
            let mut kept = self.shared.snapshots.lock();
            if let Some(info) = there.iter().find(|info| !info.whole) {
                return Err(format!("a snapshot is not whole, though all disks are present: {info:?}"));
            }
            if let Some(info) = there.iter().find(|info| !kept.iter().any(|kept| kept.name == info.name)) {
                return Err(format!("the keeper did not create a listed snapshot: {info:?}"));
            }
            for kept in kept.iter_mut() {
                let listed = there.iter().any(|info| info.name == kept.name);
                match (kept.state, listed) {
                    (SnapshotState::There, false) => {
                        return Err(format!("LOST: the snapshot {} is missing", kept.name));
                    }
                    (SnapshotState::Deleted, true) => {
                        return Err(format!("the snapshot {} exists again after its deletion", kept.name));
                    }
                    (SnapshotState::Unsure, true) => kept.state = SnapshotState::There,
                    (SnapshotState::Unsure, false) => kept.state = SnapshotState::Deleted,
                    _ => {}
                }
            }
            kept.retain(|kept| kept.state != SnapshotState::Deleted || self.rng.one_in(2));
        }
        match self.some() {
            Some(name) => self.read(&name).await,
            None => Ok(()),
        }
    }

    /// Runs the keeper for one life.
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

    /// Reads and deletes all snapshots. Returns true if none is left: in a pool that snapshots fill
    /// to the last extent, even their deletion may find no space.
    pub(crate) async fn end(&mut self) -> Outcome<bool> {
        for name in self.names() {
            self.read(&name).await?;
        }
        for name in self.store.snapshots().all().into_iter().map(|info| info.name) {
            self.delete(&name).await?;
        }
        Ok(self.store.snapshots().all().is_empty())
    }

    fn names(&self) -> Vec<String> {
        let kept = self.shared.snapshots.lock();
        kept.iter().filter(|kept| kept.state == SnapshotState::There).map(|kept| kept.name.clone()).collect()
    }

    fn some(&mut self) -> Option<String> {
        let names = self.names();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    fn note(&self, what: &'static str, name: &str) {
        let now = self.env.now().as_nanos() as u64;
        self.shared.trace.note_with_text(now, what, [0; 3], || format!("keeper: {name}"));
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut KeptSnapshot)) {
        if let Some(kept) = self.shared.snapshots.lock().iter_mut().find(|kept| kept.name == name) {
            change(kept);
        }
    }

    async fn make(&self) -> Outcome {
        let start = self.shared.model.lock().tick();
        let name = format!("s{start}");
        self.note("snapshot", &name);
        let kept = KeptSnapshot { name: name.clone(), start, frozen: None, state: SnapshotState::Unsure };
        self.shared.snapshots.lock().push(kept);
        let made = self.store.snapshots().create(&name).await;
        let frozen = self.shared.model.lock().freeze(start);
        self.note("snapshot made", &name);
        let state = if made.is_ok() { SnapshotState::There } else { SnapshotState::Unsure };
        self.change(&name, |kept| (kept.frozen, kept.state) = (Some(frozen), state));
        match made {
            Ok(_) => {
                self.shared.counts.lock().snapshots_made += 1;
                Ok(())
            }
            // A disk is being drained.
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
        self.note("snapshot delete", name);
        self.change(name, |kept| kept.state = SnapshotState::Unsure);
        match self.store.snapshots().delete(name).await {
            Ok(()) => {
                self.change(name, |kept| kept.state = SnapshotState::Deleted);
                Ok(())
            }
            Err(error) => self.shared.write_may_fail(&error).map(drop),
        }
    }

    /// Reads a snapshot and compares it with its allowed content.
    async fn read(&self, name: &str) -> Outcome {
        self.note("snapshot read", name);
        let snapshot = match self.store.snapshots().open(name, None, 0, |_| ()).await {
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

    /// The whole content of a snapshot; `None` if a fault prevents the read.
    async fn read_all(&self, snapshot: &Arc<Snapshot>) -> Outcome<Option<BTreeMap<Key, u64>>> {
        let mut seen = BTreeMap::new();
        for bucket in snapshot.buckets() {
            let known = self.shared.buckets.iter().find(|(name, _)| **name == *bucket.name);
            let Some((bucket, _)) = known else {
                return Err(format!("WRONG: the snapshot has the unknown bucket {}", bucket.name));
            };
            let mut after: Option<String> = None;
            loop {
                let page = match snapshot.next_page(bucket, after.clone(), 5).await {
                    Ok(page) => page,
                    Err(error) => return Err(format!("the snapshot cannot be listed: {error:?}")),
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
    /// Handles a power cut: a snapshot under creation may show the state up to now.
    pub(crate) fn freeze_snapshots(&self) {
        let model = self.model.lock();
        for kept in self.snapshots.lock().iter_mut().filter(|kept| kept.frozen.is_none()) {
            kept.frozen = Some(model.freeze(kept.start));
        }
    }
}
