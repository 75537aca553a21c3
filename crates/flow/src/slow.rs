//! Requests that take long: counted, and told of in the log with where their time went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::stages::{cut, millis};
use crate::{Env, Stage, Stages, Throttle};

/// The log gets one line in this time: where a disk is slow, every request is.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The slow requests of a door.
#[derive(Debug)]
pub struct SlowRequests {
    door: &'static str,
    bound: Duration,
    env: Env,
    told: Throttle,
    count: AtomicU64,
}

/// What there is to say of a request beside where its time went. Nothing that a client has stored, and no keys of access.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ended<'a> {
    /// Its number, where it has one that its client knows too.
    pub id: &'a str,
    /// The operation. A client may have made it up, so the log line has it shortened and escaped.
    pub operation: &'a str,
    /// Bytes of the answer's body, where they are counted.
    pub bytes_out: Option<u64>,
}

/// How many requests of a door were slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SlowStatus {
    /// The door.
    pub door: &'static str,
    /// Requests that take so many milliseconds are; 0: none is.
    pub bound_ms: u64,
    /// How many there were.
    pub count: u64,
}

impl SlowRequests {
    /// Of a door: those that take `bound`, not counting what their clients take; zero: none.
    pub const fn new(door: &'static str, bound: Duration, env: Env) -> Self {
        Self { door, bound, env, told: Throttle::new(TOLD_EVERY), count: AtomicU64::new(0) }
    }

    /// A request begins, at this stage; `None` where slow requests are not logged.
    pub fn begin(&self, stage: Stage) -> Option<Arc<Stages>> {
        (!self.bound.is_zero()).then(|| Stages::begin(&self.env, stage))
    }

    /// A request has ended.
    pub fn end(&self, stages: &Stages, request: &Ended<'_>) {
        let spent = stages.spent();
        if spent.own() < self.bound {
            return;
        }
        self.count.fetch_add(1, Relaxed);
        let Some(more) = self.told.pass(&self.env) else { return };
        let (noted, ms) = (stages.noted(), |stage| spent.ms(stage));
        tracing::warn!(
            door = self.door,
            request = (!request.id.is_empty()).then_some(request.id),
            operation = cut(request.operation),
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

    /// How many there were.
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
    fn what_the_client_takes_makes_no_request_slow() {
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
