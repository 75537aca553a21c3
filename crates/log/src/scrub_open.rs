//! The scrub of an extent that is being written: all of it that had been written when it was looked at.

use steadfast_flow::Pace;

use crate::check::Damage;
use crate::extents::ExtentInfo;
use crate::format::ExtentKind;
use crate::log::Shared;
use crate::mend::{self, Written};

const CHUNK: &str = "a chunk that was written does not verify, or cannot be read";
const FRAME: &str =
    "a frame that was written does not verify, or cannot be read; what was in it can be told when the extent is full";

/// Whether it was found in an extent that was being written.
pub(crate) fn is_passing(damage: &Damage) -> bool {
    damage.what == CHUNK || damage.what == FRAME
}

/// Verifies what has been written to an open extent, on every copy, and heals what is good on one.
pub(crate) async fn extent(shared: &Shared, info: &ExtentInfo, pace: &Pace) {
    let (extent, epoch) = (info.extent, info.epoch);
    // In this order: what is written meanwhile is not looked at.
    let written = match info.kind {
        ExtentKind::Body => match shared.bodies.written(extent, epoch).await {
            Some(chunks) => Written::Chunks(chunks),
            // It is being sealed: the next pass has it.
            None => return,
        },
        _ => match shared.extents.get(extent, epoch) {
            Some(info) => Written::Frames(info.data_end),
            None => return,
        },
    };
    let look = || mend::open(&shared.copies, &shared.pool, info, &written, Some(pace.clone()));
    let mut mended = look().await;
    let mut healed = mended.healed.iter().sum::<u64>() > 0;
    if mended.lost > 0 {
        // A wrong bit may have come from the way: so a second look.
        let again = look().await;
        healed |= again.lost == 0;
        mended.counts.read_bytes += again.counts.read_bytes;
        (mended.lost, mended.lost_at) = (again.lost, again.lost_at);
    }
    shared.scrub.count(mended.counts.read_bytes, mended.counts.records, healed, mended.healed);
    if shared.extents.get(extent, epoch).is_none() {
        return;
    }
    for at in mended.lost_at {
        let head = match &written {
            Written::Chunks(chunks) => chunks.iter().find(|chunk| chunk.at() == at).map(|chunk| chunk.head.to_vec()),
            Written::Frames(_) => None,
        };
        let what = if head.is_some() { CHUNK } else { FRAME };
        let heads: Vec<_> = head.into_iter().collect();
        let damage = Damage { records: heads.len() as u64, heads, ..Damage::new(extent, epoch, at, what.to_owned()) };
        shared.scrub.report(damage);
    }
}
