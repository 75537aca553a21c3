//! The scrub: reads and verifies everything that is stored, again and again, below the pace of foreground work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_flow::Pace;

use crate::background::Stop;
use crate::check::{CheckedState, Damage, DoubtfulChunk, ExtentCheck, Findings, Tail};
use crate::extents::{ExtentInfo, ExtentState};
use crate::format::{ExtentHeader, FrameHeader};
use crate::log::Shared;
use crate::scrub_when::{self, Asked, DayWindow, Over, Wishes};
use crate::{mend, scrub_open};

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
    /// The part of the day in which passes by the schedule begin and go on; `None` for all of it.
    pub window: Option<DayWindow>,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { enabled: true, bytes_s: 16 << 20, interval: Duration::from_secs(6 * 3600), window: None }
    }
}

/// What the scrub did since the log was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScrubStatus {
    /// Whether a pass is going on.
    pub running: bool,
    /// Whether it waits for its part of the day.
    pub paused: bool,
    /// When the pass that is going on (else the last one) began, milliseconds since the Unix epoch.
    pub started_ms: Option<u64>,
    /// When it will have ended, at the speed so far.
    pub expected_end_ms: Option<u64>,
    /// When the next pass begins by the schedule.
    pub next_ms: Option<u64>,
    /// Passes that were ended by somebody.
    pub stopped: u64,
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
    /// How often damage was put into the list below: as often, and once more where more could be said of it later.
    pub told: u64,
    /// The latest of them, at most [`SCRUB_DAMAGE_MAX`]; their heads name the records.
    pub damage: VecDeque<Damage>,
}

/// The scrub's status, shared with those who ask.
#[derive(Default)]
pub(crate) struct Scrub {
    status: Mutex<ScrubStatus>,
    pub(crate) wishes: Wishes,
}

impl Scrub {
    pub(crate) fn status(&self) -> ScrubStatus {
        self.status.lock().clone()
    }

    /// Takes in what was verified of an extent.
    pub(crate) fn count(&self, read_bytes: u64, records: u64, healed: bool, healed_copies: [u64; 2]) {
        let mut status = self.status.lock();
        status.read_bytes += read_bytes;
        status.records += records;
        status.healed += u64::from(healed);
        status.healed_copies.iter_mut().zip(healed_copies).for_each(|(all, more)| *all += more);
    }

    pub(crate) fn set_next(&self, next_ms: Option<u64>) {
        self.status.lock().next_ms = next_ms;
    }

    pub(crate) fn pause(&self, paused: bool) {
        let mut status = self.status.lock();
        status.paused = paused;
        status.expected_end_ms = None;
    }

    pub(crate) fn report(&self, damage: Damage) {
        let mut status = self.status.lock();
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
        // What was found while its extent was still being written is told again, with names, once that is full.
        let place = |d: &Damage| (d.extent, d.epoch, d.offset);
        let before = status.damage.iter().position(|d| place(d) == place(&damage) && scrub_open::is_passing(d));
        match before {
            Some(before) => drop(status.damage.remove(before)),
            None => status.damaged += 1,
        }
        status.told += 1;
        if status.damage.len() == SCRUB_DAMAGE_MAX {
            status.damage.pop_front();
        }
        status.damage.push_back(damage);
    }
}

/// What one look at a sealed extent found.
#[derive(Default)]
struct Found {
    damage: Vec<Damage>,
    /// As its header says.
    epoch: Option<u64>,
}

impl Found {
    /// Adds damage where a whole extent is found, but not the one that the table of extents names.
    /// An extent that reads as zeros, or as of an earlier use, has no other fault.
    fn compare(&mut self, info: &ExtentInfo, state: CheckedState, extent_bytes: u64) {
        let sealed = state == CheckedState::Sealed(info.kind);
        // Recovery takes an extent without a trailer as sealed where the power went.
        let unsealed = state == CheckedState::Open(info.kind) && info.footer.is_none();
        let same = self.epoch.is_none_or(|epoch| epoch == info.epoch) && (sealed || unsealed);
        if !same && self.damage.is_empty() {
            let found = self.epoch.map_or_else(|| "no epoch".to_owned(), |epoch| format!("epoch {epoch}"));
            let what = format!("the extent is lost: {:?} is expected here, found {state:?} of {found}", info.kind);
            self.damage.push(Damage { len: extent_bytes, ..Damage::new(info.extent, info.epoch, 0, what) });
        }
    }
}

impl Findings for Found {
    fn damage(&mut self, damage: Damage) {
        // Of an extent that is damaged all over, the first places say enough.
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
    // A pass that was asked for before this task began counts.
    let mut seen = Asked::default();
    loop {
        let over = scrub_when::next(&shared, &mut stop, seen.starts).await;
        if over == Over::Stopped {
            return;
        }
        pass(&shared, &mut stop, over == Over::Asked).await;
        seen = shared.scrub.wishes.now();
    }
}

/// Verifies every extent that is in use now. One that somebody `asked` for goes on whatever the time of the day.
async fn pass(shared: &Shared, stop: &mut Stop, mut asked: bool) {
    let pace = Pace::new(shared.options.scrub.bytes_s, Duration::from_secs(1), shared.env.clone());
    let check = ExtentCheck::new(shared.disk.clone(), shared.pool, Some(pace.clone()));
    let (open, sealed): (Vec<_>, Vec<_>) = shared
        .extents
        .all()
        .into_iter()
        .filter(|e| matches!(e.state, ExtentState::Sealed | ExtentState::Open))
        .partition(|e| e.state == ExtentState::Open);
    report_lost(shared);
    let (seen, total) = (shared.scrub.wishes.now(), (sealed.len() + open.len()) as u64);
    let mut progress = Progress { total, done: 0, active: Duration::ZERO };
    {
        let mut status = shared.scrub.status.lock();
        (status.running, status.extents_done, status.extents_total) = (true, 0, total);
        (status.started_ms, status.next_ms) = (Some(shared.env.wall_ms()), None);
        status.expected_end_ms = progress.expected_end_ms(shared);
    }
    let mut ended = false;
    // What is open is looked at last: some of it will be sealed by then, and named better.
    for info in sealed.into_iter().chain(open) {
        if !asked {
            match scrub_when::window(shared, stop, seen).await {
                Over::Due => {}
                Over::Asked => asked = true,
                Over::Stopped => ended = true,
            }
        }
        if ended || stop.is_set() || shared.scrub.wishes.now().stops > seen.stops {
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
                // None is torn in the middle of healing; without a bound the rest of the extent is soon read.
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

/// Says what is gone: there is nothing to read of it.
pub(crate) fn report_lost(shared: &Shared) {
    for info in shared.extents.all().into_iter().filter(|info| info.state == ExtentState::Lost) {
        let what = "the extent is lost: it was in use, and there is nothing of it".to_owned();
        shared.scrub.report(Damage { len: shared.pool.extent_bytes, ..Damage::new(info.extent, info.epoch, 0, what) });
    }
}

/// How far a pass is.
struct Progress {
    total: u64,
    done: u64,
    /// The time that the extents have taken, without pauses.
    active: Duration,
}

impl Progress {
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
        let mended = mend::extent(&shared.copies, &shared.pool, info, Some(pace.clone())).await;
        let healed = mended.healed.iter().sum::<u64>();
        {
            let mut status = shared.scrub.status.lock();
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
    let look = async || {
        let mut found = Found::default();
        let (state, counts) = check.run(extent, &mut found).await;
        found.compare(info, state, shared.pool.extent_bytes);
        (found.damage, counts)
    };
    let (mut found, mut counts) = look().await;
    if !found.is_empty() && in_use() {
        // A wrong bit may have come from the way, and a disk with two legs heals on the way: so a second look.
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
    // Recycled meanwhile: then what was read may be of its next use.
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
