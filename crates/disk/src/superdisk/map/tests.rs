//! The map against a model that knows the real content of both legs.

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

/// Completes a write at once on both legs.
fn write(map: &mut RegionMap, block: u64, blocks: u64) -> bool {
    let (op, fast) = map.begin_write(block * B, blocks * B, true, 0);
    map.finish(op, block * B, blocks * B, fast);
    fast
}

#[test]
fn sequential_writes_into_blank_regions_are_readable_without_a_copy() {
    let mut map = map(false);
    for block in 0..7 {
        assert!(write(&mut map, block, 1));
        assert!(map.readable(0, (block + 1) * B) && !map.readable(0, (block + 2) * B));
    }
    assert_eq!(map.counts(), Counts { total: 2, clean: 1, to_rebuild: 1, quarantined: 0 });
    // Unwritten blocks of a region are copied too: only whole regions can be clean.
    let Pick::Copy { op, offset, len } = map.pick(1000, REGION) else { panic!("the rest of the second region") };
    assert_eq!((offset, len), (7 * B, B));
    map.finish(op, offset, len, true);
    assert_eq!(map.pick(1000, REGION), Pick::Idle);
}

#[test]
fn writes_that_overlap_in_time_are_copied() {
    let mut map = map(false);
    write(&mut map, 0, 4);
    let (first, fast) = map.begin_write(0, 2 * B, true, 0);
    assert!(fast && !map.readable(B, B) && map.readable(2 * B, 2 * B));
    let (second, fast) = map.begin_write(B, B, true, 0);
    assert!(!fast);
    map.finish(first, 0, 2 * B, true);
    map.finish(second, B, B, true);
    assert!(!map.readable(0, B) && !map.readable(B, B) && map.readable(2 * B, 2 * B));
    let Pick::Copy { op, offset: 0, len } = map.pick(10, REGION) else { panic!("the range is copied") };
    assert_eq!(len, 2 * B);
    map.finish(op, 0, len, true);
    assert!(map.readable(0, 4 * B));
}

#[test]
fn a_write_during_a_copy_skips_the_fast_leg_and_spoils_the_copy() {
    let mut map = map(true);
    let Pick::Copy { op, offset, len } = map.pick(0, REGION) else { panic!("everything is to be copied") };
    assert_eq!((offset, len), (12 * B, B), "from the end, as far as the fast leg goes");
    let (write, fast) = map.begin_write(12 * B, B, true, 0);
    assert!(!fast);
    map.finish(write, 12 * B, B, false);
    map.finish(op, offset, len, true);
    assert!(!map.readable(12 * B, B));
    assert!(matches!(map.pick(5, REGION), Pick::Copy { offset, .. } if offset == 8 * B), "not before it has settled");
}

#[test]
fn the_last_used_region_is_copied_first() {
    let mut map = map(true);
    map.miss(0, B);
    map.miss(5 * B, B);
    let mut order = Vec::new();
    while let Pick::Copy { op, offset, len } = map.pick(0, REGION) {
        map.finish(op, offset, len, true);
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
    // More regions than are remembered as recently used; all but the first are valid.
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
fn only_whole_regions_that_are_left_alone_are_settled() {
    let mut map = map(false);
    write(&mut map, 0, 12);
    assert!(!map.is_settled(0, 9) && map.is_settled(0, 10) && map.is_settled(2, 10));
    assert!(!map.is_settled(3, 10), "the fast leg holds a part of it");
    assert!(!map.is_settled(4, 10), "there is none");
    let (op, _) = map.begin_write(5 * B, B, true, 10);
    assert!(!map.is_settled(1, 1000), "a write is in progress");
    map.finish(op, 5 * B, B, true);
    assert!(!map.is_settled(1, 19) && map.is_settled(1, 20));
    map.forget(9 * B, B);
    assert!(!map.is_settled(2, 1000), "not whole");
}

#[test]
fn after_a_failure_only_clean_regions_count() {
    let mut map = map(false);
    write(&mut map, 0, 12);
    let (op, _) = map.begin_write(0, B, true, 0);
    map.spoil_all();
    map.trust_only(|region| region == 0 || region == 3);
    map.finish(op, 0, B, true);
    let readable: Vec<u64> = (0..13).filter(|block| map.readable(block * B, B)).collect();
    assert_eq!(readable, [1, 2, 3], "not where an operation was in progress, nor a partial region");
}

#[test]
fn discarded_space_is_not_copied() {
    let mut map = map(true);
    let op = map.begin_discard(0, 8 * B);
    map.finish(op, 0, 8 * B, false);
    assert_eq!(map.counts().to_rebuild, 2);
    assert!(!map.readable(0, B));
}

#[test]
fn regions_grow_so_that_their_bits_fit() {
    assert_eq!(region_bytes(1 << 20, 1 << 30), 1 << 20);
    assert_eq!(region_bytes(4 << 20, REGIONS_MAX * (4 << 20)), 4 << 20);
    assert_eq!(region_bytes(4 << 20, REGIONS_MAX * (4 << 20) + 1), 8 << 20);
    assert_eq!(region_bytes(1, 1 << 20), 16 << 10);
    assert_eq!(region_bytes(1 << 40, 1 << 60), 64 << 20);
}

#[derive(Debug, Clone)]
enum MapStep {
    Write {
        block: usize,
        blocks: usize,
        fast: bool,
    },
    /// One operation advances: one of its legs carries it out or fails.
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
}

fn step() -> impl Strategy<Value = MapStep> {
    let range = || (0..BLOCKS, 1..7usize);
    prop_oneof![
        4 => (range(), any::<bool>()).prop_map(|((block, blocks), fast)| MapStep::Write { block, blocks, fast }),
        9 => (0..8usize, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(which, fast_leg, fails)| MapStep::Advance { which, fast_leg, fails }),
        2 => Just(MapStep::Pick),
        1 => range().prop_map(|(block, blocks)| MapStep::Heal { block, blocks }),
        1 => range().prop_map(|(block, blocks)| MapStep::Discard { block, blocks }),
        1 => (0..BLOCKS).prop_map(|block| MapStep::Fail { block }),
        1 => Just(MapStep::Grow),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelOpKind {
    Write,
    Copy,
    Discard,
}

/// An operation in progress, and its outcome on each leg.
#[derive(Debug)]
struct ModelOp {
    id: u64,
    kind: ModelOpKind,
    block: usize,
    blocks: usize,
    value: u64,
    /// Values that a copy has read from the durable leg.
    copied: Option<Vec<u64>>,
    durable: Option<bool>,
    fast: Option<bool>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Every readable range holds the same on the fast leg as on the durable leg.
    #[test]
    fn nothing_readable_is_ever_stale(steps in prop::collection::vec(step(), 1..120), blank in any::<bool>()) {
        // The content of the legs, block by block. At first they differ, unless both are blank and
        // only written blocks count.
        let mut durable: Vec<u64> = (1..=BLOCKS as u64).collect();
        let mut fast = vec![0u64; BLOCKS];
        let mut len = 10;
        let mut map = RegionMap::new(REGION, 10, !blank);
        map.resize(len as u64 * B, 9 * B);
        let mut ops: Vec<ModelOp> = Vec::new();
        let (mut value, mut now) = (100u64, 0u64);
        for step in steps {
            now += 3;
            value += 1;
            match step {
                MapStep::Write { block, blocks, fast: want } if block < len => {
                    let blocks = blocks.min(len - block);
                    let (id, to_fast) = map.begin_write(block as u64 * B, blocks as u64 * B, want, now);
                    prop_assert!(want || !to_fast);
                    let fast = (!to_fast).then_some(false);
                    ops.push(ModelOp { id, kind: ModelOpKind::Write, block, blocks, value, copied: None, durable: None, fast });
                }
                MapStep::Discard { block, blocks } if block < len => {
                    let blocks = blocks.min(len - block);
                    let id = map.begin_discard(block as u64 * B, blocks as u64 * B);
                    ops.push(ModelOp { id, kind: ModelOpKind::Discard, block, blocks, value, copied: None, durable: None, fast: None });
                }
                MapStep::Heal { block, blocks } if block < len => {
                    let blocks = blocks.min(len - block);
                    if let Some(id) = map.begin_heal(block as u64 * B, blocks as u64 * B) {
                        ops.push(ModelOp { id, kind: ModelOpKind::Copy, block, blocks, value, copied: None, durable: None, fast: None });
                    }
                }
                MapStep::Pick => {
                    if let Pick::Copy { op: id, offset, len } = map.pick(now, 3 * B) {
                        let (block, blocks) = ((offset / B) as usize, (len / B) as usize);
                        ops.push(ModelOp { id, kind: ModelOpKind::Copy, block, blocks, value, copied: None, durable: None, fast: None });
                    }
                }
                MapStep::Advance { which, fast_leg, fails } if !ops.is_empty() => {
                    let at = which % ops.len();
                    let op = &mut ops[at];
                    let range = op.block..op.block + op.blocks;
                    match op.kind {
                        ModelOpKind::Copy if op.copied.is_none() => {
                            op.copied = Some(durable[range].to_vec());
                            op.durable = Some(!fails);
                            let overtaken = map.is_spoiled(op.id, op.block as u64 * B, op.blocks as u64 * B);
                            op.fast = (fails || overtaken).then_some(false);
                        }
                        ModelOpKind::Copy => {
                            if let Some(copied) = &op.copied {
                                fast[range].copy_from_slice(copied);
                            }
                            op.fast = Some(!fails);
                        }
                        _ => {
                            let (leg, done) =
                                if fast_leg && op.fast.is_none() || op.durable.is_some() { (&mut fast, &mut op.fast) }
                                else { (&mut durable, &mut op.durable) };
                            // A failed write has changed something too, and differently on each
                            // leg.
                            let value = match op.kind {
                                ModelOpKind::Discard => op.value * 1000 + u64::from(fast_leg),
                                _ if fails => op.value * 1_000_000 + now,
                                _ => op.value,
                            };
                            leg[range.clone()].fill(value);
                            *done = Some(!fails);
                        }
                    }
                    if let (Some(d), Some(f)) = (op.durable, op.fast) {
                        let good = d && f && op.kind != ModelOpKind::Discard;
                        let op = ops.remove(at);
                        map.finish(op.id, op.block as u64 * B, op.blocks as u64 * B, good);
                    }
                }
                MapStep::Fail { block } => {
                    map.failed(block as u64 * B, B, 5);
                    map.healed(block as u64 * B, B);
                }
                MapStep::Grow => {
                    len = (len + 1).min(BLOCKS);
                    map.resize(len as u64 * B, (len as u64 - 1) * B);
                }
                _ => {}
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
            for region in 0..map.len() as usize {
                let blocks = region * 4..region * 4 + 4;
                let busy = ops.iter().any(|op| op.block < blocks.end && blocks.start < op.block + op.blocks);
                if map.is_settled(region, now) {
                    prop_assert!(!busy && durable[blocks.clone()] == fast[blocks], "region {}", region);
                }
            }
        }
    }
}
