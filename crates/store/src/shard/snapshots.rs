//! One disk's part of snapshots: its record, and its content at that moment, read from the records
//! that the log keeps.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::Env;
use steadfast_log::{Hold, HoldGuard, LogError, Lsn, Priority, Record};
use tokio::sync::oneshot;

use crate::index::{Index, LiveIndex, LsmIndex};
use crate::record::keys::{self, Id};
use crate::record::snapshot::SnapshotMeta;
use crate::record::{Head, Value};
use crate::shard::Shard;
use crate::shard::applied::AppliedState;
use crate::shard::hang::HangWatch;
use crate::shard::reads::Reads;
use crate::shard::rebuild::Rebuild;
use crate::shard::submit::check_head;
use crate::{IndexKind, StoreError, StoreOptions};

/// Memory for an index that is built only to be read, in bytes.
const MEMTABLE_BYTES_MAX: u64 = 8 << 20;
const INDEX_CACHE_BYTES: u64 = 8 << 20;

/// A shard's part of a snapshot.
pub(crate) struct SnapshotPart<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) id: Id,
}

impl SnapshotPart<'_> {
    /// The record of a snapshot with this hold.
    pub(crate) fn meta(&self, name: &str, created_ms: u64, disks: u64, hold: &Hold) -> SnapshotMeta {
        SnapshotMeta {
            name: name.to_owned(),
            created_ms,
            disks,
            objects: self.shard.applied.counts.objects(),
            bytes: self.shard.applied.counts.bytes(),
            lsn: hold.lsn,
            epoch: hold.epoch,
            except: hold.except.clone(),
        }
    }

    /// Commits the record of a snapshot.
    pub(crate) async fn put(&self, meta: &SnapshotMeta) -> Result<(), StoreError> {
        let head = Head::SnapshotPut { id: self.id, payload: &meta.encode() }.encode();
        check_head(&head)?;
        self.shard.commit_buckets(vec![Record { head: head.into(), ..Record::default() }], Priority::Delete).await
    }

    /// Commits the end of a snapshot and lets the log recycle what only the snapshot kept. Also for
    /// an unknown one: its record may be in flight.
    pub(crate) async fn remove(&self) -> Result<(), StoreError> {
        let head = Head::SnapshotDelete { id: self.id }.encode();
        // With the reserved space if need be: in a pool that snapshots keep full, no other
        // operation frees any.
        self.shard
            .commit_buckets(vec![Record { head: head.into(), ..Record::default() }], Priority::Compaction)
            .await?;
        self.shard.log().release(&self.id);
        Ok(())
    }

    /// The disk's content when the snapshot was made. Its index is built in `index` from the
    /// records that the log keeps, reading at most `bytes_s` per second (0: no bound). `progress`
    /// receives the LSN reached and the final LSN.
    pub(crate) async fn frozen(
        &self,
        index_kind: IndexKind,
        bytes_s: u64,
        progress: &(dyn Fn(Lsn, Lsn) + Send + Sync),
    ) -> Result<Frozen, StoreError> {
        let (applied, id) = (&self.shard.applied, self.id);
        let meta = applied.snapshots.read().get(&id).cloned().ok_or(StoreError::NoSuchSnapshot)?;
        let hold = meta.hold(id);
        // Kept while it is read, even if the snapshot is deleted meanwhile.
        let pin = self.shard.log().pin_hold(&hold, applied.random_id());
        if !applied.snapshots.read().contains_key(&id) {
            return Err(StoreError::NoSuchSnapshot);
        }
        let options = StoreOptions {
            cache_bytes: 0,
            index_cache_bytes: INDEX_CACHE_BYTES.min(applied.options.index_cache_bytes),
            memtable_bytes_max: MEMTABLE_BYTES_MAX.min(applied.options.memtable_bytes_max),
            ..applied.options.clone()
        };
        let (opened, index) = oneshot::channel();
        let kept_in = index_kind.clone();
        let (env, kind, settings) = (applied.env.clone(), index_kind, options.clone());
        // Runs to its end even when the caller is cancelled: its files must not appear after their
        // removal.
        applied.env.spawn("snapshot-index-open", async move {
            let index = super::index_open::open_index(&kind, &env, &settings, [0; 16]).await;
            let dir = match kind {
                IndexKind::Lsm(path) => {
                    Some(Scratch { path, index: index.as_ref().ok().map(|(index, _)| Arc::downgrade(index)), env })
                }
                IndexKind::Memory(_) => None,
            };
            // The caller may be gone: then the index is removed here.
            let _ = opened.send(index.map(|(index, _)| (index, dir)));
        });
        let (index, scratch) = index.await.map_err(|_| StoreError::Index("the server is stopping".into()))??;
        let rebuild = Rebuild::new(applied, LiveIndex::new(index, kept_in), options);
        let mut records = self.shard.log().held_records(&hold, bytes_s);
        loop {
            let batch = records.next().await?;
            let Some(last) = batch.last().map(|record| record.lsn) else { break };
            rebuild.apply(batch).await?;
            progress(last, hold.lsn);
        }
        let (frozen, _) = rebuild.finish().await?;
        if frozen.losses.is_distrusted() {
            return Err(StoreError::Index("a record of the snapshot has an unknown format".into()));
        }
        let hang = Arc::new(HangWatch::new(applied.env.clone(), applied.options.write_wait));
        let reads = Reads::new(frozen.clone(), self.shard.log().clone(), hang, self.shard.reads.ahead.clone());
        Ok(Frozen {
            applied: frozen,
            reads: Arc::new(reads),
            live: applied.clone(),
            lsn: hold.lsn,
            faults: records.faults().to_vec(),
            _scratch: scratch,
            _pin: pin,
        })
    }
}

/// A disk's content at one moment, for reading.
pub(crate) struct Frozen {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) reads: Arc<Reads>,
    /// The current state of the shard.
    live: Arc<AppliedState>,
    /// The last record in it.
    lsn: Lsn,
    /// Faults of the log while it was read: records may be missing.
    pub(crate) faults: Vec<LogError>,
    _scratch: Option<Scratch>,
    _pin: HoldGuard,
}

impl Frozen {
    /// Index keys from `from` to `end` whose current value already existed when the snapshot was
    /// made, while the snapshot has none or an older one: damage took the record. At most `most`,
    /// with the start of the next page.
    pub(crate) fn missing(&self, from: &[u8], end: Option<&[u8]>, most: usize) -> Result<Missing, StoreError> {
        let mut missing = Vec::new();
        for (seen, pair) in self.live.index.range(from, end).enumerate() {
            let (key, value) = pair?;
            if seen == most {
                return Ok((missing, Some(key)));
            }
            let version = Value::decode(&value)?.version;
            if version > self.lsn {
                continue;
            }
            let kept = self.applied.index.get(&key)?;
            let kept = kept.map(|value| Value::decode(&value).map(|value| value.version)).transpose()?;
            if kept.is_none_or(|kept| kept < version) {
                missing.push(key);
            }
        }
        Ok((missing, None))
    }

    /// Names of current buckets that were created before `before_ms` and are not in the snapshot.
    pub(crate) fn missing_buckets(&self, before_ms: u64) -> Vec<String> {
        let kept = self.applied.registry.read();
        let live = self.live.registry.read();
        let missing =
            live.by_id.iter().filter(|(id, bucket)| bucket.created_ms < before_ms && !kept.by_id.contains_key(id));
        missing.map(|(_, bucket)| bucket.name.clone()).collect()
    }
}

/// Keys, with the start of the next page.
type Missing = (Vec<Bytes>, Option<Bytes>);

/// The directory of an index built only to be read. Removed when this is dropped and the index is
/// no longer in use.
struct Scratch {
    path: PathBuf,
    index: Option<Weak<dyn Index>>,
    env: Env,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (path, index, env) = (std::mem::take(&mut self.path), self.index.take(), self.env.clone());
        self.env.spawn("snapshot-index-remove", async move {
            for _ in 0..REMOVE_TRIES {
                let in_use = index.as_ref().is_some_and(|index| index.strong_count() > 0);
                let path = path.clone();
                if !in_use && env.blocking(move || remove(&path)).await == Some(true) {
                    return;
                }
                env.sleep(REMOVE_AGAIN).await;
            }
            tracing::warn!(dir = %path.display(), "the index built to read a snapshot cannot be removed: the next \
             start retries");
        });
    }
}

/// How often the removal of an index is tried, and the time in between.
const REMOVE_TRIES: u32 = 100;
const REMOVE_AGAIN: Duration = Duration::from_millis(100);

/// Removes an unused index, and its parent directory with the last one. Returns whether it is gone.
fn remove(dir: &Path) -> bool {
    // A remaining file keeps the directory from being removed below.
    let _ = LsmIndex::delete(dir);
    let _ = std::fs::remove_dir(dir);
    let gone = !dir.exists();
    if let (true, Some(parent)) = (gone, dir.parent()) {
        let _ = std::fs::remove_dir(parent);
    }
    gone
}

/// The snapshots in an index.
pub(crate) fn load(index: &dyn Index) -> Result<std::collections::BTreeMap<Id, SnapshotMeta>, StoreError> {
    let mut snapshots = std::collections::BTreeMap::new();
    for pair in index.range(keys::SNAPSHOTS, keys::past(keys::SNAPSHOTS).as_deref()) {
        let (key, value) = pair?;
        let Some(id) = keys::parse_snapshot(&key) else { continue };
        snapshots.insert(id, SnapshotMeta::decode(crate::record::Value::decode(&value)?.payload)?);
    }
    Ok(snapshots)
}
