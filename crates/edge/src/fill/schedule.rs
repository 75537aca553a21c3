//! Which segment a fill fetches next.

use std::sync::Arc;
use std::time::Duration;

use super::commit::Commit;
use super::fetch::Fetch;
use super::state::Step;
use super::{Fill, FillEnd, FillTarget};
use crate::error::EdgeError;
use crate::options::FillMode;
use crate::sabotage::Sabotage;

/// How long readers may take for an object in memory that could not be stored.
const LINGER: Duration = Duration::from_secs(60);

/// Fetches what readers wait for at once and the rest one segment at a time, until the object
/// is complete or nothing more is wanted.
pub(super) async fn schedule(fill: &Arc<Fill>, target: &Arc<FillTarget>) -> Result<FillEnd, EdgeError> {
    let bucket_state = &fill.bucket_state;
    // A version that replaces a stored object is stored, too.
    let mode = if fill.base.is_some() { FillMode::Whole } else { bucket_state.options.fill };
    let mut linger_until = None;
    loop {
        let attached = fill.is_attached() || bucket_state.has(Sabotage::CommitWithoutCondition);
        let step = fill.state.lock().next_step(mode, attached);
        match step {
            Step::End(end) => return Ok(end),
            Step::Complete => {
                if let Some(end) = Commit(fill).complete(target).await {
                    return Ok(end);
                }
                if bucket_state.has(Sabotage::CommitWithoutCondition) {
                    return Ok(FillEnd::Stopped);
                }
            }
            Step::Fetch(segment) => Fetch(fill).spawn_fetch(target, segment, None, None),
            Step::Ahead(segment) => {
                tokio::select! {
                    biased;
                    () = fill.work.notified() => {}
                    connection = bucket_state.connect_ahead() => {
                        // A bound that stays exhausted delays the rest.
                        if let Ok(connection) = connection
                            && fill.state.lock().begin(segment, true)
                        {
                            Fetch(fill).spawn_fetch(target, segment, Some(connection), None);
                        }
                    }
                }
            }
            Step::Wait => fill.work.notified().await,
            Step::Linger => {
                let until = *linger_until.get_or_insert_with(|| bucket_state.env.now() + LINGER);
                let left = until.saturating_sub(bucket_state.env.now());
                if bucket_state.env.timeout(left, fill.work.notified()).await.is_none() {
                    return Ok(FillEnd::Failed(EdgeError::Changed));
                }
            }
        }
    }
}
