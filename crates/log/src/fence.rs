//! Noticing that somebody else has opened the disk: a volume of a network that is attached to two machines, where no lock of either reaches the other.
//!
//! Each opening that may write says so in the superblock first. The one before looks there before it takes an extent, which the other may have taken,
//! too, before it marks one free or heals one, which the other may be using, and every few seconds. It stops then: what it still writes would be lost, or worse, be taken for the other's. What was
//! committed between the other's coming and the look may be lost: nothing that the disks offer everywhere prevents that.

use std::sync::Arc;
use std::time::Duration;

use crate::LogError;
use crate::background::Stop;
use crate::extents::Extents;
use crate::log::Shared;
use crate::pool;

/// How often to look, also while nothing is written: what is written next goes where the other may have written meanwhile.
const EVERY: Duration = Duration::from_secs(5);

/// Closes the latch when somebody else has the pool.
///
/// # Errors
/// [`LogError::Failed`] then.
pub(crate) async fn check(extents: &Extents) -> Result<(), LogError> {
    let (io, superblock) = (extents.io(), extents.superblock());
    let opening = extents.with(|table| table.lineage.openings().next().map_or(0, |opening| opening.id));
    if superblock.zones.is_some() || opening == 0 {
        return Ok(());
    }
    let Some(what) = pool::had_by_other(io.disk(), superblock, opening).await else { return Ok(()) };
    let cause = format!(
        "{what}: two must never write to one disk. What was written last may be lost. Stop one of the two for good before the \
         other is started again"
    );
    match io.give_up_for("look at who has the disk", &std::io::Error::other(cause)) {
        LogError::Unknown { what, cause } => Err(LogError::Failed { what, cause }),
        error => Err(error),
    }
}

/// Looks now and then, until the log ends.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    while stop.sleep(&shared.env, EVERY).await {
        if check(&shared.extents).await.is_err() {
            return;
        }
    }
}
