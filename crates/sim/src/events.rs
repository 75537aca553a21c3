//! Events of objects: one for each change of a mirrored bucket, in order, if and only if the change
//! exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_store::{Event, Store};

use crate::model::{Key, Seen};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::shared::Shared;

/// The bucket whose events the simulator receives, if any.
fn bucket(shared: &Shared) -> Option<Arc<str>> {
    shared.listened.then(|| shared.buckets[0].0.clone())
}

/// Receives all pending events after a start, before any client writes, and compares them with the
/// objects seen.
pub(crate) async fn survey(shared: &Shared, store: &Store, seen: &BTreeMap<Key, Seen>) -> Outcome {
    let Some(bucket) = bucket(shared) else { return Ok(()) };
    let mut rest = store.status().events.used as usize;
    while rest > 0 {
        let events = store.events().next(rest).await;
        rest -= events.len();
        record_all(shared, &events, &bucket)?;
        store.events().done(&events);
    }
    shared.received.lock().check(seen, &bucket)
}

fn record_all(shared: &Shared, events: &[Event], bucket: &str) -> Outcome {
    for event in events {
        let again = shared.received.lock().record(event, bucket)?;
        let mut counts = shared.counts.lock();
        counts.events_received += u64::from(!again);
        counts.events_redelivered += u64::from(again);
    }
    Ok(())
}

/// Receives events without end.
pub(crate) async fn listen(shared: Arc<Shared>, store: Store, env: Env, mut rng: Rng) -> Outcome {
    let Some(bucket) = bucket(&shared) else { return Ok(()) };
    loop {
        let events = store.events().next(rng.range(1, 20) as usize).await;
        record_all(&shared, &events, &bucket)?;
        if rng.one_in(3) {
            env.sleep(Duration::from_micros(rng.below(20_000))).await;
        }
        store.events().done(&events);
        if rng.one_in(4)
            && let Err(error) = store.events().trim(Duration::ZERO).await
        {
            shared.write_may_fail(&error)?;
        }
    }
}
