//! Comparing the legs of a pair that nobody uses, without changing either.

use std::io;
use std::sync::Arc;

use serde::Serialize;

use super::Superdisk;
use super::attach::believed;
use super::map::saved_spans;
use super::pair::{DURABLE_LABELS, FAST_START, find_durable, find_fast};
use crate::label::Found;
use crate::{BLOCK, Disk};

/// Places that differ are listed up to this number; further ones are counted.
pub const DIFFERENCES_MAX: usize = 1000;

/// How much is read at a time.
const STEP: u64 = 1 << 20;

/// What [`Superdisk::compare`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Why nothing on the fast leg counts, if nothing does: it is blank, of another pair, of an earlier time, or without a map.
    pub nothing: Option<String>,
    /// Bytes that the fast leg's map calls valid, and that were compared.
    pub compared_bytes: u64,
    /// Blocks that differ or cannot be read on one leg.
    pub differing_blocks: u64,
    /// Where they are, as offsets of the pool; at most [`DIFFERENCES_MAX`].
    pub differing: Vec<u64>,
}

impl Superdisk {
    /// Compares all that the fast leg's saved map calls valid with the durable leg. After a clean end all of it is the same; after
    /// a crash, what was written last may differ, which is found by its checksum when it is read.
    ///
    /// # Errors
    /// Those of reading the labels.
    pub async fn compare(
        durable: &Arc<dyn Disk>,
        fast: &Arc<dyn Disk>,
        mut progress: impl FnMut(u64, u64),
    ) -> io::Result<Comparison> {
        let nothing = |why: &str| Ok(Comparison { nothing: Some(why.to_owned()), ..Comparison::default() });
        let Found::Label(pair) = find_durable(durable).await? else { return nothing("the pool is no durable leg") };
        let Found::Label(label) = find_fast(fast).await? else { return nothing("it is no fast leg") };
        if label.pair != pair.pair {
            return nothing("it is the fast leg of another pool");
        }
        let map = match believed(fast, &pair, &label).await {
            (false, _) => return nothing("it is of another time"),
            (true, None) => return nothing("its map is not there"),
            (true, Some(map)) => map,
        };
        let mut found = Comparison::default();
        let end = durable.len().min(fast.len().saturating_sub(FAST_START));
        for (start, stop) in saved_spans(&map.entries, map.region_bytes) {
            let (mut at, stop) = (start, stop.min(end));
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
                if a != b && !DURABLE_LABELS.contains(&place) {
                    differ(place, found);
                }
            }
        }
        // Block by block, to tell which ones cannot be read.
        _ => {
            for place in (at..at + len).step_by(BLOCK) {
                let same = match (durable.read(place, BLOCK).await, fast.read(FAST_START + place, BLOCK).await) {
                    (Ok(a), Ok(b)) => a == b || DURABLE_LABELS.contains(&place),
                    _ => false,
                };
                if !same {
                    differ(place, found);
                }
            }
        }
    }
}
