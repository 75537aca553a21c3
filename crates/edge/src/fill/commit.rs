//! The commit of a whole object.

use std::sync::Arc;

use steadfast_flow::shortened;
use steadfast_store::StoreError;

use super::question::upload_attributes;
use super::{Fill, FillEnd, Plan};
use crate::error::EdgeError;
use crate::fresh::Mark;
use crate::sabotage::Sabotage;

/// Makes a stored object of the segments of a fill.
#[derive(Clone, Copy)]
pub(super) struct Commit<'a>(pub(super) &'a Arc<Fill>);

impl Commit<'_> {
    /// Begins the internal upload of an object of several segments.
    pub(super) async fn begin_upload(self, plan: &Plan) -> Result<(), EdgeError> {
        if plan.segments() > 1 {
            let (store, bucket) = (&self.0.site.store, &self.0.site.options.bucket);
            let upload =
                store.at(bucket, &self.0.key).create_fill(upload_attributes(plan, &self.0.site.options)).await?;
            let mut state = self.0.state.lock();
            state.room = Some(self.0.site.inventory.space.found(0));
            state.upload = Some(upload.upload_id);
        }
        Ok(())
    }

    /// Makes the object of all segments. If that is not possible, the segments serve the readers
    /// that are there, and `None` is returned.
    pub(super) async fn complete(self, plan: &Plan) -> Option<FillEnd> {
        let (store, bucket) = (&self.0.site.store, &self.0.site.options.bucket);
        let (writer, upload, mark) = {
            let mut state = self.0.state.lock();
            (state.writer.take(), state.upload.clone(), state.mark)
        };
        let mark = match self.0.site.has(Sabotage::AgeFromEnd) {
            true => Some(Mark::new(&self.0.site.options, &plan.headers, self.0.site.moment())),
            false => mark,
        };
        let mut stored = plan.stored.clone();
        stored.attributes.system.extend(mark.map(|mark| mark.attribute()));
        let condition = self.0.condition();
        let _kept = self.0.site.inventory.keep(&self.0.key);
        let written = match (writer, upload) {
            (Some(writer), _) => writer.commit_fill(stored, &condition).await,
            (None, Some(upload)) => {
                let segments = plan.segments() as u16;
                store.at(bucket, &self.0.key).fill(&upload).complete_fill(segments, &stored, &condition).await
            }
            (None, None) => Err(StoreError::NoSuchUpload),
        };
        let opened = match written {
            Ok(written) => {
                self.stored(plan);
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
    fn stored(self, plan: &Plan) {
        let room = self.0.state.lock().room.take();
        if let Some(room) = room {
            let replaced = self.0.base.as_ref().map_or(0, |base| base.info.size);
            self.0.site.inventory.space.stored(room, plan.info.size, replaced);
        }
        self.0.site.touch(&self.0.key);
    }
}
