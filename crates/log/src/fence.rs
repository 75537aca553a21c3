//! Detects another server that has opened the disk, such as a network volume attached to two
//! machines, where no lock of one reaches the other.
//!
//! Each writing opening first records itself in the superblock. The earlier server checks it before
//! it takes an extent, marks one free or heals one, because the other may use that extent. It also
//! checks every few seconds. If it finds another opening, it stops: its writes would be lost or,
//! worse, mixed with those of the other. Commits between the other's opening and the check may be
//! lost. No feature that disks offer everywhere prevents that.

use std::sync::Arc;
use std::time::Duration;

use crate::background::Stop;
use crate::shared::Shared;

/// Interval of the check, also without writes: the other server may have written to the next place.
const EVERY: Duration = Duration::from_secs(5);

/// Checks periodically until the log ends.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    while stop.sleep(&shared.env, EVERY).await {
        if shared.extents.check_opener().await.is_err() {
            return;
        }
    }
}
