//! The commit of a whole object.

use std::sync::Arc;

use steadfast_flow::shortened;
use steadfast_store::StoreError;

use super::first_request::upload_attributes;
use super::{Fill, FillEnd, FillTarget};
use crate::error::EdgeError;
use crate::fresh::FetchStamp;
use crate::sabotage::Sabotage;

/// Makes a stored object of the segments of a fill.
#[derive(Clone, Copy)]
pub(super) struct Commit<'a>(pub(super) &'a Arc<Fill>);

impl Commit<'_> {
    /// Begins the internal upload of an object of several segments.
    pub(super) async fn begin_upload(self, target: &FillTarget) -> Result<(), EdgeError> {
        if target.segments() > 1 {
            let (store, bucket) = (&self.0.bucket_state.store, &self.0.bucket_state.options.bucket);
            let upload = store
                .at(bucket, &self.0.key)
                .create_fill(upload_attributes(target, &self.0.bucket_state.options))
                .await?;
            let mut state = self.0.state.lock();
            state.room = Some(self.0.bucket_state.inventory.space.account(0));
            state.upload = Some(upload.upload_id);
        }
        Ok(())
    }

    /// Makes the object of all segments. If that is not possible, the segments serve the readers
    /// that are there, and `None` is returned.
    pub(super) async fn complete(self, target: &FillTarget) -> Option<FillEnd> {
        let (store, bucket) = (&self.0.bucket_state.store, &self.0.bucket_state.options.bucket);
        let (writer, upload, stamp) = {
            let mut state = self.0.state.lock();
            (state.writer.take(), state.upload.clone(), state.stamp)
        };
        let stamp = match self.0.bucket_state.has(Sabotage::AgeFromEnd) {
            true => Some(FetchStamp::new(&self.0.bucket_state.options, &target.headers, self.0.bucket_state.moment())),
            false => stamp,
        };
        let mut stored = target.stored.clone();
        stored.attributes.system.extend(stamp.map(|stamp| stamp.attribute()));
        let condition = self.0.condition();
        let _kept = self.0.bucket_state.inventory.keep(&self.0.key);
        let written = match (writer, upload) {
            (Some(writer), _) => writer.commit_fill(stored, &condition).await,
            (None, Some(upload)) => {
                let segments = target.segments() as u16;
                store.at(bucket, &self.0.key).fill(&upload).complete_fill(segments, &stored, &condition).await
            }
            (None, None) => Err(StoreError::NoSuchUpload),
        };
        let opened = match written {
            Ok(written) => {
                self.stored(target);
                store.at(bucket, &self.0.key).reader().await.map(|reader| (reader, written.version))
            }
            Err(e) => Err(e),
        };
        match opened {
            Ok((reader, version)) if reader.info().version == version => {
                return Some(FillEnd::Stored(Arc::new(reader)));
            }
            Ok(_) | Err(StoreError::ConditionFailed) => {}
            Err(error) => tracing::warn!(%bucket, key = ?shortened(&self.0.key), %error, "a fill could not be stored"),
        }
        // Later requests begin a fill of their own.
        self.0.detach();
        None
    }

    /// The segments have become an object, in place of the stored one.
    fn stored(self, target: &FillTarget) {
        let room = self.0.state.lock().room.take();
        if let Some(room) = room {
            let replaced = self.0.base.as_ref().map_or(0, |base| base.info.size);
            self.0.bucket_state.inventory.space.stored(room, target.info.size, replaced);
        }
        self.0.bucket_state.touch(&self.0.key);
    }
}
