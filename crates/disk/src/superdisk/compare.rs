//! Compares the legs of a pair that is not in use, without changing either.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use steadfast_flow::Env;

use super::Superdisk;
use super::leg_labels::find_fast;
use super::options::SuperdiskSabotage;
use super::pair::{FAST_START, Identity, find_durable, read_intent, touches_reserved};
use crate::label::Found;
use crate::{BLOCK, Disk};

/// Maximum number of listed differences; further ones are only counted.
pub const DIFFERENCES_MAX: usize = 1000;

/// Bytes per read.
const STEP: u64 = 1 << 20;

/// The result of [`Superdisk::compare`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Why no region of the fast leg counts, if none does: it is blank, of another pair, or of
    /// another time.
    pub nothing: Option<String>,
    /// Bytes of clean regions, which were compared.
    pub compared_bytes: u64,
    /// Blocks that differ or cannot be read on one leg.
    pub differing_blocks: u64,
    /// Their offsets in the pool; at most [`DIFFERENCES_MAX`].
    pub differing: Vec<u64>,
}

impl Superdisk {
    /// Compares the clean regions of the fast leg with the durable leg: both hold the same there,
    /// also after a crash.
    ///
    /// # Errors
    /// Those of reading the labels.
    pub async fn compare(
        durable: &Arc<dyn Disk>,
        fast: &Arc<dyn Disk>,
        mut progress: impl FnMut(u64, u64),
    ) -> io::Result<Comparison> {
        let nothing = |why: &str| Ok(Comparison { nothing: Some(why.to_owned()), ..Comparison::default() });
        let Found::Label(pair) = find_durable(durable).await? else { return nothing("the pool is not a durable leg") };
        let Found::Label(labels) = find_fast(fast).await? else { return nothing("it is not a fast leg") };
        if labels.oldest().pair != pair.pair {
            return nothing("it is the fast leg of another pool");
        }
        if let Some(why) = labels.refused_by(&pair, SuperdiskSabotage::None) {
            return nothing(why);
        }
        let (intent, region) = (read_intent(&pair, durable).await, pair.region_bytes);
        let mut found = Comparison::default();
        let end = durable.len().min(fast.len().saturating_sub(FAST_START));
        let clean = (0..end / region).filter(|i| intent.is_clean(*i as usize));
        for (start, stop) in clean.map(|i| (i * region, (i + 1) * region)) {
            let mut at = start;
            while at < stop {
                let len = (stop - at).min(STEP);
                compare_range(durable, fast, at, len, &mut found).await;
                at += len;
                progress(at, end);
            }
        }
        Ok(found)
    }
}

/// Number of regions of which an opening compares a sample.
const SAMPLES: usize = 64;
/// Bytes per sample.
const SAMPLE: u64 = 64 << 10;
/// Maximum number of sample blocks that the fast leg may fail to read. Above it, no region of the
/// leg counts.
const BAD_BLOCKS_MAX: usize = 256;

/// Compares samples of the clean regions: the first and the last MiB of the data, the blocks that
/// were written last, and a piece of some regions each. Returns the offset of the first difference,
/// if any: the durable leg was then written without its fast leg.
pub(super) async fn samples_differ(
    durable: &Arc<dyn Disk>,
    fast: &Arc<dyn Disk>,
    pair: &Identity,
    data: (u64, u64),
    env: &Env,
) -> io::Result<Option<u64>> {
    let (intent, region) = (read_intent(pair, durable).await, pair.region_bytes);
    let end = durable.len().min(fast.len().saturating_sub(FAST_START)).min(data.1);
    let mut places = vec![(data.0, STEP), (end.saturating_sub(STEP).max(data.0), STEP)];
    places.extend(
        pair.last_written.iter().filter(|block| **block > 0).map(|block| ((block - 1) * BLOCK as u64, BLOCK as u64)),
    );
    let clean: Vec<u64> = (data.0.div_ceil(region)..end / region).filter(|i| intent.is_clean(*i as usize)).collect();
    for _ in 0..SAMPLES.min(clean.len()) {
        let start = clean[env.random_u64() as usize % clean.len()] * region;
        let piece = SAMPLE.min(region);
        places.push((start + env.random_u64() % (region / piece) * piece, piece));
    }
    let mut bad_blocks = 0;
    for (from, len) in places {
        let to = (from + len).min(end);
        // Region by region, because a dirty one may differ.
        let mut at = from;
        while at < to {
            let stop = to.min((at / region + 1) * region);
            if intent.is_clean((at / region) as usize)
                && piece_differs(durable, fast, at, (stop - at) as usize, &mut bad_blocks).await?
            {
                return Ok(Some(at));
            }
            at = stop;
        }
    }
    Ok(None)
}

/// Compares a piece of both legs. Blocks that the fast leg cannot read are skipped and counted in
/// `bad_blocks`. They do not show a difference, and later reads heal them.
async fn piece_differs(
    durable: &Arc<dyn Disk>,
    fast: &Arc<dyn Disk>,
    at: u64,
    len: usize,
    bad_blocks: &mut usize,
) -> io::Result<bool> {
    let right = durable.read(at, len).await?;
    if let Ok(bytes) = fast.read(FAST_START + at, len).await {
        return Ok(bytes != right);
    }
    for (place, right) in (at..).step_by(BLOCK).zip(right.chunks(BLOCK)) {
        match fast.read(FAST_START + place, right.len()).await {
            Ok(bytes) if bytes != right => return Ok(true),
            Ok(_) => {}
            Err(error) => {
                *bad_blocks += 1;
                if *bad_blocks > BAD_BLOCKS_MAX {
                    return Err(error);
                }
            }
        }
    }
    Ok(false)
}

async fn compare_range(durable: &Arc<dyn Disk>, fast: &Arc<dyn Disk>, at: u64, len: u64, found: &mut Comparison) {
    let both = (durable.read(at, len as usize).await, fast.read(FAST_START + at, len as usize).await);
    let differ = |at: u64, found: &mut Comparison| {
        found.differing_blocks += 1;
        if found.differing.len() < DIFFERENCES_MAX {
            found.differing.push(at);
        }
    };
    found.compared_bytes += len;
    match both {
        (Ok(a), Ok(b)) => {
            for (n, (a, b)) in a.chunks(BLOCK).zip(b.chunks(BLOCK)).enumerate() {
                let place = at + (n * BLOCK) as u64;
                // The pair's own labels are not on the fast leg.
                if a != b && !touches_reserved(place, BLOCK) {
                    differ(place, found);
                }
            }
        }
        // Reads block by block to find the unreadable ones.
        both => {
            drop(both);
            for place in (at..at + len).step_by(BLOCK) {
                let same = match (durable.read(place, BLOCK).await, fast.read(FAST_START + place, BLOCK).await) {
                    (Ok(a), Ok(b)) => a == b || touches_reserved(place, BLOCK),
                    _ => false,
                };
                if !same {
                    differ(place, found);
                }
            }
        }
    }
}
