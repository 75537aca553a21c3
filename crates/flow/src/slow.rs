//! Slow requests: counted, and logged with the time spent at each stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::stages::{cut, millis};
use crate::{Env, Stage, Stages, Throttle};

/// The log gets at most one line in this interval, because on a slow disk every request is slow.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The slow requests of one entry point.
#[derive(Debug)]
pub struct SlowRequests {
    door: &'static str,
    bound: Duration,
    env: Env,
    log_throttle: Throttle,
    count: AtomicU64,
}

/// Details of a request for the log line, besides its stages. They contain no data stored by the
/// client and no access keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ended<'a> {
    /// Request number, where the client knows it too.
    pub id: &'a str,
    /// Operation. The client may have chosen the text, so the log line shortens and escapes it.
    pub operation: &'a str,
    /// The user, where it is known.
    pub user: Option<&'a str>,
    /// Bytes of the response body, where they are counted.
    pub bytes_out: Option<u64>,
}

/// The number of slow requests of an entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SlowStatus {
    /// Name of the entry point.
    pub door: &'static str,
    /// Threshold in milliseconds; 0 when slow requests are not counted.
    pub bound_ms: u64,
    /// Number of slow requests.
    pub count: u64,
}

impl SlowRequests {
    /// Creates the counter of an entry point. A request is slow when it takes `bound`, not counting
    /// the time of its client. Zero counts none.
    pub const fn new(door: &'static str, bound: Duration, env: Env) -> Self {
        Self { door, bound, env, log_throttle: Throttle::new(LOG_INTERVAL), count: AtomicU64::new(0) }
    }

    /// Begins a request at this stage; `None` where slow requests are not logged.
    pub fn begin(&self, stage: Stage) -> Option<Arc<Stages>> {
        (!self.bound.is_zero()).then(|| Stages::begin(&self.env, stage))
    }

    /// Ends a request.
    pub fn end(&self, stages: &Stages, request: &Ended<'_>) {
        let spent = stages.spent();
        if spent.own() < self.bound {
            return;
        }
        self.count.fetch_add(1, Relaxed);
        let Some(more) = self.log_throttle.pass(&self.env) else { return };
        let (noted, ms) = (stages.noted(), |stage| spent.ms(stage));
        tracing::warn!(
            door = self.door,
            request = (!request.id.is_empty()).then_some(request.id),
            operation = cut(request.operation),
            user = request.user,
            about = ?noted.about,
            bytes_in = noted.received,
            bytes_out = request.bytes_out,
            status = noted.outcome,
            total_ms = millis(spent.total),
            gate_ms = ms(Stage::Gate),
            parse_ms = ms(Stage::Parse),
            receive_ms = ms(Stage::Receive),
            reserve_ms = ms(Stage::Reserve),
            index_ms = ms(Stage::Index),
            disk_ms = ms(Stage::Disk),
            queue_ms = ms(Stage::Queue),
            flush_ms = ms(Stage::Flush),
            apply_ms = ms(Stage::Apply),
            proxy_ms = ms(Stage::Proxy),
            other_ms = ms(Stage::Other),
            send_ms = ms(Stage::Send),
            more,
            "a request was slow (and `more` since the last such line)"
        );
    }

    /// The counters of the entry point.
    pub fn status(&self) -> SlowStatus {
        let bound_ms = u64::try_from(self.bound.as_millis()).unwrap_or(u64::MAX);
        SlowStatus { door: self.door, bound_ms, count: self.count.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Clock;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn time_of_the_client_makes_no_request_slow() {
        let clock = Clock::default();
        let slow = SlowRequests::new("s3", 100 * MS, clock.env());
        let took = |gate: u32, send: u32| {
            let stages = slow.begin(Stage::Gate).expect("measured");
            clock.advance(gate * MS);
            stages.enter(Stage::Send);
            clock.advance(send * MS);
            slow.end(&stages, &Ended::default());
            slow.status().count
        };
        assert_eq!(took(99, 0), 0);
        assert_eq!(took(99, 60_000), 0);
        assert_eq!(took(100, 0), 1);
        assert_eq!(slow.status(), SlowStatus { door: "s3", bound_ms: 100, count: 1 });
        assert!(SlowRequests::new("s3", Duration::ZERO, clock.env()).begin(Stage::Gate).is_none());
    }
}
