//! The scrub: reads and verifies everything that is sealed, again and again, below the pace of foreground work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Pace;

use crate::background::Stop;
use crate::check::{Damage, DoubtfulChunk, ExtentCheck, Findings, Tail};
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::FrameHeader;
use crate::log::Shared;
use crate::mend;

/// Damages kept for status; more are only counted.
pub const SCRUB_DAMAGE_MAX: usize = 256;

/// How the scrub runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Whether it runs.
    pub enabled: bool,
    /// Bytes read a second at most; 0 for no bound.
    pub bytes_s: u64,
    /// From the end of one pass to the beginning of the next, and before the first.
    pub interval: Duration,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { enabled: true, bytes_s: 16 << 20, interval: Duration::from_secs(6 * 3600) }
    }
}

/// What the scrub did since the log was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScrubStatus {
    /// Whether a pass is going on.
    pub running: bool,
    /// Extents verified in this pass (or, between passes, in the last one).
    pub extents_done: u64,
    /// Extents that this pass has to verify.
    pub extents_total: u64,
    /// Passes completed.
    pub passes: u64,
    /// When the last pass ended, milliseconds since the Unix epoch.
    pub last_pass_ms: Option<u64>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Records and chunks verified.
    pub records: u64,
    /// Extents that did not verify at first, and did when read again or healed from another copy.
    pub healed: u64,
    /// Structures (headers, frames, footers) that the scrub healed, by the copy that was bad: on a super-disk 0 is the durable leg and 1 the
    /// fast one.
    pub healed_copies: [u64; 2],
    /// Damages found, each counted once.
    pub damaged: u64,
    /// The latest of them, at most [`SCRUB_DAMAGE_MAX`]; their heads name the records.
    pub damage: VecDeque<Damage>,
}

/// The scrub's status, shared with those who ask.
#[derive(Default)]
pub(crate) struct Scrub(Mutex<ScrubStatus>);

impl Scrub {
    pub(crate) fn status(&self) -> ScrubStatus {
        self.0.lock().clone()
    }

    fn report(&self, damage: Damage) {
        let mut status = self.0.lock();
        let known = status.damage.iter().any(|d| {
            (d.extent, d.epoch, d.offset, &d.what) == (damage.extent, damage.epoch, damage.offset, &damage.what)
        });
        if known {
            return;
        }
        tracing::error!(
            extent = damage.extent, epoch = damage.epoch, offset = damage.offset, records = damage.records,
            what = %damage.what, "the scrub found damaged data"
        );
        status.damaged += 1;
        if status.damage.len() == SCRUB_DAMAGE_MAX {
            status.damage.pop_front();
        }
        status.damage.push_back(damage);
    }
}

#[derive(Default)]
struct Found(Vec<Damage>);

impl Findings for Found {
    fn damage(&mut self, damage: Damage) {
        // Of an extent that is damaged all over, the first places say enough.
        if self.0.len() < SCRUB_DAMAGE_MAX {
            self.0.push(damage);
        }
    }

    fn tail(&mut self, _tail: Tail) {}

    fn doubtful(&mut self, _chunk: DoubtfulChunk) {}

    fn frame(&mut self, _header: &FrameHeader) {}
}

/// Runs until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: Stop) {
    let options = shared.options.scrub;
    while stop.sleep(&shared.env, options.interval).await {
        pass(&shared, &stop).await;
    }
}

/// Verifies every extent that is sealed now.
pub(crate) async fn pass(shared: &Shared, stop: &Stop) {
    let pace = Pace::new(shared.options.scrub.bytes_s, Duration::from_secs(1), shared.env.clone());
    let check = ExtentCheck::new(shared.disk.clone(), shared.pool, Some(pace.clone()));
    let sealed: Vec<_> = shared.extents.all().into_iter().filter(|e| e.state == ExtentState::Sealed).collect();
    {
        let mut status = shared.scrub.0.lock();
        (status.running, status.extents_done, status.extents_total) = (true, 0, sealed.len() as u64);
    }
    for info in sealed {
        if stop.is_set() {
            break;
        }
        extent(shared, &check, &info, &pace).await;
        shared.scrub.0.lock().extents_done += 1;
    }
    let now = shared.env.wall_ms();
    let mut status = shared.scrub.0.lock();
    status.running = false;
    if !stop.is_set() {
        status.passes += 1;
        status.last_pass_ms = Some(now);
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
        let mended = mend::extent(&shared.copies, &shared.pool, info, Some(pace.clone())).await;
        let healed = mended.healed.iter().sum::<u64>();
        {
            let mut status = shared.scrub.0.lock();
            status.read_bytes += mended.counts.read_bytes;
            status.healed += u64::from(healed > 0 && mended.lost == 0);
            status.healed_copies.iter_mut().zip(mended.healed).for_each(|(all, more)| *all += more);
            if mended.lost == 0 && mended.stuck.is_empty() {
                // Every structure is whole on every copy.
                status.records += mended.counts.records;
                return;
            }
        }
        stuck = mended.stuck;
    }
    let mut found = Found::default();
    let (_, mut counts) = check.run(extent, &mut found).await;
    if !found.0.is_empty() && in_use() {
        // A wrong bit may have come from the way, and a disk with two legs heals on the way: so a second look.
        let mut again = Found::default();
        let (_, more) = check.run(extent, &mut again).await;
        counts.read_bytes += more.read_bytes;
        if again.0.is_empty() {
            shared.scrub.0.lock().healed += 1;
        }
        found = again;
    }
    {
        let mut status = shared.scrub.0.lock();
        status.read_bytes += counts.read_bytes;
        status.records += counts.records;
    }
    // Recycled meanwhile: then what was read may be of its next use.
    if in_use() {
        for mut damage in found.0 {
            let end = damage.offset + damage.len.max(1);
            if stuck.iter().any(|(at, len)| *at < end && damage.offset < at + len) {
                damage.what = format!("{}; good on another copy, but it cannot be rewritten here", damage.what);
            }
            shared.scrub.report(damage);
        }
    }
}
