//! Deletes what no state names that can be restored.
//!
//! Any head that a process has ever known suffices. What that head and the periods of its base do
//! not name, and what is not work under way, no later head names. The work of later owners has a
//! higher tenure. So deletes may be late, and a listing need not be exact.

use std::collections::VecDeque;
use std::convert::Infallible;

use parking_lot::Mutex;
use steadfast_flow::has_fault;
use tokio::sync::Notify;

use crate::attempts::Attempts;
use crate::error::ArchiveError;
use crate::name::{Numbered, ObjectName};
use crate::named_objects::NamedObjects;
use crate::options::ArchiveSabotage;

/// Most lists that wait. The next start finds what further ones name.
const WAITING_MAX: usize = 10_000;

/// Deletes objects, in the background.
pub(crate) struct Cleaner {
    attempts: Attempts,
    /// The tenure of this process.
    tenure: u64,
    sabotage: ArchiveSabotage,
    /// The lists of dropped objects that are to be deleted, with what they name.
    waiting: Mutex<VecDeque<Numbered>>,
    changed: Notify,
}

impl Cleaner {
    pub(crate) fn new(attempts: Attempts, tenure: u64, sabotage: ArchiveSabotage) -> Self {
        Self { attempts, tenure, sabotage, waiting: Mutex::default(), changed: Notify::new() }
    }

    /// Deletes what these lists name: the head that is known does not have the periods before them.
    pub(crate) fn expire(&self, lists: Vec<Numbered>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(lists);
        waiting.truncate(WAITING_MAX);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Deletes what processes before left that no state names, and what expires.
    pub(crate) async fn run(&self, named: NamedObjects) -> Infallible {
        let swept = async {
            if self.tenure > 1
                && let Err(error) = self.sweep(named).await
            {
                tracing::warn!(%error, "objects that earlier starts left in the archive stay until the next start");
            }
        };
        // Objects of others, or a listing that is refused, do not keep what expires.
        futures::join!(swept, self.delete_expired()).1
    }

    async fn delete_expired(&self) -> Infallible {
        loop {
            let next = self.waiting.lock().pop_front();
            let Some(list) = next else {
                self.changed.notified().await;
                continue;
            };
            if let Err(error) = self.delete_listed(list).await {
                tracing::warn!(%error, "objects of expired states stay in the archive until the next start");
            }
        }
    }

    async fn delete_listed(&self, list: Numbered) -> Result<(), ArchiveError> {
        let objects = NamedObjects::listed(&self.attempts, list).await?.unwrap_or_default();
        // The list is the last one: it is found again after a crash.
        let names = objects.into_iter().chain([ObjectName::Dropped(list)]).map(|of| of.to_string());
        self.attempts.delete(&names.collect::<Vec<_>>()).await
    }

    /// Deletes the objects of earlier owners that no state names: uploads that were interrupted.
    async fn sweep(&self, named: NamedObjects) -> Result<(), ArchiveError> {
        let named = named.complete(&self.attempts).await?;
        let mine = u64::from(has_fault(self.sabotage, ArchiveSabotage::OwnSwept));
        let is_left = |name: &&str| {
            let object = ObjectName::parse(name);
            object.is_some_and(|of| of.tenure() < self.tenure + mine && !named.has(of))
        };
        let mut after = String::new();
        loop {
            let page = self.attempts.list(&after).await?;
            let Some(last) = page.last() else { return Ok(()) };
            let left = page.iter().map(|entry| entry.name.as_str()).filter(is_left).map(str::to_owned);
            self.attempts.delete(&left.collect::<Vec<_>>()).await?;
            after.clone_from(&last.name);
        }
    }
}
