//! Which slots move when disks join or leave: as few as possible, by the capacities of the disks.

use std::collections::BTreeSet;

use steadfast_flow::ring::{give_share, take_share};

use crate::layout::{Layout, SLOTS, Seat};

/// Slots that move together from one disk to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Seat of their home.
    pub(crate) from: usize,
    /// Seat of their goal.
    pub(crate) to: usize,
    /// Slots in ascending order.
    pub(crate) slots: Vec<usize>,
}

impl Layout {
    /// The next generation of this layout, otherwise unchanged.
    pub(crate) fn next(&self) -> Self {
        Self { generation: self.generation + 1, ..self.clone() }
    }

    /// Adds a disk that is home to no slot yet.
    pub(crate) fn with_seat(&self, seat: Seat) -> Self {
        assert!(self.seat_of(&seat.disk).is_none(), "{} joins twice", seat.name);
        let mut layout = self.next();
        layout.seats.push(seat);
        layout
    }

    /// Removes a disk that is home to no slot. The others keep their order.
    pub(crate) fn without_seat(&self, gone: usize) -> Self {
        let mut layout = self.next();
        layout.seats.remove(gone);
        for table in [&mut layout.homes, &mut layout.goals] {
            for home in table {
                assert_ne!(usize::from(*home), gone, "a home cannot be taken out");
                *home -= u16::from(usize::from(*home) > gone);
            }
        }
        layout
    }

    /// Makes a new disk the goal of its share of the slots, by the capacities of all disks. Every
    /// other disk keeps at least one.
    pub(crate) fn plan_share(&mut self, new: usize, capacities: &[u64]) {
        give_share(&mut self.goals, new, self.seats.len(), capacities);
        self.mark_unclean();
    }

    /// Marks a disk as leaving and assigns its slots to `into`, or to all others by their
    /// capacities.
    pub(crate) fn plan_leave(&mut self, leaving: usize, into: Option<usize>, capacities: &[u64]) {
        self.seats[leaving].leaving = true;
        let seats = &self.seats;
        let may = |seat: usize| match into {
            Some(into) => seat == into,
            None => !seats[seat].leaving,
        };
        take_share(&mut self.goals, leaving, seats.len(), capacities, may);
        self.mark_unclean();
    }

    /// Marks the disks that slots come from or go to.
    fn mark_unclean(&mut self) {
        for (home, goal) in self.homes.iter().zip(&self.goals).filter(|(home, goal)| home != goal) {
            self.seats[usize::from(*home)].unclean = true;
            self.seats[usize::from(*goal)].unclean = true;
        }
    }

    /// The next slots to move, up to `most(from)`, from one disk to one other; skips slots in
    /// `blocked`.
    pub(crate) fn next_batch(&self, blocked: &BTreeSet<usize>, most: impl Fn(usize) -> usize) -> Option<Batch> {
        let waiting = || (0..SLOTS).filter(|slot| self.homes[*slot] != self.goals[*slot] && !blocked.contains(slot));
        let first = waiting().next()?;
        let (from, to) = (self.homes[first], self.goals[first]);
        let same = waiting().filter(|&slot| self.homes[slot] == from && self.goals[slot] == to);
        let (from, to) = (usize::from(from), usize::from(to));
        Some(Batch { from, to, slots: same.take(most(from).max(1)).collect() })
    }

    /// The layout with these slots at their goal.
    pub(crate) fn with_moved(&self, slots: &[usize]) -> Self {
        let mut layout = self.next();
        for &slot in slots {
            assert_ne!(layout.homes[slot], layout.goals[slot], "slot {slot} is at its goal");
            layout.homes[slot] = layout.goals[slot];
        }
        layout
    }

    /// Number of slots that have yet to move.
    pub(crate) fn slots_waiting(&self) -> usize {
        self.homes.iter().zip(&self.goals).filter(|(home, goal)| home != goal).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::tests::founded;

    fn seat(n: u8) -> Seat {
        Seat { disk: [n; 16], name: format!("new{n}"), unclean: false, leaving: false }
    }

    fn counts(layout: &Layout) -> Vec<usize> {
        let mut counts = vec![0; layout.seats.len()];
        layout.goals.iter().for_each(|goal| counts[usize::from(*goal)] += 1);
        counts
    }

    fn fair(layout: &Layout, capacities: &[u64]) {
        let total: f64 = capacities.iter().map(|c| *c as f64).sum();
        let counts = counts(layout);
        for (count, capacity) in counts.iter().zip(capacities) {
            let due = SLOTS as f64 * *capacity as f64 / total;
            assert!((*count as f64 - due).abs() <= counts.len() as f64 + 1.0, "{counts:?} for {capacities:?}");
        }
    }

    /// Carries out the plan in batches and checks that no other slot moves.
    fn carry_out(mut layout: Layout) -> Layout {
        let goals = layout.goals.clone();
        while let Some(batch) = layout.next_batch(&BTreeSet::new(), |_| 7) {
            assert!(batch.slots.len() <= 7 && batch.from != batch.to);
            assert!(layout.seats[batch.from].unclean && layout.seats[batch.to].unclean);
            let after = layout.with_moved(&batch.slots);
            for (slot, goal) in goals.iter().enumerate() {
                let moved = batch.slots.contains(&slot);
                assert!(usize::from(layout.homes[slot]) == batch.from || !moved);
                assert_eq!(after.homes[slot], if moved { *goal } else { layout.homes[slot] });
            }
            assert_eq!(after.generation, layout.generation + 1);
            layout = after;
        }
        assert_eq!((layout.homes == goals, layout.slots_waiting()), (true, 0));
        layout
    }

    proptest! {
        #[test]
        fn disks_come_and_go(
            capacities in proptest::collection::vec(1u64..1000, 1..8),
            more in proptest::collection::vec((1u64..1000, any::<proptest::sample::Index>()), 1..6),
        ) {
            let mut capacities = capacities;
            let mut layout = founded(&capacities);
            for (n, (capacity, gone)) in (0u8..).zip(more) {
                capacities.push(capacity);
                let before = layout.clone();
                layout = layout.with_seat(seat(200 + n));
                let new = layout.seats.len() - 1;
                prop_assert_eq!(layout.slots_of(new), 0);
                layout.plan_share(new, &capacities);
                // Only slots of the new disk move.
                for slot in 0..SLOTS {
                    prop_assert!(layout.goals[slot] == before.goals[slot] || usize::from(layout.goals[slot]) == new);
                }
                layout = carry_out(layout);
                let due = SLOTS as u64 * capacity / capacities.iter().sum::<u64>();
                prop_assert_eq!(layout.slots_of(new) as u64, due.max(1));

                let gone = gone.index(layout.seats.len());
                let before = layout.clone();
                layout.plan_leave(gone, None, &capacities);
                for slot in 0..SLOTS {
                    let stays = usize::from(before.homes[slot]) != gone;
                    prop_assert!(stays == (layout.goals[slot] == before.goals[slot]), "slot {}", slot);
                }
                layout = carry_out(layout);
                prop_assert_eq!(layout.slots_of(gone), 0);
                layout = layout.without_seat(gone);
                capacities.remove(gone);
                for slot in 0..SLOTS {
                    let stays = usize::from(before.homes[slot]) != gone;
                    let disk = |layout: &Layout| layout.seats[usize::from(layout.homes[slot])].disk;
                    prop_assert!(!stays || disk(&layout) == disk(&before));
                }
                prop_assert!(!layout.seats.iter().any(|seat| seat.leaving));
            }
        }
    }

    #[test]
    fn a_share_is_fair_among_equals_and_by_size() {
        for capacities in [vec![10, 10, 10], vec![10, 20, 30], vec![100, 1], vec![1, 1, 1, 1, 1, 1, 1, 1]] {
            let (new, old) = capacities.split_last().expect("some");
            let mut layout = founded(old).with_seat(seat(9));
            layout.plan_share(old.len(), &capacities);
            fair(&layout, &capacities);
            let _ = new;
            let mut layout = founded(&capacities);
            layout.plan_leave(0, None, &capacities);
            let mut rest = counts(&layout);
            assert_eq!(rest.remove(0), 0);
            layout.goals.iter_mut().for_each(|goal| *goal -= 1);
            layout.seats.remove(0);
            fair(&layout, &capacities[1..]);
        }
    }

    #[test]
    fn a_disk_is_replaced_slot_by_slot() {
        let mut layout = founded(&[1, 1, 1]).with_seat(seat(9));
        layout.plan_leave(1, Some(3), &[1, 1, 1, 1]);
        let before = layout.clone();
        let after = carry_out(layout).without_seat(1);
        for slot in 0..SLOTS {
            let disk = |layout: &Layout| layout.seats[usize::from(layout.homes[slot])].disk;
            let expected = if before.homes[slot] == 1 { [9; 16] } else { disk(&before) };
            assert_eq!(disk(&after), expected);
        }
    }

    #[test]
    fn unmovable_slots_are_skipped() {
        let mut layout = founded(&[1, 1]).with_seat(seat(9));
        layout.plan_leave(0, Some(2), &[1, 1, 1]);
        let blocked: BTreeSet<usize> = (0..500).collect();
        let batch = layout.next_batch(&blocked, |_| 1000).expect("the rest");
        assert_eq!((batch.from, batch.to, batch.slots.len()), (0, 2, 12));
    }
}
