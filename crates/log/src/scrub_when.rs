//! When the scrub runs: by its schedule, or when somebody asks.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::background::Stop;
use crate::log::Shared;

const DAY_MS: u64 = 86_400_000;
/// At most so long until the time of day is looked at again: clocks are set.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A part of every day, in UTC. One that ends before it begins goes over midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DayWindow {
    /// Minutes since midnight.
    pub from_min: u16,
    /// Minutes since midnight; not part of it.
    pub to_min: u16,
}

impl DayWindow {
    /// How long until it is open, in milliseconds; 0 while it is. `wall_ms`: milliseconds since the Unix epoch.
    pub fn opens_in_ms(&self, wall_ms: u64) -> u64 {
        let now = wall_ms % DAY_MS;
        let (from, to) = (u64::from(self.from_min) * 60_000, u64::from(self.to_min) * 60_000);
        let open = if from <= to { (from..to).contains(&now) } else { now >= from || now < to };
        if open { 0 } else { (from + DAY_MS - now) % DAY_MS }
    }
}

/// What somebody asks of the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubWish {
    /// A pass now, whatever the schedule says.
    Start,
    /// The end of the pass that is going on; the schedule stays.
    Stop,
}

/// How often each was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) starts: u64,
    pub(crate) stops: u64,
}

/// What has been asked for.
#[derive(Default)]
pub(crate) struct Wishes(watch::Sender<Asked>);

impl Wishes {
    pub(crate) fn add(&self, wish: ScrubWish) {
        self.0.send_modify(|asked| match wish {
            ScrubWish::Start => asked.starts += 1,
            ScrubWish::Stop => asked.stops += 1,
        });
    }

    pub(crate) fn now(&self) -> Asked {
        *self.0.borrow()
    }

    /// Completes when there have been more starts than `starts`.
    async fn started(&self, starts: u64) {
        // The sender is `self`.
        let _ = self.0.subscribe().wait_for(|asked| asked.starts > starts).await;
    }
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The schedule says so.
    Due,
    /// Somebody asked for it.
    Asked,
    /// The log closes, or the pass is to end.
    Stopped,
}

/// Waits for the next pass. `seen`: the starts that were asked for before.
pub(crate) async fn next(shared: &Shared, stop: &mut Stop, seen: u64) -> Over {
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
        () = stop.wait() => Over::Stopped,
        () = shared.scrub.wishes.started(seen) => Over::Asked,
        () = due => Over::Due,
    }
}

/// Waits until the window is open.
async fn open(shared: &Shared) {
    let Some(window) = shared.options.scrub.window else { return };
    loop {
        match window.opens_in_ms(shared.env.wall_ms()) {
            0 => return,
            ms => shared.env.sleep(Duration::from_millis(ms).min(LOOK_AGAIN)).await,
        }
    }
}

/// Completes when a pass is to end.
pub(crate) async fn ended(shared: &Shared, stop: &mut Stop, seen: Asked) {
    let mut asked = shared.scrub.wishes.0.subscribe();
    tokio::select! {
        biased;
        () = stop.wait() => {}
        _ = asked.wait_for(|asked| asked.stops > seen.stops) => {}
    }
}

/// Between two extents of a pass that was due: waits while the window is closed.
pub(crate) async fn window(shared: &Shared, stop: &mut Stop, seen: Asked) -> Over {
    let closed = shared.options.scrub.window.is_some_and(|window| window.opens_in_ms(shared.env.wall_ms()) > 0);
    if !closed {
        return Over::Due;
    }
    shared.scrub.pause(true);
    let over = tokio::select! {
        biased;
        () = ended(shared, stop, seen) => Over::Stopped,
        () = shared.scrub.wishes.started(seen.starts) => Over::Asked,
        () = open(shared) => Over::Due,
    };
    shared.scrub.pause(false);
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_the_day_and_one_over_midnight() {
        let at = |h: u64, m: u64| 40 * DAY_MS + (h * 60 + m) * 60_000;
        let minutes = |window: DayWindow, h, m| window.opens_in_ms(at(h, m)) / 60_000;
        let night = DayWindow { from_min: 60, to_min: 300 };
        assert_eq!(
            [minutes(night, 0, 59), minutes(night, 1, 0), minutes(night, 4, 59), minutes(night, 5, 0)],
            [1, 0, 0, 20 * 60]
        );
        let late = DayWindow { from_min: 22 * 60, to_min: 120 };
        assert_eq!(
            [
                minutes(late, 21, 59),
                minutes(late, 22, 0),
                minutes(late, 0, 0),
                minutes(late, 1, 59),
                minutes(late, 2, 0)
            ],
            [1, 0, 0, 0, 20 * 60]
        );
    }
}
