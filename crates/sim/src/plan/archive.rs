//! The archive of a run, as it is planned.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use steadfast_archive::{ArchiveOptions, Promise};
use steadfast_flow::Env;
use steadfast_net::{Fate, Fates, RemoteCall, RemoteError};

use crate::rng::Rng;

/// The archive of a run.
#[derive(Debug, Clone)]
pub(crate) struct ArchivePlan {
    pub(crate) options: ArchiveOptions,
    /// Requests of a thousand that are lost, late, doubled or refused.
    pub(crate) bad_per_mille: u64,
    /// The longest time that a request takes, in microseconds.
    pub(crate) slow_us: u64,
    /// Whether the store is away for a while in each life.
    away: bool,
    /// Whether another machine follows.
    pub(crate) standby: bool,
}

impl ArchivePlan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let options = ArchiveOptions {
            interval: Duration::from_micros(*rng.pick(&[5_000, 20_000, 200_000])),
            uploads_max: rng.range(1, 4) as usize,
            claim_wait: Duration::from_secs(5),
            machine: "simulated".to_owned(),
            pool: "simulated".to_owned(),
            inline_bytes_max: *rng.pick(&[2 << 10, 16 << 10, 64 << 10]),
            piece_bytes: *rng.pick(&[16 << 10, 100 << 10, 7 << 20]),
            segment_bytes_max: *rng.pick(&[8 << 10, 64 << 10, 1 << 20]),
            segment_age: Duration::from_millis(*rng.pick(&[20, 60_000])),
            segments_max: *rng.pick(&[2, 6, 1024]),
            // The wall clock of an archive here counts the looks at the logs.
            base_age: Duration::from_millis(*rng.pick(&[5, 3_600_000])),
            retention: Duration::from_millis(*rng.pick(&[0, 10, 100, 1_000_000])),
            ..ArchiveOptions::default()
        };
        let (bad_per_mille, slow_us) = (*rng.pick(&[0, 50, 300]), *rng.pick(&[50, 2_000, 40_000]));
        // Without a draw of its own, which would change what other seeds do.
        let standby = options.uploads_max.is_multiple_of(2);
        let promises = options.uploads_max > 2;
        let mut plan = Self { options, bad_per_mille, slow_us, away: rng.one_in(3), standby };
        if promises {
            plan.promise();
        }
        plan
    }

    /// Each write is answered when the archive has it. A start waits for the store, however long it
    /// is away.
    pub(crate) fn promise(&mut self) {
        (self.options.promise, self.options.claim_wait) = (Promise::Archived, Duration::from_secs(3600));
    }

    /// What happens to the requests of a life.
    pub(crate) fn fates(&self, mut rng: Rng, env: &Env) -> Fates {
        let (bad_per_mille, slow_us) = (self.bad_per_mille, self.slow_us);
        let begun = env.now();
        let away = self.away.then(|| {
            let from = Duration::from_micros(rng.below(400_000));
            (from, from + Duration::from_micros(rng.below(5_000_000)))
        });
        let (rng, env) = (Mutex::new(rng), env.clone());
        Arc::new(move |call| {
            let mut rng = rng.lock();
            let at = env.now().saturating_sub(begun);
            if away.is_some_and(|(from, to)| (from..to).contains(&at)) {
                return Fate::Failed(RemoteError::Unknown("the store is away".to_owned()));
            }
            let after = Duration::from_micros(rng.below(slow_us));
            if rng.below(1000) >= bad_per_mille {
                return Fate::Answered(after);
            }
            let writes = matches!(call, RemoteCall::Create(_) | RemoteCall::Replace(_) | RemoteCall::Delete);
            match rng.below(5) {
                0 => Fate::Lost(after),
                1 if writes => Fate::Late(after * rng.range(1, 100) as u32),
                2 if writes => Fate::Twice(after * rng.range(1, 100) as u32),
                3 => Fate::Failed(RemoteError::Slow("503".to_owned())),
                _ => Fate::Failed(RemoteError::Unknown("500".to_owned())),
            }
        })
    }
}
