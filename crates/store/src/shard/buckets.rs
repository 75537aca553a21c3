//! Buckets: creation, look-up, settings, deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;
use steadfast_log::{Durability, Record};

use crate::layout::Owned;
use crate::record::keys::{self, BucketId};
use crate::record::{BucketMeta, Head};
use crate::shard::applied::AppliedState;
use crate::shard::list::Scan;
use crate::{BucketInfo, BucketSettings, StoreError};

/// The texts of users, by their names.
pub type UserTexts = BTreeMap<String, Arc<str>>;

/// The name of the document of a user's record. Builds without users refuse the pool by it.
pub(crate) const USER_DOCUMENT: &str = "user";

/// A bucket in memory.
pub(crate) struct Bucket {
    pub(crate) id: BucketId,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    pub(crate) settings: RwLock<Arc<BucketSettings>>,
    /// Shared lock while a record of the bucket is submitted; exclusive lock while the bucket is
    /// deleted.
    pub(crate) gate: tokio::sync::RwLock<()>,
    pub(crate) deleted: AtomicBool,
    /// LSN of the last submitted record of the bucket.
    pub(crate) last_lsn: AtomicU64,
}

impl Bucket {
    pub(crate) fn new(id: BucketId, meta: BucketMeta) -> Self {
        Self {
            id,
            name: meta.name,
            created_ms: meta.created_ms,
            settings: RwLock::new(Arc::new(meta.settings)),
            gate: tokio::sync::RwLock::new(()),
            deleted: AtomicBool::new(false),
            last_lsn: AtomicU64::new(0),
        }
    }

    pub(crate) fn info(&self) -> BucketInfo {
        let settings = BucketSettings::clone(&self.settings.read());
        BucketInfo { name: self.name.clone(), created_ms: self.created_ms, settings }
    }

    /// Whether a bucket of another disk is the same, with the same settings.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let settings = self.settings.read().clone();
        self.name == other.name && self.created_ms == other.created_ms && *settings == **other.settings.read()
    }

    /// The durability of a write: the requested one, or the bucket's.
    pub(crate) fn durability(&self, requested: Option<Durability>) -> Durability {
        requested.unwrap_or_else(|| self.settings.read().durability)
    }

    /// Keeps the bucket from being deleted while the result is held.
    pub(crate) async fn enter(&self) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, StoreError> {
        let guard = self.gate.read().await;
        if self.deleted.load(Ordering::Acquire) { Err(StoreError::NoSuchBucket) } else { Ok(guard) }
    }

    /// The records that delete a bucket, if it is empty; they also abort its uploads. The caller
    /// holds the gate exclusively until they are committed, so no record of the bucket intervenes.
    /// Keys that are not `owned` do not count.
    pub(crate) async fn deletion(
        &self,
        applied: &AppliedState,
        owned: Option<Owned>,
    ) -> Result<Vec<Record>, StoreError> {
        applied.wait_applied(self.last_lsn.load(Ordering::Acquire)).await?;
        let objects = keys::object(self.id, b"");
        if Scan::new(applied, &objects, keys::past(&objects), owned).next()?.is_some() {
            return Err(StoreError::BucketNotEmpty);
        }
        let mut batch = Vec::new();
        let uploads = keys::uploads(self.id, b"");
        for pair in applied.index.range(&uploads, keys::past(&uploads).as_deref()) {
            let Some((key, upload)) = keys::parse_upload(&pair?.0) else { continue };
            let head = Head::UploadEnd { bucket: self.id, upload, key: &key }.encode();
            batch.push(Record { head: head.into(), ..Record::default() });
            if batch.len() > UPLOADS_GIVEN_UP_MAX {
                return Err(StoreError::BucketNotEmpty);
            }
        }
        let head = Head::BucketDelete { id: self.id }.encode();
        batch.push(Record { head: head.into(), ..Record::default() });
        Ok(batch)
    }
}

/// Maximum number of uploads that a bucket's deletion aborts; a client must abort more of them
/// first.
const UPLOADS_GIVEN_UP_MAX: usize = 1000;

/// The buckets, by name and by identity, and the users.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) by_name: BTreeMap<String, Arc<Bucket>>,
    /// Also the records of users: every disk has them, as it has the buckets.
    pub(crate) by_id: BTreeMap<BucketId, Arc<Bucket>>,
    /// The texts of the users, by their names.
    pub(crate) users: Arc<UserTexts>,
    /// Names of buckets that may not exist, and why that is unknown.
    pub(crate) doubtful: BTreeMap<String, String>,
}

impl Registry {
    /// Adds a bucket, or changes its settings.
    pub(crate) fn put(&mut self, id: BucketId, meta: BucketMeta) {
        if let Some(user) = keys::user_of(&meta.name) {
            let text = meta.settings.documents.get(USER_DOCUMENT).map(String::as_str).unwrap_or_default();
            self.set_user(user, Some(text.into()));
        }
        if let Some(bucket) = self.by_id.get(&id) {
            *bucket.settings.write() = Arc::new(meta.settings);
            return;
        }
        let bucket = Arc::new(Bucket::new(id, meta));
        if keys::user_of(&bucket.name).is_none() {
            self.by_name.insert(bucket.name.clone(), bucket.clone());
        }
        self.by_id.insert(id, bucket);
    }

    fn set_user(&mut self, name: &str, text: Option<Arc<str>>) {
        // A holder of the texts keeps them: the change is then made in a copy.
        let users = Arc::make_mut(&mut self.users);
        match text {
            Some(text) => _ = users.insert(name.to_owned(), text),
            None => _ = users.remove(name),
        }
    }

    /// Forgets a bucket.
    pub(crate) fn remove(&mut self, id: BucketId) {
        let Some(bucket) = self.by_id.remove(&id) else { return };
        bucket.deleted.store(true, Ordering::Release);
        if let Some(user) = keys::user_of(&bucket.name) {
            let other = self.by_id.values().find(|other| other.name == bucket.name);
            let text = other.and_then(|other| other.settings.read().documents.get(USER_DOCUMENT).cloned());
            self.set_user(user, text.map(Arc::from));
            return;
        }
        if self.by_name.get(&bucket.name).is_some_and(|b| b.id == id) {
            self.by_name.remove(&bucket.name);
            // A deletion interrupted by a crash leaves two buckets of a name until the shards have
            // been repaired.
            if let Some(other) = self.by_id.values().find(|b| b.name == bucket.name) {
                self.by_name.insert(other.name.clone(), other.clone());
            }
        }
    }
}
