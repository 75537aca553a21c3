//! Which segment a fill fetches next.

use std::sync::Arc;
use std::time::Duration;

use super::state::Step;
use super::{Fill, FillEnd, Plan};
use crate::error::EdgeError;
use crate::options::FillMode;
use crate::sabotage::Sabotage;

/// How long readers may take for an object in memory that could not be stored.
const LINGER: Duration = Duration::from_secs(60);

impl Fill {
    /// Fetches what readers wait for at once and the rest one segment at a time, until the object
    /// is complete or nothing more is wanted.
    pub(super) async fn schedule(self: &Arc<Self>, plan: &Arc<Plan>) -> Result<FillEnd, EdgeError> {
        let site = &self.site;
        // A version that replaces a stored object is stored, too.
        let mode = if self.base.is_some() { FillMode::Whole } else { site.options.fill };
        let mut linger_until = None;
        loop {
            let attached = self.is_attached() || site.has(Sabotage::CommitWithoutCondition);
            let step = self.state.lock().next_step(mode, attached);
            match step {
                Step::End(end) => return Ok(end),
                Step::Complete => {
                    if let Some(end) = self.complete(plan).await {
                        return Ok(end);
                    }
                    if site.has(Sabotage::CommitWithoutCondition) {
                        return Ok(FillEnd::Stopped);
                    }
                }
                Step::Fetch(segment) => self.spawn_fetch(plan, segment, None, None),
                Step::Ahead(segment) => {
                    tokio::select! {
                        biased;
                        () = self.work.notified() => {}
                        connection = site.connect_ahead() => {
                            // A bound that stays exhausted delays the rest.
                            if let Ok(connection) = connection
                                && self.state.lock().begin(segment, true)
                            {
                                self.spawn_fetch(plan, segment, Some(connection), None);
                            }
                        }
                    }
                }
                Step::Wait => self.work.notified().await,
                Step::Linger => {
                    let until = *linger_until.get_or_insert_with(|| site.env.now() + LINGER);
                    let left = until.saturating_sub(site.env.now());
                    if site.env.timeout(left, self.work.notified()).await.is_none() {
                        return Ok(FillEnd::Failed(EdgeError::Changed));
                    }
                }
            }
        }
    }
}
