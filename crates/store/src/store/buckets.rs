//! Buckets: every shard has them, so that each knows those of its records.
//!
//! **Which shard is authoritative.** The first. A bucket is created there last and deleted there
//! first. So all shards have what the first one has, unless a crash or an error intervened. A
//! bucket that only other shards have was never confirmed, or was being deleted: it is deleted if
//! it is empty. A bucket that others lack is created there. The shards are repaired before every
//! change, and at every start with all disks.
//!
//! While a disk is missing or read-only, buckets cannot be changed. A bucket that all present disks
//! have then counts as existing; the state of any other is unknown. So keys may enter a bucket that
//! the first disk does not have: then the bucket is created there.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use steadfast_log::Priority;

use super::Store;
use super::topology::Topology;
use crate::record::BucketMeta;
use crate::record::keys::{self, BucketId};
use crate::shard::Shard;
use crate::shard::buckets::{Bucket, USER_DOCUMENT};
use crate::{BucketInfo, BucketSettings, Names, StoreError};

type Registry = BTreeMap<BucketId, Arc<Bucket>>;

fn registry(shard: &Shard) -> Registry {
    shard.applied.registry.read().by_id.clone()
}

pub(super) fn meta(bucket: &Bucket) -> BucketMeta {
    let info = bucket.info();
    BucketMeta { name: info.name, created_ms: info.created_ms, settings: info.settings }
}

/// The buckets of a store.
#[derive(Debug, Clone, Copy)]
pub struct Buckets<'a> {
    pub(super) store: &'a Store,
}

impl Buckets<'_> {
    /// A bucket.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`].
    pub fn get(self, name: &str) -> Result<BucketInfo, StoreError> {
        Ok(self.store.topology().lead()?.find(name)?.info())
    }

    /// The settings of a bucket, without a copy. They are another value after each change.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`].
    pub fn settings(self, name: &str) -> Result<Arc<BucketSettings>, StoreError> {
        Ok(self.store.topology().lead()?.find(name)?.settings.read().clone())
    }

    /// All buckets, by name.
    ///
    /// # Errors
    /// [`StoreError::Doubtful`] when damage took records: clients would take an incomplete list for
    /// the whole.
    pub fn all(self) -> Result<Vec<BucketInfo>, StoreError> {
        let lead = self.store.lead()?;
        lead.applied.losses.not_in_doubt(None)?;
        let registry = lead.applied.registry.read();
        Ok(registry.by_name.values().map(|b| b.info()).collect())
    }

    /// The names of all buckets, by which records are described.
    pub fn names(self) -> Names {
        let Ok(lead) = self.store.lead() else { return Names::default() };
        let registry = lead.applied.registry.read();
        Names::new(registry.by_id.iter().map(|(id, bucket)| (*id, bucket.name.clone())).collect())
    }

    /// All shards, repaired, with the buckets of earlier calls in their registries. The caller
    /// holds `bucket_ops`.
    pub(super) async fn agreeing(self, topology: &Topology) -> Result<(), StoreError> {
        let shards = topology.all()?;
        if let [only] = shards[..] {
            return only.settle_buckets().await;
        }
        if let Some(failure) = topology.members().iter().find_map(|member| member.failure()) {
            return Err(failure);
        }
        // Cancelled calls may have left submitted changes.
        join_all(shards.iter().map(|shard| shard.settle_buckets())).await.into_iter().collect::<Result<(), _>>()?;
        agree(topology).await.map(drop)
    }

    /// Repairs the shards' buckets when all shards are present. Returns the number of buckets on
    /// which they disagreed.
    pub(super) async fn repair(self) -> u64 {
        let _one = self.store.0.bucket_ops.lock().await;
        let topology = self.store.topology();
        let members = topology.members();
        if self.store.0.options.log.for_reading
            || topology.all().is_err()
            || members.len() < 2
            || members.iter().any(|member| member.failure().is_some())
        {
            return 0;
        }
        match agree(&topology).await {
            Ok(count) => count,
            Err(e) => {
                tracing::error!(error = %e, "the disks disagree about buckets, and the repair failed");
                0
            }
        }
    }

    /// At a start without all disks: buckets that only some of the present disks have can neither
    /// be used nor reported absent.
    pub(super) fn mark_doubtful(self) {
        let topology = self.store.topology();
        let missing = topology.members().iter().find_map(|member| member.open().err());
        let (Some(StoreError::Unavailable(missing)), Ok(lead)) = (missing, topology.lead()) else { return };
        let there: Vec<Registry> = topology.open().map(|(_, shard)| registry(shard)).collect();
        let mut registry = lead.applied.registry.write();
        for (id, bucket) in there.iter().flatten() {
            if keys::user_of(&bucket.name).is_none() && there.iter().any(|other| !other.contains_key(id)) {
                let name = &bucket.name;
                tracing::warn!(bucket = name, "whether this bucket exists is known once all disks are present again");
                let why = format!(
                    "{missing}; the bucket {name:?} was being created or deleted, and only that disk knows which"
                );
                registry.doubtful.insert(name.clone(), why);
            }
        }
    }

    /// Creates a bucket. Its name is not validated here: the protocol decides which names are
    /// allowed.
    ///
    /// # Errors
    /// [`StoreError::BucketExists`], [`StoreError::Unavailable`], and those of a commit.
    pub async fn create(self, name: &str, settings: BucketSettings) -> Result<BucketInfo, StoreError> {
        self.make(BucketMeta { name: name.to_owned(), created_ms: self.store.0.env.wall_ms(), settings }).await
    }

    /// Creates a bucket as it was elsewhere, with its time and settings.
    ///
    /// # Errors
    /// Those of [`Buckets::create`].
    pub async fn create_as(self, info: &BucketInfo) -> Result<(), StoreError> {
        let meta = BucketMeta { name: info.name.clone(), created_ms: info.created_ms, settings: info.settings.clone() };
        self.make(meta).await.map(drop)
    }

    async fn make(self, meta: BucketMeta) -> Result<BucketInfo, StoreError> {
        check_known(&meta.name, &meta.settings)?;
        if keys::user_of(&meta.name).is_some() {
            return Err(StoreError::Unsupported("a bucket cannot have the name of a user's record".to_owned()));
        }
        let _one = self.store.0.bucket_ops.lock().await;
        let topology = self.store.topology();
        self.agreeing(&topology).await?;
        let shards = topology.all()?;
        let Some(first) = shards.first() else { return Err(StoreError::NoSuchBucket) };
        let id = {
            let registry = first.applied.registry.read();
            if registry.by_name.contains_key(&meta.name) {
                return Err(StoreError::BucketExists);
            }
            loop {
                let id = self.store.0.env.random_u64();
                if !registry.by_id.contains_key(&id) {
                    break id;
                }
            }
        };
        put_everywhere(&shards, id, &meta, Priority::Write).await?;
        Ok(BucketInfo { name: meta.name, created_ms: meta.created_ms, settings: meta.settings })
    }

    /// Changes the settings of a bucket. No other change comes between.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Unavailable`], [`StoreError::TooLarge`] for
    /// settings that its record cannot hold, and those of a commit.
    pub async fn change(self, name: &str, change: impl FnOnce(&mut BucketSettings)) -> Result<(), StoreError> {
        let _one = self.store.0.bucket_ops.lock().await;
        let topology = self.store.topology();
        self.agreeing(&topology).await?;
        let shards = topology.all()?;
        let bucket = self.store.lead()?.find(name)?;
        let mut meta = meta(&bucket);
        change(&mut meta.settings);
        check_known(name, &meta.settings)?;
        put_everywhere(&shards, bucket.id, &meta, Priority::Write).await
    }

    /// Checks that this build knows all settings of all buckets.
    pub(super) fn check_known(self) -> Result<(), StoreError> {
        for (_, shard) in self.store.topology().open() {
            for bucket in shard.applied.registry.read().by_id.values() {
                check_known(&bucket.name, &bucket.settings.read())?;
            }
        }
        Ok(())
    }

    /// Deletes an empty bucket and aborts its unfinished multipart uploads.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::BucketNotEmpty`], [`StoreError::Unavailable`],
    /// and those of a commit.
    pub async fn delete(self, name: &str) -> Result<(), StoreError> {
        let _one = self.store.0.bucket_ops.lock().await;
        let topology = self.store.topology();
        self.agreeing(&topology).await?;
        let shards = topology.all()?;
        let buckets = shards.iter().map(|shard| shard.find(name)).collect::<Result<Vec<_>, _>>()?;
        // No further record of the bucket is submitted, and submitted ones are applied: so "empty"
        // is final.
        let mut alone = Vec::with_capacity(buckets.len());
        let mut batches = Vec::with_capacity(buckets.len());
        for (seat, (shard, bucket)) in shards.iter().zip(&buckets).enumerate() {
            alone.push(bucket.gate.write().await);
            batches.push(bucket.deletion(&shard.applied, topology.owned(seat)).await?);
        }
        for (shard, batch) in shards.iter().zip(batches) {
            shard.commit_buckets(batch, Priority::Delete).await?;
        }
        Ok(())
    }
}

/// Refuses settings that only a later build knows: without them the bucket would have other rules.
fn check_known(bucket: &str, settings: &BucketSettings) -> Result<(), StoreError> {
    let is_user = keys::user_of(bucket).is_some();
    match settings.unknown().find(|name| !is_user || *name != USER_DOCUMENT) {
        None => Ok(()),
        Some(setting) => Err(StoreError::Unsupported(format!(
            "the bucket {bucket:?} has the setting {setting:?}, which this build does not know: start the build that set it"
        ))),
    }
}

/// Creates or changes a bucket: in the first shard last.
pub(super) async fn put_everywhere(
    shards: &[&Shard],
    id: BucketId,
    meta: &BucketMeta,
    priority: Priority,
) -> Result<(), StoreError> {
    let Some((first, others)) = shards.split_first() else { return Ok(()) };
    let others = join_all(others.iter().map(|shard| shard.put_bucket(id, meta, priority))).await;
    others.into_iter().collect::<Result<(), _>>()?;
    first.put_bucket(id, meta, priority).await
}

/// Repairs the shards; see the module. Returns the number of buckets that needed work.
async fn agree(topology: &Topology) -> Result<u64, StoreError> {
    let shards = topology.all()?;
    let Some((first, others)) = shards.split_first() else { return Ok(0) };
    let mut count = 0;
    let truth = registry(first);
    let beyond: BTreeMap<BucketId, BucketMeta> = others
        .iter()
        .flat_map(|shard| registry(shard))
        .filter(|(id, _)| !truth.contains_key(id))
        .map(|(id, bucket)| (id, meta(&bucket)))
        .collect();
    for (id, meta) in beyond {
        count += settle_one(topology, &shards, id, &meta).await?;
    }
    let truth = registry(first);
    for shard in others {
        let theirs = registry(shard);
        for (id, bucket) in &truth {
            if theirs.get(id).is_none_or(|theirs| !theirs.is_as(bucket)) {
                count += 1;
                shard.put_bucket(*id, &meta(bucket), Priority::Write).await?;
            }
        }
    }
    Ok(count)
}

/// Deletes a bucket that the first disk lacks, or creates it there. Returns the number of disks
/// that had it.
async fn settle_one(
    topology: &Topology,
    shards: &[&Shard],
    id: BucketId,
    meta: &BucketMeta,
) -> Result<u64, StoreError> {
    let having: Vec<_> = (0..)
        .zip(shards)
        .filter_map(|(seat, shard)| Some((seat, *shard, shard.applied.registry.read().by_id.get(&id).cloned()?)))
        .collect();
    let (mut alone, mut batches) = (Vec::with_capacity(having.len()), Vec::with_capacity(having.len()));
    let (mut objects, mut uploads) = (false, false);
    for (seat, shard, bucket) in &having {
        alone.push(bucket.gate.write().await);
        match bucket.deletion(&shard.applied, topology.owned(*seat)).await {
            Ok(batch) => {
                uploads |= batch.len() > 1;
                batches.push((*shard, batch));
            }
            Err(StoreError::BucketNotEmpty) => objects = true,
            Err(e) => return Err(e),
        }
    }
    // While some other disk lacked the bucket, no client could write to it; its uploads are older
    // than its deletion.
    if objects || uploads && having.len() == shards.len() - 1 {
        tracing::warn!(bucket = meta.name, "some disks lack this bucket, and it is not empty: it is created there");
        shards[0].put_bucket(id, meta, Priority::Write).await?;
    } else {
        for (shard, batch) in batches {
            shard.commit_buckets(batch, Priority::Delete).await?;
        }
    }
    Ok(having.len() as u64)
}

#[cfg(test)]
mod tests {
    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{FormatOptions, Log};

    use super::*;
    use crate::{BucketDocument, IndexKind, StoreOptions};

    #[tokio::test]
    async fn a_pool_with_a_setting_of_a_later_build_is_refused_by_its_name() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(128 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &Env::tokio(), &format).await.expect("format");
        let open = || Store::open(disk.clone(), IndexKind::memory(), Env::tokio(), StoreOptions::default());
        let (store, _) = open().await.expect("open");
        store.buckets().create("photos", BucketSettings::default()).await.expect("bucket");
        let later = |settings: &mut BucketSettings| _ = settings.documents.insert("later".into(), "x".into());
        assert!(matches!(store.buckets().change("photos", later).await, Err(StoreError::Unsupported(_))));
        let large = |settings: &mut BucketSettings| {
            settings.set_document(BucketDocument::Tagging, Some("x".repeat(64 << 10)));
        };
        assert!(matches!(store.buckets().change("photos", large).await, Err(StoreError::TooLarge(_))));
        let tagged = |settings: &mut BucketSettings| settings.set_document(BucketDocument::Tagging, Some("{}".into()));
        store.buckets().change("photos", tagged).await.expect("changed");
        store.close().await.expect("closed");

        let (store, _) = open().await.expect("this build knows tags");
        let bucket = store.lead().expect("open").find("photos").expect("there");
        assert_eq!(bucket.info().settings.document(BucketDocument::Tagging), Some("{}"));
        // What a later build would write.
        let mut meta = meta(&bucket);
        later(&mut meta.settings);
        store.lead().expect("open").put_bucket(bucket.id, &meta, Priority::Write).await.expect("written");
        store.close().await.expect("closed");
        let refused = open().await.map(drop).expect_err("refused").to_string();
        assert!(refused.contains("\"photos\"") && refused.contains("\"later\""), "{refused}");
    }
}
