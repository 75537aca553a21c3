//! Watches the lease of an owner, to take the archive over when it has ended.

use std::time::Duration;

use crate::alive::{Alive, AliveObject};
use crate::attempts::Attempts;
use crate::error::ArchiveError;
use crate::head::Owner;
use crate::name::ALIVE;
use crate::place::AttemptError;

/// How many times longer than a lease another process may take for a take-over that it has begun.
const TAKE_OVER_LEASES: u32 = 10;

/// What a look at a lease has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// The owner answers without a lease, or did not begin one.
    None,
    /// It has ended if the owner does not renew it for this time.
    Holds(Duration),
    /// It has ended.
    Ended,
}

/// Watches the lease of an owner.
#[derive(Debug, Default)]
pub(crate) struct LeaseWatch {
    /// What was read, and when it was read first, and last.
    seen: Option<(AliveObject, Duration, Duration)>,
    is_renewed: bool,
}

impl LeaseWatch {
    /// Whether the lease was renewed between two looks.
    pub(crate) fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    /// Looks once.
    ///
    /// # Errors
    /// When a request failed, or it is no lease.
    pub(crate) async fn look(&mut self, attempts: &Attempts) -> Result<LeaseState, AttemptError> {
        let there = AliveObject::read_once(attempts).await?;
        // The lease is older than this look.
        let now = attempts.env().now();
        let Some(there) = there.transpose()? else {
            self.seen = None;
            return Ok(LeaseState::None);
        };
        let Alive { lease_ms, is_mark, .. } = there.alive;
        let length = Duration::from_millis(lease_ms);
        let since = match self.seen.take() {
            // A store that was away was so for the owner too: that gets time to renew it.
            Some((seen, _, last)) if seen.body == there.body && now - last > length / 2 => now,
            Some((seen, since, _)) if seen.body == there.body => since,
            seen => {
                self.is_renewed |= seen.is_some();
                now
            }
        };
        self.seen = Some((there, since, now));
        if lease_ms == 0 {
            return Ok(LeaseState::None);
        }
        // Clocks differ in speed by less than a tenth.
        let wait = if is_mark { length.saturating_mul(TAKE_OVER_LEASES) } else { length + length / 10 };
        let left = wait.saturating_sub(now - since);
        Ok(if left.is_zero() { LeaseState::Ended } else { LeaseState::Holds(left) })
    }

    /// Marks the lease that was read last: the owner of this tenure cannot renew it any more. It is
    /// counted anew afterwards. Returns whether it was marked: not so if it was renewed, or if that
    /// is not clear.
    ///
    /// # Errors
    /// [`ArchiveError::Broken`] when it is no lease.
    pub(crate) async fn mark(
        &mut self,
        attempts: &Attempts,
        tenure: u64,
        machine: &str,
        writer: Owner,
    ) -> Result<bool, ArchiveError> {
        let (seen, ..) = self.seen.take().expect("a lease was read");
        if seen.alive.tenure > tenure {
            return Err(ArchiveError::broken(ALIVE, "it is newer than the head"));
        }
        let (version, lease_ms, machine) = (seen.alive.next_version()?, seen.alive.lease_ms, machine.to_owned());
        let mark = Alive { version, tenure, writer, machine, lease_ms, is_mark: true };
        // One attempt: the store may have been away for the owner too.
        if AliveObject::write_once(attempts, Some(&seen), &mark).await.is_ok() {
            return Ok(true);
        }
        match AliveObject::read_once(attempts).await {
            Ok(Some(there)) => Ok(there?.alive == mark),
            Ok(None) | Err(_) => Ok(false),
        }
    }
}
