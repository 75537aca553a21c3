//! The labels of a fast leg. Each of its devices has separate labels, so that a device that was
//! replaced, or restored alone to an earlier time, is detected.

use std::io;
use std::sync::Arc;
use steadfast_flow::has_fault;

use super::options::SuperdiskSabotage;
use super::pair::{FAST_DISKS_MAX, FAST_MAGIC, FAST_START, Identity, NO_LEG, find};
use crate::label::Found;
use crate::{BLOCK, Disk};

/// The newest label of each device of a fast leg.
pub(crate) struct LegLabels {
    /// At least one.
    labels: Vec<Identity>,
    /// Whether a device has none.
    incomplete: bool,
}

impl LegLabels {
    /// The label of the device with the lowest event.
    pub(crate) fn oldest(&self) -> Identity {
        // `labels` is never empty.
        self.labels.iter().copied().min_by_key(|label| label.event).unwrap_or(self.labels[0])
    }

    /// Why the fast leg's content is refused, if it is. `durable` is the durable leg's label.
    pub(crate) fn refused_by(&self, durable: &Identity, sabotage: SuperdiskSabotage) -> Option<&'static str> {
        if has_fault(sabotage, SuperdiskSabotage::FirstDeviceBelieved) {
            return refused(durable, &self.labels[0], sabotage);
        }
        if self.incomplete {
            return Some("one of its disks has no label of this leg");
        }
        self.labels.iter().find_map(|label| refused(durable, label, sabotage))
    }
}

/// Why a device of the fast leg is refused, if it is.
fn refused(durable: &Identity, device: &Identity, sabotage: SuperdiskSabotage) -> Option<&'static str> {
    // The previous opening's number is valid only below the durable leg's event.
    let same_history = device.opening == durable.opening
        || device.opening == durable.opening_before && device.event < durable.event
        || has_fault(sabotage, SuperdiskSabotage::OpeningNotCompared);
    if durable.fast != device.fast || device.fast == NO_LEG {
        Some("the durable leg names another fast leg")
    } else if device.event > durable.event && !has_fault(sabotage, SuperdiskSabotage::NewerFastBelieved) {
        Some("the durable leg has been restored to an earlier time")
    } else if device.event < durable.cleared_at && !has_fault(sabotage, SuperdiskSabotage::OlderFastBelieved) {
        Some("the fast leg has been restored to an earlier time")
    } else if !same_history {
        Some("the fast leg is of another history: both legs have been restored to an earlier time since")
    } else {
        None
    }
}

/// Finds the labels of a fast leg.
///
/// # Errors
/// Those of reading them; `InvalidInput` for a disk of too many devices.
pub(crate) async fn find_fast(disk: &Arc<dyn Disk>) -> io::Result<Found<LegLabels>> {
    let places = disk.label_places();
    if places.iter().flatten().any(|place| place + BLOCK as u64 > FAST_START) {
        let text = format!("it has too many disks to be a fast leg: the maximum is {FAST_DISKS_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut found = LegLabels { labels: Vec::new(), incomplete: false };
    let mut other = Found::Blank;
    for device in places {
        match find(disk, FAST_MAGIC, device).await? {
            Found::Label(label) => found.labels.push(label),
            nothing => (found.incomplete, other) = (true, nothing),
        }
    }
    Ok(if found.labels.is_empty() { other.map(|_| found) } else { Found::Label(found) })
}
