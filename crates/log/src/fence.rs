//! Noticing that somebody else has opened the disk: a volume of a network that is attached to two machines, where no lock of either reaches the other.
//!
//! Each opening that may write says so in the superblock first. The one before looks there before it takes an extent, which the other may have taken,
//! too, and every few seconds while it commits. It stops then: what it goes on writing would be lost, or worse, be taken for the other's. What was
//! committed between the other's coming and the look may be lost: nothing that the disks offer everywhere prevents that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::LogError;
use crate::background::Stop;
use crate::extents::Extents;
use crate::io::Io;
use crate::log::Shared;
use crate::pool;

/// How often to look while something is written.
const EVERY: Duration = Duration::from_secs(5);

/// Closes the latch when somebody else has the pool.
///
/// # Errors
/// [`LogError::Failed`] then.
pub(crate) async fn check(io: &Io, extents: &Extents) -> Result<(), LogError> {
    let superblock = extents.superblock();
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
    let mut seen = 0;
    while stop.sleep(&shared.env, EVERY).await {
        let frames = shared.metrics.frames.load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, frames) == frames {
            continue;
        }
        if check(&shared.io, &shared.extents).await.is_err() {
            return;
        }
    }
}
