//! The map against a model that knows what is really on both legs.

use proptest::prelude::*;

use super::*;

const B: u64 = BLOCK as u64;
const REGION: u64 = 4 * B;
const BLOCKS: usize = 14;

fn map(wanted: bool) -> RegionMap {
    let mut map = RegionMap::new(REGION, 10, wanted);
    map.resize(BLOCKS as u64 * B, 13 * B);
    map
}

/// A write that ends at once on both legs.
fn write(map: &mut RegionMap, block: u64, blocks: u64) -> bool {
    let (op, fast) = map.begin_write(block * B, blocks * B, true, 0);
    map.finish(op, block * B, blocks * B, fast, 0);
    fast
}

#[test]
fn sequential_writes_into_blank_regions_are_readable_without_a_copy() {
    let mut map = map(false);
    for block in 0..7 {
        assert!(write(&mut map, block, 1));
        assert!(map.readable(0, (block + 1) * B) && !map.readable(0, (block + 2) * B));
        assert_eq!(map.counts().to_rebuild, 0, "nothing but what was written is wanted");
    }
    assert_eq!(map.pick(1000, REGION), Pick::Idle);
    assert_eq!(map.counts(), Counts { total: 2, clean: 2, ..Counts::default() });
}

#[test]
fn writes_that_overlap_in_time_are_copied() {
    let mut map = map(false);
    write(&mut map, 0, 4);
    let (first, fast) = map.begin_write(0, 2 * B, true, 0);
    assert!(fast && !map.readable(B, B) && map.readable(2 * B, 2 * B));
    let (second, fast) = map.begin_write(B, B, true, 0);
    assert!(!fast);
    map.finish(first, 0, 2 * B, true, 0);
    map.finish(second, B, B, true, 0);
    assert!(!map.readable(0, B) && !map.readable(B, B) && map.readable(2 * B, 2 * B));
    let Pick::Copy { op, offset: 0, len } = map.pick(10, REGION) else { panic!("the range is copied") };
    assert_eq!(len, 2 * B);
    map.finish(op, 0, len, true, 0);
    assert!(map.readable(0, 4 * B));
}

#[test]
fn a_write_during_a_copy_skips_the_fast_leg_and_spoils_the_copy() {
    let mut map = map(true);
    let Pick::Copy { op, offset, len } = map.pick(0, REGION) else { panic!("everything is to be copied") };
    assert_eq!((offset, len), (12 * B, B), "from the end, as far as the fast leg goes");
    let (write, fast) = map.begin_write(12 * B, B, true, 0);
    assert!(!fast);
    map.finish(write, 12 * B, B, false, 0);
    map.finish(op, offset, len, true, 0);
    assert!(!map.readable(12 * B, B));
    assert!(matches!(map.pick(5, REGION), Pick::Copy { offset, .. } if offset == 8 * B), "not before it has settled");
}

#[test]
fn what_was_used_last_is_copied_first() {
    let mut map = map(true);
    map.miss(0, B);
    map.miss(5 * B, B);
    let mut order = Vec::new();
    while let Pick::Copy { op, offset, len } = map.pick(0, REGION) {
        map.finish(op, offset, len, true, 0);
        order.push(offset / REGION);
    }
    assert_eq!(order, [1, 0, 3, 2]);
    assert_eq!(map.counts(), Counts { total: 4, clean: 4, ..Counts::default() });
}

#[test]
fn one_look_for_work_is_bounded_and_none_is_missed() {
    let regions = 20_000u64;
    let mut map = RegionMap::new(REGION, 10, false);
    map.resize(regions * REGION, regions * REGION);
    // More than are remembered as recently used, all valid but the first.
    for i in 0..regions {
        write(&mut map, i * 4, 4);
    }
    map.forget(0, REGION);
    map.put_off(0, REGION, 500);
    for i in 1..regions {
        map.heat(i as usize);
    }
    let looks = |map: &mut RegionMap, now| {
        let mut looks = 0;
        loop {
            looks += 1;
            match map.pick(now, REGION) {
                Pick::Again => assert!(looks < 1000, "it never ends"),
                other => return (looks, other),
            }
        }
    };
    let (count, found) = looks(&mut map, 100);
    assert!(count > 2 && found == Pick::Later(500), "{count} {found:?}");
    assert!(matches!(looks(&mut map, 499).1, Pick::Later(at) if at > 499));
    let (_, found) = looks(&mut map, 500);
    assert!(matches!(found, Pick::Copy { offset: 0, len: REGION, .. }), "{found:?}");
}

#[test]
fn repeated_failures_at_one_place_quarantine_its_region_only() {
    let mut map = map(false);
    write(&mut map, 0, 8);
    for block in 0..4 {
        assert!(!map.failed(block * B, B, 3), "different places are not one place that fails again");
        map.healed(block * B, B);
    }
    assert!(!map.failed(3 * B, B, 3) && !map.failed(3 * B, B, 3));
    assert!(map.failed(3 * B, B, 3));
    assert!(!map.readable(0, B) && map.readable(4 * B, 4 * B));
    assert_eq!(map.counts(), Counts { total: 2, clean: 1, quarantined: 1, to_rebuild: 0 });
    assert!(!write(&mut map, 0, 1), "it is not written any more");
    assert_eq!(map.pick(100_000, REGION), Pick::Idle);
}

#[test]
fn a_saved_map_holds_what_is_flushed_and_at_rest() {
    let mut map = map(false);
    for (block, seq) in [(0, 1), (4, 2), (8, 3)] {
        let (op, fast) = map.begin_write(block * B, 3 * B, true, 0);
        map.finish(op, block * B, 3 * B, fast, seq);
    }
    let _under_way = map.begin_write(4 * B, B, true, 0);
    let saved = map.save(2, Saving::All);
    let mut again = self::map(true);
    again.load(&saved);
    let readable: Vec<bool> = (0..12).map(|block| again.readable(block * B, B)).collect();
    let expected: Vec<bool> = (0..12).map(|block| [0, 1, 2, 5, 6].contains(&block)).collect();
    assert_eq!(readable, expected);
    // Region 0 is whole as far as it is wanted; 1 and 2 are copied, 3 was never written.
    assert_eq!(again.counts(), Counts { total: 3, clean: 1, to_rebuild: 2, quarantined: 0 });
}

#[test]
fn discarded_space_is_not_copied() {
    let mut map = map(true);
    let op = map.begin_discard(0, 8 * B);
    map.finish(op, 0, 8 * B, false, 0);
    assert_eq!(map.counts().to_rebuild, 2);
    assert!(!map.readable(0, B));
}

#[test]
fn regions_grow_so_that_the_saved_map_is_small() {
    assert_eq!(region_bytes(1 << 20, 1 << 30), 1 << 20);
    assert_eq!(region_bytes(1 << 20, 1 << 40), 4 << 20);
    assert_eq!(region_bytes(1, 1 << 20), 16 << 10);
    assert_eq!(region_bytes(1 << 40, 1 << 60), 64 << 20);
}

#[test]
fn what_the_saved_map_calls_valid_is_not_written_before_it_is_taken_back() {
    let mut map = map(false);
    assert!(write(&mut map, 0, 8));
    map.save(u64::MAX, Saving::All);
    assert!(!write(&mut map, 4, 1), "the saving may have happened");
    map.saved(true);
    assert!(map.urgent && write(&mut map, 8, 2), "what it does not call valid may be");
    assert!(!write(&mut map, 1, 1) && !map.readable(B, B));
    let kept = map.save(u64::MAX, Saving::Less);
    assert_eq!(saved_spans(&kept, REGION).collect::<Vec<_>>(), [], "nor that behind it, where a log writes next");
    map.saved(true);
    assert!(!map.urgent && write(&mut map, 1, 1) && write(&mut map, 4, 3));
    // A copy waits in the same way.
    map.save(u64::MAX, Saving::All);
    map.saved(true);
    map.forget(0, B);
    assert!(matches!(map.pick(1000, REGION), Pick::Later(_)));
    map.save(u64::MAX, Saving::Less);
    map.saved(false);
    assert!(matches!(map.pick(1000, REGION), Pick::Later(_)), "it may not have happened");
    map.save(u64::MAX, Saving::Less);
    map.saved(true);
    assert!(matches!(map.pick(1000, REGION), Pick::Copy { offset: 0, len: B, .. }));
}

#[test]
fn the_last_map_calls_valid_all_that_is() {
    let mut map = map(false);
    assert!(write(&mut map, 0, 12));
    map.save(u64::MAX, Saving::All);
    map.saved(true);
    assert!(!write(&mut map, 3, 1));
    let last = map.save(u64::MAX, Saving::Last);
    let saved: u64 = saved_spans(&last, REGION).map(|(start, end)| end - start).sum();
    assert_eq!(saved, 11 * B, "all but what was just written, also what was to be taken back");
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        block: usize,
        blocks: usize,
        fast: bool,
    },
    /// The oldest, or some other, operation goes on: one of its legs carries it out or fails.
    Advance {
        which: usize,
        fast_leg: bool,
        fails: bool,
    },
    Pick,
    Heal {
        block: usize,
        blocks: usize,
    },
    Discard {
        block: usize,
        blocks: usize,
    },
    Fail {
        block: usize,
    },
    Grow,
    /// A saving of the map begins, or ends well or not.
    Save {
        all: bool,
        durable: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..BLOCKS, 1..7usize);
    prop_oneof![
        4 => (range(), any::<bool>()).prop_map(|((block, blocks), fast)| Step::Write { block, blocks, fast }),
        9 => (0..8usize, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(which, fast_leg, fails)| Step::Advance { which, fast_leg, fails }),
        2 => Just(Step::Pick),
        1 => range().prop_map(|(block, blocks)| Step::Heal { block, blocks }),
        1 => range().prop_map(|(block, blocks)| Step::Discard { block, blocks }),
        1 => (0..BLOCKS).prop_map(|block| Step::Fail { block }),
        1 => Just(Step::Grow),
        3 => (any::<bool>(), prop::bool::weighted(0.8)).prop_map(|(all, durable)| Step::Save { all, durable }),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Copy,
    Discard,
}

/// An operation under way. What it would put on a leg, and whether it has.
#[derive(Debug)]
struct Op {
    id: u64,
    kind: Kind,
    block: usize,
    blocks: usize,
    value: u64,
    /// What a copy has read from the durable leg.
    copied: Option<Vec<u64>>,
    durable: Option<bool>,
    fast: Option<bool>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever is readable holds on the fast leg what it holds on the durable leg. And what the fast leg's own map calls valid stays on it as
    /// it was when that was saved, so that it is never newer than a durable leg that knows of the saving.
    #[test]
    fn nothing_readable_is_ever_stale(steps in prop::collection::vec(step(), 1..120), blank in any::<bool>()) {
        // What is on the legs, block by block. At first they differ, unless both are blank and only what is written counts.
        let mut durable: Vec<u64> = (1..=BLOCKS as u64).collect();
        let mut fast = vec![0u64; BLOCKS];
        let mut len = 10;
        let mut map = RegionMap::new(REGION, 10, !blank);
        map.resize(len as u64 * B, 9 * B);
        let mut ops: Vec<Op> = Vec::new();
        let (mut value, mut now) = (100u64, 0u64);
        // Maps that the fast leg may have, with what it held then, and whether a further one is on its way.
        let (mut claims, mut saving) = (Vec::<Vec<Option<u64>>>::new(), false);
        for step in steps {
            now += 3;
            value += 1;
            match step {
                Step::Write { block, blocks, fast: want } if block < len => {
                    let blocks = blocks.min(len - block);
                    let (id, to_fast) = map.begin_write(block as u64 * B, blocks as u64 * B, want, now);
                    prop_assert!(want || !to_fast);
                    let fast = (!to_fast).then_some(false);
                    ops.push(Op { id, kind: Kind::Write, block, blocks, value, copied: None, durable: None, fast });
                }
                Step::Discard { block, blocks } if block < len => {
                    let blocks = blocks.min(len - block);
                    let id = map.begin_discard(block as u64 * B, blocks as u64 * B);
                    ops.push(Op { id, kind: Kind::Discard, block, blocks, value, copied: None, durable: None, fast: None });
                }
                Step::Heal { block, blocks } if block < len => {
                    let blocks = blocks.min(len - block);
                    if let Some(id) = map.begin_heal(block as u64 * B, blocks as u64 * B) {
                        ops.push(Op { id, kind: Kind::Copy, block, blocks, value, copied: None, durable: None, fast: None });
                    }
                }
                Step::Pick => {
                    if let Pick::Copy { op: id, offset, len } = map.pick(now, 3 * B) {
                        let (block, blocks) = ((offset / B) as usize, (len / B) as usize);
                        ops.push(Op { id, kind: Kind::Copy, block, blocks, value, copied: None, durable: None, fast: None });
                    }
                }
                Step::Advance { which, fast_leg, fails } if !ops.is_empty() => {
                    let at = which % ops.len();
                    let op = &mut ops[at];
                    let range = op.block..op.block + op.blocks;
                    match op.kind {
                        Kind::Copy if op.copied.is_none() => {
                            op.copied = Some(durable[range].to_vec());
                            op.durable = Some(!fails);
                            let overtaken = map.is_spoiled(op.id, op.block as u64 * B, op.blocks as u64 * B);
                            op.fast = (fails || overtaken).then_some(false);
                        }
                        Kind::Copy => {
                            if let Some(copied) = &op.copied {
                                fast[range].copy_from_slice(copied);
                            }
                            op.fast = Some(!fails);
                        }
                        _ => {
                            let (leg, done) =
                                if fast_leg && op.fast.is_none() || op.durable.is_some() { (&mut fast, &mut op.fast) }
                                else { (&mut durable, &mut op.durable) };
                            // A failed write has changed something too, and differently on each leg.
                            let value = match op.kind {
                                Kind::Discard => op.value * 1000 + u64::from(fast_leg),
                                _ if fails => op.value * 1_000_000 + now,
                                _ => op.value,
                            };
                            leg[range.clone()].fill(value);
                            if op.kind == Kind::Discard {
                                // What is given up is no newer than anything.
                                claims.iter_mut().for_each(|claim| claim[range.clone()].fill(None));
                            }
                            *done = Some(!fails);
                        }
                    }
                    if let (Some(d), Some(f)) = (op.durable, op.fast) {
                        let good = d && f && op.kind != Kind::Discard;
                        let op = ops.remove(at);
                        map.finish(op.id, op.block as u64 * B, op.blocks as u64 * B, good, 0);
                    }
                }
                Step::Fail { block } => {
                    map.failed(block as u64 * B, B, 5);
                    map.healed(block as u64 * B, B);
                }
                Step::Grow => {
                    len = (len + 1).min(BLOCKS);
                    map.resize(len as u64 * B, (len as u64 - 1) * B);
                }
                Step::Save { durable, .. } if saving => {
                    map.saved(durable);
                    claims = if durable { claims.split_off(claims.len() - 1) } else { claims };
                    saving = false;
                }
                Step::Save { all, .. } => {
                    let mut claim = RegionMap::new(REGION, 10, true);
                    claim.resize(len as u64 * B, 13 * B);
                    claim.load(&map.save(u64::MAX, if all { Saving::All } else { Saving::Less }));
                    let held = |block: usize| claim.readable(block as u64 * B, B).then_some(fast[block]);
                    claims.push((0..BLOCKS).map(held).collect());
                    saving = true;
                }
                _ => {}
            }
            for claim in &claims {
                for block in 0..BLOCKS {
                    prop_assert!(claim[block].is_none_or(|held| held == fast[block]), "block {}: {:?}", block, claim[block]);
                }
            }
            for from in 0..BLOCKS {
                for to in from + 1..=BLOCKS {
                    if map.readable(from as u64 * B, (to - from) as u64 * B) {
                        prop_assert_eq!(&fast[from..to], &durable[from..to], "blocks {}..{}", from, to);
                    }
                }
            }
            let recount = (0..map.regions.len()).fold(Counts::default(), |sum, i| {
                let one = map.count_of(i);
                Counts {
                    total: sum.total + one.total,
                    clean: sum.clean + one.clean,
                    to_rebuild: sum.to_rebuild + one.to_rebuild,
                    quarantined: sum.quarantined + one.quarantined,
                }
            });
            prop_assert_eq!(recount, map.counts());
            let mut loaded = RegionMap::new(REGION, 10, true);
            loaded.resize(len as u64 * B, 13 * B);
            loaded.load(&map.clone().save(u64::MAX, Saving::All));
            for block in 0..len {
                let busy = ops.iter().any(|op| (op.block..op.block + op.blocks).contains(&block));
                if loaded.readable(block as u64 * B, B) {
                    prop_assert!(!busy && durable[block] == fast[block], "block {}", block);
                }
            }
        }
    }
}
