//! Opening of a disk's index, and what is loaded from it.

use std::path::PathBuf;
use std::sync::Arc;

use steadfast_flow::Env;
use steadfast_log::Lsn;

use super::buckets::Registry;
use super::checkpoint::Checkpoint;
use super::marks::Marks;
use crate::index::{Index, IndexError, LsmIndex, MemIndex};
use crate::layout::Layout;
use crate::record::epoch_break::EpochBreak;
use crate::record::{BucketMeta, Value, keys};
use crate::{IndexKind, StoreError, StoreOptions};

/// Opens the index with its checkpoint. An index without a checkpoint is empty.
pub(super) async fn open_index(
    kind: &IndexKind,
    env: &Env,
    options: &StoreOptions,
    pool: [u8; 16],
) -> Result<(Arc<dyn Index>, Checkpoint), StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => {
            let index: Arc<dyn Index> = Arc::new(MemIndex::open(checkpoint.clone()));
            let found = read_checkpoint(&*index).unwrap_or_default().filter(|c| c.pool == pool);
            if found.is_none() {
                checkpoint.clear();
                return Ok((Arc::new(MemIndex::open(checkpoint.clone())), Checkpoint::default()));
            }
            Ok((index, found.unwrap_or_default()))
        }
        IndexKind::Lsm(dir) => {
            let (dir, cache) = (dir.clone(), options.index_cache_bytes);
            let opened = env.blocking(move || open_lsm(dir, cache, pool)).await;
            Ok(opened.ok_or_else(|| StoreError::Index("opening it failed".into()))??)
        }
    }
}

/// Opens an empty index; an existing one is deleted.
pub(super) async fn open_fresh(
    kind: &IndexKind,
    env: &Env,
    options: &StoreOptions,
) -> Result<Arc<dyn Index>, StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => {
            checkpoint.clear();
            Ok(Arc::new(MemIndex::open(checkpoint.clone())))
        }
        IndexKind::Lsm(dir) => {
            let (dir, cache) = (dir.clone(), options.index_cache_bytes);
            let opened = env.blocking(move || {
                if dir.exists() {
                    LsmIndex::delete(&dir)?;
                }
                LsmIndex::open(&dir, cache)
            });
            let opened = opened.await.ok_or_else(|| StoreError::Index("opening it failed".into()))?;
            Ok(Arc::new(opened?))
        }
    }
}

/// Opens the index in a directory. An index that is unfinished, damaged or of another pool is
/// replaced by an empty one.
fn open_lsm(dir: PathBuf, cache_bytes: u64, pool: [u8; 16]) -> Result<(Arc<dyn Index>, Checkpoint), IndexError> {
    for dir in [&dir, &crate::index::rebuild_dir(&dir)] {
        Marks::remove_left(dir);
    }
    LsmIndex::settle(&dir)
        .unwrap_or_else(|e| tracing::warn!(error = %e, "the index rebuilt next to this one is left untouched"));
    let index = LsmIndex::open(&dir, cache_bytes)?;
    match read_checkpoint(&index) {
        Ok(Some(checkpoint)) if checkpoint.pool == pool => return Ok((Arc::new(index), checkpoint)),
        Ok(Some(_)) => tracing::warn!("the index is of another pool and will be rebuilt from the log"),
        Ok(None) if index.is_new() => return Ok((Arc::new(index), Checkpoint::default())),
        Ok(None) => tracing::info!("the index was not finished and will be rebuilt from the log"),
        Err(e) => tracing::warn!(error = %e, "the index is damaged and will be rebuilt from the log"),
    }
    drop(index);
    LsmIndex::delete(&dir)?;
    Ok((Arc::new(LsmIndex::open(&dir, cache_bytes)?), Checkpoint::default()))
}

/// Deletes an index that is closed.
pub(super) async fn discard_index(kind: &IndexKind, env: &Env) -> Result<(), StoreError> {
    match kind {
        IndexKind::Memory(checkpoint) => checkpoint.clear(),
        IndexKind::Lsm(dir) => {
            let dir = dir.clone();
            let deleted = env.blocking(move || LsmIndex::delete(&dir)).await;
            deleted.ok_or_else(|| StoreError::Index("deleting it failed".into()))??;
        }
    }
    Ok(())
}

/// The checkpoint in an index; `None` if the index has none.
pub(super) fn read_checkpoint(index: &dyn Index) -> Result<Option<Checkpoint>, IndexError> {
    let Some(value) = index.get(keys::CHECKPOINT)? else { return Ok(None) };
    Checkpoint::decode(&value).map(Some).map_err(|e| IndexError::damaged(e.to_string()))
}

/// The pool's layout in an index.
pub(super) fn load_layout(index: &dyn Index) -> Result<Option<Arc<Layout>>, StoreError> {
    let Some(value) = index.get(keys::LAYOUT)? else { return Ok(None) };
    Ok(Some(Arc::new(Layout::decode(Value::decode(&value)?.payload)?)))
}

/// The newest break of epochs in an index, with its LSN.
pub(super) fn load_epoch_break(index: &dyn Index) -> Result<Option<(Lsn, EpochBreak)>, StoreError> {
    let Some(value) = index.get(keys::EPOCH_BREAK)? else { return Ok(None) };
    let value = Value::decode(&value)?;
    Ok(Some((value.version, EpochBreak::decode(value.payload)?)))
}

/// The buckets in an index.
pub(super) fn load_registry(index: &dyn Index) -> Result<Registry, StoreError> {
    let mut registry = Registry::default();
    for pair in index.range(&[keys::BUCKETS], Some(&[keys::BUCKETS + 1])) {
        let (key, value) = pair?;
        let Some(id) = key.get(1..).and_then(|id| id.try_into().ok()) else { continue };
        registry.put(u64::from_be_bytes(id), BucketMeta::decode(Value::decode(&value)?.payload)?);
    }
    Ok(registry)
}
