//! Keeps the lease of an owner: it answers clients only while no other can have taken its place.

use std::time::Duration;

use steadfast_flow::{Lease, has_fault};

use crate::alive::{Alive, AliveObject};
use crate::attempts::{Attempts, Pause};
use crate::error::ArchiveError;
use crate::head::Head;
use crate::head_writer::KnownHeadObject;
use crate::options::{ArchiveOptions, ArchiveSabotage};

/// A lease ends this much earlier than its length, as clocks differ in speed.
const MARGIN: Duration = Duration::from_secs(1);

/// Time before a heartbeat is sent again, and between two looks at a head that another process is
/// about to replace.
const REPEAT: Duration = Duration::from_millis(500);

/// Keeps the lease of an owner, with heartbeats.
pub(crate) struct LeaseKeeper {
    attempts: Attempts,
    lease: Lease,
    length: Duration,
    tenure: u64,
    machine: String,
    head: Head,
    sabotage: ArchiveSabotage,
    /// What is known to be there.
    last: Option<AliveObject>,
}

impl LeaseKeeper {
    /// Begins the lease of the owner of a head, with the first heartbeat. Without a lease in the
    /// options it ends that of an earlier owner, if one may have been `leased`, and returns `None`.
    ///
    /// # Errors
    /// Another process takes the archive over; [`ArchiveError::Marked`] if it may yet do so, until
    /// this one claims again; `alive` is not what it should be.
    pub(crate) async fn begin(
        attempts: Attempts,
        lease: Lease,
        head: &Head,
        options: &ArchiveOptions,
        leased: bool,
    ) -> Result<Option<Self>, ArchiveError> {
        if options.lease.is_none() && !leased {
            return Ok(None);
        }
        let head = Head { cut: None, ..head.clone() };
        let (machine, sabotage) = (options.machine.clone(), options.sabotage);
        let (tenure, length) = (head.tenure, options.lease.unwrap_or_default());
        let mut keeper = Self { attempts, lease, length, tenure, machine, head, sabotage, last: None };
        let (mut pause, mut was_removed) = (Pause::new(), false);
        loop {
            keeper.last = AliveObject::read(&keeper.attempts).await?;
            match &keeper.last {
                Some(there) if !keeper.may_follow(&there.alive) => return Err(keeper.taken().await),
                Some(there) if length.is_zero() && there.alive.lease_ms == 0 => return Ok(None),
                None if length.is_zero() => return Ok(None),
                // A mark on this tenure may have been removed too.
                None => was_removed |= leased,
                Some(_) => {}
            }
            let (next, sent) = (keeper.next()?, keeper.attempts.env().boot_time());
            if let Ok(first) = AliveObject::write_once(&keeper.attempts, keeper.last.as_ref(), &next).await {
                if was_removed {
                    return Err(ArchiveError::Marked(keeper.attempts.describe()));
                }
                keeper.last = Some(first);
                if length.is_zero() {
                    return Ok(None);
                }
                keeper.renew(sent);
                return Ok(Some(keeper));
            }
            keeper.attempts.wait(&mut pause).await?;
        }
    }

    /// Whether a heartbeat of this owner may replace what is there: not a mark of a process that
    /// takes the archive from it, nor a heartbeat of a later owner.
    fn may_follow(&self, there: &Alive) -> bool {
        there.tenure < self.tenure || (there.writer == self.head.owner && !there.is_mark)
    }

    fn next(&self) -> Result<Alive, ArchiveError> {
        Ok(Alive {
            version: self.last.as_ref().map_or(Ok(1), |last| last.alive.next_version())?,
            tenure: self.tenure,
            writer: self.head.owner,
            machine: self.machine.clone(),
            lease_ms: self.length.as_millis() as u64,
            is_mark: false,
        })
    }

    /// The lease lasts from the moment at which a heartbeat was sent that has happened.
    fn renew(&self, sent: Duration) {
        self.lease.renew((sent + self.length).saturating_sub(MARGIN));
    }

    /// Keeps the lease until another process takes the archive over. Returns why.
    pub(crate) async fn keep(mut self) -> ArchiveError {
        let every = self.length / 5;
        loop {
            self.attempts.env().sleep(every).await;
            if let Err(error) = self.beat(every).await {
                return error;
            }
        }
    }

    /// One heartbeat. Without a clear answer the same one is sent again, until it is known what
    /// happened. Each attempt may take `limit`.
    async fn beat(&mut self, limit: Duration) -> Result<(), ArchiveError> {
        let env = self.attempts.env().clone();
        let next = self.next()?;
        let last = self.last.clone().expect("the first heartbeat is known");
        let first_sent = env.boot_time();
        loop {
            let sent = env.boot_time();
            let writing = AliveObject::write_once(&self.attempts, Some(&last), &next);
            if let Some(Ok(written)) = env.timeout(limit, writing).await {
                let late = has_fault(self.sabotage, ArchiveSabotage::LeaseFromAnswer);
                self.renew(if late { env.boot_time() } else { sent });
                self.last = Some(written);
                return Ok(());
            }
            // It may have happened, or may still happen.
            match env.timeout(limit, AliveObject::read_once(&self.attempts)).await {
                Some(Ok(Some(Ok(there)))) if there.alive == next => {
                    self.renew(first_sent);
                    self.last = Some(there);
                    return Ok(());
                }
                Some(Ok(Some(Ok(there)))) if there.body == last.body => {}
                // A mark. It may have been removed since, or `alive` was put back to before it.
                Some(Ok(Some(Ok(_)) | None)) => {
                    self.lease.end();
                    return Err(self.taken().await);
                }
                // Some stores answer other things than objects while they are not well.
                Some(Ok(Some(Err(error)))) if !self.lease.holds() => return Err(error),
                Some(Ok(Some(Err(_))) | Err(_)) | None => {}
            }
            env.sleep(REPEAT).await;
        }
    }

    /// The process that has taken the archive, or was about to.
    async fn taken(&self) -> ArchiveError {
        let env = self.attempts.env().clone();
        let looks = async {
            loop {
                if let Ok(Some(Ok(KnownHeadObject { head, .. }))) = KnownHeadObject::read_once(&self.attempts).await
                    && head.owner != self.head.owner
                {
                    let kept = "as they were at the last stop".to_owned();
                    return ArchiveError::Superseded { machine: head.machine, tenure: head.tenure, kept };
                }
                env.sleep(REPEAT).await;
            }
        };
        let taken = env.timeout(2 * self.length.max(Duration::from_secs(5)), looks).await;
        taken.unwrap_or_else(|| ArchiveError::Marked(self.attempts.describe()))
    }
}
