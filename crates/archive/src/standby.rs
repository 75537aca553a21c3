//! Follows an archive onto disks of this machine, and takes it over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_flow::{Env, has_fault};
use steadfast_net::RemoteStore;
use tokio::sync::watch;

use crate::archived_pool::ArchivedPool;
use crate::attempts::Attempts;
use crate::disk_writer::{RestoreError, RestorePlace};
use crate::document::{DocumentKind, decode};
use crate::error::ArchiveError;
use crate::followed_image::FollowedImage;
use crate::head::{Head, NamedCut};
use crate::head_writer::KnownHeadObject;
use crate::held_uses::HeldUses;
use crate::image::Image;
use crate::inline::Inline;
use crate::lease_watch::{LeaseState, LeaseWatch};
use crate::name::{DiskId, HEAD};
use crate::options::ArchiveSabotage;
use crate::own_state::{OwnState, StateKeeper};
use crate::part_reader::PartReader;
use crate::place::AttemptError;
use crate::reader::{ArchiveReader, JudgedOwner, TakeOver};
use crate::standby_disks::{StandbyDisk, StandbyDisks};
use crate::standby_progress::StandbyProgress;

/// The longest time between two looks at a lease.
const LEASE_LOOK: Duration = Duration::from_secs(1);

/// What a standby needs of its surroundings.
pub struct StandbyParts {
    /// The archive.
    pub store: Arc<dyn RemoteStore>,
    /// Keeps the owner numbers of this machine.
    pub owner: Arc<dyn StateKeeper>,
    /// Keeps what the disks hold.
    pub held: Arc<dyn StateKeeper>,
    /// The identity of the standby, with which its disks are marked.
    pub id: [u8; 16],
    /// The disks, one for each disk of the archived pool.
    pub disks: BTreeMap<DiskId, StandbyDisk>,
    /// Whether it is to take the archive over when the lease of the owner has ended.
    pub takes_over: bool,
    /// A deliberate bug, to test the simulator.
    #[doc(hidden)]
    pub sabotage: ArchiveSabotage,
}

/// Why a standby follows no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowEnd {
    /// It was to stop.
    Stopped,
    /// The archive is owned by this machine: an earlier promotion has claimed it.
    Owned,
    /// The lease of the owner has ended.
    LeaseEnded,
}

/// A standby: its disks follow an archive.
pub struct Standby {
    attempts: Attempts,
    owner: OwnState,
    keeper: Arc<dyn StateKeeper>,
    image: FollowedImage,
    disks: StandbyDisks,
    /// Version of the head whose state the disks hold; 0: of none.
    version: u64,
    /// The lease of the owner, if it is watched.
    lease: Option<LeaseWatch>,
    progress: StandbyProgress,
    sabotage: ArchiveSabotage,
}

impl Standby {
    /// Looks what the disks hold. Waits for the store.
    ///
    /// # Errors
    /// Those of the disks, and of what is kept beside them.
    pub async fn open(parts: StandbyParts, env: &Env) -> Result<Self, RestoreError> {
        let StandbyParts { store, owner, held: keeper, id, disks, takes_over, sabotage } = parts;
        let attempts = Attempts::new(store, env);
        let owner = OwnState::load(owner, env).await?;
        let (mut image, mut version, mut held) = (FollowedImage::default(), 0, None);
        let mut are_begun = true;
        for of in disks.values() {
            are_begun &= RestorePlace::is_begun(&of.disk, id).await;
        }
        if !are_begun {
            // Before they are marked, or the next start would take them for what was kept.
            Self::save(&keeper, Bytes::new(), env).await?;
        }
        if let Some((head, cut)) = Self::held_head(&keeper, env).await? {
            match Self::read(&mut image, &attempts, &cut).await {
                Ok(whole) => (version, held) = (head.version, Some(HeldUses::of(&whole))),
                // The state has expired since. The disks are looked at instead.
                Err(ArchiveError::Broken { .. }) => image = FollowedImage::default(),
                Err(e) => return Err(e.into()),
            }
        }
        let disks = StandbyDisks::open(disks, id, held, sabotage, env).await?;
        let progress = StandbyProgress::new(&attempts);
        let lease = takes_over.then(LeaseWatch::default);
        Ok(Self { attempts, owner, keeper, image, disks, version, lease, progress, sabotage })
    }

    /// The last head whose state the disks are known to hold.
    async fn held_head(keeper: &Arc<dyn StateKeeper>, env: &Env) -> Result<Option<(Head, NamedCut)>, ArchiveError> {
        let (reader, place) = (keeper.clone(), keeper.place());
        let kept = env.blocking(move || reader.load()).await;
        let kept = kept.unwrap_or_else(|| Err(std::io::Error::other("reading it has panicked")));
        let kept = kept.map_err(|e| ArchiveError::State(format!("{place}: {e}")))?;
        let head = kept.and_then(|kept| decode::<Head>(DocumentKind::Head, &Bytes::from(kept)).ok());
        Ok(head.and_then(|(mut head, _)| head.cut.take().map(|cut| (head, cut))))
    }

    async fn read(image: &mut FollowedImage, attempts: &Attempts, cut: &NamedCut) -> Result<Image, ArchiveError> {
        image.advance(attempts, cut).await?;
        let whole = image.whole(&cut.changes)?;
        image.taken();
        Ok(whole)
    }

    /// How far it is.
    pub fn progress(&self) -> StandbyProgress {
        self.progress.clone()
    }

    /// Follows until `stop` is set, with a look at the archive each `interval`. Nothing is under
    /// way when it has returned.
    ///
    /// # Errors
    /// Those of the disks. What is wrong with the archive is in the status, and looked at again.
    pub async fn follow(
        &mut self,
        interval: Duration,
        mut stop: watch::Receiver<bool>,
    ) -> Result<FollowEnd, RestoreError> {
        let env = self.attempts.env().clone();
        loop {
            let looked = env.now();
            match KnownHeadObject::read_once(&self.attempts).await {
                Ok(Some(Ok(head))) if self.owner.drew(head.head.owner) => return Ok(FollowEnd::Owned),
                Ok(Some(Ok(head))) => match self.catch_up(&head).await {
                    Ok(()) => self.progress.current(looked),
                    Err(RestoreError::Archive(e)) => self.progress.failed(e.to_string()),
                    Err(e) => return Err(e),
                },
                Ok(Some(Err(e))) => self.progress.failed(e.to_string()),
                Ok(None) => self.progress.failed(ArchiveError::broken(HEAD, "it was removed").to_string()),
                // The status has it.
                Err(_) => {}
            }
            let mut next = interval;
            match self.look_at_lease().await {
                LeaseState::Ended => return Ok(FollowEnd::LeaseEnded),
                LeaseState::Holds(left) => next = next.min(LEASE_LOOK).min(left),
                LeaseState::None => {}
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(FollowEnd::Stopped),
                () = env.sleep(next) => {}
            }
        }
    }

    /// Looks at the lease of the owner, once the disks hold a state. A look that fails shows no
    /// lease.
    async fn look_at_lease(&mut self) -> LeaseState {
        let Some(watch) = self.lease.as_mut().filter(|_| self.version > 0) else { return LeaseState::None };
        let state = match watch.look(&self.attempts).await {
            Ok(state) => state,
            Err(AttemptError::Failed) => return LeaseState::None,
            Err(AttemptError::Final(e)) => {
                self.progress.failed(e.to_string());
                LeaseState::None
            }
        };
        self.progress.lease(state);
        state
    }

    /// Copies what the disks lack of the state of a head.
    async fn catch_up(&mut self, head: &KnownHeadObject) -> Result<(), RestoreError> {
        self.progress.read(&head.head);
        let nothing_yet = || ArchiveError::NothingYet(self.attempts.describe());
        let cut = head.head.cut.as_ref().ok_or_else(nothing_yet)?;
        if head.head.version == self.version {
            self.progress.holds(&head.head);
            return Ok(());
        }
        if head.head.version < self.version {
            return Err(ArchiveError::broken(HEAD, "it was put back to an earlier state").into());
        }
        self.image.advance(&self.attempts, cut).await?;
        let mut of_head = cut.changes.clone();
        let inline = Inline::take(&mut of_head, &head.payload).map_err(ArchiveError::image(HEAD))?;
        let parts = Arc::new(PartReader::new(self.attempts.clone(), inline));
        if has_fault(self.sabotage, ArchiveSabotage::HeadKeptFirst) {
            Self::save(&self.keeper, head.body.clone(), self.attempts.env()).await?;
        }
        self.disks.copy(&self.image.changes(&of_head)?, &parts, &self.progress.transfer).await?;
        Self::save(&self.keeper, head.body.clone(), self.attempts.env()).await?;
        self.image.taken();
        self.version = head.head.version;
        self.progress.holds(&head.head);
        Ok(())
    }

    /// Keeps the head whose state the disks hold.
    async fn save(keeper: &Arc<dyn StateKeeper>, head: Bytes, env: &Env) -> Result<(), ArchiveError> {
        let (writer, place) = (keeper.clone(), keeper.place());
        let saved = env.blocking(move || writer.save(&head)).await;
        let saved = saved.unwrap_or_else(|| Err(std::io::Error::other("writing it has panicked")));
        saved.map_err(|e| ArchiveError::State(format!("{place}: {e}")))
    }

    /// Takes the archive over, and has the disks hold the state in the head of this claim, which
    /// is returned. They are made a pool with [`ArchivedPool::finish`].
    ///
    /// # Errors
    /// Why it cannot be taken over; those of the disks. If the archive was claimed nevertheless,
    /// [`Standby::follow`] finds that, and [`Standby::promote_owned`] continues.
    pub async fn promote(
        &mut self,
        reader: &ArchiveReader,
        machine: &str,
        from: TakeOver,
    ) -> Result<ArchivedPool, RestoreError> {
        // As much as possible before the owner is ended.
        let (_, head) = reader.head().await?;
        self.catch_up(&head).await?;
        let (head, complete) = reader.claim(&mut self.owner, machine, from).await?;
        self.promoted(&head, complete).await
    }

    /// As [`Standby::promote`], when the lease of the owner has ended.
    ///
    /// # Errors
    /// [`ArchiveError::InUse`] when the owner has renewed it; those of [`Standby::promote`].
    pub async fn take_over(&mut self, reader: &ArchiveReader, machine: &str) -> Result<ArchivedPool, RestoreError> {
        let mut watch = self.lease.replace(LeaseWatch::default()).expect("a lease is watched");
        let (_, head) = reader.head().await?;
        self.catch_up(&head).await?;
        let judged = match has_fault(self.sabotage, ArchiveSabotage::UnmarkedTakeOver) {
            true => Some(JudgedOwner::new(&head.head).marked()),
            false => reader.mark(&mut watch, &self.owner, machine).await?,
        };
        let Some(judged) = judged else {
            return Err(ArchiveError::InUse { machine: head.head.machine, age_s: 0 }.into());
        };
        let (head, complete) = reader.claim_from(&mut self.owner, machine, TakeOver::Idle, Some(judged)).await?;
        self.promoted(&head, complete).await
    }

    /// Continues a promotion that has claimed the archive and was interrupted.
    ///
    /// # Errors
    /// As [`Standby::promote`]; [`ArchiveError::Superseded`] when another process has taken it
    /// since.
    pub async fn promote_owned(&mut self, reader: &ArchiveReader) -> Result<ArchivedPool, RestoreError> {
        let (_, head) = reader.head().await?;
        if !self.owner.drew(head.head.owner) {
            let (machine, tenure) = (head.head.machine, head.head.tenure);
            return Err(ArchiveError::Superseded { machine, tenure, kept: "none yet".to_owned() }.into());
        }
        self.owner.taken_over(&head.head).await?;
        self.promoted(&head, false).await
    }

    async fn promoted(&mut self, head: &KnownHeadObject, complete: bool) -> Result<ArchivedPool, RestoreError> {
        self.catch_up(head).await?;
        let cut = head.head.cut.as_ref().expect("it was caught up with");
        let image = self.image.whole(&cut.changes)?;
        let parts = Arc::new(PartReader::new(self.attempts.clone(), Inline::default()));
        self.disks.fill(&image, &parts).await?;
        Ok(ArchivedPool::of_copy(&self.attempts, image, cut.time_ms).owned(head.head.tenure, complete))
    }
}
