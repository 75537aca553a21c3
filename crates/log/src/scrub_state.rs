//! State that the scrub shares with the rest of the log: its status, and requests to start or stop
//! a pass.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::check::Damage;
use crate::status::{SCRUB_DAMAGE_MAX, ScrubStatus};

/// Findings in a chunk or a frame of an open extent.
pub(crate) const CHUNK: &str = "a chunk that was written does not verify, or cannot be read";
pub(crate) const FRAME: &str =
    "a frame that was written does not verify, or cannot be read; its records can be named when the extent is full";

/// The scrub's status, shared with its readers.
#[derive(Default)]
pub(crate) struct Scrub {
    pub(crate) status: Mutex<ScrubStatus>,
    pub(crate) requests: ScrubRequests,
}

impl Scrub {
    pub(crate) fn status(&self) -> ScrubStatus {
        self.status.lock().clone()
    }

    /// Counts a verified extent.
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
        // Damage found in an open extent is reported again, with names, after the extent is sealed.
        let place = |d: &Damage| (d.extent, d.epoch, d.offset);
        let before = status.damage.iter().position(|d| place(d) == place(&damage) && is_passing(d));
        match before {
            Some(before) => drop(status.damage.remove(before)),
            None => status.damaged += 1,
        }
        status.reported += 1;
        if status.damage.len() == SCRUB_DAMAGE_MAX {
            status.damage.pop_front();
        }
        status.damage.push_back(damage);
    }
}

/// Whether the damage was found in an open extent.
fn is_passing(damage: &Damage) -> bool {
    damage.what == CHUNK || damage.what == FRAME
}

/// A request to the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubRequest {
    /// Starts a pass now, regardless of the schedule.
    Start,
    /// Stops the running pass; the schedule stays.
    Stop,
}

/// Number of requests of each kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCounts {
    pub(crate) starts: u64,
    pub(crate) stops: u64,
}

/// The requests so far.
#[derive(Default)]
pub(crate) struct ScrubRequests(pub(crate) watch::Sender<RequestCounts>);

impl ScrubRequests {
    pub(crate) fn add(&self, request: ScrubRequest) {
        self.0.send_modify(|counts| match request {
            ScrubRequest::Start => counts.starts += 1,
            ScrubRequest::Stop => counts.stops += 1,
        });
    }

    pub(crate) fn now(&self) -> RequestCounts {
        *self.0.borrow()
    }

    /// Completes when there have been more starts than `starts`.
    pub(crate) async fn started(&self, starts: u64) {
        // The sender is `self`.
        let _ = self.0.subscribe().wait_for(|counts| counts.starts > starts).await;
    }
}
