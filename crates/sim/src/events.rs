//! Events of objects: one for each change of a bucket that is mirrored, in order, there if and only if the change is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::Env;
use steadfast_store::{Event, EventKind, Store};

use crate::client::{Outcome, tag_of};
use crate::model::{Key, Seen};
use crate::rng::Rng;
use crate::shared::Shared;

/// What was heard, over all lives.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    /// By slot: its epoch, and its events from the first on.
    slots: BTreeMap<usize, (u32, Vec<Told>)>,
    /// By key: the slot of the last event, and its number there.
    last: BTreeMap<String, (usize, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    kind: EventKind,
    key: String,
    etag: String,
}

impl Heard {
    /// Takes in an event; whether it was heard of before.
    fn hear(&mut self, event: &Event, bucket: &str) -> Outcome<bool> {
        let Event { slot, position, event: told, again, .. } = event;
        if told.bucket != bucket || !told.targets.is_empty() {
            return Err(format!("EVENTS: nobody asked for {told:?}"));
        }
        let told = Told { kind: told.kind, key: told.key.clone(), etag: told.etag.clone() };
        let (epoch, events) = self.slots.entry(*slot).or_insert_with(|| (position.epoch, Vec::new()));
        if *epoch != position.epoch {
            return Err(format!("EVENTS: slot {slot} went from epoch {epoch} to {}", position.epoch));
        }
        let at = position.offset as usize;
        if let Some(known) = events.get(at.wrapping_sub(1)) {
            if !again || *known != told {
                return Err(format!("EVENTS: {slot}/{at} was {known:?}, and is now {told:?} (again: {again})"));
            }
            return Ok(true);
        }
        if at != events.len() + 1 {
            return Err(format!("EVENTS: LOST: slot {slot} goes on with {at} after {}", events.len()));
        }
        self.last.insert(told.key.clone(), (*slot, events.len()));
        events.push(told);
        Ok(false)
    }

    /// What the last event of each key says must be what there is.
    fn check(&self, seen: &BTreeMap<Key, Seen>, bucket: &str) -> Outcome {
        for ((_, name), state) in seen.iter().filter(|((of, _), _)| **of == *bucket) {
            let last = self.last.get(&**name).map(|(slot, n)| &self.slots[slot].1[*n]);
            let told = match last {
                Some(told) if told.kind != EventKind::Delete => Some(tag_of(&told.etag)?),
                _ => None,
            };
            let there = state.as_ref().map(|(tag, _)| *tag);
            if told != there {
                return Err(format!("EVENTS: {name} is {there:x?}, and was told to be {told:x?}"));
            }
        }
        Ok(())
    }
}

/// The bucket whose objects are listened to, if there is one.
fn bucket(shared: &Shared) -> Option<Arc<str>> {
    shared.listened.then(|| shared.buckets[0].0.clone())
}

/// Hears of everything that waits after a start, when nobody writes; holds it against what was seen.
pub(crate) async fn survey(shared: &Shared, store: &Store, seen: &BTreeMap<Key, Seen>) -> Outcome {
    let Some(bucket) = bucket(shared) else { return Ok(()) };
    let mut rest = store.status().events.used as usize;
    while rest > 0 {
        let events = store.next_events(rest).await;
        rest -= events.len();
        hear(shared, &events, &bucket)?;
        store.events_done(&events);
    }
    shared.heard.lock().check(seen, &bucket)
}

fn hear(shared: &Shared, events: &[Event], bucket: &str) -> Outcome {
    for event in events {
        let again = shared.heard.lock().hear(event, bucket)?;
        let mut counts = shared.counts.lock();
        counts.told += u64::from(!again);
        counts.told_again += u64::from(again);
    }
    Ok(())
}

/// Listens while there is something to hear.
pub(crate) async fn listen(shared: Arc<Shared>, store: Store, env: Env, mut rng: Rng) -> Outcome {
    let Some(bucket) = bucket(&shared) else { return Ok(()) };
    loop {
        let events = store.next_events(rng.range(1, 20) as usize).await;
        hear(&shared, &events, &bucket)?;
        if rng.one_in(3) {
            env.sleep(Duration::from_micros(rng.below(20_000))).await;
        }
        store.events_done(&events);
        if rng.one_in(4)
            && let Err(error) = store.trim_events(Duration::ZERO).await
        {
            shared.write_may_fail(&error)?;
        }
    }
}
