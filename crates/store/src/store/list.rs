//! Listings: the shards' listings, merged. While a disk is missing, listings fail: a client would
//! take an incomplete one for the whole and believe that objects are gone.

use steadfast_flow::stages::{self, Stage};

use super::Store;
use crate::merge::{Listed, Merge, Source};
use crate::record::upload::UploadOwner;
use crate::shard::list::Item;
use crate::shard::uploads::{UploadItem, UploadItems};
use crate::{ListPage, ListQuery, StoreError, UploadPage};

impl Store {
    /// A page of the objects of a bucket.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Unavailable`] when a disk is missing,
    /// [`StoreError::Index`].
    pub fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage, StoreError> {
        let _lap = stages::enter(Stage::Index);
        let topology = self.topology();
        let id = topology.lead()?.find(bucket)?.id;
        let homes = topology.homes()?;
        let mut page = ListPage::default();
        if query.limit == 0 {
            return Ok(page);
        }
        let mut items = Merge::new(homes.into_iter().map(|(shard, owned)| shard.items(id, query, owned)).collect());
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

    /// Number of unfinished multipart uploads on the present disks.
    pub fn uploads_open(&self) -> u64 {
        self.topology().open().map(|(_, shard)| shard.applied.counts.uploads()).sum()
    }

    /// A page of the unfinished multipart uploads, by key and then by identity. `after` is an
    /// exclusive lower bound: a key and, when not empty, an upload of it.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Unavailable`] when a disk is missing,
    /// [`StoreError::Index`].
    pub fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        after: (&str, &str),
        limit: usize,
    ) -> Result<UploadPage, StoreError> {
        self.uploads_of(UploadOwner::Client, bucket, prefix, delimiter, after, limit)
    }

    /// A page of the unfinished fills of a bucket, by key and then by identity. `after` is an
    /// exclusive lower bound.
    ///
    /// # Errors
    /// Those of [`Store::uploads`].
    pub fn fills(&self, bucket: &str, after: (&str, &str), limit: usize) -> Result<UploadPage, StoreError> {
        self.uploads_of(UploadOwner::Server, bucket, "", "", after, limit)
    }

    /// [`Store::uploads`] of one kind of owner.
    pub(super) fn uploads_of(
        &self,
        owner: UploadOwner,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        after: (&str, &str),
        limit: usize,
    ) -> Result<UploadPage, StoreError> {
        let topology = self.topology();
        let id = topology.lead()?.find(bucket)?.id;
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
}
