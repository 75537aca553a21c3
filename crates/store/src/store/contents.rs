//! What is in a bucket: listings and deletions of many objects.
//!
//! A listing merges those of the shards. While a disk is missing, listings fail: a client would
//! take an incomplete one for the whole and believe that objects are gone.

use std::collections::BTreeMap;

use futures::future::join_all;
use steadfast_flow::stages::{self, Stage};
use steadfast_log::Durability;

use super::Store;
use super::delete_many::ManyDeletes;
use crate::layout::slot_of;
use crate::merge::{Listed, Merge, Source};
use crate::record::upload::UploadOwner;
use crate::shard::list::{Item, Items};
use crate::shard::uploads::{UploadItem, UploadItems};
use crate::{Cause, ListPage, ListQuery, StoreError, UploadPage};

/// The content of a bucket. It is known only to its operations whether the bucket exists.
#[derive(Debug, Clone, Copy)]
pub struct BucketContents<'a> {
    pub(super) store: &'a Store,
    pub(super) bucket: &'a str,
    /// The client that makes a change.
    pub(super) cause: Option<&'a Cause>,
}

impl<'a> BucketContents<'a> {
    /// The same content, changed by this client: the events of a change name it.
    #[must_use]
    pub fn caused_by(self, cause: &'a Cause) -> Self {
        Self { cause: Some(cause), ..self }
    }

    /// A page of the objects.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Unavailable`] when a disk is missing,
    /// [`StoreError::Index`].
    pub fn objects(self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let _lap = stages::enter(Stage::Index);
        let topology = self.store.topology();
        let id = topology.lead()?.find(self.bucket)?.id;
        let homes = topology.homes()?;
        let mut page = ListPage::default();
        if query.limit == 0 {
            return Ok(page);
        }
        let mut items =
            Merge::new(homes.into_iter().map(|(shard, owned)| Items::new(&shard.applied, id, query, owned)).collect());
        let mut last = String::new();
        while let Some(item) = items.next()? {
            if page.objects.len() + page.prefixes.len() == query.limit {
                page.next = Some(last);
                break;
            }
            last.clear();
            last.push_str(item.place().0);
            match item {
                Item::Object(entry) => page.objects.push(entry),
                Item::Prefix(prefix) => page.prefixes.push(prefix),
            }
        }
        Ok(page)
    }

    /// A page of the unfinished multipart uploads, by key and then by identity. `after` is an
    /// exclusive lower bound: a key and, when not empty, an upload of it.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Unavailable`] when a disk is missing,
    /// [`StoreError::Index`].
    pub fn uploads(
        self,
        prefix: &str,
        delimiter: &str,
        after: (&str, &str),
        limit: usize,
    ) -> Result<UploadPage, StoreError> {
        self.uploads_of(UploadOwner::Client, prefix, delimiter, after, limit)
    }

    /// A page of the unfinished fills, by key and then by identity. `after` is an
    /// exclusive lower bound.
    ///
    /// # Errors
    /// Those of [`BucketContents::uploads`].
    pub fn fills(self, after: (&str, &str), limit: usize) -> Result<UploadPage, StoreError> {
        self.uploads_of(UploadOwner::Server, "", "", after, limit)
    }

    /// [`BucketContents::uploads`] of one kind of owner.
    pub(super) fn uploads_of(
        self,
        owner: UploadOwner,
        prefix: &str,
        delimiter: &str,
        after: (&str, &str),
        limit: usize,
    ) -> Result<UploadPage, StoreError> {
        let topology = self.store.topology();
        let id = topology.lead()?.find(self.bucket)?.id;
        let homes = topology.homes()?;
        let mut page = UploadPage::default();
        let sources = homes
            .into_iter()
            .map(|(shard, owned)| UploadItems::new(&shard.applied, id, prefix, delimiter, after, owned, owner))
            .collect();
        let mut items = Merge::new(sources);
        let mut last = None;
        while let Some(item) = items.next()? {
            if page.uploads.len() + page.prefixes.len() >= limit {
                page.next = last;
                break;
            }
            let (key, upload) = item.place();
            last = Some((key.to_owned(), upload.to_owned()));
            match item {
                UploadItem::Upload(upload) => page.uploads.push(upload),
                UploadItem::Prefix(prefix) => page.prefixes.push(prefix),
            }
        }
        Ok(page)
    }

    /// Deletes objects, as many per commit as fit, on all disks concurrently. The answers are in
    /// the order of `keys`.
    pub async fn delete(self, keys: Vec<String>, durability: Option<Durability>) -> Vec<Result<(), StoreError>> {
        let refused = |e: StoreError| keys.iter().map(|_| Err(e.clone())).collect();
        let found = self.store.lead().and_then(|lead| lead.find(self.bucket));
        let bucket_id = match found {
            Ok(found) => found.id,
            Err(e) => return refused(e),
        };
        if let Err(e) = self.store.events().room_for(self.bucket).await {
            return refused(e);
        }
        let slots: Vec<usize> = keys.iter().map(|key| slot_of(bucket_id, key.as_bytes())).collect();
        let entered = match self.store.enter_many(&slots).await {
            Ok(entered) => entered,
            Err(e) => return refused(e),
        };
        let mut results: Vec<Result<(), StoreError>> = keys.iter().map(|_| Ok(())).collect();
        let mut by_disk = BTreeMap::new();
        for (place, (key, slot)) in keys.into_iter().zip(slots).enumerate() {
            match entered.home_of(slot) {
                Ok(disk) => {
                    let deletes = by_disk.entry(disk.seat).or_insert_with(|| ManyDeletes::new(disk, self, durability));
                    deletes.push(place, key);
                }
                Err(e) => results[place] = Err(e),
            }
        }
        for (place, answer) in join_all(by_disk.into_values().map(ManyDeletes::run)).await.into_iter().flatten() {
            results[place] = answer;
        }
        results
    }
}
