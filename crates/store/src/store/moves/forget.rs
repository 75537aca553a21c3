//! Giving up a lost disk: the slots that it was home to are empty from then on, on the remaining
//! disks.
//!
//! First the remaining disks' leftovers of its slots (begun moves, old copies) are deleted;
//! otherwise an old object could appear where none exists. Then the layout without the disk is
//! written to all remaining disks. After a crash in between, the next start takes the highest
//! generation and writes it to all. The lost disk itself may know one generation that the others do
//! not. So the new generation is far beyond that: the disk counts as removed whenever it returns.

use std::sync::Arc;

use serde::Serialize;
use steadfast_flow::ring::take_share;

use super::Stop;
use super::commit::LayoutWriter;
use super::disks::find;
use super::sweep::Sweeper;
use crate::StoreError;
use crate::layout::Owned;
use crate::layout::{Layout, SLOTS};
use crate::record::epoch_break::EpochBreak;
use crate::shard::Shard;
use crate::store::Store;
use crate::store::open::refuse;
use crate::store::topology::Topology;

/// How far the new generation exceeds that of the remaining disks.
const GENERATIONS_AHEAD: u64 = 1 << 20;

/// Losses with a disk that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// Its name.
    pub name: String,
    /// Its identity, as a UUID.
    pub disk: String,
    /// Slots that it was home to, of [`Forgotten::slots_total`].
    pub slots: u64,
    /// Number of slots in all.
    pub slots_total: u64,
    /// Objects in its last saved index; `None` when the index is gone too.
    pub objects: Option<u64>,
}

impl Forgotten {
    fn of(topology: &Topology, layout: &Layout, seat: usize) -> Self {
        let member = &topology.members()[seat];
        Self {
            name: member.name.clone(),
            disk: uuid::Uuid::from_bytes(member.id).to_string(),
            slots: layout.slots_of(seat) as u64,
            slots_total: SLOTS as u64,
            objects: member.shard.as_ref().err().and_then(|missing| missing.objects),
        }
    }
}

/// Gives up missing disks; see [`StoreDisks::forget`](super::StoreDisks::forget). The caller has
/// the turn.
pub(super) async fn forget(store: &Store, disks: &[String]) -> Result<Vec<Forgotten>, StoreError> {
    let topology = store.topology();
    let layout = topology.layout().cloned().ok_or_else(|| refuse("the pool has one disk only".to_owned()))?;
    let members = topology.members();
    let mut gone = Vec::new();
    for disk in disks {
        let seat = find(&topology, disk)?;
        if members[seat].shard.is_ok() {
            return Err(refuse(format!(
                "{} is present: `steadfast disk drain` moves its keys to the others and removes it",
                members[seat].name
            )));
        }
        if !gone.contains(&seat) {
            gone.push(seat);
        }
    }
    let stay: Vec<usize> = (0..members.len()).filter(|seat| !gone.contains(seat)).collect();
    if stay.is_empty() || gone.is_empty() {
        return Err(refuse("no disk would remain, or none was named".to_owned()));
    }
    for &seat in &stay {
        if let Some(failure) = members[seat].failure() {
            return Err(refuse(format!(
                "a disk can be given up only while all others are present and accept writes: {failure}; if that one \
                 is lost too, name both"
            )));
        }
    }
    let shards: Vec<&Shard> = stay.iter().filter_map(|&seat| members[seat].shard.as_ref().ok()).collect();
    let buckets = store.0.bucket_ops.lock().await;
    let forgotten = gone.iter().map(|&seat| Forgotten::of(&topology, &layout, seat)).collect();
    // No remaining disk is home to these slots: all keys found in them are leftovers.
    for (&seat, shard) in stay.iter().zip(&shards).filter(|(seat, _)| layout.seats[**seat].unclean) {
        let owned = Owned { layout: layout.clone(), seat };
        Sweeper(store).sweep(shard, owned).await.map_err(|stop| match stop {
            Stop::Stopping => refuse("the server is stopping".to_owned()),
            Stop::Failed(why) => refuse(why),
        })?;
    }
    let capacities: Vec<u64> = shards.iter().map(|shard| shard.capacity_bytes).collect();
    let mut next = without(&layout, &gone, &capacities);
    // Above the generation that an interrupted attempt may have left on one of them.
    let known = shards.iter().filter_map(|shard| shard.layout()).map(|layout| layout.generation).max();
    next.generation = next.generation.max(known.unwrap_or_default() + GENERATIONS_AHEAD);
    let next = Arc::new(next);
    let Some((first, others)) = shards.split_first() else {
        return Err(refuse("no disk would remain".to_owned()));
    };
    // The slots of the lost disks begin empty elsewhere: their channels must not give out the same
    // offsets under the same epochs.
    let newest = shards.iter().filter_map(|shard| shard.applied.losses.epoch_break()).max();
    let epoch_break = EpochBreak::after(newest, &store.0.env);
    for shard in &shards {
        shard.put_epoch_break(epoch_break).await?;
        shard.applied.channels.drop_unused();
    }
    first.put_layout(&next).await?;
    // The layout is current from here on, for this server and for the next start.
    let members = stay.iter().map(|&seat| members[seat].clone()).collect();
    store.0.topology.store(Arc::new(Topology::new(members, Some(next.clone()))));
    for shard in others {
        if let Err(e) = LayoutWriter(store).put(shard, &next).await {
            tracing::warn!(error = %e, "a disk lacks the pool's new layout: the next start writes it");
        }
    }
    for shard in &shards {
        shard.applied.registry.write().doubtful.clear();
    }
    drop(buckets);
    store.buckets().repair().await;
    for one in &forgotten {
        let one: &Forgotten = one;
        tracing::warn!(
            disk = one.name, slots = one.slots, objects = ?one.objects,
            "a lost disk was given up: the slots that it was home to are empty now"
        );
    }
    Ok(forgotten)
}

/// The layout without lost disks. Their slots go to their goals, or where there is space. A slot
/// whose goal was a lost disk stays.
fn without(layout: &Layout, gone: &[usize], capacities: &[u64]) -> Layout {
    let mut next = layout.clone();
    next.generation += GENERATIONS_AHEAD;
    let is_gone = |seat: u16| gone.contains(&usize::from(seat));
    for slot in 0..SLOTS {
        match (is_gone(next.homes[slot]), is_gone(next.goals[slot])) {
            (true, false) => next.homes[slot] = next.goals[slot],
            (false, true) => next.goals[slot] = next.homes[slot],
            _ => {}
        }
    }
    // By the capacities of the remaining disks.
    let stay: Vec<usize> = (0..next.seats.len()).filter(|seat| !gone.contains(seat)).collect();
    let mut all = vec![0; next.seats.len()];
    stay.iter().zip(capacities).for_each(|(seat, capacity)| all[*seat] = *capacity);
    for &seat in gone {
        let before = next.goals.clone();
        let leaving: Vec<bool> = next.seats.iter().map(|seat| seat.leaving).collect();
        let any = stay.iter().any(|seat| !leaving[*seat]);
        take_share(&mut next.goals, seat, next.seats.len(), &all, |to| !(gone.contains(&to) || any && leaving[to]));
        for slot in (0..SLOTS).filter(|slot| usize::from(before[*slot]) == seat) {
            next.homes[slot] = next.goals[slot];
        }
    }
    let number = |seat: u16| {
        let at = stay.iter().position(|at| *at == usize::from(seat));
        at.expect("no slot is at home on a disk that is forgotten") as u16
    };
    for table in [&mut next.homes, &mut next.goals] {
        table.iter_mut().for_each(|seat| *seat = number(*seat));
    }
    next.seats = stay.iter().map(|seat| next.seats[*seat].clone()).collect();
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::tests::founded;

    proptest! {
        #[test]
        fn only_slots_of_lost_disks_get_another_home(
            capacities in proptest::collection::vec(1u64..1 << 50, 2..12),
            lost: u16,
            goals in proptest::collection::vec(any::<u16>(), SLOTS),
            moving: bool,
        ) {
            let mut layout = founded(&capacities);
            let seats = capacities.len();
            if moving {
                layout.goals = goals.iter().map(|goal| goal % seats as u16).collect();
            }
            let mut gone: Vec<usize> = (0..seats).filter(|seat| lost >> seat & 1 == 1).collect();
            gone.truncate(seats - 1);
            prop_assume!(!gone.is_empty());
            let stay: Vec<usize> = (0..seats).filter(|seat| !gone.contains(seat)).collect();
            let kept: Vec<u64> = stay.iter().map(|seat| capacities[*seat]).collect();
            let next = without(&layout, &gone, &kept);
            prop_assert_eq!(next.seats.len(), stay.len());
            prop_assert!(next.generation > layout.generation + 1);
            for slot in 0..SLOTS {
                let (home, goal) = (usize::from(next.homes[slot]), usize::from(next.goals[slot]));
                prop_assert!(home < stay.len() && goal < stay.len());
                let before = usize::from(layout.homes[slot]);
                if !gone.contains(&before) {
                    prop_assert_eq!(stay[home], before);
                } else {
                    prop_assert_eq!(home, goal);
                }
            }
        }
    }
}
