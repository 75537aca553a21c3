//! Reads the labels of a pair without opening it, and removes the fast leg from the durable leg's
//! label.

use std::io;
use std::sync::Arc;

use serde::Serialize;

use super::leg_labels::find_fast;
use super::pair::{Identity, NO_LEG, find_durable, read_intent};
use super::{Superdisk, SuperdiskSabotage};
use crate::Disk;
use crate::label::{Found, uuid_text};

/// The content of a pair's labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Labels {
    /// UUID of the pair.
    pub pair: String,
    /// UUID of the fast leg that the durable leg names; `None` when it names none.
    pub fast: Option<String>,
    /// Number of openings of the pair with a fast leg.
    pub generation: u64,
    /// Event of the durable leg.
    pub event: u64,
    /// Event of the last clearing of bits.
    pub cleared_at: u64,
    /// Bytes per region.
    pub region_bytes: u64,
    /// Bytes of regions whose intent bit is set: they are copied after an opening.
    pub dirty_bytes: u64,
    /// Event of the given fast leg, if it has a label; of several devices the lowest.
    pub fast_event: Option<u64>,
    /// Why an opening would refuse the given fast leg's content, if it would.
    pub refused: Option<String>,
}

impl Superdisk {
    /// Reads the labels of a pair. `None` when the disk is not a durable leg.
    ///
    /// # Errors
    /// Those of reading the durable leg.
    pub async fn labels(durable: &Arc<dyn Disk>, fast: Option<&Arc<dyn Disk>>) -> io::Result<Option<Labels>> {
        let Found::Label(pair) = find_durable(durable).await? else { return Ok(None) };
        let label = match fast {
            Some(fast) => Some(find_fast(fast).await),
            None => None,
        };
        let (fast_event, refused) = match label {
            None => (None, None),
            Some(Ok(Found::Label(labels))) if labels.oldest().pair == pair.pair => {
                let refused = labels.refused_by(&pair, SuperdiskSabotage::None);
                (Some(labels.oldest().event), refused.map(str::to_owned))
            }
            Some(Ok(Found::Label(_))) => (None, Some("it is the fast leg of another pair".to_owned())),
            Some(Ok(Found::Blank)) => (None, Some("it is blank".to_owned())),
            Some(Ok(_)) => (None, Some("it has no label of a fast leg".to_owned())),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let dirty_bytes = match pair.region_bytes {
            0 => 0,
            bytes => read_intent(&pair, durable).await.dirty(durable.len().div_ceil(bytes)) * bytes,
        };
        Ok(Some(Labels {
            pair: uuid_text(&pair.pair),
            fast: (pair.fast != NO_LEG).then(|| uuid_text(&pair.fast)),
            generation: pair.generation,
            event: pair.event,
            cleared_at: pair.cleared_at,
            region_bytes: pair.region_bytes,
            dirty_bytes,
            fast_event,
            refused,
        }))
    }

    /// Removes the fast leg from the durable leg's label, durably. The next opening then fills any
    /// fast leg from scratch. Use it for a durable leg that was written elsewhere. The pair must
    /// not be open. Returns whether the disk is a durable leg.
    ///
    /// # Errors
    /// Those of the durable leg.
    pub async fn forget_fast(durable: &Arc<dyn Disk>) -> io::Result<bool> {
        let Found::Label(pair) = find_durable(durable).await? else { return Ok(false) };
        let alone = Identity { fast: NO_LEG, ..pair.raised() };
        alone.write_durable_flushed(durable).await?.write_durable_flushed(durable).await?;
        Ok(true)
    }
}
