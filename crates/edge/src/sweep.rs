//! Removal of segments that no fill will use any more.

use std::time::Duration;

use steadfast_flow::Env;
use steadfast_store::{Store, StoreError, UploadInfo, WEAK_ETAG};

use crate::edge::Edge;
use crate::sabotage::Sabotage;

/// How long the segments of a fill that has stopped are kept.
const PARTIAL_AGE: Duration = Duration::from_secs(3600);
/// Time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(600);
/// Uploads that are read at a time.
const PAGE: usize = 1000;

impl Edge {
    /// Sweeps now and then, as long as the process runs.
    pub(crate) fn spawn_sweep(&self, store: Store, env: Env) {
        let edge = self.clone();
        env.clone().spawn("edge-sweep", async move {
            loop {
                if let Err(error) = edge.sweep(&store, env.wall_ms()).await {
                    tracing::warn!(%error, "the segments of old fills could not be removed");
                }
                env.sleep(INTERVAL).await;
            }
        });
    }

    /// Aborts the fills that are not running and are too old, and those in buckets without an
    /// origin.
    ///
    /// # Errors
    /// Those of the store.
    async fn sweep(&self, store: &Store, now_ms: u64) -> Result<(), StoreError> {
        for bucket in store.buckets().all()? {
            let bucket = bucket.name;
            let mut after = Some((String::new(), String::new()));
            while let Some((key, upload)) = after {
                let page = store.contents(&bucket).fills((&key, &upload), PAGE)?;
                for fill in page.uploads {
                    match self.entry_of(&bucket) {
                        Ok(entry) if is_abandoned(&fill, now_ms) && !entry.bucket_state.has(Sabotage::NoSweep) => {
                            entry.bucket_state.abort_stopped(&fill.key, &fill.upload_id).await?;
                        }
                        Ok(_) => {}
                        Err(_) => match store.at(&bucket, &fill.key).fill(&fill.upload_id).abort().await {
                            Ok(()) | Err(StoreError::NoSuchUpload) => {}
                            Err(e) => return Err(e),
                        },
                    }
                }
                after = page.next;
            }
        }
        Ok(())
    }
}

/// Whether no later fill should continue this one.
fn is_abandoned(fill: &UploadInfo, now_ms: u64) -> bool {
    // Later answers could not be matched with segments under a weak entity tag.
    now_ms.saturating_sub(fill.created_ms) > PARTIAL_AGE.as_millis() as u64
        || fill.attributes.system.contains_key(WEAK_ETAG)
}
