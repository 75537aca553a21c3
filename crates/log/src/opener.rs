//! Detects that another server has opened the disk since this one did.

use std::io;

use crate::LogError;
use crate::format::Superblock;
use crate::io::Io;
use crate::pool;

/// Closes the latch if the superblocks name a newer opening than `opening`, which is 0 for a log
/// that does not write.
///
/// # Errors
/// [`LogError::Failed`] if they do.
pub(crate) async fn check(io: &Io, superblock: &Superblock, opening: u64) -> Result<(), LogError> {
    if superblock.zones.is_some() || opening == 0 {
        return Ok(());
    }
    let Some(what) = pool::had_by_other(io.disk(), superblock, opening).await else { return Ok(()) };
    let cause = format!(
        "{what}: two servers must never write to one disk. The latest writes may be lost. Stop one server for good \
         before you restart the other"
    );
    match io.give_up_for("check of the disk's owner", &io::Error::other(cause)) {
        LogError::Unknown { what, cause } => Err(LogError::Failed { what, cause }),
        error => Err(error),
    }
}
