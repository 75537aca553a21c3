//! The commit of a whole object.

use std::sync::Arc;

use steadfast_flow::shortened;
use steadfast_store::StoreError;

use super::question::upload_attributes;
use super::{Fill, FillEnd, Plan};
use crate::error::EdgeError;
use crate::fresh::Mark;
use crate::sabotage::Sabotage;

impl Fill {
    /// Begins the internal upload of an object of several segments.
    pub(super) async fn begin_upload(&self, plan: &Plan) -> Result<(), EdgeError> {
        if plan.segments() > 1 {
            let (store, bucket) = (&self.site.store, &self.site.options.bucket);
            let upload = store.at(bucket, &self.key).create_fill(upload_attributes(plan, &self.site.options)).await?;
            let mut state = self.state.lock();
            state.room = Some(self.site.inventory.space.found(0));
            state.upload = Some(upload.upload_id);
        }
        Ok(())
    }

    /// Makes the object of all segments. If that is not possible, the segments serve the readers
    /// that are there, and `None` is returned.
    pub(super) async fn complete(&self, plan: &Plan) -> Option<FillEnd> {
        let (store, bucket) = (&self.site.store, &self.site.options.bucket);
        let (writer, upload, mark) = {
            let mut state = self.state.lock();
            (state.writer.take(), state.upload.clone(), state.mark)
        };
        let mark = match self.site.has(Sabotage::AgeFromEnd) {
            true => Some(Mark::new(&self.site.options, &plan.headers, self.site.moment())),
            false => mark,
        };
        let mut stored = plan.stored.clone();
        stored.attributes.system.extend(mark.map(|mark| mark.attribute()));
        let condition = self.condition();
        let _kept = self.site.inventory.keep(&self.key);
        let written = match (writer, upload) {
            (Some(writer), _) => writer.commit_fill(stored, &condition).await,
            (None, Some(upload)) => {
                let segments = plan.segments() as u16;
                store.at(bucket, &self.key).fill(&upload).complete_fill(segments, &stored, &condition).await
            }
            (None, None) => Err(StoreError::NoSuchUpload),
        };
        let opened = match written {
            Ok(written) => {
                self.stored(plan);
                store.at(bucket, &self.key).reader().await.map(|reader| (reader, written.version))
            }
            Err(e) => Err(e),
        };
        match opened {
            Ok((reader, version)) if reader.info().version == version => {
                return Some(FillEnd::Stored(Arc::new(reader)));
            }
            Ok(_) | Err(StoreError::ConditionFailed) => {}
            Err(error) => tracing::warn!(%bucket, key = ?shortened(&self.key), %error, "a fill could not be stored"),
        }
        // Later requests begin a fill of their own.
        self.detach();
        None
    }

    /// The segments have become an object, in place of the stored one.
    fn stored(&self, plan: &Plan) {
        let room = self.state.lock().room.take();
        if let Some(room) = room {
            let replaced = self.base.as_ref().map_or(0, |base| base.info.size);
            self.site.inventory.space.stored(room, plan.info.size, replaced);
        }
        self.site.touch(&self.key);
    }
}
