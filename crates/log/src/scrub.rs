//! The scrub: repeatedly reads and verifies all stored data, below the pace of foreground work.

use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Pace;

use crate::background::Stop;
use crate::check::{CheckedState, Damage, DoubtfulChunk, ExtentCheck, Findings, Tail};
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::{ExtentHeader, FrameHeader};
use crate::scrub_state::RequestCounts;
use crate::scrub_when::{self, WaitEnd};
use crate::shared::Shared;
use crate::status::SCRUB_DAMAGE_MAX;
use crate::{heal, scrub_open};

/// Findings of one read of a sealed extent.
#[derive(Default)]
struct ScrubFindings {
    damage: Vec<Damage>,
    /// Epoch in the extent's header.
    epoch: Option<u64>,
}

impl ScrubFindings {
    /// Adds damage if the extent is whole but not the one in the table of extents. An extent that
    /// reads as zeros, or as an earlier use, has no other fault.
    fn compare(&mut self, info: &ExtentInfo, state: CheckedState, extent_bytes: u64) {
        let sealed = state == CheckedState::Sealed(info.kind);
        // Recovery treats an extent without a trailer as sealed at a power cut.
        let unsealed = state == CheckedState::Open(info.kind) && info.footer.is_none();
        let same = self.epoch.is_none_or(|epoch| epoch == info.epoch) && (sealed || unsealed);
        if !same && self.damage.is_empty() {
            let found = self.epoch.map_or_else(|| "no epoch".to_owned(), |epoch| format!("epoch {epoch}"));
            let what = format!("the extent is lost: {:?} is expected here, found {state:?} of {found}", info.kind);
            self.damage.push(Damage { len: extent_bytes, ..Damage::new(info.extent, info.epoch, 0, what) });
        }
    }
}

impl Findings for ScrubFindings {
    fn damage(&mut self, damage: Damage) {
        // For an extent with many damages, the first ones suffice.
        if self.damage.len() < SCRUB_DAMAGE_MAX {
            self.damage.push(damage);
        }
    }

    fn extent(&mut self, header: &ExtentHeader) {
        self.epoch = Some(header.id.epoch);
    }

    fn tail(&mut self, _tail: Tail) {}

    fn doubtful(&mut self, _chunk: DoubtfulChunk) {}

    fn frame(&mut self, _header: &FrameHeader) {}
}

/// Runs until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    // A pass that was requested before this task began counts.
    let mut seen = RequestCounts::default();
    loop {
        let end = scrub_when::next(&shared, &mut stop, seen.starts).await;
        if end == WaitEnd::Stopped {
            return;
        }
        pass(&shared, &mut stop, end == WaitEnd::Requested).await;
        seen = shared.scrub.requests.now();
    }
}

/// Verifies every extent in use. A `requested` pass runs at any time of the day.
async fn pass(shared: &Shared, stop: &mut Stop, mut requested: bool) {
    let pace = Pace::new(shared.options.scrub.bytes_s, Duration::from_secs(1), shared.env.clone());
    let check = ExtentCheck::new(shared.disk.clone(), shared.pool, Some(pace.clone()));
    let (open, sealed): (Vec<_>, Vec<_>) = shared
        .extents
        .all()
        .into_iter()
        .filter(|e| matches!(e.state, ExtentState::Sealed | ExtentState::Open))
        .partition(|e| e.state == ExtentState::Open);
    report_lost(shared);
    let (seen, total) = (shared.scrub.requests.now(), (sealed.len() + open.len()) as u64);
    let mut progress = PassProgress { total, done: 0, active: Duration::ZERO };
    {
        let mut status = shared.scrub.status.lock();
        (status.running, status.extents_done, status.extents_total) = (true, 0, total);
        (status.started_ms, status.next_ms) = (Some(shared.env.wall_ms()), None);
        status.expected_end_ms = progress.expected_end_ms(shared);
    }
    let mut ended = false;
    // Open extents come last: some will be sealed by then, and damage in them can be named better.
    for info in sealed.into_iter().chain(open) {
        if !requested {
            match scrub_when::window(shared, stop, seen).await {
                WaitEnd::Due => {}
                WaitEnd::Requested => requested = true,
                WaitEnd::Stopped => ended = true,
            }
        }
        if ended || stop.is_set() || shared.scrub.requests.now().stops > seen.stops {
            ended = true;
            break;
        }
        let begun = shared.env.now();
        let work = async {
            match shared.extents.get(info.extent, info.epoch) {
                Some(now) if now.state == ExtentState::Open => scrub_open::extent(shared, &now, &pace).await,
                _ => extent(shared, &check, &info, &pace).await,
            }
        };
        tokio::pin!(work);
        tokio::select! {
            biased;
            () = &mut work => {}
            () = scrub_when::ended(shared, stop, seen) => {
                // Healing is not interrupted. Without a bound, the rest of the extent is soon read.
                pace.set(0);
                work.await;
            }
        }
        progress.active += shared.env.now().saturating_sub(begun);
        progress.done += 1;
        let mut status = shared.scrub.status.lock();
        status.extents_done += 1;
        status.expected_end_ms = progress.expected_end_ms(shared);
    }
    let now = shared.env.wall_ms();
    let mut status = shared.scrub.status.lock();
    (status.running, status.paused, status.expected_end_ms) = (false, false, None);
    if !ended {
        status.passes += 1;
        status.last_pass_ms = Some(now);
    } else if !stop.is_set() {
        status.stopped += 1;
    }
}

/// Reports lost extents, of which nothing can be read.
pub(crate) fn report_lost(shared: &Shared) {
    for info in shared.extents.all().into_iter().filter(|info| info.state == ExtentState::Lost) {
        let what = "the extent is lost: it was in use, and its data is gone".to_owned();
        shared.scrub.report(Damage { len: shared.pool.extent_bytes, ..Damage::new(info.extent, info.epoch, 0, what) });
    }
}

/// Progress of a pass.
struct PassProgress {
    total: u64,
    done: u64,
    /// Time spent on extents, without pauses.
    active: Duration,
}

impl PassProgress {
    fn expected_end_ms(&self, shared: &Shared) -> Option<u64> {
        let left = self.total - self.done;
        let ms = match (self.done, shared.options.scrub.bytes_s) {
            (0, 0) => return None,
            (0, bytes_s) => left.saturating_mul(shared.pool.extent_bytes).saturating_mul(1000) / bytes_s,
            (done, _) => u64::try_from(self.active.as_millis()).unwrap_or(u64::MAX).saturating_mul(left) / done,
        };
        Some(shared.env.wall_ms().saturating_add(ms))
    }
}

async fn extent(shared: &Shared, check: &ExtentCheck, info: &ExtentInfo, pace: &Pace) {
    let (extent, epoch) = (info.extent, info.epoch);
    let in_use = || shared.extents.get(extent, epoch).is_some();
    if !in_use() {
        return;
    }
    let mut stuck = Vec::new();
    if shared.copies.count() > 1 {
        let outcome = heal::extent(&shared.copies, &shared.pool, info, Some(pace.clone())).await;
        let healed = outcome.healed.iter().sum::<u64>();
        {
            let mut status = shared.scrub.status.lock();
            status.read_bytes += outcome.counts.read_bytes;
            status.healed += u64::from(healed > 0 && outcome.lost == 0);
            status.healed_copies.iter_mut().zip(outcome.healed).for_each(|(all, more)| *all += more);
            if outcome.lost == 0 && outcome.stuck.is_empty() {
                // Every structure is whole on every copy.
                status.records += outcome.counts.records;
                return;
            }
        }
        stuck = outcome.stuck;
    }
    let look = async || {
        let mut found = ScrubFindings::default();
        let (state, counts) = check.run(extent, &mut found).await;
        found.compare(info, state, shared.pool.extent_bytes);
        (found.damage, counts)
    };
    let (mut found, mut counts) = look().await;
    if !found.is_empty() && in_use() {
        // The error may have occurred in transfer, and a disk with two legs heals on reads: so read
        // again.
        let (again, more) = look().await;
        counts.read_bytes += more.read_bytes;
        if again.is_empty() {
            shared.scrub.status.lock().healed += 1;
        }
        found = again;
    }
    {
        let mut status = shared.scrub.status.lock();
        status.read_bytes += counts.read_bytes;
        status.records += counts.records;
    }
    // If the extent was recycled meanwhile, the bytes may be of its next use.
    if in_use() {
        for mut damage in found {
            let end = damage.offset + damage.len.max(1);
            if stuck.iter().any(|(at, len)| *at < end && damage.offset < at + len) {
                damage.what = format!("{}; good on another copy, but it cannot be rewritten here", damage.what);
            }
            shared.scrub.report(damage);
        }
    }
}
