//! Timing of the scrub: by its schedule, or on request.

use std::time::Duration;

use crate::background::Stop;
use crate::scrub_state::RequestCounts;
use crate::shared::Shared;

/// Longest time until the clock is read again, because clocks can be set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// A scheduled pass is due.
    Due,
    /// A client requested a pass.
    Requested,
    /// The log closes, or the pass must end.
    Stopped,
}

/// Waits for the next pass. `seen`: the starts requested before.
pub(crate) async fn next(shared: &Shared, stop: &mut Stop, seen: u64) -> WaitEnd {
    let options = shared.options.scrub;
    let due = async {
        if !options.enabled {
            shared.scrub.set_next(None);
            return std::future::pending().await;
        }
        let interval = u64::try_from(options.interval.as_millis()).unwrap_or(u64::MAX);
        let begins = shared.env.wall_ms().saturating_add(interval);
        let opens = options.window.map_or(0, |window| window.opens_in_ms(begins));
        shared.scrub.set_next(Some(begins.saturating_add(opens)));
        shared.env.sleep(options.interval).await;
        open(shared).await;
    };
    tokio::select! {
        biased;
        () = stop.wait() => WaitEnd::Stopped,
        () = shared.scrub.requests.started(seen) => WaitEnd::Requested,
        () = due => WaitEnd::Due,
    }
}

/// Waits until the window is open.
async fn open(shared: &Shared) {
    let Some(window) = shared.options.scrub.window else { return };
    loop {
        match window.opens_in_ms(shared.env.wall_ms()) {
            0 => return,
            ms => shared.env.sleep(Duration::from_millis(ms).min(CLOCK_CHECK_INTERVAL)).await,
        }
    }
}

/// Completes when the pass must end.
pub(crate) async fn ended(shared: &Shared, stop: &mut Stop, seen: RequestCounts) {
    let mut requests = shared.scrub.requests.0.subscribe();
    tokio::select! {
        biased;
        () = stop.wait() => {}
        _ = requests.wait_for(|counts| counts.stops > seen.stops) => {}
    }
}

/// Between two extents of a scheduled pass: waits while the window is closed.
pub(crate) async fn window(shared: &Shared, stop: &mut Stop, seen: RequestCounts) -> WaitEnd {
    let closed = shared.options.scrub.window.is_some_and(|window| window.opens_in_ms(shared.env.wall_ms()) > 0);
    if !closed {
        return WaitEnd::Due;
    }
    shared.scrub.pause(true);
    let end = tokio::select! {
        biased;
        () = ended(shared, stop, seen) => WaitEnd::Stopped,
        () = shared.scrub.requests.started(seen.starts) => WaitEnd::Requested,
        () = open(shared) => WaitEnd::Due,
    };
    shared.scrub.pause(false);
    end
}
