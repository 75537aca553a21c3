//! Broken super-disks, to test the tester: each must be caught.

use std::time::Duration;

use steadfast_disk::SuperdiskSabotage;

use super::plan::{Fate, Life, Likely, Plan, Trouble};

/// A way to be broken.
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

/// Which faults are likely where the variant is to be caught.
pub(crate) fn likely(sabotage: SuperdiskSabotage, likely: &mut Likely) {
    // What was never flushed and cuts belong together; so do images of one leg and ends without a cut.
    match sabotage {
        S::None | S::TrustStale | S::AckOnFast | S::FlushOfFastOnly => {}
        S::ClearWithoutDurableFlush => {
            (likely.durable_cut, likely.fast_cut, likely.compared, likely.requests) = (1000, 0, 1000, (40, 100));
        }
        S::BitNotFlushed => {
            (likely.durable_cut, likely.fast_cut, likely.compared) = (700, 200, 500);
            likely.missing = 250;
        }
        S::ClearWithoutFastFlush => (likely.fast_cut, likely.durable_cut, likely.compared) = (900, 100, 500),
        S::ClearInOneFlush => {
            (likely.durable_cut, likely.fast_cut, likely.older, likely.images) = (900, 0, 600, 1000);
            (likely.missing, likely.blank, likely.restored, likely.smaller) = (0, 0, 0, 0);
            likely.requests = (10, 40);
        }
        S::AttachNotFlushed => {
            (likely.durable_cut, likely.blank, likely.older, likely.images) = (800, 300, 500, 1000);
            (likely.missing, likely.restored, likely.compared) = (0, 0, 300);
        }
        S::NoStampAtClear | S::OlderFastBelieved => (likely.older, likely.images, likely.restored) = (500, 1000, 0),
        S::NewerFastBelieved | S::NoStampAtOpening => {
            (likely.restored, likely.images, likely.older, likely.blank) = (500, 1000, 0, 0);
            (likely.fast_vanishes, likely.fast_cut, likely.durable_cut) = (0, 0, 0);
        }
        S::FastFlushErrorIgnored | S::FastWriteErrorIgnored => (likely.fast_errors, likely.compared) = (800, 400),
        S::RevivedByMemory | S::FailureDoesNotSpoil => (likely.fast_vanishes, likely.images) = (900, 1000),
        S::NoBitsWhileFastAway => (likely.fast_vanishes, likely.missing) = (600, 300),
        S::LateWriteForgotten => likely.fast_sticks = 1000,
        S::DurableErrorNotLatched => (likely.durable_errors, likely.compared) = (1000, 400),
        _ => likely.compared = 400,
    }
}

/// Settings in which it shows.
pub(crate) fn adjust(sabotage: SuperdiskSabotage, plan: &mut Plan) {
    let options = &mut plan.options;
    match sabotage {
        S::ClearWithoutFastFlush | S::ClearUnderWrite | S::ClearNotWhole | S::NoStampAtClear | S::OlderFastBelieved => {
            options.dirty_bytes_max = 0
        }
        // The power goes before another flush covers what was cleared.
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
            // The fast leg has written, fails and is back while the durable leg still writes.
            plan.durable.io_us = 20_000;
            plan.fast.io_us = 20;
            for trouble in plan.lives.iter_mut().flat_map(|life| &mut life.troubles) {
                if let Trouble::FastVanishes { lasts, older } = &mut trouble.1 {
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

/// A life in which clients write, and nothing else happens.
fn calm(plan: &Plan) -> Life {
    let life = plan.lives.iter().find(|life| life.clients > 0).cloned().unwrap_or(Life::looks(Fate::Kept));
    let quiet = Life::looks(Fate::Kept);
    Life { clients: life.clients, requests_each: life.requests_each, reads_first: false, ..quiet }
}

/// Again and again the process is killed after writes that no flush covers, and what was read at the next opening is lost in a power cut.
fn kill_and_cut(plan: &mut Plan) {
    plan.mix = [600, 0, 0, 0];
    let missing = Life::looks(Fate::Missing);
    let round = [calm(plan), Life { durable_cut: true, ..missing.clone() }, missing];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
}

/// Again and again the durable leg is put back to an image of the opening in which the fast leg was written.
fn restore_this_opening(plan: &mut Plan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let calm = Life { requests_each: 20, pause_max: Duration::from_millis(20), ..calm(plan) };
    let closed = Life { closed: true, ..calm.clone() };
    let image = Life { durable_images: vec![Duration::from_millis(30)], ..calm };
    let restored = Life { restored: true, ..Life::looks(Fate::Kept) };
    let round = [closed, image, restored, Life::looks(Fate::Missing)];
    plan.lives = std::iter::repeat_n(round, 6).flatten().collect();
}

/// Again and again both legs are put back to images of one time, and later the fast leg to one of the history that was given up.
fn give_up_a_history(plan: &mut Plan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let calm = Life { clients: 1, pause_max: Duration::from_millis(5), ..calm(plan) };
    let soon = vec![Duration::from_micros(1)];
    let closed = Life { requests_each: 30, closed: true, ..calm.clone() };
    let both = Life { fast_images: soon.clone(), durable_images: soon, ..Life::looks(Fate::Kept) };
    let given_up =
        Life { requests_each: 2, fast_images: vec![Duration::from_millis(50)], reads_last: true, ..calm.clone() };
    let restored = Life { restored: true, fast: Fate::Older, requests_each: 4, ..calm };
    let round = [closed, both, given_up, restored, Life::looks(Fate::Older), Life::looks(Fate::Missing)];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
    plan.layout.devices = 1;
}

/// Again and again a blank fast leg takes the place of a clean one, the durable leg loses its power before a flush, and the clean one
/// is put back as an image.
fn lose_the_name(plan: &mut Plan) {
    plan.mix = [600, 0, 0, 0];
    plan.options.dirty_bytes_max = 1 << 40;
    let Some(life) = plan.lives.iter().find(|life| life.clients > 0) else { return };
    let images = vec![Duration::from_micros(100), Duration::from_millis(1)];
    let calm = Life { troubles: Vec::new(), restored: false, fast_images: Vec::new(), ..life.clone() };
    let calm = Life { durable_images: Vec::new(), steps_max: None, fast_cut: false, durable_cut: false, ..calm };
    let closed = Life { fast: Fate::Kept, closed: true, pause_max: Duration::from_millis(20), ..calm.clone() };
    let image = Life { fast_images: images, clients: 1, requests_each: 1, ..Life::looks(Fate::Kept) };
    let blank = Life { fast: Fate::Blank, closed: false, durable_cut: true, ..calm };
    let round = [closed, image, blank, Life::looks(Fate::Older), Life::looks(Fate::Missing)];
    plan.lives = std::iter::repeat_n(round, 4).flatten().collect();
}

/// Again and again the process is killed when a bit's event is on the durable leg and not on the fast one; then the region is written
/// without a further event, and the durable leg is put back to an image from before.
fn kill_between_legs(plan: &mut Plan) {
    plan.mix = [600, 0, 0, 0];
    plan.blocks = 4;
    plan.hot = 2;
    plan.fast.flush_us = 20_000;
    (plan.options.dirty_bytes_max, plan.options.rebuild_settle) = (1 << 40, Duration::ZERO);
    plan.options.fast_write_limit = Duration::from_secs(2);
    let lives: Vec<Life> = plan.lives.iter().filter(|life| life.clients > 0).cloned().collect();
    let images = vec![Duration::from_micros(1)];
    let rounds = lives.into_iter().flat_map(|life| {
        let calm = Life { troubles: Vec::new(), fast_images: Vec::new(), durable_images: Vec::new(), ..life };
        let calm = Life { fast: Fate::Kept, restored: false, closed: false, reads_first: false, ..calm };
        let calm = Life { pause_max: Duration::from_millis(20), fast_cut: false, durable_cut: false, ..calm };
        let steps = calm.steps_max.unwrap_or(0) % 250 + 80;
        let closed = Life { closed: true, steps_max: None, ..calm.clone() };
        let killed = Life { durable_images: images.clone(), steps_max: Some(steps), ..calm.clone() };
        let written = Life { steps_max: None, ..calm };
        let restored = Life { restored: true, ..Life::looks(Fate::Kept) };
        [closed, killed, written, restored, Life::looks(Fate::Missing)]
    });
    plan.lives = rounds.collect();
}
