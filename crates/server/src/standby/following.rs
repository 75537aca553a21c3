//! The course of a standby: it waits for an archive, follows, and is promoted.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use steadfast_archive::{
    ArchiveError, ArchiveReader, ArchiveSabotage, ArchivedPool, FollowEnd, RestoreError, Standby, StandbyParts,
    StateKeeper, TakeOver, TransferProgress,
};
use steadfast_flow::Env;
use steadfast_net::RemoteStore;
use tokio::sync::{mpsc, watch};

use super::pool::StandbyPool;
use super::server::{PromoteRequest, StandbyPhase, StandbyState};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::private_file;
use crate::restoring::standby_mark::StandbyMark;
use crate::restoring::{RestoreRequest, Restored, Restoring};
use crate::serve::ServeError;
use crate::serve::archive::{StateFile, machine};

/// Time for which requests of a promotion are repeated before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps the head whose state the disks hold.
struct HeadFile(PathBuf);

impl StateKeeper for HeadFile {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(&self.0) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        private_file::store_bytes(&self.0, bytes)
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }
}

/// The course of a standby.
pub(super) struct Following<'a> {
    pub(super) config: &'a Config,
    pub(super) data: &'a DataDir,
    pub(super) state: Arc<StandbyState>,
    pub(super) env: &'a Env,
}

impl Following<'_> {
    /// Follows until the standby is promoted.
    ///
    /// # Errors
    /// Why it cannot follow.
    pub(super) async fn run(&self, mut requests: mpsc::Receiver<PromoteRequest>) -> Result<(), ServeError> {
        let store = self.config.archive.store(self.env)?.expect("the configuration of a standby names an archive");
        if self.data.restoring().exists() {
            self.state.enter(StandbyPhase::Promoting(None));
            let restored = self.restoring(&store, &TransferProgress::default())?.run().await?;
            self.announce(&restored);
            return Ok(());
        }
        let reader = ArchiveReader::new(store.clone(), Some(PATIENCE), self.env);
        let newest = self.refusing(&mut requests, self.wait_for_copy(&reader, &store)).await?;
        let pool = StandbyPool { config: self.config, data: self.data, env: self.env };
        let mark = pool.mark(&store.describe(), &newest)?;
        let disks = pool.open(&mark, &newest).await?;
        drop(newest);
        let parts = StandbyParts {
            store: store.clone(),
            owner: Arc::new(StateFile(self.data.archive())),
            held: Arc::new(HeadFile(self.data.standby_head())),
            id: mark.id(),
            disks,
            takes_over: self.config.archive.lease().is_some(),
            sabotage: ArchiveSabotage::default(),
        };
        let opening = async { Standby::open(parts, self.env).await.map_err(|e| e.to_string().into()) };
        let mut standby = self.refusing(&mut requests, opening).await?;
        tracing::info!(archive = %store.describe(), "a standby: its disks follow the archive");
        loop {
            let (end, request) = self.follow(&mut standby, &mut requests).await?;
            if end == FollowEnd::Stopped && request.as_ref().is_none_or(PromoteRequest::is_given_up) {
                tracing::warn!("not promoted: the command was given up");
                continue;
            }
            self.state.enter(StandbyPhase::Promoting(Some(standby.progress())));
            let promotion = match (end, &request) {
                (FollowEnd::Stopped, Some(request)) => {
                    let from = if request.force { TakeOver::Any } else { TakeOver::Idle };
                    standby.promote(&reader, &machine(), from).await
                }
                (FollowEnd::LeaseEnded, _) => {
                    tracing::warn!("the lease of the owner has ended: the standby takes the archive over");
                    standby.take_over(&reader, &machine()).await
                }
                // An earlier promotion was interrupted.
                _ => standby.promote_owned(&reader).await,
            };
            match (promotion, request) {
                (Ok(promotion), request) => {
                    let answer = json!({"tenure": promotion.tenure(), "time_ms": promotion.time_ms(), "complete": promotion.is_complete()});
                    if let Some(request) = request {
                        request.answer(Ok(answer));
                    }
                    drop(standby);
                    return self.end(&store, &promotion, &mark).await;
                }
                (Err(e), Some(request)) => {
                    tracing::error!(error = %e, "not promoted");
                    request.answer(Err(e.to_string()));
                }
                // If it has claimed the archive, the next look finds that.
                (Err(RestoreError::Archive(e)), None) if end == FollowEnd::LeaseEnded => {
                    tracing::warn!(error = %e, "the archive was not taken over: the standby follows it");
                }
                (Err(RestoreError::Archive(e)), None) => return Err(e.into()),
                (Err(e), None) => return Err(e.to_string().into()),
            }
        }
    }

    /// Waits until the archive has a complete copy.
    async fn wait_for_copy(
        &self,
        reader: &ArchiveReader,
        store: &Arc<dyn RemoteStore>,
    ) -> Result<ArchivedPool, ServeError> {
        let mut last = None;
        loop {
            match reader.newest().await {
                Ok(newest) => return Ok(newest),
                Err(e @ (ArchiveError::NothingYet(_) | ArchiveError::Foreign(_) | ArchiveError::Unreachable(_))) => {
                    let why = e.to_string();
                    self.state.enter(StandbyPhase::Waiting(why.clone()));
                    if last.as_ref() != Some(&why) {
                        tracing::warn!(archive = %store.describe(), "the standby waits: {why}");
                    }
                    last = Some(why);
                }
                Err(e) => return Err(e.into()),
            }
            self.env.sleep(self.config.archive.interval).await;
        }
    }

    /// Does some work, and refuses promotions meanwhile.
    async fn refusing<T>(
        &self,
        requests: &mut mpsc::Receiver<PromoteRequest>,
        work: impl Future<Output = Result<T, ServeError>>,
    ) -> Result<T, ServeError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(request) = requests.recv() => request.answer(Err(self.state.not_ready())),
            }
        }
    }

    /// Follows until a promotion is requested, an earlier one has claimed the archive, or the lease
    /// of its owner has ended.
    async fn follow(
        &self,
        standby: &mut Standby,
        requests: &mut mpsc::Receiver<PromoteRequest>,
    ) -> Result<(FollowEnd, Option<PromoteRequest>), ServeError> {
        let progress = standby.progress();
        self.state.enter(StandbyPhase::Following(progress.clone()));
        let (stop, stopped) = watch::channel(false);
        let mut following = std::pin::pin!(standby.follow(self.config.archive.interval, stopped));
        let mut request = None;
        loop {
            tokio::select! {
                biased;
                end = &mut following => return Ok((end.map_err(|e| e.to_string())?, request)),
                Some(first) = requests.recv(), if request.is_none() => {
                    if progress.status().copied_ms.is_none() {
                        first.answer(Err(self.state.not_ready()));
                        continue;
                    }
                    stop.send_replace(true);
                    request = Some(first);
                }
            }
        }
    }

    fn restoring<'b>(
        &'b self,
        store: &Arc<dyn RemoteStore>,
        progress: &'b TransferProgress,
    ) -> Result<Restoring<'b>, String> {
        Restoring::new(self.config, self.data, RestoreRequest::default(), store.clone(), progress, self.env)
    }

    /// Makes the disks a pool.
    async fn end(
        &self,
        store: &Arc<dyn RemoteStore>,
        promotion: &ArchivedPool,
        mark: &StandbyMark,
    ) -> Result<(), ServeError> {
        let restored = self.restoring(store, &TransferProgress::default())?.promote(promotion, mark).await?;
        self.announce(&restored);
        Ok(())
    }

    fn announce(&self, restored: &Restored) {
        let Restored { time_ms, tenure, objects, .. } = restored;
        tracing::warn!(state_ms = time_ms, tenure, objects, "the standby is promoted: its pool owns the archive now");
        restored.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
}
