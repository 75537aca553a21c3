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
use crate::document::{DocumentKind, decode};
use crate::error::ArchiveError;
use crate::load::{DOCUMENT_BYTES_MAX, Loaded};
use crate::name::{Numbered, ObjectName};
use crate::options::ArchiveSabotage;

/// Most lists that wait. The next start finds what further ones name.
const WAITING_MAX: usize = 10_000;

/// What states name of the objects of earlier owners, when this process claimed the archive.
#[derive(Debug)]
pub(crate) struct NamedObjects {
    /// Kinds and numbers: names take several times as much memory.
    keys: Vec<(u8, Numbered)>,
    /// The lists of dropped objects, which earlier states name.
    lists: Vec<Numbered>,
}

impl NamedObjects {
    pub(crate) fn new(loaded: &Loaded) -> Self {
        let all = loaded.image.objects().chain(loaded.dropped.objects()).chain(loaded.periods.documents());
        Self { keys: all.map(ObjectName::key).collect(), lists: loaded.periods.lists().collect() }
    }
}

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

    /// Deletes what processes before left that no state names, then what expires.
    pub(crate) async fn run(&self, named: NamedObjects) -> Infallible {
        if self.tenure > 1
            && let Err(error) = self.sweep(named).await
        {
            tracing::warn!(%error, "objects that earlier starts left in the archive stay until the next start");
        }
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

    async fn read(&self, list: Numbered) -> Result<Vec<ObjectName>, ArchiveError> {
        let name = ObjectName::Dropped(list).to_string();
        let object = self.attempts.read(&name, None, DOCUMENT_BYTES_MAX).await?;
        decode(DocumentKind::Dropped, &object.body).map(|(objects, _)| objects).map_err(ArchiveError::document(&name))
    }

    async fn delete_listed(&self, list: Numbered) -> Result<(), ArchiveError> {
        let objects = self.read(list).await?;
        // The list is the last one: it is found again after a crash.
        let names = objects.into_iter().chain([ObjectName::Dropped(list)]).map(|of| of.to_string());
        self.attempts.delete(&names.collect::<Vec<_>>()).await
    }

    /// Deletes the objects of earlier owners that no state names: uploads that were interrupted.
    async fn sweep(&self, named: NamedObjects) -> Result<(), ArchiveError> {
        let NamedObjects { mut keys, lists } = named;
        for list in lists {
            keys.extend(self.read(list).await?.into_iter().map(ObjectName::key));
        }
        keys.sort_unstable();
        let mine = u64::from(has_fault(self.sabotage, ArchiveSabotage::OwnSwept));
        let is_left = |name: &&str| {
            let object = ObjectName::parse(name);
            object.is_some_and(|of| of.tenure() < self.tenure + mine && keys.binary_search(&of.key()).is_err())
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
