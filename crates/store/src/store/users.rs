//! Users: every disk has them, as it has the buckets. A user is stored in the record of a bucket
//! that no client can name, so disks come to agree about users as they do about buckets. The text
//! of a user is a document of that record. A named policy of users is stored in the same way.

use std::sync::Arc;

use steadfast_log::{Priority, Record};

use super::Store;
use super::buckets::put_everywhere;
use crate::record::{BucketMeta, Head, keys};
use crate::shard::Shard;
use crate::shard::buckets::{Bucket, USER_DOCUMENT, UserTexts};
use crate::{BucketSettings, StoreError};

/// The users of a store. The store keeps a text for each and does not read it.
#[derive(Debug, Clone, Copy)]
pub struct StoreUsers<'a> {
    pub(super) store: &'a Store,
}

impl StoreUsers<'_> {
    /// The texts of all users. A holder finds a change by another address.
    ///
    /// # Errors
    /// [`StoreError::Doubtful`] when damage took records: a user may have been changed by one.
    pub fn all(self) -> Result<Arc<UserTexts>, StoreError> {
        let topology = self.store.topology();
        let lead = topology.lead()?;
        lead.applied.losses.not_in_doubt(None)?;
        Ok(lead.applied.registry.read().users.clone())
    }

    /// Changes the text of a user; `change` gets all users, and its result is the new text, or
    /// `None` to delete the user. No other change comes between.
    ///
    /// # Errors
    /// Those of `change`; [`StoreError::Unavailable`] while a disk is missing,
    /// [`StoreError::TooLarge`] for a text that a record cannot hold, and those of a commit.
    pub async fn change<E: From<StoreError>>(
        self,
        name: &str,
        change: impl FnOnce(&UserTexts) -> Result<Option<String>, E>,
    ) -> Result<(), E> {
        let _one = self.store.0.bucket_ops.lock().await;
        let topology = self.store.topology();
        self.store.buckets().agreeing(&topology).await?;
        let shards = topology.all()?;
        let text = change(&*self.all()?)?;
        let record_name = keys::user(name);
        let Some(first) = shards.first() else { return Err(StoreError::NoSuchBucket.into()) };
        let known = find(first, &record_name);
        match (text, known) {
            (Some(text), known) => {
                // In a full pool, too, a key can be disabled.
                let (id, created_ms, priority) = match known {
                    Some(bucket) => (bucket.id, bucket.created_ms, Priority::Delete),
                    None => (self.store.0.env.random_u64(), self.store.0.env.wall_ms(), Priority::Write),
                };
                let mut settings = BucketSettings::default();
                settings.documents.insert(USER_DOCUMENT.to_owned(), text);
                let meta = BucketMeta { name: record_name, created_ms, settings };
                put_everywhere(&shards, id, &meta, priority).await?;
            }
            (None, Some(bucket)) => {
                let head = Head::BucketDelete { id: bucket.id }.encode();
                // In the first shard first: its state counts.
                for shard in &shards {
                    let record = Record { head: head.clone().into(), ..Record::default() };
                    shard.commit_buckets(vec![record], Priority::Delete).await?;
                }
            }
            (None, None) => {}
        }
        Ok(())
    }
}

fn find(shard: &Shard, record_name: &str) -> Option<Arc<Bucket>> {
    shard.applied.registry.read().by_id.values().find(|bucket| bucket.name == record_name).cloned()
}
