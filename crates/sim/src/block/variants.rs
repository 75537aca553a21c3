//! Broken super-disks that test the simulator: it must catch each.

use std::time::Duration;

use steadfast_disk::SuperdiskSabotage;

use super::plan::{BlockLife, BlockPlan, LegFate, LegFault, Odds};

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockVariant(SuperdiskSabotage);

use SuperdiskSabotage as S;

const NAMES: [(&str, S); 32] = [
    ("trust-stale", S::TrustStale),
    ("ack-on-fast", S::AckOnFast),
    ("bit-not-flushed", S::BitNotFlushed),
    ("bit-beside-data", S::BitBesideData),
    ("bit-holds-only-fast", S::BitHoldsOnlyFast),
    ("no-bits-while-fast-away", S::NoBitsWhileFastAway),
    ("clear-without-fast-flush", S::ClearWithoutFastFlush),
    ("clear-without-durable-flush", S::ClearWithoutDurableFlush),
    ("clear-under-write", S::ClearUnderWrite),
    ("clear-not-whole", S::ClearNotWhole),
    ("clear-in-one-flush", S::ClearInOneFlush),
    ("no-stamp-at-clear", S::NoStampAtClear),
    ("no-stamp-at-set", S::NoStampAtSet),
    ("no-stamp-at-opening", S::NoStampAtOpening),
    ("newer-fast-believed", S::NewerFastBelieved),
    ("older-fast-believed", S::OlderFastBelieved),
    ("opening-not-compared", S::OpeningNotCompared),
    ("first-device-believed", S::FirstDeviceBelieved),
    ("dirty-fast-believed", S::DirtyFastBelieved),
    ("no-flush-at-opening", S::NoFlushAtOpening),
    ("no-spoil", S::NoSpoil),
    ("fast-read-under-write", S::FastReadUnderWrite),
    ("flush-of-fast-only", S::FlushOfFastOnly),
    ("durable-error-not-latched", S::DurableErrorNotLatched),
    ("fast-flush-error-ignored", S::FastFlushErrorIgnored),
    ("fast-write-error-ignored", S::FastWriteErrorIgnored),
    ("revived-by-memory", S::RevivedByMemory),
    ("late-write-forgotten", S::LateWriteForgotten),
    ("failure-does-not-spoil", S::FailureDoesNotSpoil),
    ("trim-without-bit", S::TrimWithoutBit),
    ("trim-leaves-valid", S::TrimLeavesValid),
    ("attach-not-flushed", S::AttachNotFlushed),
];

impl BlockVariant {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, sabotage)| Self(*sabotage))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, sabotage)| *sabotage == self.0).map_or("", |(name, _)| name)
    }

    /// The variant with this name.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, sabotage)| Self(*sabotage))
    }

    pub(crate) fn sabotage(self) -> SuperdiskSabotage {
        self.0
    }
}

/// Sets the probabilities of the faults that expose the variant.
pub(crate) fn set_odds(sabotage: SuperdiskSabotage, odds: &mut Odds) {
    // Power cuts expose missing flushes; images of one leg and ends without a cut expose missing
    // stamps.
    match sabotage {
        S::None | S::TrustStale | S::AckOnFast | S::FlushOfFastOnly => {}
        S::ClearWithoutDurableFlush => {
            (odds.durable_cut, odds.fast_cut, odds.compared, odds.requests) = (1000, 0, 1000, (40, 100));
        }
        S::BitNotFlushed => {
            (odds.durable_cut, odds.fast_cut, odds.compared) = (700, 200, 500);
            odds.missing = 250;
        }
        S::ClearWithoutFastFlush => (odds.fast_cut, odds.durable_cut, odds.compared) = (900, 100, 500),
        S::ClearInOneFlush => {
            (odds.durable_cut, odds.fast_cut, odds.older, odds.images) = (900, 0, 600, 1000);
            (odds.missing, odds.blank, odds.restored, odds.smaller) = (0, 0, 0, 0);
            odds.requests = (10, 40);
        }
        S::AttachNotFlushed => {
            (odds.durable_cut, odds.blank, odds.older, odds.images) = (800, 300, 500, 1000);
            (odds.missing, odds.restored, odds.compared) = (0, 0, 300);
        }
        S::NoStampAtClear | S::OlderFastBelieved => (odds.older, odds.images, odds.restored) = (500, 1000, 0),
        S::NewerFastBelieved | S::NoStampAtOpening => {
            (odds.restored, odds.images, odds.older, odds.blank) = (500, 1000, 0, 0);
            (odds.fast_vanishes, odds.fast_cut, odds.durable_cut) = (0, 0, 0);
        }
        S::FastFlushErrorIgnored | S::FastWriteErrorIgnored => (odds.fast_errors, odds.compared) = (800, 400),
        S::RevivedByMemory | S::FailureDoesNotSpoil => (odds.fast_vanishes, odds.images) = (900, 1000),
        S::NoBitsWhileFastAway => (odds.fast_vanishes, odds.missing) = (600, 300),
        S::LateWriteForgotten => odds.fast_sticks = 1000,
        S::DurableErrorNotLatched => (odds.durable_errors, odds.compared) = (1000, 400),
        _ => odds.compared = 400,
    }
}

/// Adjusts the settings so that the variant shows.
pub(crate) fn adjust(sabotage: SuperdiskSabotage, plan: &mut BlockPlan) {
    let options = &mut plan.options;
    match sabotage {
        S::ClearWithoutFastFlush | S::ClearUnderWrite | S::ClearNotWhole | S::NoStampAtClear | S::OlderFastBelieved => {
            options.dirty_bytes_max = 0
        }
        // The power fails before another flush covers the cleared bits.
        S::ClearWithoutDurableFlush | S::ClearInOneFlush => {
            (options.dirty_bytes_max, options.rebuild_settle) = (0, Duration::ZERO);
            plan.mix = [300, 0, 0, 0];
            plan.lives.iter_mut().for_each(|life| life.pause_max = Duration::from_millis(200));
        }
        S::TrimWithoutBit | S::TrimLeavesValid => plan.mix = [200, 0, 50, 200],
        S::LateWriteForgotten => {
            options.fast_write_limit = Duration::from_millis(30);
            options.fast_retry_interval = Duration::from_millis(3);
        }
        S::FailureDoesNotSpoil => {
            options.fast_retry_interval = Duration::from_millis(3);
            options.fast_errors_max = 1;
            options.fast_pending_bytes_max = 16 << 20;
            // The fast leg has completed a write, fails and returns while the durable leg still
            // writes.
            plan.durable.io_us = 20_000;
            plan.fast.io_us = 20;
            for fault in plan.lives.iter_mut().flat_map(|life| &mut life.faults) {
                if let LegFault::FastVanishes { lasts, older } = &mut fault.1 {
                    (*lasts, *older) = (Duration::from_millis(2), true);
                }
            }
        }
        S::NoFlushAtOpening => kill_and_cut(plan),
        S::NoStampAtSet => restore_this_opening(plan),
        S::NoStampAtOpening => kill_between_legs(plan),
        S::AttachNotFlushed => lose_the_name(plan),
        S::OpeningNotCompared => give_up_a_history(plan),
        _ => {}
    }
}

/// A life in which clients write, without faults.
fn calm(plan: &BlockPlan) -> BlockLife {
    let life = plan.lives.iter().find(|life| life.clients > 0).cloned().unwrap_or(BlockLife::looks(LegFate::Kept));
    let quiet = BlockLife::looks(LegFate::Kept);
    BlockLife { clients: life.clients, requests_each: life.requests_each, reads_first: false, ..quiet }
}

/// Repeatedly kills the process after writes that no flush covers. A power cut then loses data that
/// was read at the next opening.
fn kill_and_cut(plan: &mut BlockPlan) {
    plan.mix = [600, 0, 0, 0];
    let missing = BlockLife::looks(LegFate::Missing);
    let round = [calm(plan), BlockLife { durable_cut: true, ..missing.clone() }, missing];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
}

/// Repeatedly restores the durable leg to an image of the opening in which the fast leg was
/// written.
fn restore_this_opening(plan: &mut BlockPlan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let calm = BlockLife { requests_each: 20, pause_max: Duration::from_millis(20), ..calm(plan) };
    let closed = BlockLife { closed: true, ..calm.clone() };
    let image = BlockLife { durable_images: vec![Duration::from_millis(30)], ..calm };
    let restored = BlockLife { restored: true, ..BlockLife::looks(LegFate::Kept) };
    let round = [closed, image, restored, BlockLife::looks(LegFate::Missing)];
    plan.lives = std::iter::repeat_n(round, 6).flatten().collect();
}

/// Repeatedly restores both legs to images of one time, and later the fast leg to an image of the
/// abandoned history.
fn give_up_a_history(plan: &mut BlockPlan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let calm = BlockLife { clients: 1, pause_max: Duration::from_millis(5), ..calm(plan) };
    let soon = vec![Duration::from_micros(1)];
    let closed = BlockLife { requests_each: 30, closed: true, ..calm.clone() };
    let both = BlockLife { fast_images: soon.clone(), durable_images: soon, ..BlockLife::looks(LegFate::Kept) };
    let given_up =
        BlockLife { requests_each: 2, fast_images: vec![Duration::from_millis(50)], reads_last: true, ..calm.clone() };
    let restored = BlockLife { restored: true, fast: LegFate::Older, requests_each: 4, ..calm };
    let round =
        [closed, both, given_up, restored, BlockLife::looks(LegFate::Older), BlockLife::looks(LegFate::Missing)];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
    plan.layout.devices = 1;
}

/// Repeatedly replaces a clean fast leg by a blank one, cuts the durable leg's power before a
/// flush, and restores the clean fast leg from an image.
fn lose_the_name(plan: &mut BlockPlan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let Some(life) = plan.lives.iter().find(|life| life.clients > 0) else { return };
    let images = vec![Duration::from_micros(100), Duration::from_millis(1)];
    let calm = BlockLife { faults: Vec::new(), restored: false, fast_images: Vec::new(), ..life.clone() };
    let calm = BlockLife { durable_images: Vec::new(), steps_max: None, fast_cut: false, durable_cut: false, ..calm };
    let closed = BlockLife { fast: LegFate::Kept, closed: true, pause_max: Duration::from_millis(20), ..calm.clone() };
    let image = BlockLife { fast_images: images, clients: 1, requests_each: 1, ..BlockLife::looks(LegFate::Kept) };
    let blank = BlockLife { fast: LegFate::Blank, closed: false, durable_cut: true, ..calm };
    let round = [closed, image, blank, BlockLife::looks(LegFate::Older), BlockLife::looks(LegFate::Missing)];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
}

/// Repeatedly kills the process when a bit's event is on the durable leg and not on the fast leg.
/// Then the region is written without a further event, and the durable leg is restored to an
/// earlier image.
fn kill_between_legs(plan: &mut BlockPlan) {
    plan.mix = [600, 0, 0, 0];
    plan.blocks = 4;
    plan.hot = 2;
    plan.fast.flush_us = 20_000;
    (plan.options.dirty_bytes_max, plan.options.rebuild_settle) = (1 << 40, Duration::ZERO);
    plan.options.fast_write_limit = Duration::from_secs(2);
    let lives: Vec<BlockLife> = plan.lives.iter().filter(|life| life.clients > 0).cloned().collect();
    let images = vec![Duration::from_micros(1)];
    let rounds = lives.into_iter().flat_map(|life| {
        let calm = BlockLife { faults: Vec::new(), fast_images: Vec::new(), durable_images: Vec::new(), ..life };
        let calm = BlockLife { fast: LegFate::Kept, restored: false, closed: false, reads_first: false, ..calm };
        let calm = BlockLife { pause_max: Duration::from_millis(20), fast_cut: false, durable_cut: false, ..calm };
        let steps = calm.steps_max.unwrap_or(0) % 250 + 80;
        let closed = BlockLife { closed: true, steps_max: None, ..calm.clone() };
        let killed = BlockLife { durable_images: images.clone(), steps_max: Some(steps), ..calm.clone() };
        let written = BlockLife { steps_max: None, ..calm };
        let restored = BlockLife { restored: true, ..BlockLife::looks(LegFate::Kept) };
        [closed, killed, written, restored, BlockLife::looks(LegFate::Missing)]
    });
    plan.lives = rounds.collect();
}
