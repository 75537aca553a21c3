//! The scrub of an open extent: all data written before the scrub reached it.

use steadfast_flow::Pace;

use crate::check::Damage;
use crate::extents::ExtentInfo;
use crate::format::ExtentKind;
use crate::heal::{self, Written};
use crate::scrub_state::{CHUNK, FRAME};
use crate::shared::Shared;

/// Verifies the data of an open extent on every copy, and heals structures that are good on one.
pub(crate) async fn extent(shared: &Shared, info: &ExtentInfo, pace: &Pace) {
    let (extent, epoch) = (info.extent, info.epoch);
    // Determined first: later writes are not verified.
    let written = match info.kind {
        ExtentKind::Body => match shared.bodies.written(extent, epoch).await {
            Some(chunks) => Written::Chunks(chunks),
            // The extent is being sealed; the next pass verifies it.
            None => return,
        },
        _ => match shared.extents.get(extent, epoch) {
            Some(info) => Written::Frames(info.data_end),
            None => return,
        },
    };
    let look = || heal::open(&shared.copies, &shared.pool, info, &written, Some(pace.clone()));
    let mut outcome = look().await;
    let mut healed = outcome.healed.iter().sum::<u64>() > 0;
    if outcome.lost > 0 {
        // The error may have occurred in transfer, so read again.
        let again = look().await;
        healed |= again.lost == 0;
        outcome.counts.read_bytes += again.counts.read_bytes;
        (outcome.lost, outcome.lost_at) = (again.lost, again.lost_at);
    }
    shared.scrub.count(outcome.counts.read_bytes, outcome.counts.records, healed, outcome.healed);
    if shared.extents.get(extent, epoch).is_none() {
        return;
    }
    for at in outcome.lost_at {
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
