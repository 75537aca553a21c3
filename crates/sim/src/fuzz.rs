//! A seeded mutation loop for the parsers of external bytes, on a stable toolchain.
//!
//! `fuzz/` runs the same targets under libFuzzer, which uses code coverage and reaches deeper, but
//! needs a nightly compiler. Here, a target returns a signature of its outcome (which error, how
//! many records, ...). An input with a new signature joins the corpus, so the loop still passes one
//! check after another.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A parser under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Valid initial inputs.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Runs one input and returns a signature of the outcome. Must not panic on any input.
    pub run: fn(&[u8]) -> u64,
    /// Maximum length of an input in bytes.
    pub input_bytes_max: usize,
}

/// The outcome of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Inputs run.
    pub runs: u64,
    /// Number of different signatures.
    pub signatures: usize,
    /// Inputs in the corpus at the end.
    pub corpus: usize,
    /// The input on which the target panicked, if any.
    pub panicked: Option<Vec<u8>>,
}

/// Maximum number of inputs in the corpus.
const CORPUS_MAX: usize = 2048;

/// Runs the valid inputs and then mutations of them. Stops at a panic, or when `go_on` returns
/// false for the number of inputs run.
pub fn run(target: &Target, seed: u64, mut go_on: impl FnMut(u64) -> bool) -> Outcome {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut corpus = (target.corpus)();
    let mut signatures = BTreeSet::new();
    let mut outcome = Outcome { runs: 0, signatures: 0, corpus: 0, panicked: None };
    let given = corpus.len();
    while outcome.panicked.is_none() && go_on(outcome.runs) {
        let turn = usize::try_from(outcome.runs).unwrap_or(usize::MAX);
        let input =
            if turn < given { corpus[turn].clone() } else { mutation(&mut random, &corpus, target.input_bytes_max) };
        outcome.runs += 1;
        match catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            Err(_) => outcome.panicked = Some(input),
            Ok(signature) => {
                if signatures.insert(signature) && turn >= given {
                    if corpus.len() < CORPUS_MAX {
                        corpus.push(input);
                    } else {
                        // The initial inputs stay; a newer input replaces a found one.
                        let at = random.random_range(given.min(CORPUS_MAX - 1)..CORPUS_MAX);
                        corpus[at] = input;
                    }
                }
            }
        }
    }
    outcome.signatures = signatures.len();
    outcome.corpus = corpus.len();
    outcome
}

/// Values at which arithmetic on lengths and offsets fails.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xfff,
    0x1000,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

fn mutation(random: &mut ChaCha8Rng, corpus: &[Vec<u8>], bytes_max: usize) -> Vec<u8> {
    let mut input = if corpus.is_empty() { Vec::new() } else { corpus[random.random_range(0..corpus.len())].clone() };
    // Mostly one change, so that later checks are still reached; sometimes many.
    let changes = if random.random_ratio(3, 4) { 1 } else { random.random_range(2..9) };
    for _ in 0..changes {
        change(random, &mut input, corpus);
    }
    input.truncate(bytes_max);
    input
}

fn change(random: &mut ChaCha8Rng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    if input.is_empty() {
        input.push(random.random());
        return;
    }
    let at = position(random, input.len());
    match random.random_range(0..10) {
        0 | 1 => input[at] ^= 1 << random.random_range(0..8),
        2 => input[at] = random.random(),
        3 | 4 => {
            let width = [1, 2, 4, 8][random.random_range(0..4)];
            let edge =
                EDGES[random.random_range(0..EDGES.len())].wrapping_add(random.random_range(0..3)).wrapping_sub(1);
            overwrite(input, at, &edge.to_le_bytes()[..width]);
        }
        5 => {
            // A small step of an existing number.
            let mut bytes = [0; 4];
            let there = &input[at..input.len().min(at + 4)];
            bytes[..there.len()].copy_from_slice(there);
            let step = random.random_range(-16i32..17);
            overwrite(input, at, &u32::from_le_bytes(bytes).wrapping_add_signed(step).to_le_bytes());
        }
        6 => input.truncate(at),
        7 => {
            let end = input.len().min(at + random.random_range(1..65));
            input.drain(at..end);
        }
        8 => {
            let mut bytes = vec![0; random.random_range(1..65)];
            random.fill_bytes(&mut bytes);
            input.splice(at..at, bytes);
        }
        _ => {
            // A piece of another input, at another offset or the same.
            let other = &corpus[random.random_range(0..corpus.len().max(1)).min(corpus.len().saturating_sub(1))..];
            let Some(other) = other.first().filter(|other| !other.is_empty()) else { return };
            let from = position(random, other.len());
            let end = other.len().min(from + random.random_range(1..4097));
            let to = if random.random_bool(0.5) { from.min(input.len()) } else { at };
            overwrite(input, to, &other[from..end]);
        }
    }
}

/// Headers are at the start and at multiples of a block: half of the changes are there.
fn position(random: &mut ChaCha8Rng, len: usize) -> usize {
    let at = random.random_range(0..len);
    let block = at / 4096 * 4096;
    if random.random_bool(0.5) { block + random.random_range(0..160.min(len - block)) } else { at }
}

fn overwrite(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if input.len() < end {
        input.resize(end, 0);
    }
    input[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(data: &[u8]) -> u64 {
        data.iter().take_while(|b| **b == b'x').count() as u64
    }

    const STEPS: Target =
        Target { name: "steps", corpus: || vec![b"xaaaaaaa".to_vec()], run: signature, input_bytes_max: 64 };

    #[test]
    fn a_seed_replays() {
        let first = run(&STEPS, 7, |runs| runs < 2000);
        assert_eq!(first, run(&STEPS, 7, |runs| runs < 2000));
        assert_eq!(first.runs, 2000);
    }

    #[test]
    fn signatures_lead_past_one_check_after_another() {
        const DEEP: Target = Target {
            run: |data| {
                let deep = signature(data);
                assert!(deep < 4, "found");
                deep
            },
            ..STEPS
        };
        let found = run(&DEEP, 1, |runs| runs < 200_000);
        assert!(found.panicked.is_some_and(|input| signature(&input) >= 4));
    }

    #[test]
    fn inputs_keep_their_bound() {
        const LONG: Target = Target { run: |data| data.len() as u64, ..STEPS };
        let outcome = run(&LONG, 3, |runs| runs < 20_000);
        assert!(outcome.panicked.is_none() && outcome.signatures <= 65, "{outcome:?}");
        assert!(outcome.signatures > 32, "{outcome:?}");
    }
}
