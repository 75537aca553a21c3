//! The pool at an earlier moment, and what was known of it then: what a restore from a copy of the disks brings back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::channels::Aired;
use crate::events::Heard;
use crate::keeper::Kept;
use crate::model::{Key, Model};
use crate::platter::Image;
use crate::shared::Shared;
use crate::upload::Upload;

/// See the module. Taken while the power is off.
pub(crate) struct Moment {
    images: Vec<Image>,
    model: Model,
    uploads: Vec<Upload>,
    made: BTreeSet<Arc<str>>,
    homes: BTreeMap<Key, usize>,
    snapshots: Vec<Kept>,
    channels: Aired,
    heard: Heard,
    /// The store had been closed.
    pub(crate) clean: bool,
}

impl Moment {
    pub(crate) fn new(shared: &Shared, clean: bool) -> Self {
        Self {
            images: shared.devices.iter().map(|device| device.lock().image()).collect(),
            model: shared.model.lock().clone(),
            uploads: shared.uploads.lock().clone(),
            made: shared.made.lock().clone(),
            homes: shared.homes.lock().clone(),
            snapshots: shared.snapshots.lock().clone(),
            channels: shared.channels.lock().clone(),
            heard: shared.heard.lock().clone(),
            clean,
        }
    }

    /// Everything is as it was then; what was written since was never written.
    pub(crate) fn restore(&self, shared: &Shared) {
        for (device, image) in shared.devices.iter().zip(&self.images) {
            device.lock().restore(image);
        }
        shared.model.lock().back_to(&self.model);
        shared.channels.lock().back_to(&self.channels);
        shared.uploads.lock().clone_from(&self.uploads);
        shared.made.lock().clone_from(&self.made);
        shared.homes.lock().clone_from(&self.homes);
        shared.snapshots.lock().clone_from(&self.snapshots);
        *shared.heard.lock() = self.heard.clone();
    }
}
